/* Readers: replay, following, resuming, holding the command, stalling and gaps. Where bytes must come at a chosen
 * moment the test writes them into the log of a command that prints nothing; where back-pressure counts, real pipes are
 * used. */
#include "core_fixture.h"
#include "run.h"

#define STALL (300 * CLOCK_MS)

static void begin(void) {
  struct sandbox_options options = core_options();
  options.commands.stall_timeout = STALL;
  core_begin_with(&options);
}

static int n_notified;

static void on_notify(struct reader *reader) {
  ck_assert_ptr_nonnull(reader->command);
  n_notified++;
}

static struct command *quiet_command(void) {
  struct command *command = start_shell("exec sleep 774.100");
  RUN_UNTIL(command->state == COMMAND_RUNNING);
  return command;
}

static void finish(struct command *command) {
  bool signaled;
  ck_assert_int_eq(command_signal(command, SIGKILL, &signaled, NULL), 0);
  RUN_UNTIL(command_is_over(command));
}

static void print(struct command *command, enum stream stream, const char *bytes, size_t len) {
  ck_assert_uint_eq(command_log_append(&command->log, stream, bytes, len, UINT64_MAX), len);
  reader_notify_all(command);
}

static void print_text(struct command *command, enum stream stream, const char *text) {
  print(command, stream, text, strlen(text));
}

static void expect_data(struct reader *reader, enum stream stream, uint64_t offset, const char *text) {
  struct reader_piece piece;
  ck_assert_int_eq(reader_next(reader, 1000, &piece), READER_DATA);
  ck_assert_int_eq(piece.stream, stream);
  ck_assert_uint_eq(piece.offset, offset);
  ck_assert_uint_eq(piece.len, strlen(text));
  ck_assert_int_eq(memcmp(piece.bytes, text, piece.len), 0);
  ck_assert_uint_eq(piece.lost, 0);
  /* It stays until it is taken. */
  ck_assert_int_eq(reader_next(reader, 1000, &piece), READER_DATA);
  ck_assert_uint_eq(piece.offset, offset);
  reader_take(reader, &piece, piece.len);
}

static void expect(struct reader *reader, enum reader_item item) {
  struct reader_piece piece;
  ck_assert_int_eq(reader_next(reader, 1000, &piece), item);
}

static void expect_gap(struct reader *reader, enum stream stream, uint64_t offset, uint64_t lost) {
  struct reader_piece piece;
  ck_assert_int_eq(reader_next(reader, 1000, &piece), READER_GAP);
  ck_assert_int_eq(piece.stream, stream);
  ck_assert_uint_eq(piece.offset, offset);
  ck_assert_uint_eq(piece.lost, lost);
  ck_assert_int_eq(reader_next(reader, 1000, &piece), READER_GAP);
  reader_take(reader, &piece, 0);
}

/* ---- replay and follow ---- */

START_TEST(test_replay_then_follow) {
  struct command *command = quiet_command();
  struct reader reader;
  print_text(command, STREAM_STDOUT, "one");
  print_text(command, STREAM_STDERR, "two");
  n_notified = 0;
  reader_attach(&reader, command, true, on_notify, NULL);
  expect_data(&reader, STREAM_STDOUT, 0, "one");
  expect_data(&reader, STREAM_STDERR, 0, "two");
  expect(&reader, READER_NOTHING);
  print_text(command, STREAM_STDOUT, "three");
  ck_assert_int_eq(n_notified, 1);
  expect_data(&reader, STREAM_STDOUT, 3, "three");
  expect(&reader, READER_NOTHING);
  finish(command);
  ck_assert_int_gt(n_notified, 1);
  expect(&reader, READER_END);
  expect(&reader, READER_END);
  reader_detach(&reader);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

START_TEST(test_no_follow_ends_at_what_is_there) {
  struct command *command = quiet_command();
  struct reader reader;
  print_text(command, STREAM_STDOUT, "one");
  reader_attach(&reader, command, false, on_notify, NULL);
  print_text(command, STREAM_STDOUT, "two");
  expect_data(&reader, STREAM_STDOUT, 0, "one");
  expect(&reader, READER_END);
  reader_detach(&reader);
  /* Nothing printed yet: it ends at once. */
  struct command *empty = quiet_command();
  reader_attach(&reader, empty, false, on_notify, NULL);
  expect(&reader, READER_END);
  reader_detach(&reader);
  finish(command);
  finish(empty);
  command_unref(command);
  command_unref(empty);
}
END_TEST

START_TEST(test_take_in_parts) {
  struct command *command = quiet_command();
  struct reader reader;
  struct reader_piece piece;
  print_text(command, STREAM_STDOUT, "abcdef");
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_next(&reader, 4, &piece), READER_DATA);
  ck_assert_uint_eq(piece.len, 4);
  reader_take(&reader, &piece, 1);
  ck_assert_int_eq(reader_next(&reader, 2, &piece), READER_DATA);
  ck_assert_uint_eq(piece.len, 2);
  ck_assert_uint_eq(piece.offset, 1);
  reader_take(&reader, &piece, 0);
  expect_data(&reader, STREAM_STDOUT, 1, "bcdef");
  reader_detach(&reader);
  finish(command);
  command_unref(command);
}
END_TEST

/* What a background child prints after the end is replayed to who comes later, and is not part of what was followed. */
START_TEST(test_after_the_end) {
  struct command *command = quiet_command();
  struct reader follower, late;
  reader_attach(&follower, command, true, on_notify, NULL);
  print_text(command, STREAM_STDOUT, "one");
  finish(command);
  print_text(command, STREAM_STDOUT, "late");
  expect_data(&follower, STREAM_STDOUT, 0, "one");
  expect(&follower, READER_END);
  reader_attach(&late, command, true, on_notify, NULL);
  expect_data(&late, STREAM_STDOUT, 0, "onelate");
  expect(&late, READER_END);
  reader_detach(&late);
  reader_detach(&follower);
  command_unref(command);
}
END_TEST

/* ---- since ---- */

START_TEST(test_seek) {
  struct command *command = quiet_command();
  struct reader reader;
  struct error err = ERROR_INIT;
  print_text(command, STREAM_STDOUT, "abc");
  print_text(command, STREAM_STDERR, "DEF");
  print_text(command, STREAM_STDOUT, "ghi");
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_seek(&reader, (const uint64_t[]){4, 1}, &err), 0);
  expect_data(&reader, STREAM_STDERR, 1, "EF");
  expect_data(&reader, STREAM_STDOUT, 4, "hi");
  expect(&reader, READER_NOTHING);
  reader_detach(&reader);

  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_seek(&reader, (const uint64_t[]){6, 3}, &err), 0); /* all of it is there already */
  expect(&reader, READER_NOTHING);
  print_text(command, STREAM_STDERR, "J");
  expect_data(&reader, STREAM_STDERR, 3, "J");
  reader_detach(&reader);

  static const uint64_t beyond[][STREAMS] = {{7, 0}, {0, 5}, {UINT64_MAX, UINT64_MAX}};
  for (size_t i = 0; i < 3; i++) {
    err = (struct error)ERROR_INIT;
    reader_attach(&reader, command, true, on_notify, NULL);
    ck_assert_int_eq(reader_seek(&reader, beyond[i], &err), -1);
    ck_assert_int_eq(err.kind, ERROR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.message, i == 1 ? "since.stderr" : "since.stdout"));
    reader_detach(&reader);
  }
  finish(command);
  command_unref(command);
}
END_TEST

/* A log that has dropped its start. */
static void print_much(struct command *command) {
  static char block[1000];
  memset(block, 'x', sizeof block);
  for (int i = 0; i < 1000; i++)
    print(command, i % 4 ? STREAM_STDOUT : STREAM_STDERR, block, sizeof block);
}

START_TEST(test_seek_to_what_is_gone) {
  struct command *command = quiet_command();
  struct reader reader;
  struct reader_piece piece;
  struct error err = ERROR_INIT;
  print_much(command);
  uint64_t tail[STREAMS] = {command->log.tail_offset[0], command->log.tail_offset[1]};
  ck_assert_uint_gt(tail[STREAM_STDERR], 1000);
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_seek(&reader, (const uint64_t[]){tail[0] + 10, 500}, &err), 0);
  expect_gap(&reader, STREAM_STDERR, 500, tail[STREAM_STDERR] - 500);
  uint64_t total[STREAMS] = {0};
  while (reader_next(&reader, 5000, &piece) == READER_DATA) {
    ck_assert_uint_eq(piece.offset, piece.stream == STREAM_STDOUT ? tail[0] + 10 + total[0] : tail[1] + total[1]);
    total[piece.stream] += piece.len;
    reader_take(&reader, &piece, piece.len);
  }
  ck_assert_uint_eq(total[0], 750000 - tail[0] - 10);
  ck_assert_uint_eq(total[1], 250000 - tail[1]);
  reader_detach(&reader);

  /* Without since nothing was asked for, and nothing is missed. */
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_next(&reader, 10, &piece), READER_DATA);
  reader_detach(&reader);
  finish(command);
  command_unref(command);
}
END_TEST

/* The ring overtakes a reader: each stream's loss is told once, exactly, and only what it wanted. */
START_TEST(test_overtaken) {
  struct command *command = quiet_command();
  struct reader reader;
  struct reader_piece piece;
  print_text(command, STREAM_STDERR, "0123456789");
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_next(&reader, 4, &piece), READER_DATA);
  reader_take(&reader, &piece, 4);
  print_much(command);
  expect_gap(&reader, STREAM_STDOUT, 0, command->log.tail_offset[0]);
  expect_gap(&reader, STREAM_STDERR, 4, command->log.tail_offset[1] - 4);
  ck_assert_int_eq(reader_next(&reader, 4, &piece), READER_DATA);
  /* Overtaken again while a gap is untold: one gap with the sum. */
  uint64_t before[STREAMS] = {command->log.tail_offset[0], command->log.tail_offset[1]};
  print_much(command);
  ck_assert_int_eq(reader_next(&reader, 4, &piece), READER_GAP);
  print_much(command);
  expect_gap(&reader, STREAM_STDOUT, before[0], command->log.tail_offset[0] - before[0]);
  expect_gap(&reader, STREAM_STDERR, before[1], command->log.tail_offset[1] - before[1]);
  reader_detach(&reader);

  /* What `since` said the client has is not missed. */
  struct error err = ERROR_INIT;
  uint64_t head = command->log.head_offset[STREAM_STDOUT];
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_seek(&reader, command->log.head_offset, &err), 0);
  print_much(command);
  expect_gap(&reader, STREAM_STDOUT, head, command->log.tail_offset[0] - head);
  reader_detach(&reader);
  finish(command);
  command_unref(command);
}
END_TEST

/* One without follow that is overtaken ends, after it was told. */
START_TEST(test_overtaken_without_follow) {
  struct command *command = quiet_command();
  struct reader reader;
  print_text(command, STREAM_STDOUT, "0123456789");
  reader_attach(&reader, command, false, on_notify, NULL);
  print_much(command);
  print_much(command);
  struct reader_piece piece;
  ck_assert_int_eq(reader_next(&reader, 10, &piece), READER_GAP);
  reader_take(&reader, &piece, 0);
  while (reader_next(&reader, 10, &piece) == READER_GAP)
    reader_take(&reader, &piece, 0);
  expect(&reader, READER_END);
  reader_detach(&reader);
  finish(command);
  command_unref(command);
}
END_TEST

/* ---- back-pressure, with real pipes ---- */

#define TOTAL 3000000

static struct command *printer(void) {
  char text[100];
  snprintf(text, sizeof text, "yes 0123456789abcde | head -c %d; echo end >&2", TOTAL);
  return start_shell(text);
}

/* Reads to the end, and says what it got and lost. */
static void read_all(struct reader *reader, uint64_t got[STREAMS], uint64_t lost[STREAMS]) {
  struct reader_piece piece;
  int64_t give_up = clock_monotonic() + LONGEST;
  memset(got, 0, STREAMS * sizeof *got);
  memset(lost, 0, STREAMS * sizeof *lost);
  for (;;) {
    REQUIRE(clock_monotonic() < give_up);
    switch (reader_next(reader, 100000, &piece)) {
    case READER_NOTHING:
      loop_run_once(sandbox.loop, 20);
      break;
    case READER_GAP:
      REQUIRE(piece.offset == got[piece.stream] + lost[piece.stream]);
      lost[piece.stream] += piece.lost;
      reader_take(reader, &piece, 0);
      break;
    case READER_DATA:
      REQUIRE(piece.offset == got[piece.stream] + lost[piece.stream]);
      for (size_t i = 0; piece.stream == STREAM_STDOUT && i < piece.len; i++)
        REQUIRE(piece.bytes[i] == (uint8_t) "0123456789abcde\n"[(piece.offset + i) % 16]);
      got[piece.stream] += piece.len;
      reader_take(reader, &piece, piece.len);
      break;
    case READER_END:
      return;
    }
  }
}

START_TEST(test_live_reader_loses_nothing) {
  uint64_t got[STREAMS], lost[STREAMS];
  struct reader reader;
  struct command *command = printer();
  reader_attach(&reader, command, true, on_notify, NULL);
  read_all(&reader, got, lost);
  ck_assert_uint_eq(got[STREAM_STDOUT], TOTAL);
  ck_assert_uint_eq(got[STREAM_STDERR], 4);
  ck_assert_uint_eq(lost[STREAM_STDOUT] + lost[STREAM_STDERR], 0);
  ck_assert_int_eq(command->state, COMMAND_FINISHED);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

/* [19] The command waits, the log stays within its bound; then the reader is given up, and told what it lost. */
START_TEST(test_dead_reader_stalls) {
  uint64_t got[STREAMS], lost[STREAMS];
  struct reader reader;
  struct command *command = printer();
  reader_attach(&reader, command, true, on_notify, NULL);
  RUN_UNTIL(command_io_is_paused(command));
  ck_assert_uint_le(command->log.head, COMMAND_LOG_CAPACITY);
  ck_assert(!reader.stalled);
  ck_assert_int_eq(command->state, COMMAND_RUNNING);
  RUN_UNTIL(command_is_over(command));
  ck_assert(reader.stalled);
  ck_assert_uint_eq(command->log.head, TOTAL + 4);
  ck_assert_uint_le(command_log_memory(&command->log), COMMAND_LOG_CAPACITY * 9 / 8);
  read_all(&reader, got, lost);
  ck_assert_uint_eq(got[STREAM_STDOUT] + lost[STREAM_STDOUT], TOTAL);
  ck_assert_uint_eq(got[STREAM_STDOUT] + got[STREAM_STDERR], COMMAND_LOG_CAPACITY);
  ck_assert_uint_gt(lost[STREAM_STDOUT], 0);
  ck_assert(!reader.stalled);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

/* [18] One of two readers is dead: the other gets all. */
START_TEST(test_dead_reader_beside_a_live_one) {
  uint64_t got[STREAMS], lost[STREAMS];
  struct reader dead, live;
  struct command *command = printer();
  reader_attach(&dead, command, true, on_notify, NULL);
  reader_attach(&live, command, true, on_notify, NULL);
  read_all(&live, got, lost);
  ck_assert_uint_eq(got[STREAM_STDOUT], TOTAL);
  ck_assert_uint_eq(lost[STREAM_STDOUT], 0);
  reader_detach(&live);
  reader_detach(&dead);
  command_unref(command);
}
END_TEST

/* It leaves while the command waits for it. */
START_TEST(test_detached_while_paused) {
  struct reader reader;
  struct command *command = printer();
  reader_attach(&reader, command, true, on_notify, NULL);
  RUN_UNTIL(command_io_is_paused(command));
  int64_t left = clock_monotonic();
  reader_detach(&reader);
  ck_assert(!command_io_is_paused(command));
  RUN_UNTIL(command_is_over(command));
  ck_assert(left > 0);
  ck_assert_uint_eq(command->log.head, TOTAL + 4);
  ck_assert(!loop_timer_is_started(&command->stall_timer));
  command_unref(command);
}
END_TEST

/* A reader that has all it asked for, or that skips what it has, does not hold the command until it is given up. */
static void set_patient_timeout(void) {
  struct sandbox_options options = core_options();
  options.commands.stall_timeout = 3600 * CLOCK_SECOND;
  core_begin_with(&options);
}

START_TEST(test_satisfied_reader_holds_nothing) {
  struct reader reader;
  struct reader_piece piece;
  struct command *command =
      start_shell("echo first; while [ ! -e go ] && kill -0 $PPID; do sleep 0.02; done; head -c 2000000 /dev/zero");
  RUN_UNTIL(has_printed(command, "first"));
  reader_attach(&reader, command, false, on_notify, NULL);
  ck_assert_int_eq(reader_next(&reader, 100, &piece), READER_DATA);
  reader_take(&reader, &piece, piece.len);
  close(open("go", O_CREAT | O_CLOEXEC, 0600));
  RUN_UNTIL(command_is_over(command));
  expect_gap(&reader, STREAM_STDOUT, 6, command->log.tail_offset[0] - 6);
  expect(&reader, READER_END);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

START_TEST(test_resumed_reader_lets_the_command_go_on) {
  struct reader reader;
  struct reader_piece piece;
  struct error err = ERROR_INIT;
  struct command *command =
      start_shell("head -c 600000 /dev/zero; echo end >&2; while [ ! -e go ] && kill -0 $PPID; do sleep 0.02; done; "
                  "head -c 100000 /dev/zero");
  RUN_UNTIL(command->log.head == 600004);
  reader_attach(&reader, command, true, on_notify, NULL);
  ck_assert_int_eq(reader_seek(&reader, command->log.head_offset, &err), 0);
  close(open("go", O_CREAT | O_CLOEXEC, 0600));
  RUN_UNTIL(command_io_is_paused(command)); /* it has not looked yet: the whole log waits for it */
  ck_assert_int_eq(reader_next(&reader, 100000, &piece), READER_NOTHING);
  ck_assert(!command_io_is_paused(command));
  while (reader_next(&reader, 100000, &piece) != READER_END) {
    if (piece.len > 0 && reader.cursor.position < command->log.head)
      reader_take(&reader, &piece, piece.len);
    loop_run_once(sandbox.loop, 20);
  }
  ck_assert_uint_eq(command->log.head, 700004);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

/* The command is not idle while it is its reader that is slow. */
START_TEST(test_slow_reader_is_no_idleness) {
  struct command_spec spec;
  struct reader reader;
  uint64_t got[STREAMS], lost[STREAMS];
  spec_begin(&spec, "yes 0123456789abcde | head -c 2000000");
  spec.idle_timeout = 100 * CLOCK_MS;
  struct command *command = start_spec(&spec);
  reader_attach(&reader, command, true, on_notify, NULL);
  RUN_UNTIL(command_io_is_paused(command));
  int64_t until = clock_monotonic() + 400 * CLOCK_MS;
  while (clock_monotonic() < until)
    loop_run_once(sandbox.loop, 20);
  ck_assert(!command->ending);
  read_all(&reader, got, lost);
  ck_assert_int_eq(command->reason, REASON_EXITED);
  ck_assert_uint_eq(got[STREAM_STDOUT], 2000000);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

/* A small log, because memory is short: a reader that never takes anything is given up there too. */
static void begin_with_little_memory(void) {
  struct sandbox_options options = core_options();
  options.commands.stall_timeout = STALL;
  options.commands.log_memory = 1000;
  core_begin_with(&options);
}

START_TEST(test_dead_reader_of_a_small_log) {
  struct reader reader;
  struct command *command = printer();
  reader_attach(&reader, command, true, on_notify, NULL);
  RUN_UNTIL(command_is_over(command));
  ck_assert_uint_eq(command->log.head, TOTAL + 4);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

START_TEST(test_live_reader_of_a_small_log) {
  uint64_t got[STREAMS], lost[STREAMS];
  struct reader reader;
  struct command *command = printer();
  reader_attach(&reader, command, true, on_notify, NULL);
  read_all(&reader, got, lost);
  ck_assert_uint_eq(got[STREAM_STDOUT], TOTAL);
  reader_detach(&reader);
  command_unref(command);
}
END_TEST

/* [20] Attach at random moments of two interleaved streams: no gap and no double. */
START_TEST(test_attach_at_any_moment) {
  enum { READERS = 30 };
  struct reader readers[READERS];
  uint64_t next[READERS][STREAMS] = {0};
  int attached = 0, ended = 0;
  struct command *command = start_shell("i=0; while [ $i -lt 3000 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done");
  int64_t give_up = clock_monotonic() + LONGEST;
  while (ended < READERS) {
    REQUIRE(clock_monotonic() < give_up);
    if (attached < READERS && (command_is_over(command) || command->log.head > (uint64_t)attached * 1000))
      reader_attach(&readers[attached++], command, true, on_notify, NULL);
    loop_run_once(sandbox.loop, 1);
    for (int i = 0; i < attached; i++) {
      struct reader_piece piece;
      enum reader_item item;
      if (!readers[i].command)
        continue;
      while ((item = reader_next(&readers[i], 777, &piece)) == READER_DATA) {
        REQUIRE(piece.offset == next[i][piece.stream]);
        next[i][piece.stream] += piece.len;
        reader_take(&readers[i], &piece, piece.len);
      }
      REQUIRE(item != READER_GAP);
      if (item == READER_END) {
        for (int s = 0; s < STREAMS; s++)
          REQUIRE(next[i][s] == command->log.head_offset[s]);
        reader_detach(&readers[i]);
        ended++;
      }
    }
  }
  command_unref(command);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("reader");
  TCase *tcase = tcase_create("reader");
  tcase_set_timeout(tcase, 60);
  tcase_add_checked_fixture(tcase, begin, core_end);
  tcase_add_test(tcase, test_replay_then_follow);
  tcase_add_test(tcase, test_no_follow_ends_at_what_is_there);
  tcase_add_test(tcase, test_take_in_parts);
  tcase_add_test(tcase, test_after_the_end);
  tcase_add_test(tcase, test_seek);
  tcase_add_test(tcase, test_seek_to_what_is_gone);
  tcase_add_test(tcase, test_overtaken);
  tcase_add_test(tcase, test_overtaken_without_follow);
  tcase_add_test(tcase, test_live_reader_loses_nothing);
  tcase_add_test(tcase, test_dead_reader_stalls);
  tcase_add_test(tcase, test_dead_reader_beside_a_live_one);
  tcase_add_test(tcase, test_attach_at_any_moment);
  suite_add_tcase(suite, tcase);
  TCase *patient = tcase_create("no stall");
  tcase_set_timeout(patient, 60);
  tcase_add_checked_fixture(patient, set_patient_timeout, core_end);
  tcase_add_test(patient, test_detached_while_paused);
  tcase_add_test(patient, test_satisfied_reader_holds_nothing);
  tcase_add_test(patient, test_resumed_reader_lets_the_command_go_on);
  tcase_add_test(patient, test_slow_reader_is_no_idleness);
  suite_add_tcase(suite, patient);
  TCase *little = tcase_create("little memory");
  tcase_set_timeout(little, 60);
  tcase_add_checked_fixture(little, begin_with_little_memory, core_end);
  tcase_add_test(little, test_dead_reader_of_a_small_log);
  tcase_add_test(little, test_live_reader_of_a_small_log);
  suite_add_tcase(suite, little);
  return run_suite(suite);
}
