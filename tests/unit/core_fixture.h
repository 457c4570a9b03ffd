/* core_fixture.h - the core for unit tests: real processes, the real reaper, no network. One per test program.
 *
 * A condition is waited for with RUN_UNTIL: the loop runs until it holds, and the test fails when that takes longer
 * than any machine needs. */
#ifndef TESTS_UNIT_CORE_FIXTURE_H
#define TESTS_UNIT_CORE_FIXTURE_H

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/reader.h"
#include "sandkeeper/core/sandbox.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define MAYBE_UNUSED __attribute__((unused))
#define LONGEST (30 * CLOCK_SECOND)

static struct sandbox sandbox;
static bool core_stopping, core_stopped;
static char core_directory[64];

#define RUN_UNTIL(condition)                                   \
  do {                                                         \
    int64_t give_up_ = clock_monotonic() + LONGEST;            \
    while (!(condition)) {                                     \
      if (clock_monotonic() > give_up_)                        \
        ck_abort_msg("it never came to this: %s", #condition); \
      loop_run_once(sandbox.loop, 20);                         \
    }                                                          \
  } while (0)

/* check writes to a pipe at each of its asserts: too slow for one a byte. */
#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

static void core_on_stopping(void *arg) {
  (void)arg;
  core_stopping = true;
}

static void core_on_stopped(void *arg) {
  (void)arg;
  core_stopped = true;
}

static struct sandbox_options core_options(void) {
  struct sandbox_options options = {
      .id = "test",
      .file_timeout = 60 * CLOCK_SECOND,
      .grace = 5 * CLOCK_SECOND,
      .commands = {.umask = 022,
                   .max_running = 100,
                   .keep_finished = 100,
                   .log_memory = 64 << 20,
                   .stall_timeout = 10 * CLOCK_SECOND,
                   .oom_score_adj = 0},
  };
  getrlimit(RLIMIT_NOFILE, &options.commands.nofile);
  return options;
}

MAYBE_UNUSED static void core_begin_with(const struct sandbox_options *options) {
  struct error err = ERROR_INIT;
  signals_block();
  snprintf(core_directory, sizeof core_directory, "/tmp/sandkeeper-unit-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(core_directory));
  ck_assert_int_eq(chmod(core_directory, 0755), 0);
  ck_assert_int_eq(chdir(core_directory), 0);
  core_stopping = core_stopped = false;
  ck_assert_msg(sandbox_init(&sandbox, options, environ, &err) == 0, "%s", err.message);
  sandbox.on_stopping = core_on_stopping;
  sandbox.on_stopped = core_on_stopped;
}

MAYBE_UNUSED static void core_begin(void) {
  struct sandbox_options options = core_options();
  core_begin_with(&options);
}

MAYBE_UNUSED static void core_end(void) {
  sandbox_free(&sandbox);
  char command[128];
  snprintf(command, sizeof command, "cd / && rm -rf %s", core_directory);
  ck_assert_int_eq(system(command), 0);
}

/* ---- what there is in the system ---- */

MAYBE_UNUSED static int count_fds(void) {
  DIR *dir = opendir("/proc/self/fd");
  ck_assert_ptr_nonnull(dir);
  int n = -1; /* the folder's own */
  struct dirent *entry;
  while ((entry = readdir(dir)))
    n += entry->d_name[0] != '.';
  closedir(dir);
  return n;
}

static bool proc_file_holds(const char *pid, const char *name, const char *text) {
  char path[300], content[65536];
  snprintf(path, sizeof path, "/proc/%s/%s", pid, name);
  cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t len = fd < 0 ? -1 : fd_read_all(fd, content, sizeof content - 1);
  if (len <= 0)
    return false;
  for (ssize_t i = 0; i < len; i++)
    if (content[i] == '\0')
      content[i] = ' ';
  content[len] = '\0';
  return strstr(content, text) != NULL;
}

/* Live processes that this test's commands have started, with this text in their command line. */
MAYBE_UNUSED static int signal_processes(const char *text, int number) {
  DIR *dir = opendir("/proc");
  ck_assert_ptr_nonnull(dir);
  int n = 0;
  struct dirent *entry;
  while ((entry = readdir(dir))) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !proc_file_holds(entry->d_name, "cmdline", text) ||
        !proc_file_holds(entry->d_name, "environ", sandbox.commands.run_id))
      continue;
    n++;
    if (number)
      kill(atoi(entry->d_name), number);
  }
  closedir(dir);
  return n;
}

MAYBE_UNUSED static int count_processes(const char *text) {
  return signal_processes(text, 0);
}

/* Children that are dead and not reaped. */
MAYBE_UNUSED static bool has_zombie(void) {
  siginfo_t info = {0};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

MAYBE_UNUSED static bool file_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

/* ---- commands ---- */

MAYBE_UNUSED static char *copy(const char *text) {
  char *string = strdup(text);
  ck_assert_ptr_nonnull(string);
  return string;
}

MAYBE_UNUSED static void spec_begin(struct command_spec *spec, const char *shell_command) {
  command_spec_init(spec);
  if (shell_command) {
    spec->spawn.command = copy(shell_command);
    spec->title = copy(shell_command);
  } else {
    spec->title = copy("argv");
  }
  spec->spawn.shell = copy("/bin/sh");
  ck_assert_int_eq(env_copy(&spec->spawn.env, &sandbox.commands.env), 0);
}

/* A NULL-terminated copy of up to 8 words. */
MAYBE_UNUSED static void spec_argv(struct command_spec *spec, const char *const *words) {
  spec->spawn.argv = calloc(9, sizeof(char *));
  ck_assert_ptr_nonnull(spec->spawn.argv);
  for (int i = 0; words[i]; i++)
    spec->spawn.argv[i] = copy(words[i]);
}

/* A new reference. */
MAYBE_UNUSED static struct command *start_spec(struct command_spec *spec) {
  struct error err = ERROR_INIT;
  struct command *command;
  bool existing;
  int status = commands_start(&sandbox.commands, spec, &command, &existing, &err);
  ck_assert_msg(status == 0, "%s", err.message);
  ck_assert(!existing);
  return command;
}

MAYBE_UNUSED static struct command *start_shell(const char *shell_command) {
  struct command_spec spec;
  spec_begin(&spec, shell_command);
  return start_spec(&spec);
}

MAYBE_UNUSED static struct command *run_shell(const char *shell_command) {
  struct command *command = start_shell(shell_command);
  RUN_UNTIL(command_is_over(command));
  ck_assert_msg(command->state == COMMAND_FINISHED, "%s", command->error ? command->error->message : "failed");
  return command;
}

/* What the log holds of one stream, or of both (STREAMS), as a string to be freed. */
MAYBE_UNUSED static char *log_text(const struct command *command, int only, size_t *len) {
  struct command_log_cursor at = command_log_begin(&command->log);
  char *text = malloc((size_t)(command->log.head - command->log.tail) + 1);
  ck_assert_ptr_nonnull(text);
  size_t have = 0, n;
  enum stream stream;
  const uint8_t *bytes;
  while ((n = command_log_peek(&command->log, &at, SIZE_MAX, &stream, &bytes)) > 0) {
    if (only == STREAMS || only == (int)stream) {
      memcpy(text + have, bytes, n);
      have += n;
    }
    command_log_advance(&at, stream, n);
  }
  text[have] = '\0';
  if (len)
    *len = have;
  return text;
}

MAYBE_UNUSED static void expect_output(const struct command *command, int only, const char *text) {
  char *output = log_text(command, only, NULL);
  ck_assert_str_eq(output, text);
  free(output);
}

MAYBE_UNUSED static bool has_printed(const struct command *command, const char *text) {
  char *output = log_text(command, STREAMS, NULL);
  bool found = strstr(output, text) != NULL;
  free(output);
  return found;
}

#endif
