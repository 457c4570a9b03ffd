/* prompt_events.h - what a prompt's handler prints, as events: one JSON object a line. Pure: bytes in, bytes out.
 *
 *   - a line that is a JSON object with a string `type` is an event and passed on as it is;
 *   - any other line becomes a text event, with its newline;
 *   - a line longer than PROMPT_TEXT_MAX that cannot be an event is not waited for: it becomes several text events;
 *   - one that may be an event may have PROMPT_LINE_MAX bytes. A longer one is left out, and an error event says so:
 * half an event is of no use to anybody.
 *
 * All that comes out is valid JSON in valid UTF-8, and each line ends with a newline (Puck's reader yields only there).
 */
#ifndef SANDKEEPER_API_PROMPT_EVENTS_H
#define SANDKEEPER_API_PROMPT_EVENTS_H

#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/utf8.h"

#include <stdbool.h>
#include <stddef.h>

#define PROMPT_TEXT_MAX (64u * 1024u)
#define PROMPT_LINE_MAX (4u * 1024u * 1024u)

struct prompt_events {
  const char *text_type; /* what text events are called: "text" (Puck) or "text_chunk" (strider) */
  struct buf line;       /* the start of a line that is not whole */
  enum { PROMPT_LINE_OPEN, PROMPT_LINE_PLAIN, PROMPT_LINE_LEFT_OUT } state;
  struct utf8_carry carry; /* of a line that goes out in pieces */
  bool done;               /* a "done" has gone out */
};

void prompt_events_init(struct prompt_events *events, const char *text_type);
void prompt_events_free(struct prompt_events *events);

/* Takes bytes of the handler's stdout and appends the events that they complete to *out. When *out fails (no memory)
 * the answer is broken. */
void prompt_events_feed(struct prompt_events *events, const char *bytes, size_t len, struct buf *out);

/* The handler has ended: what it left without a newline. */
void prompt_events_finish(struct prompt_events *events, struct buf *out);

/* Events of the agent's own. Text may be any bytes; it becomes as many events as needed. */
void prompt_events_text(const struct prompt_events *events, const char *bytes, size_t len, struct buf *out);
void prompt_events_error(const char *message, size_t len, struct buf *out);
void prompt_events_done(struct prompt_events *events, struct buf *out);

#endif
