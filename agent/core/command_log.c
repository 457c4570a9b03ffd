#include "sandkeeper/core/command_log.h"

#include <stdlib.h>
#include <string.h>

#define WORD 64u /* tag bits in a word; also the smallest ring, so that a ring is whole words */
#define FIRST_SIZE 4096u

/* The ring's size is a power of two of whole words, so the tags of the positions 64w .. 64w+63 always share one word,
 * whatever the size. Counting, copying and searching go word by word over these w. */
static inline uint32_t slot_of(uint32_t size, uint64_t word) {
  return (uint32_t)(word & (size / WORD - 1));
}

static inline uint32_t index_of(const struct command_log *log, uint64_t position) {
  return (uint32_t)(position & (log->size - 1));
}

/* The bits of word `word` that belong to positions from .. to-1. */
static inline uint64_t word_mask(uint64_t word, uint64_t from, uint64_t to) {
  uint64_t mask = ~UINT64_C(0);
  if (word == from / WORD)
    mask &= ~UINT64_C(0) << from % WORD;
  if (word == to / WORD) /* only when `to` is not at a border: the caller stops before it otherwise */
    mask &= ~(~UINT64_C(0) << to % WORD);
  return mask;
}

static inline uint64_t words_end(uint64_t to) {
  return (to + WORD - 1) / WORD;
}

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

void command_log_init(struct command_log *log, uint32_t limit) {
  *log = (struct command_log){.limit = limit};
}

/* Bytes and tags are one allocation that begins with the tags. */
static void release(struct command_log *log) {
  free(log->tags);
  log->tags = NULL;
  log->bytes = NULL;
  log->size = 0;
}

void command_log_free(struct command_log *log) {
  release(log);
  log->tail = log->head;
  memcpy(log->tail_offset, log->head_offset, sizeof log->tail_offset);
}

size_t command_log_memory(const struct command_log *log) {
  return (size_t)log->size + log->size / 8;
}

static void copy_bytes(const struct command_log *from, struct command_log *to) {
  for (uint64_t at = from->tail; at < from->head;) {
    uint32_t source = index_of(from, at), target = index_of(to, at);
    size_t n = smaller(from->size - source, to->size - target);
    n = smaller(n, (size_t)(from->head - at));
    memcpy(to->bytes + target, from->bytes + source, n);
    at += n;
  }
}

/* Masked, because the first and the last word may share a slot in either ring. */
static void copy_tags(const struct command_log *from, struct command_log *to) {
  uint64_t end = words_end(from->head);
  for (uint64_t word = from->tail / WORD; word < end; word++) {
    uint64_t mask = word_mask(word, from->tail, from->head);
    uint64_t *tags = &to->tags[slot_of(to->size, word)];
    *tags = (*tags & ~mask) | (from->tags[slot_of(from->size, word)] & mask);
  }
}

/* Moves the content, which fits, into a ring of `size`. Without memory everything stays as it was. */
static bool resize(struct command_log *log, uint32_t size) {
  size_t tag_bytes = size / 8;
  uint64_t *tags = malloc(tag_bytes + size);
  if (tags == NULL)
    return false;
  struct command_log old = *log;
  log->tags = tags;
  log->bytes = (uint8_t *)tags + tag_bytes;
  log->size = size;
  memset(tags, 0, tag_bytes);
  if (old.size > 0) {
    copy_bytes(&old, log);
    copy_tags(&old, log);
    release(&old);
  }
  return true;
}

/* The ring follows the content, not what a reader of a pipe asks for: that is always much, and seldom there. So it
 * grows when less than half of it is free and `want` does not fit. */
static void grow(struct command_log *log, uint64_t content, uint64_t want) {
  uint32_t size = log->size > 0 ? log->size : (uint32_t)smaller(FIRST_SIZE, log->limit);
  while (size < log->limit && content > size / 2 && content + want > size)
    size *= 2;
  if (size > log->size && !resize(log, size) && log->size == 0)
    resize(log, WORD); /* little memory is better than none: the command can go on */
}

int command_log_reserve(struct command_log *log, size_t want, uint64_t keep_from, struct iovec iov[2]) {
  uint64_t content = log->head - log->tail;
  if (want == 0)
    return 0;
  want = smaller(want, log->limit);
  grow(log, content, want);

  /* While the ring can grow, only what is free is given out; nothing old is dropped for it. */
  uint64_t used = content;
  if (log->size >= log->limit || content == log->size)
    used = keep_from >= log->head ? 0 : smaller(log->head - keep_from, content);
  size_t room = smaller(want, (size_t)(log->size - used));
  if (room == 0)
    return 0;

  uint32_t start = index_of(log, log->head);
  size_t first = smaller(room, log->size - start);
  iov[0] = (struct iovec){.iov_base = log->bytes + start, .iov_len = first};
  if (first == room)
    return 1;
  iov[1] = (struct iovec){.iov_base = log->bytes, .iov_len = room - first};
  return 2;
}

/* How many of the bytes from .. to-1 are stderr. */
static uint64_t count_tags(const struct command_log *log, uint64_t from, uint64_t to) {
  uint64_t count = 0, end = words_end(to);
  for (uint64_t word = from / WORD; word < end; word++)
    count += (uint64_t)__builtin_popcountll(log->tags[slot_of(log->size, word)] & word_mask(word, from, to));
  return count;
}

static void drop_before(struct command_log *log, uint64_t position) {
  uint64_t err = count_tags(log, log->tail, position);
  log->tail_offset[STREAM_STDERR] += err;
  log->tail_offset[STREAM_STDOUT] += position - log->tail - err;
  log->tail = position;
}

static void set_tags(struct command_log *log, uint64_t from, uint64_t to, enum stream stream) {
  uint64_t end = words_end(to);
  for (uint64_t word = from / WORD; word < end; word++) {
    uint64_t mask = word_mask(word, from, to);
    uint64_t *tags = &log->tags[slot_of(log->size, word)];
    *tags = stream == STREAM_STDERR ? *tags | mask : *tags & ~mask;
  }
}

void command_log_commit(struct command_log *log, enum stream stream, size_t len) {
  if (len == 0 || len > log->size)
    return; /* not what was reserved: never out of the ring */
  uint64_t end = log->head + len;
  /* Count what goes before its tags are overwritten. */
  if (end - log->tail > log->size)
    drop_before(log, end - log->size);
  set_tags(log, log->head, end, stream);
  log->head = end;
  log->head_offset[stream] += len;
}

size_t command_log_append(struct command_log *log, enum stream stream, const void *bytes, size_t len,
                          uint64_t keep_from) {
  const uint8_t *from = bytes;
  size_t done = 0;
  while (done < len) {
    struct iovec iov[2];
    int pieces = command_log_reserve(log, len - done, keep_from, iov);
    if (pieces == 0)
      break;
    size_t took = 0;
    for (int i = 0; i < pieces; i++) {
      memcpy(iov[i].iov_base, from + done + took, iov[i].iov_len);
      took += iov[i].iov_len;
    }
    command_log_commit(log, stream, took);
    done += took;
  }
  return done;
}

static struct command_log_cursor cursor_at(uint64_t position, const uint64_t offset[STREAMS]) {
  return (struct command_log_cursor){.position = position, .offset = {offset[STREAM_STDOUT], offset[STREAM_STDERR]}};
}

struct command_log_cursor command_log_begin(const struct command_log *log) {
  return cursor_at(log->tail, log->tail_offset);
}

struct command_log_cursor command_log_end(const struct command_log *log) {
  return cursor_at(log->head, log->head_offset);
}

bool command_log_catch_up(const struct command_log *log, struct command_log_cursor *cursor, uint64_t lost[STREAMS]) {
  bool overtaken = cursor->position < log->tail;
  for (int i = 0; i < STREAMS; i++)
    lost[i] = overtaken ? log->tail_offset[i] - cursor->offset[i] : 0;
  if (overtaken)
    *cursor = command_log_begin(log);
  return overtaken;
}

size_t command_log_peek(const struct command_log *log, const struct command_log_cursor *cursor, size_t max,
                        enum stream *stream, const uint8_t **bytes) {
  uint64_t at = cursor->position;
  if (at < log->tail || at >= log->head || max == 0)
    return 0;
  uint32_t start = index_of(log, at);
  size_t most = smaller(log->size - start, max);
  most = smaller(most, (size_t)(log->head - at));

  uint32_t slot = start / WORD, bit = start % WORD;
  enum stream which = log->tags[slot] >> bit & 1 ? STREAM_STDERR : STREAM_STDOUT;
  uint64_t same = which == STREAM_STDERR ? ~UINT64_C(0) : 0;
  /* A bit set in `other` is a byte of the other stream; the first one ends the run. */
  uint64_t other = (log->tags[slot] ^ same) >> bit;
  size_t run = other != 0 ? (size_t)__builtin_ctzll(other) : WORD - bit;
  while (other == 0 && run < most) {
    other = log->tags[++slot] ^ same;
    run += other != 0 ? (size_t)__builtin_ctzll(other) : WORD;
  }
  *stream = which;
  *bytes = log->bytes + start;
  return smaller(run, most);
}

void command_log_shrink(struct command_log *log) {
  uint64_t content = log->head - log->tail;
  if (content == 0) {
    release(log);
    return;
  }
  uint32_t size = WORD;
  while (size < content)
    size *= 2;
  if (size < log->size)
    resize(log, size);
}
