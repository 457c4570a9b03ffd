/* Commands from start to end: real processes, pipes, signals. The numbers in brackets are those of the table of faults
 * that other agents had; the end-to-end tests carry them too. */
#include "core_fixture.h"
#include "run.h"

/* ---- how it ends ---- */

START_TEST(test_exit_codes) {
  for (int code = 0; code < 256; code += 5) {
    char text[32];
    snprintf(text, sizeof text, "exit %d", code);
    struct command *command = run_shell(text);
    ck_assert_int_eq(command->exit_code, code);
    ck_assert_int_eq(command->signal, 0);
    ck_assert_int_eq(command->reason, REASON_EXITED);
    ck_assert_int_eq(command->survivors, 0);
    ck_assert(command->finished >= command->started);
    ck_assert(command->finished_wall >= command->started_wall);
    command_unref(command);
  }
}
END_TEST

/* [5] Death by every signal that is deadly. */
START_TEST(test_death_by_signal) {
  for (int number = 1; number <= 31; number++) {
    if (number == SIGCHLD || number == SIGCONT || number == SIGSTOP || number == SIGTSTP || number == SIGTTIN ||
        number == SIGTTOU || number == SIGURG || number == SIGWINCH)
      continue;
    char text[64];
    snprintf(text, sizeof text, "ulimit -c 0; kill -%d $$; sleep 10", number);
    struct command *command = run_shell(text);
    ck_assert_int_eq(command->signal, number);
    ck_assert_int_eq(command->exit_code, 128 + number);
    ck_assert_int_eq(command->reason, REASON_SIGNALED);
    command_unref(command);
  }
}
END_TEST

/* Children that are dead before their start is known to the loop. */
START_TEST(test_early_exit) {
  const char *const words[] = {"/bin/sh", "-c", "exit 3", NULL};
  for (int i = 0; i < 200; i++) {
    struct command_spec spec;
    spec_begin(&spec, NULL);
    spec_argv(&spec, words);
    struct command *command = start_spec(&spec);
    /* Every other time the loop only looks when the child is long dead. */
    if (i % 2) {
      siginfo_t info = {0};
      while (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) < 0)
        ;
    }
    RUN_UNTIL(command_is_over(command));
    ck_assert_int_eq(command->state, COMMAND_FINISHED);
    ck_assert_int_eq(command->exit_code, 3);
    command_unref(command);
  }
  ck_assert(!has_zombie());
  ck_assert(list_is_empty(&sandbox.commands.unreaped));
}
END_TEST

/* [5, 9, 13] Many at once, with exact codes and bytes; then everything is given back. */
START_TEST(test_thousand_quick_ones) {
  enum { N = 1000, AT_ONCE = 40 };
  struct command *commands[AT_ONCE] = {0};
  command_unref(run_shell("true"));
  int fds = count_fds();
  for (int i = 0; i < N + AT_ONCE; i++) {
    struct command **place = &commands[i % AT_ONCE];
    if (*place) {
      struct command *command = *place;
      char expected[64];
      RUN_UNTIL(command_is_over(command));
      ck_assert_int_eq(command->state, COMMAND_FINISHED);
      ck_assert_int_eq(command->exit_code, (i - AT_ONCE) % 256);
      snprintf(expected, sizeof expected, "%d\n", i - AT_ONCE);
      expect_output(command, STREAM_STDOUT, expected);
      command_unref(command);
      *place = NULL;
    }
    if (i < N) {
      char text[64];
      snprintf(text, sizeof text, "(sleep 0.01 &); echo %d; exit %d", i, i % 256);
      *place = start_shell(text);
    }
  }
  ck_assert_uint_eq(sandbox.commands.counts.running, 0);
  ck_assert_uint_eq(sandbox.commands.counts.started, N + 1);
  ck_assert_uint_eq(sandbox.commands.counts.finished, 100);
  RUN_UNTIL(count_fds() <= fds); /* the sleeping children hold some pipes for a moment */
  RUN_UNTIL(!has_zombie());
  ck_assert_uint_ge(sandbox.commands.counts.orphans, N / 2);
}
END_TEST

/* [6] All wait for one FIFO and end together: SIGCHLD comes once for many. */
START_TEST(test_ends_that_come_together) {
  enum { N = 80 };
  struct command *commands[N];
  ck_assert_int_eq(mkfifo("gate", 0600), 0);
  for (int i = 0; i < N; i++)
    commands[i] = start_shell("echo ready; read x <gate; exit 9");
  for (int i = 0; i < N; i++)
    RUN_UNTIL(has_printed(commands[i], "ready"));
  int gate = open("gate", O_RDWR | O_CLOEXEC);
  ck_assert_int_ge(gate, 0);
  close(gate); /* all readers see the end of the file */
  gate = open("gate", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  fd_close(&gate);
  for (int i = 0; i < N; i++) {
    while (!command_is_over(commands[i])) { /* those that opened it too late */
      gate = open("gate", O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      fd_close(&gate);
      loop_run_once(sandbox.loop, 20);
    }
    ck_assert_int_eq(commands[i]->exit_code, 9);
    command_unref(commands[i]);
  }
}
END_TEST

/* ---- what it prints ---- */

/* [14] The last bytes before the exit. */
START_TEST(test_last_bytes) {
  for (int i = 0; i < 100; i++) {
    size_t len;
    struct command *command = run_shell("head -c 200000 /dev/zero");
    ck_assert_uint_eq(command->log.head, 200000);
    ck_assert_uint_eq(command->end, 200000);
    free(log_text(command, STREAM_STDOUT, &len));
    ck_assert_uint_eq(len, 200000);
    command_unref(command);
  }
}
END_TEST

START_TEST(test_streams) {
  struct command *command = run_shell("printf abc; printf 'E\\0\\377\\r\\n' >&2; printf def");
  expect_output(command, STREAM_STDOUT, "abcdef");
  size_t len;
  char *text = log_text(command, STREAM_STDERR, &len);
  ck_assert_uint_eq(len, 5);
  ck_assert_int_eq(memcmp(text, "E\0\xff\r\n", 5), 0);
  free(text);
  ck_assert_uint_eq(sandbox.commands.counts.bytes[STREAM_STDOUT], 6);
  ck_assert_uint_eq(sandbox.commands.counts.bytes[STREAM_STDERR], 5);
  command_unref(command);
}
END_TEST

/* [1] A background child holds the pipe: that delays nothing, and what it prints later still comes. */
START_TEST(test_background_child) {
  struct command *command =
      start_shell("(while [ ! -e go ] && kill -0 $PPID; do sleep 0.02; done; echo later) & echo now");
  RUN_UNTIL(command_is_over(command));
  expect_output(command, STREAMS, "now\n");
  ck_assert_int_ge(command->pipes[STREAM_STDOUT].fd, 0);
  close(open("go", O_CREAT | O_CLOEXEC, 0600));
  RUN_UNTIL(has_printed(command, "later"));
  ck_assert_uint_eq(command->end, 4);
  RUN_UNTIL(command->pipes[STREAM_STDOUT].fd < 0 && command->pipes[STREAM_STDERR].fd < 0);
  ck_assert_int_eq(command->references, 2);
  command_unref(command);
}
END_TEST

/* [1] Again with a child that prints for ever. */
START_TEST(test_background_child_that_prints) {
  struct command *command = start_shell("(while [ ! -e go ] && kill -0 $PPID; do echo x; done) & echo now");
  RUN_UNTIL(command_is_over(command));
  ck_assert(has_printed(command, "now\n"));
  close(open("go", O_CREAT | O_CLOEXEC, 0600));
  RUN_UNTIL(command->pipes[STREAM_STDOUT].fd < 0);
  command_unref(command);
}
END_TEST

/* It is forgotten while a child still prints: the child neither blocks nor gets SIGPIPE, and no memory stays. */
START_TEST(test_forgotten_with_open_pipes) {
  int fds = count_fds();
  struct command *command =
      start_shell("trap 'echo pipe >pipe' PIPE; "
                  "(yes | head -c 3000000; echo $? >code; while [ ! -e go ] && kill -0 $PPID; do sleep 0.02; "
                  "done) & head -c 1000 /dev/zero");
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(commands_remove(&sandbox.commands, command, NULL), 0);
  ck_assert_ptr_null(commands_find(&sandbox.commands, command->id, NULL));
  ck_assert_uint_eq(sandbox.commands.counts.finished, 0);
  command_unref(command); /* only its pipes are left */
  RUN_UNTIL(file_exists("code"));
  ck_assert(!file_exists("pipe"));
  ck_assert_uint_le(sandbox.commands.counts.log_memory, 80 * 1024);
  close(open("go", O_CREAT | O_CLOEXEC, 0600));
  RUN_UNTIL(count_fds() <= fds + 4); /* a worker's */
  RUN_UNTIL(sandbox.commands.counts.log_memory == 0);
}
END_TEST

/* ---- failed starts ---- */

static void expect_failure(struct command_spec *spec, enum error_kind kind, int number, const char *text) {
  struct command *command = start_spec(spec);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->state, COMMAND_FAILED);
  ck_assert_ptr_nonnull(command->error);
  ck_assert_msg(command->error->kind == kind, "%s", command->error->message);
  ck_assert_msg(command->error->number == number, "%s", command->error->message);
  ck_assert_msg(strstr(command->error->message, text) != NULL, "%s", command->error->message);
  ck_assert_ptr_null(commands_find(&sandbox.commands, command->id, NULL));
  ck_assert_int_eq(command->references, 1);
  command_unref(command);
}

static void fail_argv(const char *word, int number) {
  const char *const words[] = {word, "x", NULL};
  struct command_spec spec;
  spec_begin(&spec, NULL);
  spec_argv(&spec, words);
  expect_failure(&spec, ERROR_SPAWN_FAILED, number, *word ? word : "\"\"");
}

static void make_file(const char *path, const char *content, mode_t mode) {
  int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(fd_write_all(fd, content, strlen(content)), 0);
  close(fd);
  ck_assert_int_eq(chmod(path, mode), 0);
}

/* [8, 9] */
START_TEST(test_failed_starts) {
  struct command_spec spec;
  make_file("no-x", "#!/bin/sh\n", 0644);
  make_file("bad-interpreter", "#!/no/such/shell\n", 0755);
  make_file("no-format", "\001\002\003", 0755);
  ck_assert_int_eq(mkdir("folder", 0755), 0);
  command_unref(run_shell("true"));
  int fds = count_fds();
  for (int round = 0; round < 20; round++) {
    fail_argv("no-such-program", ENOENT);
    fail_argv("", ENOENT);
    fail_argv("/no/such/program", ENOENT);
    fail_argv("./folder", EACCES);
    fail_argv("./no-x", EACCES);
    fail_argv("./bad-interpreter", ENOENT);
    fail_argv("./no-format", ENOEXEC);
    fail_argv("./no-x/below", ENOTDIR);

    spec_begin(&spec, NULL);
    spec_argv(&spec, (const char *const[]){"/bin/echo", "", NULL});
    free(spec.spawn.argv[1]);
    size_t huge = 3 << 20;
    spec.spawn.argv[1] = malloc(huge + 1);
    memset(spec.spawn.argv[1], 'x', huge);
    spec.spawn.argv[1][huge] = '\0';
    expect_failure(&spec, ERROR_SPAWN_FAILED, E2BIG, "/bin/echo");

    spec_begin(&spec, "true");
    free(spec.spawn.shell);
    spec.spawn.shell = copy("/no/such/shell");
    expect_failure(&spec, ERROR_SPAWN_FAILED, ENOENT, "/no/such/shell");

    spec_begin(&spec, "true");
    spec.spawn.working_dir = copy("/no/such/folder");
    expect_failure(&spec, ERROR_NOT_FOUND, ENOENT, "/no/such/folder");
    spec_begin(&spec, "true");
    spec.spawn.working_dir = copy("/etc/passwd");
    expect_failure(&spec, ERROR_WRONG_TYPE, ENOTDIR, "/etc/passwd");
    spec_begin(&spec, "true");
    spec.spawn.user = copy("nobody-at-all");
    expect_failure(&spec, ERROR_NOT_FOUND, 0, "nobody-at-all");
  }
  ck_assert_int_le(count_fds(), fds);
  RUN_UNTIL(!has_zombie());
  ck_assert_uint_eq(sandbox.commands.counts.failed, 20 * 13);
  ck_assert_uint_eq(sandbox.commands.counts.running, 0);
  ck_assert(list_is_empty(&sandbox.commands.live));
}
END_TEST

/* ---- the end of it ---- */

/* On a busy machine the look may take longer than the end may wait for it: then it is not known. */
static void expect_survivors(const struct command *command, int n) {
  ck_assert_msg(command->survivors == n || command->survivors == -1, "%d survivors", command->survivors);
}

static struct command *start_with_timeout(const char *text, int64_t timeout) {
  struct command_spec spec;
  spec_begin(&spec, text);
  spec.timeout = timeout;
  return start_spec(&spec);
}

static const struct {
  const char *text, *mark;
} stubborn[] = {
    {"sleep 774.001 & sleep 774.001", "sleep 774.001"}, /* [2] */
    {"trap '' TERM; sleep 774.002 & while :; do sleep 774.002; done", "sleep 774.002"},
    {"setsid sleep 774.003 & sleep 774.003", "sleep 774.003"},
    {"setsid sh -c 'trap \"\" TERM; while :; do sleep 774.004; done' & sleep 774.004", "sleep 774.004"},
    {"kill -STOP $$; sleep 774.005", "sleep 774.005"}, /* [11] */
    {"(setsid sleep 774.006 &) ; exec >/dev/null 2>&1; sleep 774.006", "sleep 774.006"},
};

START_TEST(test_timeout_ends_all) {
  struct command *command = start_with_timeout(stubborn[_i].text, 300 * CLOCK_MS);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->state, COMMAND_FINISHED);
  ck_assert_int_eq(command->reason, REASON_TIMED_OUT);
  expect_survivors(command, 0);
  RUN_UNTIL(count_processes(stubborn[_i].mark) == 0);
  /* Promised are 1.5 s behind the timeout; a busy machine may need more. */
  ck_assert_int_lt(command->finished - command->started, 10 * CLOCK_SECOND);
  command_unref(command);
}
END_TEST

START_TEST(test_timeout_does_not_come_to_one_that_ended) {
  struct command *command = start_with_timeout("exit 4", 100 * CLOCK_MS);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->reason, REASON_EXITED);
  ck_assert(!loop_timer_is_started(&command->timeout_timer));
  command_unref(command);
}
END_TEST

/* wait(1) is interrupted by a signal at once, so two that come shortly after each other are seen as two. What it waits
 * for ignores them. */
#define COUNT_SIGNALS(name, file)                                                                \
  "trap 'echo " name " >>" file "' " name "; sh -c 'trap \"\" TERM USR1; exec sleep 774.021' & " \
  "echo ready; while [ ! -e go ] && kill -0 $PPID; do wait $!; done; exit 0"

static off_t size_of(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 ? st.st_size : 0;
}

/* Runs on, so that what comes late is seen too. */
static void run_for(int64_t ns) {
  int64_t end = clock_monotonic() + ns;
  while (clock_monotonic() < end)
    loop_run_once(sandbox.loop, 20);
}

/* A program that handles SIGTERM gets it once, in the group and outside of it: many leave at once at a second. */
START_TEST(test_term_comes_once) {
  struct command *command =
      start_shell("setsid sh -c \""
                  "trap 'echo TERM >>outside' TERM; echo ready; while [ ! -e go ] && kill -0 $PPID; do sleep 0.02; done"
                  "\" & " COUNT_SIGNALS("TERM", "inside"));
  RUN_UNTIL(has_printed(command, "ready\nready\n"));
  RUN_UNTIL(count_processes("sleep 774.021") >= 2);
  command_end(command, REASON_TIMED_OUT, 20 * CLOCK_SECOND);
  RUN_UNTIL(size_of("inside") > 0 && size_of("outside") > 0);
  run_for(300 * CLOCK_MS);
  ck_assert_int_eq(size_of("inside"), 5);
  ck_assert_int_eq(size_of("outside"), 5);
  command_end(command, REASON_TIMED_OUT, 0);
  RUN_UNTIL(command_is_over(command));
  RUN_UNTIL(count_processes("sleep 774.021") == 0);
  command_unref(command);
}
END_TEST

START_TEST(test_idle_timeout) {
  struct command_spec spec;
  spec_begin(&spec, "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done; sleep 774.020");
  spec.idle_timeout = 400 * CLOCK_MS;
  struct command *command = start_spec(&spec);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->reason, REASON_IDLE_TIMED_OUT);
  expect_output(command, STREAMS, "1\n2\n3\n4\n5\n6\n");
  RUN_UNTIL(count_processes("sleep 774.020") == 0);
  command_unref(command);
}
END_TEST

/* ---- kill ---- */

static bool send_signal(struct command *command, int number) {
  struct error err = ERROR_INIT;
  bool signaled;
  ck_assert_msg(command_signal(command, number, &signaled, &err) == 0, "%s", err.message);
  return signaled;
}

/* [3] */
START_TEST(test_kill_hits_the_group) {
  struct command *command = start_shell("sleep 774.030 & echo ready; sleep 774.030");
  RUN_UNTIL(has_printed(command, "ready"));
  RUN_UNTIL(count_processes("sleep 774.030") == 3); /* the shell names it too */
  ck_assert(send_signal(command, SIGTERM));
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->signal, SIGTERM);
  ck_assert_int_eq(command->reason, REASON_SIGNALED);
  expect_survivors(command, 0);
  RUN_UNTIL(count_processes("sleep 774.030") == 0);
  ck_assert(!send_signal(command, SIGKILL)); /* it has ended */
  command_unref(command);
}
END_TEST

/* [11] */
START_TEST(test_stopped_one_gets_the_signal) {
  struct command *command = start_shell("echo ready; kill -STOP $$; echo woken");
  RUN_UNTIL(has_printed(command, "ready"));
  ck_assert(send_signal(command, SIGTERM));
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->signal, SIGTERM);
  command_unref(command);
}
END_TEST

START_TEST(test_kill_while_starting) {
  struct command *command = start_shell("sleep 774.031");
  ck_assert_int_eq(command->state, COMMAND_STARTING);
  ck_assert(send_signal(command, SIGKILL));
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->signal, SIGKILL);
  command_unref(command);
}
END_TEST

/* Several signals while STARTING: none takes the place of another. */
START_TEST(test_kills_while_starting) {
  const struct {
    int first, second;
    int died_of;
  } cases[] = {
      {SIGKILL, SIGCONT, SIGKILL}, {SIGKILL, SIGUSR1, SIGKILL},  {SIGUSR1, SIGCONT, SIGUSR1},
      {SIGSTOP, SIGTERM, SIGTERM}, {SIGTERM, SIGWINCH, SIGTERM},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct command *command = start_shell("exec sleep 774.037");
    ck_assert(send_signal(command, cases[i].first));
    ck_assert(send_signal(command, cases[i].second));
    RUN_UNTIL(command_is_over(command));
    ck_assert_int_eq(command->signal, cases[i].died_of);
    command_unref(command);
  }
}
END_TEST

START_TEST(test_stop_and_continue_while_starting) {
  struct command *command = start_shell("exit 3");
  ck_assert(send_signal(command, SIGSTOP));
  ck_assert(send_signal(command, SIGCONT));
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->exit_code, 3);
  command_unref(command);
}
END_TEST

/* Its time was over before it was known to run, and its leader has gone as well: what it started is ended all the same.
 */
START_TEST(test_end_of_an_early_exit) {
  struct command *command = start_shell("setsid sleep 774.036 & exit 3");
  siginfo_t info = {0};
  command_end(command, REASON_TIMED_OUT, 200 * CLOCK_MS);
  while (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) < 0 || count_processes("sleep 774.036") == 0)
    usleep(1000);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->reason, REASON_TIMED_OUT);
  ck_assert_int_eq(command->exit_code, 3);
  ck_assert_int_eq(count_processes("sleep 774.036"), 0);
  command_unref(command);
}
END_TEST

START_TEST(test_end_while_starting) {
  struct command *command = start_shell("trap '' TERM; sleep 774.032");
  command_end(command, REASON_TIMED_OUT, 200 * CLOCK_MS);
  command_end(command, REASON_EXITED, 100 * CLOCK_MS);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->reason, REASON_TIMED_OUT);
  RUN_UNTIL(count_processes("sleep 774.032") == 0);
  command_unref(command);
}
END_TEST

/* What a signal leaves alive is told, also when the leader left unread output behind. */
START_TEST(test_survivors_are_counted) {
  struct command *command =
      start_shell("trap 'head -c 50000 /dev/zero; exit 5' TERM; setsid sh -c 'echo away >&2; exec sleep 774.033' & "
                  "echo ready; while :; do sleep 0.02; done");
  RUN_UNTIL(has_printed(command, "ready") && has_printed(command, "away"));
  ck_assert(send_signal(command, SIGTERM));
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->exit_code, 5);
  ck_assert_uint_eq(command->log.head_offset[STREAM_STDOUT], 50006);
  expect_survivors(command, 1);
  command_unref(command);
  ck_assert_int_eq(signal_processes("sleep 774.033", SIGKILL), 1);
}
END_TEST

/* A signal to the tree reaches each process once. It is counted at its own time; what was alive then is not the
 * result's number. */
START_TEST(test_tree_signal) {
  struct command *command =
      start_shell("setsid sh -c \"trap 'echo USR1 >>outside' USR1; echo ready; while [ ! -e go ] && kill -0 $PPID; "
                  "do sleep 0.02; done\" & " COUNT_SIGNALS("USR1", "inside"));
  RUN_UNTIL(has_printed(command, "ready\nready\n"));
  RUN_UNTIL(count_processes("sleep 774.021") >= 2);
  command_signal_tree(command, SIGUSR1, 100 * CLOCK_MS);
  RUN_UNTIL(!terminator_is_active(&command->terminator));
  int survivors = terminator_survivors(&command->terminator);
  ck_assert(survivors == -1 || survivors >= 3);
  ck_assert_int_eq(command->state, COMMAND_RUNNING);
  run_for(300 * CLOCK_MS);
  ck_assert_int_eq(size_of("inside"), 5);
  ck_assert_int_eq(size_of("outside"), 5);
  close(open("go", O_CREAT | O_CLOEXEC, 0600));
  RUN_UNTIL(count_processes("outside") <= 1); /* the leader names it too */
  while (!command_is_over(command)) {
    if (command->state == COMMAND_RUNNING)
      kill(command->pid, SIGUSR1); /* ends its wait */
    loop_run_once(sandbox.loop, 20);
  }
  ck_assert_int_eq(command->exit_code, 0);
  expect_survivors(command, 1);
  ck_assert_int_eq(signal_processes("sleep 774.021", SIGKILL), 1);
  command_unref(command);
}
END_TEST

/* One that shed its mark and left the group is found by its parent, which dies of the same signal. */
static const int deadly[] = {SIGTERM, SIGKILL};

START_TEST(test_tree_signal_finds_who_hides) {
  for (int i = 0; i < 10; i++) {
    unlink("pid");
    struct command *command =
        start_shell("env -i setsid sh -c 'echo $$ >new; mv new pid; exec sleep 774.035' & sleep 774.035");
    RUN_UNTIL(file_exists("pid"));
    char text[20] = "";
    ck_assert_int_gt(fd_read_file("pid", text, sizeof text), 0);
    pid_t pid = atoi(text);
    ck_assert_int_gt(pid, 1);
    command_signal_tree(command, deadly[_i], 100 * CLOCK_MS);
    RUN_UNTIL(command_is_over(command));
    RUN_UNTIL(kill(pid, 0) < 0); /* ours to reap */
    command_unref(command);
  }
}
END_TEST

/* The second signal comes when the time to watch the first one is about to end: it is sent all the same, and watched
 * for a time of its own. */
START_TEST(test_tree_signal_at_the_end_of_a_watch) {
  struct command *command = start_shell("trap '' USR1; trap 'echo second' USR2; echo ready; "
                                        "while :; do sleep 0.02; done");
  RUN_UNTIL(has_printed(command, "ready\n"));
  command_signal_tree(command, SIGUSR1, 0);
  while (clock_monotonic() < command->terminator.killer.give_up_at)
    usleep(1000); /* the loop is busy with something else */
  command_signal_tree(command, SIGUSR2, 200 * CLOCK_MS);
  ck_assert(terminator_is_active(&command->terminator));
  RUN_UNTIL(!terminator_is_active(&command->terminator));
  RUN_UNTIL(has_printed(command, "second\n"));
  command_end(command, REASON_SIGNALED, 0);
  RUN_UNTIL(command_is_over(command));
  command_unref(command);
}
END_TEST

/* The timeout comes while only a signal to the tree is watched. */
START_TEST(test_timeout_in_a_watch) {
  struct command *command =
      start_with_timeout("trap '' USR1; echo ready; sleep 774.034; sleep 774.034", 500 * CLOCK_MS);
  RUN_UNTIL(has_printed(command, "ready"));
  while (command->state == COMMAND_RUNNING && !command->ending) {
    if (!terminator_is_active(&command->terminator))
      command_signal_tree(command, SIGUSR1, 5 * CLOCK_SECOND);
    loop_run_once(sandbox.loop, 20);
  }
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->reason, REASON_TIMED_OUT);
  expect_survivors(command, 0);
  RUN_UNTIL(count_processes("sleep 774.034") == 0);
  command_unref(command);
}
END_TEST

/* ---- stdin ---- */

static struct command *start_with_input(const char *text, const char *input, size_t len, bool keep) {
  struct command_spec spec;
  spec_begin(&spec, text);
  spec.spawn.stdin_pipe = true;
  spec.keep_stdin = keep;
  if (input) {
    spec.input = malloc(len + 1);
    ck_assert_ptr_nonnull(spec.input);
    memcpy(spec.input, input, len);
    spec.input_len = len;
  }
  return start_spec(&spec);
}

/* [12] */
START_TEST(test_no_stdin) {
  struct command *command = run_shell("cat; readlink /proc/self/fd/0");
  expect_output(command, STREAMS, "/dev/null\n");
  command_unref(command);
}
END_TEST

START_TEST(test_stdin_data) {
  size_t len = 10 << 20;
  char *big = malloc(len);
  ck_assert_ptr_nonnull(big);
  for (size_t i = 0; i < len; i++)
    big[i] = (char)(i * 2654435761u >> 7);
  struct command *command = start_with_input("cat >copy", big, len, false);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->exit_code, 0);
  ck_assert_ptr_null(command->first_input_bytes);
  command_unref(command);
  char *back = malloc(len + 1);
  int fd = open("copy", O_RDONLY | O_CLOEXEC);
  ck_assert_int_eq(fd_read_all(fd, back, len + 1), (ssize_t)len);
  close(fd);
  ck_assert_int_eq(memcmp(big, back, len), 0);

  command = start_with_input("true", big, len, false); /* does not read it */
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(command->exit_code, 0);
  ck_assert_ptr_null(command->first_input_bytes);
  command_unref(command);
  command = start_with_input("head -c 3", "abcdef", 6, false);
  RUN_UNTIL(command_is_over(command));
  expect_output(command, STREAMS, "abc");
  command_unref(command);
  command = start_with_input("cat; echo end", "", 0, false); /* empty: just the end */
  RUN_UNTIL(command_is_over(command));
  expect_output(command, STREAMS, "end\n");
  command_unref(command);
  free(big);
  free(back);
}
END_TEST

struct piece {
  struct command_input input;
  int done;
  enum error_kind kind;
};

static void on_input_done(struct command_input *input, const struct error *error) {
  struct piece *piece = (struct piece *)input;
  piece->done++;
  piece->kind = error ? error->kind : ERROR_NONE;
}

static struct piece make_piece(const char *bytes, size_t len, bool eof) {
  struct piece piece = {.input = {.bytes = bytes, .len = len, .eof = eof, .done = on_input_done}};
  list_init(&piece.input.node);
  return piece;
}

static int send_piece(struct command *command, struct piece *piece, struct error *err) {
  *err = (struct error)ERROR_INIT;
  return command_input(command, &piece->input, err);
}

START_TEST(test_input_in_pieces) {
  struct command *command = start_with_input("cat; echo end", "0", 1, true);
  struct error err;
  struct piece a = make_piece("a", 1, false), b = make_piece("b\n", 2, false), c = make_piece("c", 1, true);
  ck_assert_int_eq(send_piece(command, &a, &err), 0); /* before the start is known */
  ck_assert_int_eq(a.done, 0);
  RUN_UNTIL(has_printed(command, "0a"));
  ck_assert_int_eq(a.done, 1);
  ck_assert_int_eq(send_piece(command, &b, &err), 0);
  RUN_UNTIL(has_printed(command, "0ab\n"));
  ck_assert_int_eq(send_piece(command, &c, &err), 0);
  RUN_UNTIL(command_is_over(command));
  expect_output(command, STREAMS, "0ab\ncend\n");
  ck_assert_int_eq(c.done, 1);
  ck_assert_int_eq(c.kind, ERROR_NONE);
  struct piece d = make_piece("d", 1, false);
  ck_assert_int_eq(send_piece(command, &d, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_WRONG_TYPE);
  ck_assert_int_eq(d.done, 0);
  command_unref(command);
}
END_TEST

/* A pipe may take a megabyte at once, and one that is emptied as fast takes it for ever: others want their turn. */
START_TEST(test_input_in_turns) {
  size_t len = 1 << 20;
  char *bytes = calloc(1, len);
  ck_assert_ptr_nonnull(bytes);
  struct command *command = start_with_input("sleep 774.042", NULL, 0, true);
  struct piece piece = make_piece(bytes, len, true);
  struct error err;
  RUN_UNTIL(command->state == COMMAND_RUNNING);
  ck_assert_int_eq(fcntl(command->in_fd, F_SETPIPE_SZ, (int)len), (int)len);
  ck_assert_int_eq(send_piece(command, &piece, &err), 0);
  ck_assert_int_eq(piece.done, 0);
  ck_assert_uint_ge(piece.input.len, len / 2);
  RUN_UNTIL(piece.done);
  ck_assert_int_eq(piece.kind, ERROR_NONE);
  command_end(command, REASON_SIGNALED, 0);
  RUN_UNTIL(command_is_over(command));
  command_unref(command);
  free(bytes);
}
END_TEST

START_TEST(test_input_without_stdin) {
  struct command *command = start_shell("sleep 774.040");
  struct error err;
  struct piece piece = make_piece("a", 1, false);
  ck_assert_int_eq(send_piece(command, &piece, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_WRONG_TYPE);
  RUN_UNTIL(command->state == COMMAND_RUNNING);
  ck_assert_int_eq(send_piece(command, &piece, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_WRONG_TYPE);
  send_signal(command, SIGKILL);
  RUN_UNTIL(command_is_over(command));
  command_unref(command);
}
END_TEST

/* The program reads nothing: input waits, within limits, and is given back when it ends. */
START_TEST(test_input_limits) {
  enum { PIECES = 64, BIG = 1 << 20 };
  static char big[BIG];
  static struct piece pieces[PIECES + 1];
  struct command *command = start_with_input("sleep 774.041", NULL, 0, true);
  struct error err;
  for (int i = 0; i <= PIECES; i++)
    pieces[i] = make_piece(big, BIG, false);
  RUN_UNTIL(command->state == COMMAND_RUNNING);
  for (int i = 0; i < PIECES; i++)
    ck_assert_int_eq(send_piece(command, &pieces[i], &err), 0);
  ck_assert_int_eq(send_piece(command, &pieces[PIECES], &err), -1);
  ck_assert_int_eq(err.kind, ERROR_BUSY);
  ck_assert_uint_eq(err.limit, PIECES);
  /* One may be taken back. */
  command_input_cancel(command, &pieces[7].input);
  command_input_cancel(command, &pieces[7].input);
  ck_assert_int_eq(pieces[7].done, 0);
  ck_assert_int_eq(send_piece(command, &pieces[PIECES], &err), 0);
  send_signal(command, SIGKILL);
  RUN_UNTIL(command_is_over(command));
  for (int i = 0; i <= PIECES; i++) {
    ck_assert_int_eq(pieces[i].done, i == 7 ? 0 : 1);
    ck_assert_int_eq(pieces[i].kind, i == 7 ? ERROR_NONE : ERROR_WRONG_TYPE);
  }
  ck_assert_uint_eq(command->n_inputs, 0);
  ck_assert_uint_eq(command->inputs_bytes, 0);
  command_unref(command);
}
END_TEST

/* 64 MiB may wait, and stdin_data that is longer counts as full, not as room without end. */
START_TEST(test_input_bytes_limit) {
  size_t limit = 64u << 20;
  char *big = calloc(1, limit + 1000000);
  ck_assert_ptr_nonnull(big);
  struct error err;
  struct command *command = start_with_input("sleep 774.042", big, limit + 1000000, true);
  struct piece piece = make_piece(big, 1000, false), empty = make_piece(big, 0, false);
  RUN_UNTIL(command->state == COMMAND_RUNNING);
  ck_assert_int_eq(send_piece(command, &piece, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_BUSY);
  ck_assert_uint_eq(err.limit, limit);
  ck_assert_int_eq(send_piece(command, &empty, &err), -1);
  send_signal(command, SIGKILL);
  RUN_UNTIL(command_is_over(command));
  command_unref(command);
  free(big);
}
END_TEST

/* The program ends while input waits, its start fails, or the table goes: each piece comes back once. */
START_TEST(test_input_of_a_failed_start) {
  struct command_spec spec;
  struct error err;
  spec_begin(&spec, NULL);
  spec_argv(&spec, (const char *const[]){"/no/such", NULL});
  spec.spawn.stdin_pipe = spec.keep_stdin = true;
  struct command *command = start_spec(&spec);
  struct piece piece = make_piece("a", 1, false);
  ck_assert_int_eq(send_piece(command, &piece, &err), 0);
  RUN_UNTIL(command_is_over(command));
  ck_assert_int_eq(piece.done, 1);
  ck_assert_int_ne(piece.kind, ERROR_NONE);
  command_unref(command);
}
END_TEST

START_TEST(test_stdout_closed) {
  struct command *command = run_shell("exec >&-; head -c 3000000 /dev/zero >&2"); /* [21] */
  ck_assert_uint_eq(command->log.head_offset[STREAM_STDERR], 3000000);
  ck_assert_uint_eq(command->log.head - command->log.tail, COMMAND_LOG_CAPACITY);
  command_unref(command);
}
END_TEST

/* [10] */
START_TEST(test_broken_pipe_is_quiet) {
  signal(SIGPIPE, SIG_IGN);
  struct command *command = run_shell("yes | head -1; yes | head -1 >/dev/null");
  expect_output(command, STREAMS, "y\n");
  command_unref(command);
}
END_TEST

/* ---- the environment ---- */

START_TEST(test_environment) {
  struct command *command = run_shell("env");
  char *text = log_text(command, STREAM_STDOUT, NULL), expected[200];
  ck_assert_ptr_nonnull(strstr(text, "SANDBOX_ID=test\n"));
  snprintf(expected, sizeof expected, "SANDKEEPER_CMD_ID=%s\n", command->id);
  ck_assert_ptr_nonnull(strstr(text, expected));
  snprintf(expected, sizeof expected, "%s\n", command->terminator.mark);
  ck_assert_ptr_nonnull(strstr(text, expected));
  ck_assert_ptr_null(strstr(text, "SECRET-OF-THE-AGENT"));
  free(text);
  command_unref(command);
}
END_TEST

static void begin_with_secret(void) {
  setenv("SANDKEEPER_TOKEN", "SECRET-OF-THE-AGENT", 1);
  core_begin();
}

/* ---- observers ---- */

static int n_changes;
static enum command_state changes[16];
static struct command_observer first, second;

static void on_change(struct command_observer *observer, struct command *command) {
  if (n_changes < 16)
    changes[n_changes] = command->state;
  n_changes++;
  /* The first that is told detaches the other, itself and the last reference. */
  if (command->state == COMMAND_FINISHED) {
    command_unobserve(&first);
    command_unobserve(&second);
    struct command *held = observer->arg;
    first.arg = second.arg = NULL;
    if (held)
      command_unref(held);
  }
}

START_TEST(test_observers) {
  struct command *command = start_shell("true");
  n_changes = 0;
  first = (struct command_observer){.changed = on_change, .arg = command};
  second = first;
  command_observe(command, &first);
  command_observe(command, &second);
  command->table->options.keep_finished = 0; /* so that the reference dropped inside is the last */
  RUN_UNTIL(!list_is_linked(&first.node));
  ck_assert_int_eq(n_changes, 5);
  ck_assert_int_eq(changes[0], COMMAND_RUNNING);
  ck_assert_int_eq(changes[2], COMMAND_EXITED);
  ck_assert_int_eq(changes[4], COMMAND_FINISHED);
}
END_TEST

/* The table goes while things are under way in every state: nothing is leaked, nothing calls back. */
START_TEST(test_free_in_every_state) {
  struct error err;
  static struct piece piece;
  struct command *running = start_with_input("sleep 774.050", NULL, 0, true);
  struct command *lingering = run_shell("sleep 774.050 & true");
  ck_assert_int_eq(commands_remove(&sandbox.commands, lingering, NULL), 0);
  command_unref(lingering);
  struct command *finished = run_shell("sleep 774.050 & echo x");
  RUN_UNTIL(running->state == COMMAND_RUNNING);
  static char big[1 << 20];
  piece = make_piece(big, sizeof big, false);
  ck_assert_int_eq(send_piece(running, &piece, &err), 0);
  struct command *ending = start_shell("trap '' TERM; sleep 774.050 & while :; do sleep 774.050; done");
  RUN_UNTIL(ending->state == COMMAND_RUNNING);
  command_end(ending, REASON_TIMED_OUT, CLOCK_SECOND);
  struct command *starting = start_shell("sleep 774.050");
  command_unref(running);
  command_unref(finished);
  command_unref(ending);
  command_unref(starting);
  /* core_end() frees it all; what was started is killed here. */
  ck_assert_int_eq(piece.done, 0);
}
END_TEST

static void end_and_kill(void) {
  core_end();
  while (signal_processes("sleep 774.050", SIGKILL) > 0)
    usleep(1000);
}

int main(void) {
  Suite *suite = suite_create("command");
  TCase *tcase = tcase_create("command");
  tcase_set_timeout(tcase, 120);
  tcase_add_checked_fixture(tcase, core_begin, core_end);
  tcase_add_test(tcase, test_exit_codes);
  tcase_add_test(tcase, test_death_by_signal);
  tcase_add_test(tcase, test_early_exit);
  tcase_add_test(tcase, test_thousand_quick_ones);
  tcase_add_test(tcase, test_ends_that_come_together);
  tcase_add_test(tcase, test_last_bytes);
  tcase_add_test(tcase, test_streams);
  tcase_add_test(tcase, test_background_child);
  tcase_add_test(tcase, test_background_child_that_prints);
  tcase_add_test(tcase, test_forgotten_with_open_pipes);
  tcase_add_test(tcase, test_failed_starts);
  tcase_add_loop_test(tcase, test_timeout_ends_all, 0, (int)(sizeof stubborn / sizeof *stubborn));
  tcase_add_test(tcase, test_timeout_does_not_come_to_one_that_ended);
  tcase_add_test(tcase, test_term_comes_once);
  tcase_add_test(tcase, test_idle_timeout);
  tcase_add_test(tcase, test_kill_hits_the_group);
  tcase_add_test(tcase, test_stopped_one_gets_the_signal);
  tcase_add_test(tcase, test_kill_while_starting);
  tcase_add_test(tcase, test_kills_while_starting);
  tcase_add_test(tcase, test_stop_and_continue_while_starting);
  tcase_add_test(tcase, test_end_while_starting);
  tcase_add_test(tcase, test_end_of_an_early_exit);
  tcase_add_test(tcase, test_survivors_are_counted);
  tcase_add_test(tcase, test_tree_signal);
  tcase_add_loop_test(tcase, test_tree_signal_finds_who_hides, 0, 2);
  tcase_add_test(tcase, test_tree_signal_at_the_end_of_a_watch);
  tcase_add_test(tcase, test_timeout_in_a_watch);
  tcase_add_test(tcase, test_no_stdin);
  tcase_add_test(tcase, test_stdin_data);
  tcase_add_test(tcase, test_input_in_pieces);
  tcase_add_test(tcase, test_input_in_turns);
  tcase_add_test(tcase, test_input_without_stdin);
  tcase_add_test(tcase, test_input_limits);
  tcase_add_test(tcase, test_input_bytes_limit);
  tcase_add_test(tcase, test_input_of_a_failed_start);
  tcase_add_test(tcase, test_stdout_closed);
  tcase_add_test(tcase, test_broken_pipe_is_quiet);
  tcase_add_test(tcase, test_observers);
  suite_add_tcase(suite, tcase);
  TCase *secret = tcase_create("with a token");
  tcase_add_checked_fixture(secret, begin_with_secret, core_end);
  tcase_add_test(secret, test_environment);
  suite_add_tcase(suite, secret);
  TCase *freed = tcase_create("freed early");
  tcase_set_timeout(freed, 60);
  tcase_add_checked_fixture(freed, core_begin, end_and_kill);
  tcase_add_test(freed, test_free_in_every_state);
  suite_add_tcase(suite, freed);
  return run_suite(suite);
}
