/* reader.h - a place in a command's log, from which a client reads: first what is there, then what comes.
 *
 * No queue: a reader is a position. One that keeps up loses nothing: while the log is full of bytes that it has not
 * taken, the command's pipe is not read. One that takes nothing for `stall_timeout` no longer holds the command; when
 * it goes on it is told what it lost (READER_GAP).
 *
 * Owner: the caller; it must detach before it frees it. `notify` says that reader_next() may have something new; it
 * must only note that (it is called from deep inside the command) and must not call back.
 */
#ifndef SANDKEEPER_CORE_READER_H
#define SANDKEEPER_CORE_READER_H

#include "sandkeeper/core/command.h"

struct reader {
  struct command *command; /* NULL: not attached; holds a reference */
  struct list node;
  struct command_log_cursor cursor;
  uint64_t skip_until[STREAMS]; /* resume at these offsets */
  uint64_t end;                 /* position where it ends; UINT64_MAX: not known yet */
  uint64_t lost[STREAMS];       /* to be told */
  uint64_t lost_from[STREAMS];
  int64_t waiting_since; /* monotonic ns: it has something to take since then; 0: nothing */
  bool stalled;
  bool patient; /* set after reader_attach(): it never counts as stalled, and the command waits for it */
  void (*notify)(struct reader *reader);
  void *arg;
};

enum reader_item { READER_NOTHING, READER_DATA, READER_GAP, READER_END };

struct reader_piece {
  enum stream stream;
  uint64_t offset;      /* of this stream */
  const uint8_t *bytes; /* READER_DATA: valid until the loop runs again */
  size_t len;           /* READER_DATA */
  uint64_t lost;        /* READER_GAP */
};

/* Starts at the oldest byte that is kept. follow: go on with what comes until the command is over; else end at what is
 * there now. */
void reader_attach(struct reader *reader, struct command *command, bool follow, void (*notify)(struct reader *),
                   void *arg);
void reader_detach(struct reader *reader); /* fine when not attached */

/* Resumes at these stream offsets, before anything was taken: older bytes are skipped; if they are gone already, a
 * READER_GAP says so. An offset beyond what was printed is ERROR_INVALID. */
int reader_seek(struct reader *reader, const uint64_t since[STREAMS], struct error *err);

/* What comes next, at most `max` bytes of it. READER_DATA and READER_GAP stay until they are taken. */
enum reader_item reader_next(struct reader *reader, size_t max, struct reader_piece *piece);

/* Takes `len` bytes of the READER_DATA that reader_next() gave, or the whole gap. */
void reader_take(struct reader *reader, const struct reader_piece *piece, size_t len);

/* ---- for the command ---- */

/* The lowest position that a live reader still needs, or the log's head when none holds it. */
uint64_t reader_keep_from(const struct command *command);
/* New bytes came (now), or the state changed. */
void reader_notify_all(struct command *command);
/* Marks those that took nothing since `now - timeout` as stalled. Returns when the next one is due; CLOCK_NEVER: none.
 */
int64_t reader_stall(struct command *command, int64_t now, int64_t timeout);

#endif
