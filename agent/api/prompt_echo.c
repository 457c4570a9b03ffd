/* The built-in handler: the prompt is its own answer, one event a line, without a process. It works in an image that
 * has nothing but the agent, and shows that the way to a client and back is whole. */
#include "sandkeeper/api/prompt_run.h"

#include <stdio.h>
#include <string.h>

static void start(struct prompt *prompt) {
  prompt_answer(prompt);
}

/* The next line of a text, from echo_at; a long one in pieces that end at a character. */
static void echo_line(struct prompt *prompt, const char *text, size_t len) {
  const char *at = text + prompt->echo_at;
  size_t left = len - prompt->echo_at, n = left < PROMPT_TEXT_MAX ? left : PROMPT_TEXT_MAX;
  const char *newline = memchr(at, '\n', n);
  if (newline)
    n = (size_t)(newline - at) + 1;
  else if (n < left)
    n -= utf8_incomplete_tail((const uint8_t *)at, n);
  prompt_events_text(&prompt->events, at, n, &prompt->pending);
  prompt->echo_at += n;
}

static void echo_file(struct prompt *prompt, size_t index) {
  for (size_t i = 0; i < prompt->request.n_files; i++) {
    const struct prompt_file *file = &prompt->request.files[i];
    char text[256];
    if (file->index != index)
      continue;
    int n = snprintf(text, sizeof text, "[%.100s, %zu bytes, looks like %.100s]\n", file->media_type, file->size,
                     file->found);
    prompt_events_text(&prompt->events, text, (size_t)n, &prompt->pending);
  }
}

/* The text of block number echo_block; NULL: it is a file. */
static json_object *text_of(const struct prompt *prompt, json_object *block) {
  if (json_object_is_type(prompt->request.prompt, json_type_string))
    return block;
  const char *type = json_object_get_string(json_object_object_get(block, "type"));
  return strcmp(type, "text") == 0 ? json_object_object_get(block, "text") : NULL;
}

static int fill(struct prompt *prompt) {
  json_object *whole = prompt->request.prompt;
  bool is_string = json_object_is_type(whole, json_type_string);
  size_t n_blocks = is_string ? 1 : json_object_array_length(whole);
  while (prompt->pending.len < PROMPT_FILL) {
    if (prompt->echo_block == n_blocks) {
      prompt_events_done(&prompt->events, &prompt->pending);
      return STREAM_END;
    }
    json_object *block = is_string ? whole : json_object_array_get_idx(whole, prompt->echo_block);
    json_object *text = text_of(prompt, block);
    size_t len = text ? (size_t)json_object_get_string_len(text) : 0;
    if (prompt->echo_at < len)
      echo_line(prompt, json_object_get_string(text), len);
    else if (!text)
      echo_file(prompt, prompt->echo_block);
    if (prompt->echo_at >= len) {
      prompt->echo_block++;
      prompt->echo_at = 0;
    }
    if (prompt->pending.failed)
      return STREAM_END;
  }
  return STREAM_MORE;
}

static bool leave(struct prompt *prompt) {
  (void)prompt;
  return true;
}

static void release(struct prompt *prompt) {
  (void)prompt;
}

const struct prompt_source prompt_echo = {.start = start, .fill = fill, .leave = leave, .free = release};
