/* A handler program for each prompt: the request on its stdin, events on its stdout, notes on its stderr. */
#include "sandkeeper/api/prompt_run.h"
#include "sandkeeper/api/rpc_parse.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/killer.h"
#include "sandkeeper/core/signals.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Taken from the log at once: a piece of blank lines becomes thirty times as many bytes of events. */
#define PIECE_MAX (16u * 1024u)

/* Lines of stderr that are offered to the log in one turn: it would leave the rest out anyway, but slowly. */
#define LOG_LINES_PER_TURN 64

/* Nothing can come any more from a handler that has closed its stdout, but its exit code. */
#define CLOSED_PATIENCE (2 * CLOCK_SECOND)

static struct loop *loop_of(const struct prompt *prompt) {
  return prompt->api->sandbox->loop;
}

/* ---- stderr ---- */

static void log_line(struct prompt *prompt) {
  size_t len = prompt->stderr_line_len;
  prompt->stderr_line_len = 0;
  if (len == 0 || prompt->log_lines == LOG_LINES_PER_TURN)
    return;
  prompt->log_lines++;
  char line[PROMPT_STDERR_LINE + 1];
  memcpy(line, prompt->stderr_line, len);
  line[len] = '\0';
  LOG(LOG_INFO, "prompt", "handler says", LOG_S("text", line));
}

/* A long line is cut: it becomes several lines of the log. */
static void note_for_log(struct prompt *prompt, const char *bytes, size_t len) {
  for (size_t i = 0; i < len; i++) {
    if (bytes[i] != '\n')
      prompt->stderr_line[prompt->stderr_line_len++] = bytes[i] ? bytes[i] : ' ';
    if (bytes[i] == '\n' || prompt->stderr_line_len == PROMPT_STDERR_LINE)
      log_line(prompt);
  }
}

static void note_tail(struct prompt *prompt, const char *bytes, size_t len) {
  if (len >= PROMPT_STDERR_TAIL) {
    bytes += len - PROMPT_STDERR_TAIL;
    len = PROMPT_STDERR_TAIL;
  }
  size_t kept = prompt->tail_len < PROMPT_STDERR_TAIL - len ? prompt->tail_len : PROMPT_STDERR_TAIL - len;
  memmove(prompt->tail, prompt->tail + prompt->tail_len - kept, kept);
  memcpy(prompt->tail + kept, bytes, len);
  prompt->tail_len = kept + len;
}

/* ---- the end ---- */

/* What an error event says; empty: all is well. */
static void describe_end(const struct prompt *prompt, char *message, size_t size) {
  const struct command *command = prompt->command;
  message[0] = '\0';
  if (prompt->closed_stdout && !prompt->events.done)
    snprintf(message, size, "handler closed its stdout and did not exit within %d s",
             (int)(CLOSED_PATIENCE / CLOCK_SECOND));
  else if (prompt->closed_stdout)
    return;
  else if (command->reason == REASON_TIMED_OUT)
    snprintf(message, size, "handler was ended after %g s, its timeout", (double)command->timeout / CLOCK_SECOND);
  else if (command->signal)
    snprintf(message, size, "handler was ended by %s", signals_name(command->signal));
  else if (command->exit_code != 0)
    snprintf(message, size, "handler exited with code %d", command->exit_code);
}

static void write_error(struct prompt *prompt, const char *what) {
  char message[256 + PROMPT_STDERR_TAIL];
  size_t tail_len = prompt->tail_len;
  while (tail_len > 0 && (prompt->tail[tail_len - 1] == '\n' || prompt->tail[tail_len - 1] == '\r'))
    tail_len--;
  size_t skip = utf8_leading_rest((const uint8_t *)prompt->tail, tail_len);
  int n = snprintf(message, sizeof message, "%s%s", what, tail_len > skip ? ": " : "");
  memcpy(message + n, prompt->tail + skip, tail_len - skip);
  prompt_events_error(message, (size_t)n + tail_len - skip, &prompt->pending);
}

static int write_end(struct prompt *prompt) {
  char what[256];
  log_line(prompt);
  prompt_events_finish(&prompt->events, &prompt->pending);
  describe_end(prompt, what, sizeof what);
  if (what[0]) {
    prompt->end = PROMPT_FAILED;
    write_error(prompt, what);
    LOG(LOG_WARN, "prompt", "handler failed", LOG_S("reason", what));
  }
  if (what[0] || !prompt->events.done)
    prompt_events_done(&prompt->events, &prompt->pending);
  return STREAM_END;
}

static void on_closed_too_long(struct loop_timer *timer) {
  struct prompt *prompt = timer->arg;
  prompt->closed_stdout = true;
  command_end(prompt->command, REASON_SIGNALED, KILLER_GRACE);
}

static void look_at_stdout(struct prompt *prompt) {
  const struct command *command = prompt->command;
  if (command->state == COMMAND_RUNNING && command->pipes[STREAM_STDOUT].fd < 0 &&
      !loop_timer_is_started(&prompt->closed_timer))
    loop_timer_start(loop_of(prompt), &prompt->closed_timer, loop_now(loop_of(prompt)) + CLOSED_PATIENCE,
                     on_closed_too_long, prompt);
}

/* ---- events ---- */

static void take_piece(struct prompt *prompt, const struct reader_piece *piece) {
  const char *bytes = (const char *)piece->bytes;
  if (piece->stream == STREAM_STDOUT) {
    prompt_events_feed(&prompt->events, bytes, piece->len, &prompt->pending);
  } else {
    note_for_log(prompt, bytes, piece->len);
    note_tail(prompt, bytes, piece->len);
  }
  reader_take(&prompt->reader, piece, piece->len);
}

/* Its reader is patient, so this is for a log that had to be given up for lack of memory. */
static void tell_gap(struct prompt *prompt, const struct reader_piece *gap) {
  char message[128];
  int n =
      snprintf(message, sizeof message, "%llu bytes of the handler's output were lost", (unsigned long long)gap->lost);
  if (gap->stream == STREAM_STDOUT)
    prompt_events_error(message, (size_t)n, &prompt->pending);
  reader_take(&prompt->reader, gap, 0);
}

static int fill(struct prompt *prompt) {
  struct reader_piece piece;
  prompt->log_lines = 0;
  while (prompt->pending.len < PROMPT_FILL && !prompt->pending.failed) {
    switch (reader_next(&prompt->reader, PIECE_MAX, &piece)) {
    case READER_DATA:
      take_piece(prompt, &piece);
      break;
    case READER_GAP:
      tell_gap(prompt, &piece);
      break;
    case READER_NOTHING:
      look_at_stdout(prompt);
      return STREAM_WAIT;
    case READER_END:
      return write_end(prompt);
    }
  }
  return STREAM_MORE;
}

static void on_output(struct reader *reader) {
  prompt_wake(reader->arg);
}

/* ---- the program ---- */

static void refuse_start(struct prompt *prompt, const struct error *error) {
  char message[ERROR_MESSAGE_MAX + 64];
  snprintf(message, sizeof message, "the prompt's handler could not be started: %s", error->message);
  LOG(LOG_ERROR, "prompt", "handler not started", LOG_S("error", error->message));
  prompt_refuse(prompt, error->kind == ERROR_STOPPED || error->kind == ERROR_BUSY ? 503 : 500, message);
}

static void on_changed(struct command_observer *observer, struct command *command) {
  struct prompt *prompt = observer->arg;
  if (command->state == COMMAND_RUNNING) {
    prompt_answer(prompt);
  } else if (command->state == COMMAND_FAILED && prompt->x) {
    struct error error = ERROR_INIT;
    error_set_errno(&error, ENOMEM, "starting it");
    refuse_start(prompt, command->error ? command->error : &error);
  }
  if (command_is_over(command) && !prompt->x)
    prompt_over(prompt);
}

/* An array of words needs no shell: for images without one. */
static int set_words(struct spawn *spawn, json_object *words) {
  size_t n = json_object_array_length(words);
  spawn->argv = calloc(n + 1, sizeof(char *));
  for (size_t i = 0; spawn->argv && i < n; i++)
    if (!(spawn->argv[i] = strdup(json_object_get_string(json_object_array_get_idx(words, i)))))
      return -1;
  return spawn->argv ? 0 : -1;
}

static bool are_words(json_object *words) {
  if (!json_object_is_type(words, json_type_array) || json_object_array_length(words) == 0)
    return false;
  for (size_t i = 0; i < json_object_array_length(words); i++)
    if (!json_object_is_type(json_object_array_get_idx(words, i), json_type_string))
      return false;
  return true;
}

/* NULL: it is a command line, as "[ \"$MODEL\" ] && exec ask" is, which only begins like an array. */
static json_object *parse_words(const char *handler) {
  json_object *words = NULL;
  struct error err = ERROR_INIT;
  return *handler == '[' && rpc_parse(handler, strlen(handler), &words, &err) == 0 ? words : NULL;
}

static int set_program(struct spawn *spawn, const char *handler) {
  json_object *words = parse_words(handler);
  int status;
  if (words && are_words(words))
    status = set_words(spawn, words);
  else
    status = (spawn->command = strdup(handler)) ? 0 : -1;
  json_object_put(words);
  return status;
}

static int64_t shorter(int64_t a, int64_t b) {
  return b == 0 || (a != 0 && a < b) ? a : b;
}

static int make_spec(struct prompt *prompt, struct command_spec *spec) {
  const struct prompt_options *options = &prompt->api->prompts.options;
  struct commands *commands = &prompt->api->sandbox->commands;
  command_spec_init(spec);
  spec->hidden = true;
  spec->timeout = shorter(prompt->request.timeout, options->timeout);
  spec->spawn.stdin_pipe = true;
  spec->input = prompt_request_line(&prompt->request, &spec->input_len);
  if (!spec->input || set_program(&spec->spawn, options->handler) < 0 || env_copy(&spec->spawn.env, &commands->env) < 0)
    return -1;
  if (commands->options.user) { /* these are filled in for whom it runs as */
    env_unset(&spec->spawn.env, "HOME");
    env_unset(&spec->spawn.env, "USER");
    env_unset(&spec->spawn.env, "LOGNAME");
  }
  return 0;
}

static void start(struct prompt *prompt) {
  struct command_spec spec;
  struct error error = ERROR_INIT;
  bool existing;
  if (make_spec(prompt, &spec) < 0) {
    command_spec_free(&spec);
    error_set_errno(&error, ENOMEM, "starting it");
    refuse_start(prompt, &error);
    return;
  }
  json_object_put(prompt->request.root); /* it may be large, and is in the line now */
  prompt->request.root = NULL;
  if (commands_start(&prompt->api->sandbox->commands, &spec, &prompt->command, &existing, &error) < 0) {
    refuse_start(prompt, &error);
    return;
  }
  prompt->observer = (struct command_observer){.changed = on_changed, .arg = prompt};
  list_init(&prompt->observer.node);
  command_observe(prompt->command, &prompt->observer);
  reader_attach(&prompt->reader, prompt->command, true, on_output, prompt);
  prompt->reader.patient = true; /* nothing of an answer may be lost; a client that takes nothing is cut by net/ */
}

static bool leave(struct prompt *prompt) {
  struct command *command = prompt->command;
  reader_detach(&prompt->reader);
  loop_timer_stop(loop_of(prompt), &prompt->closed_timer);
  if (!command || command_is_over(command))
    return true;
  command_end(command, REASON_SIGNALED, KILLER_GRACE);
  return false;
}

static void release(struct prompt *prompt) {
  loop_timer_stop(loop_of(prompt), &prompt->closed_timer);
  command_unobserve(&prompt->observer);
  reader_detach(&prompt->reader);
  if (prompt->command)
    command_unref(prompt->command);
  prompt->command = NULL;
}

const struct prompt_source prompt_handler = {
    .writes_files = true, .start = start, .fill = fill, .leave = leave, .free = release};
