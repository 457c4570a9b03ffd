#include "sandkeeper/api/prompt_events.h"

#include "sandkeeper/base/json_check.h"
#include "sandkeeper/base/json_out.h"

#include <stdio.h>
#include <string.h>

void prompt_events_init(struct prompt_events *events, const char *text_type) {
  *events = (struct prompt_events){.text_type = text_type};
  buf_init(&events->line, PROMPT_LINE_MAX, 0);
}

void prompt_events_free(struct prompt_events *events) {
  buf_free(&events->line);
}

/* ---- writing events ---- */

static struct json_out event_begin(struct buf *out, const char *type) {
  struct json_out json;
  json_out_begin(&json, out);
  json_out_object(&json);
  json_out_key(&json, "type");
  json_out_string(&json, type);
  return json;
}

static void event_end(struct json_out *json) {
  json_out_object_end(json);
  buf_append(json->buf, "\n", 1);
}

/* One text event of at most PROMPT_TEXT_MAX bytes of text, cut at the border of a character. Returns the bytes taken;
 * the start of a character stays in the carry. Nothing to say: no event. */
static size_t text_piece(const struct prompt_events *events, struct utf8_carry *carry, const char *bytes, size_t len,
                         bool last, struct buf *out) {
  size_t before = out->len;
  struct json_out json = event_begin(out, events->text_type);
  json_out_key(&json, "text");
  json_out_text_begin(&json);
  size_t empty = out->len;
  struct json_text_limit limit = {.encoded = SIZE_MAX, .decoded = PROMPT_TEXT_MAX};
  size_t taken = json_text_append(out, carry, bytes, len, &limit);
  if (last && taken == len)
    json_text_finish(out, carry);
  bool nothing = out->len == empty;
  json_out_text_end(&json);
  event_end(&json);
  if (nothing)
    out->len = before;
  return out->failed ? len : taken;
}

static void text_pieces(const struct prompt_events *events, struct utf8_carry *carry, const char *bytes, size_t len,
                        bool last, struct buf *out) {
  do {
    size_t taken = text_piece(events, carry, bytes, len, last, out);
    bytes += taken;
    len -= taken;
  } while (len > 0);
}

void prompt_events_text(const struct prompt_events *events, const char *bytes, size_t len, struct buf *out) {
  struct utf8_carry carry = {0};
  if (len > 0)
    text_pieces(events, &carry, bytes, len, true, out);
}

void prompt_events_error(const char *message, size_t len, struct buf *out) {
  struct json_out json = event_begin(out, "error");
  json_out_key(&json, "message");
  json_out_bytes(&json, message, len);
  event_end(&json);
}

void prompt_events_done(struct prompt_events *events, struct buf *out) {
  struct json_out json = event_begin(out, "done");
  event_end(&json);
  events->done = true;
}

/* ---- the handler's lines ---- */

/* An event goes on as it was printed, but for the name of text events. */
static void pass_event(struct prompt_events *events, const char *line, size_t len, const struct json_member *type,
                       struct buf *out) {
  events->done |= json_string_is(type->at, type->len, "done");
  if (strcmp(events->text_type, "text") == 0 || !json_string_is(type->at, type->len, "text")) {
    buf_append(out, line, len);
  } else {
    const char *behind = type->at + type->len;
    buf_append(out, line, (size_t)(type->at - line));
    buf_printf(out, "\"%s\"", events->text_type);
    buf_append(out, behind, (size_t)(line + len - behind));
  }
  buf_append(out, "\n", 1);
}

/* A whole line; `ended`: it had a newline. */
static void take_line(struct prompt_events *events, const char *line, size_t len, bool ended, struct buf *out) {
  struct json_member type = {.name = "type"};
  size_t trimmed = len; /* a CR at the end is no part of an event */
  while (trimmed > 0 && line[trimmed - 1] == '\r')
    trimmed--;
  if (json_check_object(line, trimmed, &type) && type.at && *type.at == '"') {
    pass_event(events, line, trimmed, &type, out);
    return;
  }
  struct utf8_carry carry = {0};
  if (ended)
    len++; /* its newline is behind it */
  if (len > 0)
    text_pieces(events, &carry, line, len, true, out);
}

/* Only a line that begins with a brace can become an event. */
static bool may_be_event(const char *line, size_t len) {
  size_t i = 0;
  while (i < len && (line[i] == ' ' || line[i] == '\t'))
    i++;
  return i == len || line[i] == '{';
}

/* Some bytes of a line that goes out in pieces. */
static void take_piece(struct prompt_events *events, const char *bytes, size_t len, bool last, struct buf *out) {
  text_pieces(events, &events->carry, bytes, len, last, out);
}

static void leave_out(struct prompt_events *events, struct buf *out) {
  char message[128];
  int n = snprintf(message, sizeof message,
                   "the handler printed a line of more than %u bytes that begins like an event; it was left out",
                   PROMPT_LINE_MAX);
  events->state = PROMPT_LINE_LEFT_OUT;
  prompt_events_error(message, (size_t)n, out);
}

/* The line is not whole, and these bytes belong to it. */
static void keep(struct prompt_events *events, const char *bytes, size_t len, struct buf *out) {
  struct buf *line = &events->line;
  if (events->state == PROMPT_LINE_PLAIN) {
    take_piece(events, bytes, len, false, out);
    return;
  }
  if (events->state == PROMPT_LINE_LEFT_OUT)
    return;
  if (line->len + len <= PROMPT_TEXT_MAX) {
    if (buf_append(line, bytes, len) < 0)
      out->failed = true;
    return;
  }
  bool event = line->len > 0 ? may_be_event(line->data, line->len) : may_be_event(bytes, len);
  if (event && line->len + len <= PROMPT_LINE_MAX) {
    if (buf_append(line, bytes, len) < 0)
      out->failed = true;
    return;
  }
  if (event) {
    leave_out(events, out);
  } else {
    events->state = PROMPT_LINE_PLAIN;
    take_piece(events, line->data, line->len, false, out);
    take_piece(events, bytes, len, false, out);
  }
  buf_free(line);
}

/* The rest of a line; its newline is behind the bytes. */
static void end_line(struct prompt_events *events, const char *bytes, size_t len, struct buf *out) {
  struct buf *line = &events->line;
  if (events->state == PROMPT_LINE_OPEN && line->len == 0 && len < PROMPT_TEXT_MAX) {
    take_line(events, bytes, len, true, out);
    return;
  }
  keep(events, bytes, len, out);
  if (events->state == PROMPT_LINE_OPEN) {
    size_t whole = line->len;
    line->max = PROMPT_LINE_MAX + 1;
    if (buf_append(line, "\n", 1) < 0)
      out->failed = true;
    else
      take_line(events, line->data, whole, true, out);
    line->max = PROMPT_LINE_MAX;
    buf_reset(line, PROMPT_TEXT_MAX);
  } else if (events->state == PROMPT_LINE_PLAIN) {
    take_piece(events, "\n", 1, true, out);
  }
  events->state = PROMPT_LINE_OPEN;
}

void prompt_events_feed(struct prompt_events *events, const char *bytes, size_t len, struct buf *out) {
  while (len > 0 && !out->failed) {
    const char *newline = memchr(bytes, '\n', len);
    size_t n = newline ? (size_t)(newline - bytes) : len;
    if (!newline) {
      keep(events, bytes, n, out);
      return;
    }
    end_line(events, bytes, n, out);
    bytes += n + 1;
    len -= n + 1;
  }
}

void prompt_events_finish(struct prompt_events *events, struct buf *out) {
  struct buf *line = &events->line;
  if (events->state == PROMPT_LINE_OPEN && line->len > 0)
    take_line(events, line->data, line->len, false, out);
  else if (events->state == PROMPT_LINE_PLAIN && events->carry.len > 0)
    take_piece(events, "", 0, true, out);
  buf_free(line);
  events->state = PROMPT_LINE_OPEN;
}
