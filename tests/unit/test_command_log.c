/* The log against a plain model: an array that remembers every byte ever written, with its stream. */
#include "sandkeeper/core/command_log.h"

#include "run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* The linker sends the library's malloc here (-Wl,--wrap=malloc), so that memory can run out. */
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
static size_t malloc_limit = SIZE_MAX;

void *__wrap_malloc(size_t size) {
  return size > malloc_limit ? NULL : __real_malloc(size);
}

static uint64_t seed;

static uint32_t pick(uint32_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (uint32_t)(seed >> 33) % below;
}

/* check writes a line to a pipe at each of its asserts: too slow for one a byte. */
#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

/* ---- the model ---- */

#define HISTORY (3u << 20)

struct model {
  uint8_t bytes[HISTORY];
  uint8_t streams[HISTORY];
  uint32_t offset[HISTORY + 1][STREAMS]; /* before each position */
  uint64_t tail, head;
};
static struct model model;

static void model_reset(void) {
  model.tail = model.head = 0;
  memset(model.offset[0], 0, sizeof model.offset[0]);
}

static void model_append(enum stream stream, const uint8_t *bytes, size_t len, uint32_t limit) {
  for (size_t i = 0; i < len; i++) {
    REQUIRE(model.head < HISTORY);
    model.bytes[model.head] = bytes[i];
    model.streams[model.head] = (uint8_t)stream;
    memcpy(model.offset[model.head + 1], model.offset[model.head], sizeof model.offset[0]);
    model.offset[model.head + 1][stream]++;
    model.head++;
  }
  if (model.head - model.tail > limit)
    model.tail = model.head - limit;
}

static void check_cursor(struct command_log_cursor cursor, uint64_t position) {
  REQUIRE(cursor.position == position);
  for (int i = 0; i < STREAMS; i++)
    REQUIRE(cursor.offset[i] == model.offset[position][i]);
}

/* One peek, compared byte by byte, and as long as it can be. */
static size_t check_peek(const struct command_log *log, const struct command_log_cursor *cursor, size_t max,
                         enum stream *stream) {
  const uint8_t *bytes;
  size_t n = command_log_peek(log, cursor, max, stream, &bytes);
  uint64_t at = cursor->position;
  if (n == 0) {
    REQUIRE(max == 0 || at == model.head);
    return 0;
  }
  REQUIRE(n <= max);
  REQUIRE(at + n <= model.head);
  REQUIRE(memcmp(bytes, model.bytes + at, n) == 0);
  for (size_t i = 0; i < n; i++)
    REQUIRE(model.streams[at + i] == *stream);
  bool ring_ends = (at + n) % log->size == 0;
  if (n < max && at + n < model.head && !ring_ends)
    REQUIRE(model.streams[at + n] != *stream);
  return n;
}

static void check_all(const struct command_log *log, size_t max) {
  check_cursor(command_log_begin(log), model.tail);
  check_cursor(command_log_end(log), model.head);
  struct command_log_cursor cursor = command_log_begin(log);
  size_t n;
  do {
    enum stream stream = STREAM_STDOUT;
    n = check_peek(log, &cursor, max, &stream);
    command_log_advance(&cursor, stream, n);
    check_cursor(cursor, cursor.position);
  } while (n > 0);
  REQUIRE(cursor.position == model.head);
}

/* ---- random life ---- */

static uint8_t source[1 << 20];

static void fill_source(void) {
  for (size_t i = 0; i < sizeof source; i++)
    source[i] = (uint8_t)pick(256);
}

static size_t random_length(uint32_t limit) {
  switch (pick(8)) {
  case 0:
    return 1 + pick(limit);
  case 1:
    return 1 + pick(limit / 4);
  case 2:
    return pick(140);
  default:
    return 1 + pick(3); /* byte by byte interleaving is the rule */
  }
}

/* Writes through the pieces; commits only a part of what was reserved, as a short read does. */
static void random_read(struct command_log *log, enum stream stream, uint64_t keep_from) {
  struct iovec iov[2];
  size_t want = random_length(log->limit);
  int pieces = command_log_reserve(log, want, keep_from, iov);
  size_t room = 0;
  for (int i = 0; i < pieces; i++)
    room += iov[i].iov_len;
  REQUIRE(room <= want);
  if (room == 0)
    return;
  size_t len = pick(4) == 0 ? pick((uint32_t)room + 1) : room;
  const uint8_t *from = source + pick(sizeof source - (uint32_t)len);
  size_t first = len < iov[0].iov_len ? len : iov[0].iov_len;
  memcpy(iov[0].iov_base, from, first);
  if (len > first)
    memcpy(iov[1].iov_base, from + first, len - first);
  command_log_commit(log, stream, len);
  model_append(stream, from, len, log->limit);
}

static void random_append(struct command_log *log, enum stream stream, uint64_t keep_from) {
  size_t len = random_length(log->limit) * (pick(16) == 0 ? 3 : 1);
  const uint8_t *from = source + pick(sizeof source - (uint32_t)len);
  size_t took = command_log_append(log, stream, from, len, keep_from);
  uint64_t keep = keep_from < model.tail ? model.tail : keep_from;
  /* It takes all that fits behind what must be kept. */
  uint64_t fits = keep >= model.head + len ? len : keep + log->limit - model.head;
  REQUIRE(took == (len < fits ? len : fits));
  model_append(stream, from, took, log->limit);
}

static void random_reader_step(const struct command_log *log, struct command_log_cursor *reader) {
  uint64_t lost[STREAMS];
  uint64_t was = reader->position;
  bool overtaken = command_log_catch_up(log, reader, lost);
  REQUIRE(overtaken == (was < model.tail));
  uint64_t now = overtaken ? model.tail : was;
  check_cursor(*reader, now);
  for (int i = 0; i < STREAMS; i++)
    REQUIRE(lost[i] == model.offset[now][i] - model.offset[was][i]);
  enum stream stream = STREAM_STDOUT;
  size_t n = check_peek(log, reader, 1 + pick(log->limit), &stream);
  command_log_advance(reader, stream, n);
}

static const uint32_t limits[] = {64, 128, 256, 4096, 8192, 65536};

START_TEST(test_any_interleaving) {
  uint32_t limit = limits[_i];
  seed = 0x9e3779b97f4a7c15u + (uint64_t)_i;
  fill_source();
  model_reset();
  struct command_log log;
  command_log_init(&log, limit);
  struct command_log_cursor reader = command_log_begin(&log);
  for (int step = 0; step < 6000 && model.head < HISTORY - 8 * limit; step++) {
    /* Either the reader holds the log, or it may be overtaken. */
    uint64_t keep_from = step / 500 % 2 == 0 ? reader.position : UINT64_MAX;
    enum stream stream = pick(2) == 0 ? STREAM_STDOUT : STREAM_STDERR;
    if (pick(2) == 0)
      random_append(&log, stream, keep_from);
    else
      random_read(&log, stream, keep_from);
    if (keep_from != UINT64_MAX && reader.position >= model.tail)
      REQUIRE(reader.position >= command_log_begin(&log).position);
    if (pick(2) == 0)
      random_reader_step(&log, &reader);
    if (pick(300) == 0)
      command_log_shrink(&log);
    if (pick(1000) == 0) {
      command_log_free(&log);
      model.tail = model.head;
    }
    if (step % 50 == 0)
      check_all(&log, 1 + pick(limit));
  }
  check_all(&log, SIZE_MAX);
  command_log_free(&log);
}
END_TEST

/* Two bytes alternate: the worst there is for a list of pieces, nothing special for bits. */
START_TEST(test_alternating_bytes_keep_the_whole_capacity) {
  model_reset();
  struct command_log log;
  command_log_init(&log, COMMAND_LOG_CAPACITY);
  for (uint32_t i = 0; i < COMMAND_LOG_CAPACITY + 1000; i++) {
    uint8_t byte = (uint8_t)(i * 7);
    enum stream stream = i % 2 == 0 ? STREAM_STDOUT : STREAM_STDERR;
    REQUIRE(command_log_append(&log, stream, &byte, 1, UINT64_MAX) == 1);
    model_append(stream, &byte, 1, COMMAND_LOG_CAPACITY);
  }
  ck_assert_uint_eq(command_log_end(&log).position - command_log_begin(&log).position, COMMAND_LOG_CAPACITY);
  check_all(&log, SIZE_MAX);
  command_log_free(&log);
}
END_TEST

START_TEST(test_huge_write_keeps_the_newest) {
  seed = 1;
  fill_source();
  model_reset();
  struct command_log log;
  command_log_init(&log, COMMAND_LOG_CAPACITY);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDERR, source, sizeof source, UINT64_MAX), sizeof source);
  model_append(STREAM_STDERR, source, sizeof source, COMMAND_LOG_CAPACITY);
  check_all(&log, SIZE_MAX);
  check_all(&log, 1000);
  command_log_free(&log);
}
END_TEST

/* ---- back-pressure ---- */

START_TEST(test_kept_bytes_are_never_dropped) {
  struct command_log log;
  struct iovec iov[2];
  model_reset();
  command_log_init(&log, 128);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, source, 1000, 0), 128);
  model_append(STREAM_STDOUT, source, 128, 128);
  ck_assert_int_eq(command_log_reserve(&log, 1, 0, iov), 0);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDERR, source, 1, 0), 0);
  check_all(&log, SIZE_MAX);

  /* The reader took 10 bytes: 10 more fit, and not one of the others goes. */
  ck_assert_int_eq(command_log_reserve(&log, 100, 10, iov), 1);
  ck_assert_uint_eq(iov[0].iov_len, 10);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDERR, source, 100, 10), 10);
  model_append(STREAM_STDERR, source, 10, 128);
  ck_assert_uint_eq(command_log_begin(&log).position, 10);
  check_all(&log, SIZE_MAX);

  /* Room at the end and at the start of the ring: two pieces. */
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, source, 110, UINT64_MAX), 110);
  model_append(STREAM_STDOUT, source, 110, 128);
  ck_assert_int_eq(command_log_reserve(&log, 30, UINT64_MAX, iov), 2);
  ck_assert_uint_eq(iov[0].iov_len, 8);
  ck_assert_uint_eq(iov[1].iov_len, 22);
  check_all(&log, SIZE_MAX);
  command_log_free(&log);
}
END_TEST

START_TEST(test_reserve_without_commit_changes_nothing) {
  struct command_log log;
  struct iovec iov[2];
  model_reset();
  command_log_init(&log, 4096);
  ck_assert_int_eq(command_log_reserve(&log, 0, UINT64_MAX, iov), 0);
  ck_assert_uint_eq(command_log_memory(&log), 0);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDERR, source, 4096, UINT64_MAX), 4096);
  model_append(STREAM_STDERR, source, 4096, 4096);
  ck_assert_int_gt(command_log_reserve(&log, 4096, UINT64_MAX, iov), 0);
  command_log_commit(&log, STREAM_STDOUT, 0);
  check_all(&log, SIZE_MAX);
  command_log_commit(&log, STREAM_STDOUT, 4097); /* a caller's mistake may not break the ring */
  check_all(&log, SIZE_MAX);
  command_log_free(&log);
}
END_TEST

/* ---- memory ---- */

START_TEST(test_memory_follows_the_content) {
  struct command_log log;
  struct iovec iov[2];
  command_log_init(&log, COMMAND_LOG_CAPACITY);
  ck_assert_uint_eq(command_log_memory(&log), 0);
  ck_assert_int_eq(command_log_reserve(&log, 65536, UINT64_MAX, iov), 1);
  ck_assert_uint_ge(iov[0].iov_len, 1);
  memcpy(iov[0].iov_base, "hello\n", 6);
  command_log_commit(&log, STREAM_STDOUT, 6);
  /* A reader that asks for much again and again does not make it grow. */
  for (int i = 0; i < 20; i++)
    command_log_reserve(&log, 65536, UINT64_MAX, iov);
  ck_assert_uint_le(command_log_memory(&log), 8192);
  command_log_shrink(&log);
  ck_assert_uint_eq(command_log_memory(&log), 64 + 8);

  /* It grows again, and ends at its capacity and an eighth. */
  model_reset();
  model_append(STREAM_STDOUT, (const uint8_t *)"hello\n", 6, COMMAND_LOG_CAPACITY);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDERR, source, sizeof source, UINT64_MAX), sizeof source);
  model_append(STREAM_STDERR, source, sizeof source, COMMAND_LOG_CAPACITY);
  ck_assert_uint_eq(command_log_memory(&log), COMMAND_LOG_CAPACITY + COMMAND_LOG_CAPACITY / 8);
  check_all(&log, SIZE_MAX);
  command_log_shrink(&log);
  check_all(&log, SIZE_MAX);
  command_log_free(&log);
  ck_assert_uint_eq(command_log_memory(&log), 0);
}
END_TEST

START_TEST(test_totals_outlive_the_content) {
  struct command_log log;
  model_reset();
  command_log_init(&log, 4096);
  command_log_append(&log, STREAM_STDOUT, source, 100, UINT64_MAX);
  command_log_append(&log, STREAM_STDERR, source, 23, UINT64_MAX);
  model_append(STREAM_STDOUT, source, 100, 4096);
  model_append(STREAM_STDERR, source, 23, 4096);
  command_log_free(&log);
  model.tail = model.head;
  check_all(&log, SIZE_MAX);

  struct command_log_cursor reader = {.position = 100, .offset = {100, 0}};
  uint64_t lost[STREAMS];
  ck_assert(command_log_catch_up(&log, &reader, lost));
  ck_assert_uint_eq(lost[STREAM_STDOUT], 0);
  ck_assert_uint_eq(lost[STREAM_STDERR], 23);
  ck_assert(!command_log_catch_up(&log, &reader, lost));
  ck_assert_uint_eq(lost[STREAM_STDERR], 0);

  /* And it can be written again. */
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, source, 5, UINT64_MAX), 5);
  model_append(STREAM_STDOUT, source, 5, 4096);
  check_all(&log, SIZE_MAX);
  command_log_free(&log);
}
END_TEST

/* Every size of content at every place: also where its first and its last byte share a word of tags. */
START_TEST(test_shrink_keeps_everything) {
  seed = 3;
  fill_source();
  for (size_t start = 0; start < 130; start += 3) {
    for (size_t len = 1; len <= 260; len++) {
      struct command_log log;
      model_reset();
      command_log_init(&log, 4096);
      command_log_append(&log, STREAM_STDOUT, source, start, UINT64_MAX);
      model_append(STREAM_STDOUT, source, start, 4096);
      command_log_free(&log);
      model.tail = model.head;
      for (size_t i = 0; i < len; i++) {
        enum stream stream = pick(2) == 0 ? STREAM_STDOUT : STREAM_STDERR;
        command_log_append(&log, stream, source + i, 1, UINT64_MAX);
        model_append(stream, source + i, 1, 4096);
      }
      command_log_shrink(&log);
      size_t memory = command_log_memory(&log);
      if (memory > 72 && memory * 8 / 9 >= 2 * len)
        ck_abort_msg("%zu bytes for %zu", memory, len);
      check_all(&log, SIZE_MAX);
      command_log_free(&log);
    }
  }
}
END_TEST

START_TEST(test_shrink_of_nothing_frees) {
  struct command_log log;
  command_log_init(&log, 4096);
  command_log_shrink(&log);
  ck_assert_uint_eq(command_log_memory(&log), 0);
}
END_TEST

START_TEST(test_no_memory_at_all) {
  struct command_log log;
  struct iovec iov[2];
  command_log_init(&log, COMMAND_LOG_CAPACITY);
  malloc_limit = 0;
  int pieces = command_log_reserve(&log, 100, UINT64_MAX, iov);
  size_t took = command_log_append(&log, STREAM_STDOUT, "abc", 3, UINT64_MAX);
  malloc_limit = SIZE_MAX; /* before an assert: check allocates too */
  ck_assert_int_eq(pieces, 0);
  ck_assert_uint_eq(took, 0);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, "abc", 3, UINT64_MAX), 3);
  command_log_free(&log);
}
END_TEST

/* A ring that may not grow is a smaller log: the newest bytes, and kept ones are still kept. */
START_TEST(test_little_memory_makes_a_small_log) {
  seed = 5;
  fill_source();
  model_reset();
  struct command_log log;
  command_log_init(&log, COMMAND_LOG_CAPACITY);
  malloc_limit = 20000;
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDERR, source, 100000, UINT64_MAX), 100000);
  model_append(STREAM_STDERR, source, 100000, 16384);
  check_all(&log, SIZE_MAX);
  uint64_t tail = command_log_begin(&log).position;
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, source, 10, tail), 0);
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, source, 10, tail + 4), 4);
  model_append(STREAM_STDOUT, source, 4, 16384);
  check_all(&log, SIZE_MAX);

  malloc_limit = SIZE_MAX;
  ck_assert_uint_eq(command_log_append(&log, STREAM_STDOUT, source, 100, model.tail), 100);
  model_append(STREAM_STDOUT, source, 100, COMMAND_LOG_CAPACITY);
  check_all(&log, SIZE_MAX);
  command_log_free(&log);

  command_log_init(&log, COMMAND_LOG_CAPACITY);
  malloc_limit = 72;
  size_t took = command_log_append(&log, STREAM_STDOUT, source, 100, UINT64_MAX);
  malloc_limit = SIZE_MAX;
  ck_assert_uint_eq(took, 100);
  ck_assert_uint_eq(command_log_memory(&log), 72);
  command_log_free(&log);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("command_log");
  TCase *tcase = tcase_create("command_log");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, test_any_interleaving, 0, (int)(sizeof limits / sizeof *limits));
  tcase_add_test(tcase, test_alternating_bytes_keep_the_whole_capacity);
  tcase_add_test(tcase, test_huge_write_keeps_the_newest);
  tcase_add_test(tcase, test_kept_bytes_are_never_dropped);
  tcase_add_test(tcase, test_reserve_without_commit_changes_nothing);
  tcase_add_test(tcase, test_memory_follows_the_content);
  tcase_add_test(tcase, test_totals_outlive_the_content);
  tcase_add_test(tcase, test_shrink_keeps_everything);
  tcase_add_test(tcase, test_shrink_of_nothing_frees);
  tcase_add_test(tcase, test_no_memory_at_all);
  tcase_add_test(tcase, test_little_memory_makes_a_small_log);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
