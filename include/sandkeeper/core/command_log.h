/* command_log.h - what a command printed: the newest 512 KiB of both streams, in order of arrival. Pure: memory only.
 *
 * A ring of bytes, and beside it one bit a byte that says which stream it came from: so any interleaving, byte by byte
 * too, costs an eighth and never shortens what is kept. A place in the log is a 64-bit position that counts all bytes
 * of both streams; each stream has its own 64-bit offset as well, which clients see.
 *
 * Memory: nothing before the first byte; then it doubles up to the capacity, so that 10,000 commands that print a line
 * cost 10,000 lines. log_shrink() gives back what a finished command does not need.
 *
 * Owner: its command. Pointers that log_peek() gave are valid until the log is next written, shrunk or freed.
 */
#ifndef SANDKEEPER_CORE_COMMAND_LOG_H
#define SANDKEEPER_CORE_COMMAND_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define COMMAND_LOG_CAPACITY (512u * 1024u) /* docs/protocol.md, 4.2 */

enum stream { STREAM_STDOUT, STREAM_STDERR, STREAMS };

struct command_log {
  uint8_t *bytes;                /* the ring; byte at position p is bytes[p % size] */
  uint64_t *tags;                /* one bit a byte of the ring: 1 is stderr */
  uint32_t size;                 /* bytes allocated: 0 or a power of two >= 64 */
  uint32_t limit;                /* it grows up to this power of two */
  uint64_t tail, head;           /* positions: the oldest byte kept, and behind the newest */
  uint64_t tail_offset[STREAMS]; /* each stream's offset at tail */
  uint64_t head_offset[STREAMS]; /* each stream's offset at head: its total */
};

/* A place in the log. */
struct command_log_cursor {
  uint64_t position;
  uint64_t offset[STREAMS];
};

/* limit: a power of two, COMMAND_LOG_CAPACITY outside of tests. */
void command_log_init(struct command_log *log, uint32_t limit);
void command_log_free(struct command_log *log); /* drops the content, totals stay: tail == head */

/* Bytes of memory it holds now. */
size_t command_log_memory(const struct command_log *log);

/* Makes room to receive up to `want` bytes: *iov gets 1 or 2 pieces of the ring behind head (their number is returned),
 * to be filled by readv(2) and then told to command_log_commit(); fewer bytes than reserved, none too, are fine. Bytes
 * at positions >= `keep_from` (UINT64_MAX: none) are kept: the room is smaller, down to 0, when they fill the ring;
 * older ones are dropped by the commit. While it is below `limit` the ring grows and drops nothing; it grows with its
 * content, so the room may be less than `want` until it has: only 0 pieces mean that it is full. Returns 0 pieces also
 * when there is no memory and no room, and for a `want` of 0. */
int command_log_reserve(struct command_log *log, size_t want, uint64_t keep_from, struct iovec iov[2]);
void command_log_commit(struct command_log *log, enum stream stream, size_t len);

/* The same in one call, for bytes that are in memory. Returns how many it took. */
size_t command_log_append(struct command_log *log, enum stream stream, const void *bytes, size_t len,
                          uint64_t keep_from);

/* The oldest place, and the newest. */
struct command_log_cursor command_log_begin(const struct command_log *log);
struct command_log_cursor command_log_end(const struct command_log *log);

/* Moves a cursor that the ring has overtaken to the oldest place, and says how many bytes of each stream it lost.
 * False, and zeros, for a cursor that is within the log. */
bool command_log_catch_up(const struct command_log *log, struct command_log_cursor *cursor, uint64_t lost[STREAMS]);

/* The longest run of one stream, in one piece of memory, from a cursor that is within the log, at most `max` bytes.
 * Returns its length, 0 at the end. */
size_t command_log_peek(const struct command_log *log, const struct command_log_cursor *cursor, size_t max,
                        enum stream *stream, const uint8_t **bytes);
static inline void command_log_advance(struct command_log_cursor *cursor, enum stream stream, size_t len) {
  cursor->position += len;
  cursor->offset[stream] += len;
}

/* Reallocates to the smallest ring that holds the content. */
void command_log_shrink(struct command_log *log);

#endif
