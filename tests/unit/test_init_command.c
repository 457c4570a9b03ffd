/* The image's own command beside the core, without a network: real processes, the real shutdown. */
#include "sandkeeper/core/init_command.h"

#include "sandkeeper/base/clock.h"

#include "run.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

struct fixture {
  struct sandbox sandbox;
  struct init_command init;
  bool stopping, stopped;
  char directory[32];
};

static void on_stopping(void *arg) {
  ((struct fixture *)arg)->stopping = true;
}

static void on_stopped(void *arg) {
  ((struct fixture *)arg)->stopped = true;
}

static void begin(struct fixture *f, char *const *argv, bool keep_alive, bool restart) {
  struct error err = ERROR_INIT;
  signals_block();
  *f = (struct fixture){.directory = "/tmp/init-command-XXXXXX"};
  ck_assert_ptr_nonnull(mkdtemp(f->directory));
  ck_assert_int_eq(chdir(f->directory), 0);
  struct sandbox_options options = {
      .id = "test",
      .file_timeout = 10 * CLOCK_SECOND,
      .grace = 5 * CLOCK_SECOND,
      .commands = {.umask = 022, .max_running = 10, .keep_finished = 10, .log_memory = 1 << 20},
  };
  getrlimit(RLIMIT_NOFILE, &options.commands.nofile);
  ck_assert_int_eq(sandbox_init(&f->sandbox, &options, environ, &err), 0);
  f->sandbox.on_stopping = on_stopping;
  f->sandbox.on_stopped = on_stopped;
  f->sandbox.arg = f;
  ck_assert_int_eq(init_command_start(&f->init, &f->sandbox, argv, keep_alive, restart, &err), 0);
}

static void end(struct fixture *f) {
  init_command_stop(&f->init);
  sandbox_free(&f->sandbox);
  char command[64];
  snprintf(command, sizeof command, "rm -r %s", f->directory);
  ck_assert_int_eq(system(command), 0);
}

static bool exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

/* Runs the loop until the condition holds; the test's own timeout ends what never comes. */
#define RUN_UNTIL(f, condition) \
  while (!(condition))          \
  loop_run_once((f)->sandbox.loop, 100)

static char *const exit_7[] = {"sh", "-c", "exit 7", NULL};
static char *const by_signal[] = {"sh", "-c", "kill -USR1 $$; sleep 10", NULL};
static char *const missing[] = {"no-such-program", NULL};
static char *const no_program[] = {"/etc/passwd", NULL};
static const struct {
  char *const *argv;
  int code;
} ends[] = {{exit_7, 7}, {by_signal, 128 + SIGUSR1}, {missing, 127}, {no_program, 126}};

START_TEST(test_its_end_is_the_agents) {
  struct fixture f;
  begin(&f, ends[_i].argv, false, false);
  RUN_UNTIL(&f, f.stopped);
  ck_assert_int_eq(f.init.exit_code, ends[_i].code);
  end(&f);
}
END_TEST

START_TEST(test_keep_alive) {
  char *const argv[] = {"sh", "-c", "exit 7", NULL};
  struct fixture f;
  begin(&f, argv, true, false);
  RUN_UNTIL(&f, !f.init.command);
  ck_assert(!f.stopping);
  ck_assert_int_eq(f.init.exit_code, 0);
  end(&f);
}
END_TEST

START_TEST(test_restart) {
  char *const argv[] = {"sh", "-c", "echo run >>runs; exit 1", NULL};
  struct fixture f;
  struct stat st;
  begin(&f, argv, false, true);
  RUN_UNTIL(&f, stat("runs", &st) == 0 && st.st_size >= 3 * 4);
  ck_assert(!f.stopping);
  ck_assert_int_ge(f.init.pause, 2 * INIT_COMMAND_PAUSE_FIRST);
  end(&f);
}
END_TEST

START_TEST(test_signals_are_handed_on) {
  char *const argv[] = {"sh", "-c",
                        "trap 'echo > usr1' USR1; trap 'exit 3' HUP; echo > ready; while :; do sleep 0.05; done", NULL};
  struct fixture f;
  begin(&f, argv, false, false);
  RUN_UNTIL(&f, exists("ready"));
  kill(getpid(), SIGUSR1);
  RUN_UNTIL(&f, exists("usr1"));
  ck_assert(!f.stopping);
  kill(getpid(), SIGHUP);
  RUN_UNTIL(&f, f.stopped);
  ck_assert_int_eq(f.init.exit_code, 3);
  end(&f);
}
END_TEST

/* The agent's own end is asked for: then the command's code is not the reason. */
START_TEST(test_stop_ends_it) {
  static const int stops[] = {SIGTERM, SIGINT, SIGQUIT};
  char *const argv[] = {"sh", "-c", "echo > ready; sleep 100; exit 5", NULL};
  struct fixture f;
  begin(&f, argv, false, true);
  RUN_UNTIL(&f, exists("ready"));
  kill(getpid(), stops[_i]);
  RUN_UNTIL(&f, f.stopped);
  ck_assert_int_eq(f.init.exit_code, 0);
  ck_assert_ptr_null(f.init.command);
  ck_assert(!loop_timer_is_started(&f.init.timer));
  end(&f);
}
END_TEST

/* A stop of the sandbox ends the clients' commands, not the image's. */
START_TEST(test_it_is_spared) {
  char *const argv[] = {"sleep", "100", NULL};
  struct fixture f;
  begin(&f, argv, false, false);
  RUN_UNTIL(&f, f.init.command->state == COMMAND_RUNNING);
  f.sandbox.commands.refusing = true;
  commands_end_all(&f.sandbox.commands, 0);
  for (int i = 0; i < 5; i++)
    loop_run_once(f.sandbox.loop, 10);
  ck_assert_int_eq(f.init.command->state, COMMAND_RUNNING);
  ck_assert_uint_eq(f.sandbox.commands.counts.running, 0);
  kill(getpid(), SIGTERM);
  RUN_UNTIL(&f, f.stopped);
  end(&f);
}
END_TEST

START_TEST(test_pauses_grow) {
  int64_t pause = 0, before = 0;
  for (int i = 0; i < 20; i++) {
    pause = init_command_next_pause(pause, 0);
    ck_assert_int_ge(pause, before);
    ck_assert_int_le(pause, INIT_COMMAND_PAUSE_MOST);
    before = pause;
  }
  ck_assert_int_eq(pause, INIT_COMMAND_PAUSE_MOST);
  ck_assert_int_eq(init_command_next_pause(pause, INIT_COMMAND_GOOD_RUN), INIT_COMMAND_PAUSE_FIRST);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("init_command");
  TCase *tcase = tcase_create("init_command");
  tcase_set_timeout(tcase, 30);
  tcase_add_loop_test(tcase, test_its_end_is_the_agents, 0, (int)(sizeof ends / sizeof *ends));
  tcase_add_test(tcase, test_keep_alive);
  tcase_add_test(tcase, test_restart);
  tcase_add_test(tcase, test_signals_are_handed_on);
  tcase_add_loop_test(tcase, test_stop_ends_it, 0, 3);
  tcase_add_test(tcase, test_it_is_spared);
  tcase_add_test(tcase, test_pauses_grow);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
