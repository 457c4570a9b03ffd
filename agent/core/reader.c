#include "sandkeeper/core/reader.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/core/commands.h"

static int64_t now_of(const struct command *command) {
  return loop_now(command->table->loop);
}

void reader_attach(struct reader *reader, struct command *command, bool follow, void (*notify)(struct reader *),
                   void *arg) {
  *reader = (struct reader){.command = command_ref(command), .notify = notify, .arg = arg};
  reader->cursor = command_log_begin(&command->log);
  bool over = command_is_over(command);
  reader->end = follow && !over ? UINT64_MAX : command->log.head;
  if (reader->cursor.position < command->log.head)
    reader->waiting_since = now_of(command);
  list_append(&command->readers, &reader->node);
}

void reader_detach(struct reader *reader) {
  struct command *command = reader->command;
  if (!command)
    return;
  reader->command = NULL;
  list_remove(&reader->node);
  command_io_resume(command);
  command_unref(command);
}

int reader_seek(struct reader *reader, const uint64_t since[STREAMS], struct error *err) {
  static const char *const names[STREAMS] = {"stdout", "stderr"};
  const struct command_log *log = &reader->command->log;
  for (int s = 0; s < STREAMS; s++)
    if (since[s] > log->head_offset[s])
      return error_set(err, ERROR_INVALID, 0, "since.%s: %llu is beyond the %llu bytes that were printed", names[s],
                       (unsigned long long)since[s], (unsigned long long)log->head_offset[s]);
  for (int s = 0; s < STREAMS; s++) {
    reader->skip_until[s] = since[s];
    if (since[s] < reader->cursor.offset[s]) {
      reader->lost[s] = reader->cursor.offset[s] - since[s];
      reader->lost_from[s] = since[s];
    }
  }
  return 0;
}

/* One that the ring has overtaken goes on at the oldest byte, and owes its client the truth about the rest. */
static void catch_up(struct reader *reader) {
  uint64_t lost[STREAMS];
  struct command_log_cursor before = reader->cursor;
  if (!command_log_catch_up(&reader->command->log, &reader->cursor, lost))
    return;
  for (int s = 0; s < STREAMS; s++) {
    uint64_t from = before.offset[s], to = from + lost[s];
    if (from < reader->skip_until[s])
      from = reader->skip_until[s]; /* these were not wanted */
    if (to <= from)
      continue;
    if (reader->lost[s] == 0)
      reader->lost_from[s] = from;
    reader->lost[s] += to - from;
  }
}

/* The bytes in front of the cursor that `since` said the client has. */
static size_t unwanted(const struct reader *reader, enum stream stream, size_t len) {
  uint64_t offset = reader->cursor.offset[stream], until = reader->skip_until[stream];
  if (offset >= until)
    return 0;
  return until - offset < len ? (size_t)(until - offset) : len;
}

/* It went on: what it waits for is new, and there may be room in the log. */
static void moved(struct reader *reader) {
  struct command *command = reader->command;
  reader->waiting_since = reader->cursor.position < command->log.head ? now_of(command) : 0;
  command_io_resume(command);
}

enum reader_item reader_next(struct reader *reader, size_t max, struct reader_piece *piece) {
  const struct command_log *log = &reader->command->log;
  *piece = (struct reader_piece){0};
  catch_up(reader);
  for (int s = 0; s < STREAMS; s++) {
    if (reader->lost[s] == 0)
      continue;
    *piece = (struct reader_piece){.stream = (enum stream)s, .offset = reader->lost_from[s], .lost = reader->lost[s]};
    return READER_GAP;
  }
  while (reader->cursor.position < reader->end) {
    if (reader->end - reader->cursor.position < max)
      max = (size_t)(reader->end - reader->cursor.position);
    piece->len = command_log_peek(log, &reader->cursor, max, &piece->stream, &piece->bytes);
    if (piece->len == 0)
      break;
    size_t skip = unwanted(reader, piece->stream, piece->len);
    if (skip == 0) {
      piece->offset = reader->cursor.offset[piece->stream];
      return READER_DATA;
    }
    command_log_advance(&reader->cursor, piece->stream, skip);
    moved(reader);
  }
  return reader->cursor.position >= reader->end ? READER_END : READER_NOTHING;
}

void reader_take(struct reader *reader, const struct reader_piece *piece, size_t len) {
  reader->stalled = false;
  if (piece->lost) {
    reader->lost[piece->stream] = 0;
    return;
  }
  command_log_advance(&reader->cursor, piece->stream, len);
  moved(reader);
}

/* One that has all it wanted holds nothing. */
static bool holds(const struct reader *reader) {
  return !reader->stalled && reader->cursor.position < reader->end;
}

uint64_t reader_keep_from(const struct command *command) {
  uint64_t keep = command->log.head;
  LIST_FOREACH (&command->readers, node) {
    const struct reader *reader = LIST_OWNER(node, struct reader, node);
    if (holds(reader) && reader->cursor.position < keep)
      keep = reader->cursor.position;
  }
  return keep;
}

void reader_notify_all(struct command *command) {
  int64_t now = now_of(command);
  LIST_FOREACH (&command->readers, node) {
    struct reader *reader = LIST_OWNER(node, struct reader, node);
    if (command_is_over(command) && reader->end == UINT64_MAX)
      reader->end = command->end;
    if (reader->waiting_since == 0 && reader->cursor.position < command->log.head)
      reader->waiting_since = now;
    reader->notify(reader);
  }
}

int64_t reader_stall(struct command *command, int64_t now, int64_t timeout) {
  int64_t next = CLOCK_NEVER;
  LIST_FOREACH (&command->readers, node) {
    struct reader *reader = LIST_OWNER(node, struct reader, node);
    if (reader->patient || !holds(reader) || reader->cursor.position >= command->log.head)
      continue;
    if (reader->waiting_since == 0) /* what was read just now, and it was not told of yet */
      reader->waiting_since = now;
    int64_t due = reader->waiting_since + timeout;
    if (due <= now)
      reader->stalled = true;
    else if (due < next)
      next = due;
  }
  return next;
}
