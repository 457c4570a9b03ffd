/* The table: limits, ids, what is kept and what is forgotten, the bound of all logs, the ordered end. */
#include "core_fixture.h"
#include "run.h"

#include "sandkeeper/core/shutdown.h"

#include <pthread.h>

static struct command *start_with_id(const char *id, bool *existing) {
  struct command_spec spec;
  struct command *command;
  struct error err = ERROR_INIT;
  spec_begin(&spec, "sleep 774.200");
  snprintf(spec.id, sizeof spec.id, "%s", id);
  ck_assert_msg(commands_start(&sandbox.commands, &spec, &command, existing, &err) == 0, "%s", err.message);
  return command;
}

static void end_command(struct command *command) {
  bool signaled;
  ck_assert_int_eq(command_signal(command, SIGKILL, &signaled, NULL), 0);
  RUN_UNTIL(command_is_over(command));
  command_unref(command);
}

static void expect_refused(const char *text, enum error_kind kind, uint64_t limit) {
  struct command_spec spec;
  struct command *command = (struct command *)1;
  struct error err = ERROR_INIT;
  bool existing;
  spec_begin(&spec, text);
  ck_assert_int_eq(commands_start(&sandbox.commands, &spec, &command, &existing, &err), -1);
  ck_assert_int_eq(err.kind, kind);
  ck_assert_uint_eq(err.limit, limit);
  ck_assert_ptr_null(command);
  ck_assert_ptr_null(spec.spawn.command); /* taken over in any case */
}

/* ---- ids ---- */

START_TEST(test_ids) {
  bool existing;
  struct error err = ERROR_INIT;
  struct command *a = start_with_id("job-1", &existing);
  ck_assert(!existing);
  struct command *again = start_with_id("job-1", &existing);
  ck_assert(existing);
  ck_assert_ptr_eq(a, again);
  ck_assert_uint_eq(sandbox.commands.counts.running, 1);
  ck_assert_ptr_eq(commands_find(&sandbox.commands, "job-1", &err), a);
  ck_assert_ptr_null(commands_find(&sandbox.commands, "job-2", &err));
  ck_assert_int_eq(err.kind, ERROR_NOT_FOUND);
  char long_id[1000];
  memset(long_id, 'x', sizeof long_id);
  long_id[999] = '\0';
  ck_assert_ptr_null(commands_find(&sandbox.commands, long_id, &err));
  ck_assert_ptr_null(commands_find(&sandbox.commands, "", &err));
  ck_assert_int_eq(commands_remove(&sandbox.commands, a, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_BUSY);
  command_unref(again);
  end_command(a);
  /* A finished one too: nothing is started a second time. */
  a = start_with_id("job-1", &existing);
  ck_assert(existing);
  ck_assert_int_eq(a->state, COMMAND_FINISHED);
  ck_assert_int_eq(commands_remove(&sandbox.commands, a, &err), 0);
  ck_assert_ptr_null(commands_find(&sandbox.commands, "job-1", NULL));
  command_unref(a);
  a = start_with_id("job-1", &existing);
  ck_assert(!existing);
  end_command(a);
}
END_TEST

/* A client takes the ids that we would make next. */
START_TEST(test_id_of_a_client_in_our_shape) {
  bool existing;
  struct command *theirs[5];
  for (int i = 0; i < 5; i++) {
    char id[64];
    snprintf(id, sizeof id, "cmd-%.8s-%d", sandbox.commands.run_id, i + 3);
    theirs[i] = start_with_id(id, &existing);
    ck_assert(!existing);
  }
  struct command *ours[5];
  for (int i = 0; i < 5; i++)
    ours[i] = start_with_id("", &existing);
  for (int i = 0; i < 5; i++) {
    ck_assert_ptr_eq(commands_find(&sandbox.commands, theirs[i]->id, NULL), theirs[i]);
    ck_assert_ptr_eq(commands_find(&sandbox.commands, ours[i]->id, NULL), ours[i]);
    ck_assert_str_ne(theirs[i]->terminator.mark, ours[i]->terminator.mark);
  }
  for (int i = 0; i < 5; i++) {
    end_command(theirs[i]);
    end_command(ours[i]);
  }
}
END_TEST

/* A start that fails leaves its id free. */
START_TEST(test_failed_start_frees_its_id) {
  bool existing;
  struct command_spec spec;
  for (int i = 0; i < 2; i++) {
    spec_begin(&spec, NULL);
    spec_argv(&spec, (const char *const[]){"/no/such", NULL});
    snprintf(spec.id, sizeof spec.id, "again");
    struct command *command = start_spec(&spec);
    RUN_UNTIL(command_is_over(command));
    ck_assert_int_eq(command->state, COMMAND_FAILED);
    command_unref(command);
  }
  struct command *command = start_with_id("again", &existing);
  ck_assert(!existing);
  end_command(command);
}
END_TEST

/* ---- limits ---- */

static void begin_with_limits(void) {
  struct sandbox_options options = core_options();
  options.commands.max_running = 3;
  options.commands.keep_finished = 2;
  core_begin_with(&options);
}

START_TEST(test_max_running) {
  bool existing;
  struct command *commands[3];
  for (int i = 0; i < 3; i++)
    commands[i] = start_with_id(i == 0 ? "first" : "", &existing);
  expect_refused("true", ERROR_BUSY, 3);
  struct command *again = start_with_id("first", &existing); /* it is not a new one */
  ck_assert(existing);
  command_unref(again);
  /* The agent's own are not counted. */
  struct command_spec spec;
  spec_begin(&spec, "exit 5");
  spec.hidden = true;
  struct command *hidden = start_spec(&spec);
  RUN_UNTIL(command_is_over(hidden));
  ck_assert_int_eq(hidden->exit_code, 5);
  ck_assert_str_eq(hidden->error ? "failed" : "", "");
  command_unref(hidden);
  end_command(commands[0]);
  struct command *next = start_shell("true");
  RUN_UNTIL(command_is_over(next));
  command_unref(next);
  end_command(commands[1]);
  end_command(commands[2]);
}
END_TEST

START_TEST(test_refusing) {
  sandbox.commands.refusing = true;
  expect_refused("true", ERROR_STOPPED, 0);
  struct command_spec spec;
  spec_begin(&spec, "true");
  spec.hidden = true;
  struct command *command;
  struct error err = ERROR_INIT;
  bool existing;
  ck_assert_int_eq(commands_start(&sandbox.commands, &spec, &command, &existing, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_STOPPED);
  spec_begin(&spec, "true");
  spec.hidden = spec.of_image = true;
  command = start_spec(&spec);
  RUN_UNTIL(command_is_over(command));
  command_unref(command);
  sandbox.commands.refusing = false;
}
END_TEST

START_TEST(test_keep_finished) {
  char ids[4][COMMAND_ID_MAX + 1];
  for (int i = 0; i < 4; i++) {
    struct command *command = run_shell("echo x");
    snprintf(ids[i], sizeof ids[i], "%s", command->id);
    command_unref(command);
  }
  ck_assert_uint_eq(sandbox.commands.counts.finished, 2);
  for (int i = 0; i < 4; i++)
    ck_assert_int_eq(commands_find(&sandbox.commands, ids[i], NULL) != NULL, i >= 2);
  ck_assert_uint_eq(sandbox.commands.counts.ended[REASON_EXITED], 4);
  /* What it printed takes what it needs. */
  ck_assert_uint_le(sandbox.commands.counts.log_memory, 2 * 80);
}
END_TEST

static void begin_keeping_none(void) {
  struct sandbox_options options = core_options();
  options.commands.keep_finished = 0;
  core_begin_with(&options);
}

START_TEST(test_keep_none) {
  for (int i = 0; i < 3; i++) {
    struct command *command = start_shell("sleep 0.1 & echo x");
    RUN_UNTIL(command_is_over(command));
    ck_assert_int_eq(command->state, COMMAND_FINISHED);
    /* Who still has it can still read it. */
    expect_output(command, STREAMS, "x\n");
    ck_assert_ptr_null(commands_find(&sandbox.commands, command->id, NULL));
    command_unref(command);
  }
  ck_assert_uint_eq(sandbox.commands.counts.finished, 0);
  ck_assert_uint_eq(sandbox.commands.counts.running, 0);
  RUN_UNTIL(sandbox.commands.counts.log_memory == 0);
}
END_TEST

/* ---- memory ---- */

#define BOUND (2u << 20)

static void begin_with_little_memory(void) {
  struct sandbox_options options = core_options();
  options.commands.log_memory = BOUND;
  core_begin_with(&options);
}

static void on_notify(struct reader *reader) {
  (void)reader;
}

static void on_change(struct command_observer *observer, struct command *command) {
  (void)observer;
  (void)command;
}

static uint64_t sum_of_logs(void) {
  uint64_t sum = 0;
  struct list *const lists[] = {&sandbox.commands.live, &sandbox.commands.finished, &sandbox.commands.lingering};
  for (size_t i = 0; i < 3; i++)
    LIST_FOREACH (lists[i], node)
      sum += command_log_memory(&LIST_OWNER(node, struct command, node)->log);
  return sum;
}

START_TEST(test_finished_logs_within_the_bound) {
  struct command *last = NULL;
  for (int i = 0; i < 12; i++) {
    if (last)
      command_unref(last);
    last = run_shell("head -c 700000 /dev/zero");
    ck_assert_uint_le(sandbox.commands.counts.log_memory, BOUND);
    ck_assert_uint_eq(sandbox.commands.counts.log_memory, sum_of_logs());
    /* The newest always has its whole log: the old ones made room. */
    ck_assert_uint_eq(last->log.head - last->log.tail, COMMAND_LOG_CAPACITY);
  }
  ck_assert_uint_eq(sandbox.commands.counts.finished, 12);
  struct command *oldest = LIST_FIRST(&sandbox.commands.finished, struct command, node);
  ck_assert_uint_eq(command_log_memory(&oldest->log), 0);
  ck_assert_uint_eq(oldest->log.tail, 700000);
  command_unref(last);
  uint64_t dropped = sandbox.commands.counts.dropped;
  ck_assert_uint_ge(dropped, 12 * (700000 - COMMAND_LOG_CAPACITY));
}
END_TEST

/* Many at once, all with more to print than there is memory: none gets more than its share. */
START_TEST(test_running_logs_within_the_bound) {
  enum { N = 30 };
  struct command *commands[N];
  for (int i = 0; i < N; i++) {
    char text[128];
    /* A little at a time, so that all grow side by side. */
    snprintf(text, sizeof text, "for i in 1 2 3 4 5 6 7 8; do head -c 70000 /dev/zero; sleep 0.02; done; read x <%s",
             "gate");
    if (i == 0)
      ck_assert_int_eq(mkfifo("gate", 0600), 0);
    commands[i] = start_shell(text);
  }
  for (int i = 0; i < N; i++)
    RUN_UNTIL(commands[i]->log.head == 560000);
  ck_assert_uint_eq(sandbox.commands.counts.log_memory, sum_of_logs());
  /* The bound, and what a pipe holds for each. */
  ck_assert_uint_le(sandbox.commands.counts.log_memory, BOUND + N * (64u * 1024u / 8 * 9));
  for (int i = 0; i < N; i++) {
    ck_assert_uint_ge(commands[i]->log.head - commands[i]->log.tail, 64 * 1024);
    end_command(commands[i]);
  }
  ck_assert_uint_le(sandbox.commands.counts.log_memory, BOUND);
}
END_TEST

/* A log that could not grow does so later, when there is memory again. */
START_TEST(test_log_grows_again) {
  ck_assert_int_eq(mkfifo("gate", 0600), 0);
  struct command *big[3], *last;
  for (int i = 0; i < 3; i++) {
    big[i] = start_shell("head -c 560000 /dev/zero; sleep 774.201");
    RUN_UNTIL(big[i]->log.head == 560000);
  }
  last = start_shell("head -c 560000 /dev/zero; read x <gate; head -c 560000 /dev/zero");
  RUN_UNTIL(last->log.head == 560000);
  ck_assert_uint_lt(last->log.head - last->log.tail, COMMAND_LOG_CAPACITY);
  for (int i = 0; i < 3; i++)
    end_command(big[i]);
  int gate = open("gate", O_RDWR | O_CLOEXEC);
  ck_assert_int_eq(fd_write_all(gate, "\n", 1), 0);
  RUN_UNTIL(command_is_over(last));
  close(gate);
  ck_assert_uint_eq(last->log.head - last->log.tail, COMMAND_LOG_CAPACITY);
  command_unref(last);
}
END_TEST

/* Clients that wait for results and read nothing: of commands that are kept, and of forgotten ones. */
START_TEST(test_dead_clients_hold_no_memory_for_ever) {
  enum { N = 12 };
  struct command *commands[N];
  struct reader readers[N];
  struct command_observer observers[N];
  sandbox.commands.options.stall_timeout = 100 * CLOCK_MS;
  sandbox.commands.options.keep_finished = N / 2;
  for (int i = 0; i < N; i++) {
    commands[i] = start_shell("head -c 500000 /dev/zero");
    observers[i].changed = on_change;
    command_observe(commands[i], &observers[i]);
    reader_attach(&readers[i], commands[i], true, on_notify, NULL);
    RUN_UNTIL(command_is_over(commands[i]));
    ck_assert_uint_eq(commands[i]->log.head, 500000);
  }
  int64_t until = clock_monotonic() + 150 * CLOCK_MS;
  RUN_UNTIL(clock_monotonic() > until);
  command_unref(run_shell("echo x"));
  ck_assert_uint_eq(sandbox.commands.counts.log_memory, sum_of_logs());
  ck_assert_uint_le(sandbox.commands.counts.log_memory, BOUND);
  uint64_t lost = 0;
  for (int i = 0; i < N; i++) {
    struct reader_piece piece;
    while (reader_next(&readers[i], 100000, &piece) != READER_END) {
      lost += piece.lost;
      reader_take(&readers[i], &piece, piece.len);
    }
    reader_detach(&readers[i]);
    command_unobserve(&observers[i]);
    command_unref(commands[i]);
  }
  ck_assert_uint_gt(lost, 0);
}
END_TEST

/* ---- the end of all ---- */

START_TEST(test_end_all) {
  static const char *const texts[] = {"sleep 774.202", "trap '' TERM; while :; do sleep 774.202; done",
                                      "setsid sleep 774.202 & sleep 774.202"};
  struct command *commands[6];
  for (int i = 0; i < 6; i++) {
    commands[i] = start_shell(texts[i % 3]);
    if (i < 3)
      RUN_UNTIL(commands[i]->state == COMMAND_RUNNING);
  }
  ck_assert(!commands_is_quiet(&sandbox.commands));
  commands_end_all(&sandbox.commands, 300 * CLOCK_MS);
  RUN_UNTIL(commands_is_quiet(&sandbox.commands));
  for (int i = 0; i < 6; i++) {
    ck_assert(command_is_over(commands[i]));
    command_unref(commands[i]);
  }
  RUN_UNTIL(count_processes("sleep 774.202") == 0);
}
END_TEST

START_TEST(test_shutdown_idle) {
  int64_t begin = clock_monotonic();
  shutdown_begin(&sandbox, "a test");
  ck_assert(core_stopping);
  RUN_UNTIL(core_stopped);
  ck_assert_int_lt(clock_monotonic() - begin, 3 * CLOCK_SECOND);
}
END_TEST

START_TEST(test_shutdown_ends_all) {
  struct command *commands[4];
  commands[0] = start_shell("sleep 774.203");
  commands[1] = start_shell("setsid sleep 774.203 & sleep 774.203");
  commands[2] = run_shell("(setsid sleep 774.203 >/dev/null 2>&1 &); echo x"); /* finished, with something left */
  commands[3] = start_shell("trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.02; done");
  RUN_UNTIL(has_printed(commands[3], "ready"));
  RUN_UNTIL(count_processes("sleep 774.203") >= 3);
  shutdown_begin(&sandbox, "a test");
  expect_refused("true", ERROR_STOPPED, 0);
  RUN_UNTIL(core_stopped);
  RUN_UNTIL(count_processes("sleep 774.203") == 0);
  expect_output(commands[3], STREAM_STDOUT, "ready\ngot it\n");
  ck_assert_int_eq(commands[3]->exit_code, 0);
  for (int i = 0; i < 4; i++)
    command_unref(commands[i]);
}
END_TEST

/* A second call hurries: the stubborn one does not get its 5 s. */
START_TEST(test_shutdown_hurried) {
  struct command *command = start_shell("trap '' TERM; echo ready; while :; do sleep 774.204; done");
  RUN_UNTIL(has_printed(command, "ready"));
  int64_t begin = clock_monotonic();
  sandbox.options.grace = 3600 * CLOCK_SECOND;
  shutdown_begin(&sandbox, "a test");
  for (int i = 0; i < 5; i++)
    loop_run_once(sandbox.loop, 20);
  ck_assert(!core_stopped);
  shutdown_begin(&sandbox, "a test");
  RUN_UNTIL(core_stopped);
  ck_assert_int_lt(clock_monotonic() - begin, 20 * CLOCK_SECOND);
  command_unref(command);
}
END_TEST

/* Each process of a command that handles SIGTERM sees it once at the shutdown as well. */
START_TEST(test_shutdown_signals_once) {
  struct command *command = start_shell("trap 'echo TERM >>terms' TERM; sh -c 'trap \"\" TERM; exec sleep 774.205' & "
                                        "echo ready; while [ ! -e go ] && kill -0 $PPID; do wait; done");
  RUN_UNTIL(has_printed(command, "ready"));
  RUN_UNTIL(count_processes("sleep 774.205") == 2);
  sandbox.options.grace = 3600 * CLOCK_SECOND;
  shutdown_begin(&sandbox, "a test");
  struct stat st;
  RUN_UNTIL(stat("terms", &st) == 0 && st.st_size > 0);
  int64_t until = clock_monotonic() + 300 * CLOCK_MS;
  while (clock_monotonic() < until)
    loop_run_once(sandbox.loop, 20);
  ck_assert_int_eq(stat("terms", &st), 0);
  ck_assert_int_eq(st.st_size, 5);
  shutdown_begin(&sandbox, "a test");
  RUN_UNTIL(core_stopped);
  command_unref(command);
}
END_TEST

/* ---- a start that hangs ---- */

/* All threads that start processes are kept busy, as by file systems that do not answer. */
static pthread_mutex_t hang = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int n_back;

static void hang_work(struct job *job) {
  (void)job;
  pthread_mutex_lock(&hang);
  pthread_mutex_unlock(&hang);
}

static void hang_done(struct job *job, enum job_end end) {
  (void)end;
  free(job);
  n_back++;
}

static void hang_abandon(struct job *job) {
  free(job);
}

static void hang_all_threads(void) {
  pthread_mutex_lock(&hang);
  for (int i = 0; i < 6; i++) {
    struct job *job = calloc(1, sizeof *job);
    ck_assert_ptr_nonnull(job);
    *job = (struct job){.class = JOB_SPAWN, .work = hang_work, .done = hang_done, .abandon = hang_abandon};
    ck_assert_int_eq(workers_submit(sandbox.workers, job, NULL, false, NULL), 0);
  }
}

START_TEST(test_timeout_while_the_start_hangs) {
  struct command_spec spec;
  hang_all_threads();
  spec_begin(&spec, "echo x >started; sleep 774.206");
  spec.timeout = 100 * CLOCK_MS;
  struct command *command = start_spec(&spec);
  struct command *stopped = start_shell("echo x >started; sleep 774.206");
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->state, COMMAND_FAILED);
  ck_assert_int_eq(command->error->kind, ERROR_TIMED_OUT);
  command_end(stopped, REASON_EXITED, 100 * CLOCK_MS);
  RUN_UNTIL(command_is_over(stopped));
  ck_assert_int_eq(stopped->error->kind, ERROR_STOPPED);
  ck_assert_uint_eq(sandbox.commands.counts.running, 0);
  pthread_mutex_unlock(&hang);
  RUN_UNTIL(n_back == 6);
  /* What starts after all is killed. */
  struct command *other = run_shell("true");
  RUN_UNTIL(count_processes("sleep 774.206") == 0);
  RUN_UNTIL(!has_zombie());
  command_unref(other);
  command_unref(command);
  command_unref(stopped);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("commands");
  TCase *tcase = tcase_create("commands");
  tcase_set_timeout(tcase, 60);
  tcase_add_checked_fixture(tcase, core_begin, core_end);
  tcase_add_test(tcase, test_ids);
  tcase_add_test(tcase, test_id_of_a_client_in_our_shape);
  tcase_add_test(tcase, test_failed_start_frees_its_id);
  tcase_add_test(tcase, test_refusing);
  tcase_add_test(tcase, test_end_all);
  tcase_add_test(tcase, test_shutdown_idle);
  tcase_add_test(tcase, test_shutdown_ends_all);
  tcase_add_test(tcase, test_shutdown_hurried);
  tcase_add_test(tcase, test_shutdown_signals_once);
  tcase_add_test(tcase, test_timeout_while_the_start_hangs);
  suite_add_tcase(suite, tcase);
  TCase *limits = tcase_create("limits");
  tcase_set_timeout(limits, 60);
  tcase_add_checked_fixture(limits, begin_with_limits, core_end);
  tcase_add_test(limits, test_max_running);
  tcase_add_test(limits, test_keep_finished);
  suite_add_tcase(suite, limits);
  TCase *none = tcase_create("keeping none");
  tcase_add_checked_fixture(none, begin_keeping_none, core_end);
  tcase_set_timeout(none, 60);
  tcase_add_test(none, test_keep_none);
  suite_add_tcase(suite, none);
  TCase *memory = tcase_create("memory");
  tcase_set_timeout(memory, 60);
  tcase_add_checked_fixture(memory, begin_with_little_memory, core_end);
  tcase_add_test(memory, test_finished_logs_within_the_bound);
  tcase_add_test(memory, test_running_logs_within_the_bound);
  tcase_add_test(memory, test_log_grows_again);
  tcase_add_test(memory, test_dead_clients_hold_no_memory_for_ever);
  suite_add_tcase(suite, memory);
  return run_suite(suite);
}
