/* Starting a program: what it finds itself in, and why it could not be started. spawn_run() is called directly. */
#include "core_fixture.h"
#include "run.h"

#include "sandkeeper/core/oom.h"
#include "sandkeeper/core/user.h"

#include <grp.h>
#include <pwd.h>
#include <sys/prctl.h>

/* Runs to the end and returns what it printed, to be freed. */
static char *finish_spawn(struct spawn *spawn, int *status) {
  static char text[200000];
  ssize_t n = 0, more;
  cleanup_close int out = fd_steal(&spawn->out_fd);
  int flags = fcntl(out, F_GETFL);
  ck_assert(flags & O_NONBLOCK);
  fcntl(out, F_SETFL, flags & ~O_NONBLOCK);
  while ((more = read(out, text + n, sizeof text - 1 - (size_t)n)) > 0)
    n += more;
  text[n] = '\0';
  ck_assert_int_eq(waitpid(spawn->pid, status, 0), spawn->pid);
  spawn_free(spawn);
  return copy(text);
}

static void begin_spawn(struct spawn *spawn, const char *command) {
  spawn_init(spawn);
  spawn->command = command ? copy(command) : NULL;
  spawn->shell = copy("/bin/sh");
  getrlimit(RLIMIT_NOFILE, &spawn->nofile);
}

static char *run_spawn(struct spawn *spawn) {
  struct error err = ERROR_INIT;
  int status;
  ck_assert_msg(spawn_run(spawn, &err) == 0, "%s", err.message);
  char *text = finish_spawn(spawn, &status);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x: %s", (unsigned)status, text);
  return text;
}

static char *run_text(const char *command) {
  struct spawn spawn;
  begin_spawn(&spawn, command);
  return run_spawn(&spawn);
}

static void expect_text(char *text, const char *expected) {
  ck_assert_str_eq(text, expected);
  free(text);
}

/* The line of /proc/self/status, without its name. */
static const char *status_line(const char *text, const char *name) {
  const char *line = strstr(text, name);
  ck_assert_msg(line != NULL, "%s in %s", name, text);
  return line + strlen(name) + 1;
}

static uint64_t status_mask(const char *text, const char *name) {
  return strtoull(status_line(text, name), NULL, 16);
}

static void become_nobody(void) {
  if (geteuid() == 0)
    ck_assert_int_eq(setresgid(65534, 65534, 65534) | setresuid(65534, 65534, 65534), 0);
}

/* ---- what it finds ---- */

/* [10] Nothing of the agent's signals: not what it ignores, not what it blocks. */
START_TEST(test_signals) {
  for (int number = 1; number <= 64; number++)
    if (number != SIGKILL && number != SIGSTOP && number != SIGCHLD)
      signal(number, SIG_IGN);
  char *text = run_text("exec cat /proc/self/status");
  ck_assert_uint_eq(status_mask(text, "SigBlk:"), 0);
  ck_assert_uint_eq(status_mask(text, "SigIgn:"), 0);
  ck_assert_uint_eq(status_mask(text, "SigCgt:"), 0);
  free(text);
  /* Ours are as they were. */
  sigset_t mask;
  ck_assert_int_eq(sigprocmask(SIG_SETMASK, NULL, &mask), 0);
  ck_assert_int_eq(sigismember(&mask, SIGTERM), 1);
  ck_assert_int_eq(sigismember(&mask, SIGSEGV), 0);
  ck_assert_ptr_eq((void *)signal(SIGUSR1, SIG_IGN), (void *)SIG_IGN);
}
END_TEST

START_TEST(test_own_session) {
  char *text = run_text("read a b c d pgrp session tty rest </proc/self/stat; echo $$ $pgrp $session $tty");
  int pid, group, session, tty;
  ck_assert_int_eq(sscanf(text, "%d %d %d %d", &pid, &group, &session, &tty), 4);
  ck_assert_int_eq(pid, group);
  ck_assert_int_eq(pid, session);
  ck_assert_int_eq(tty, 0);
  free(text);
}
END_TEST

/* [9] No descriptor but 0, 1 and 2, also when one was made without close-on-exec. */
START_TEST(test_no_inherited_descriptors) {
  int fd = open("/etc/passwd", O_RDONLY);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(dup2(fd, 9), 9);
  ck_assert_int_eq(dup2(fd, 900), 900);
  char *text = run_text("ls /proc/self/fd");
  expect_text(text, "0\n1\n2\n3\n"); /* 3 is the folder that ls reads */
  close(fd);
  close(9);
  close(900);
}
END_TEST

START_TEST(test_stdio) {
  expect_text(run_text("readlink /proc/self/fd/0"), "/dev/null\n");
  struct spawn spawn;
  struct error err = ERROR_INIT;
  begin_spawn(&spawn, "cat; echo to-stderr >&2");
  spawn.stdin_pipe = true;
  ck_assert_int_eq(spawn_run(&spawn, &err), 0);
  ck_assert(fcntl(spawn.in_fd, F_GETFL) & O_NONBLOCK);
  ck_assert(fcntl(spawn.in_fd, F_GETFD) & FD_CLOEXEC);
  ck_assert(fcntl(spawn.out_fd, F_GETFD) & FD_CLOEXEC);
  ck_assert(fcntl(spawn.err_fd, F_GETFL) & O_NONBLOCK);
  ck_assert_int_eq(fd_write_all(spawn.in_fd, "hello\n", 6), 0);
  fd_close(&spawn.in_fd);
  int err_fd = dup(spawn.err_fd), status;
  expect_text(finish_spawn(&spawn, &status), "hello\n");
  char text[100] = "";
  ck_assert_int_eq(read(err_fd, text, sizeof text), 10);
  ck_assert_str_eq(text, "to-stderr\n");
  close(err_fd);
}
END_TEST

/* The child's own pipes are blocking: a program that got EAGAIN would lose output. */
START_TEST(test_child_ends_block) {
  char *text = run_text("cat /proc/self/fdinfo/1 | grep flags");
  ck_assert_uint_eq(strtoul(text + strlen("flags:"), NULL, 8) & O_NONBLOCK, 0);
  free(text);
}
END_TEST

START_TEST(test_limits_umask_oom) {
  struct spawn spawn;
  begin_spawn(&spawn, "ulimit -Sn; ulimit -Hn; umask; cat /proc/self/oom_score_adj");
  spawn.nofile = (struct rlimit){123, 456};
  spawn.umask = 027;
  spawn.oom_score_adj = 321;
  expect_text(run_spawn(&spawn), "123\n456\n0027\n321\n");
}
END_TEST

/* One that may not be set is only a preference. */
START_TEST(test_oom_score_that_is_refused) {
  become_nobody();
  struct spawn spawn;
  begin_spawn(&spawn, "echo on");
  spawn.oom_score_adj = -1000;
  expect_text(run_spawn(&spawn), "on\n");
}
END_TEST

START_TEST(test_working_dir) {
  struct spawn spawn;
  char expected[200];
  begin_spawn(&spawn, "pwd");
  snprintf(expected, sizeof expected, "%s\n", core_directory);
  expect_text(run_spawn(&spawn), expected);
  ck_assert_int_eq(mkdir("below", 0755), 0);
  snprintf(expected, sizeof expected, "%s/below\n", core_directory);
  begin_spawn(&spawn, "pwd");
  spawn.working_dir = copy("below");
  expect_text(run_spawn(&spawn), expected);
  begin_spawn(&spawn, "pwd");
  spawn.working_dir = copy("/");
  expect_text(run_spawn(&spawn), "/\n");
  /* A program is found relative to it, as a shell would. */
  int fd = open("below/here", O_CREAT | O_WRONLY | O_CLOEXEC, 0700);
  ck_assert_int_eq(fd_write_all(fd, "#!/bin/sh\necho here\n", 20), 0);
  close(fd);
  begin_spawn(&spawn, NULL);
  spawn.argv = calloc(2, sizeof(char *));
  spawn.argv[0] = copy("./here");
  spawn.working_dir = copy("below");
  expect_text(run_spawn(&spawn), "here\n");
}
END_TEST

/* ---- the environment ---- */

START_TEST(test_environment_is_filled_in) {
  struct spawn spawn;
  struct passwd *entry = getpwuid(geteuid());
  ck_assert_ptr_nonnull(entry);
  char expected[300];
  snprintf(expected, sizeof expected, "%s %s %s /bin/sh\n", entry->pw_dir, entry->pw_name, entry->pw_name);
  expect_text(run_text("echo $HOME $USER $LOGNAME $SHELL"), expected);
  char *text = run_text("echo $PATH");
  ck_assert_ptr_nonnull(strstr(text, "/usr/bin"));
  free(text);
  /* What is there stays, an empty value too. */
  begin_spawn(&spawn, "echo \"[$HOME]\" $USER $LOGNAME $SHELL $PATH");
  env_set(&spawn.env, "HOME", "");
  env_set(&spawn.env, "USER", "me");
  env_set(&spawn.env, "LOGNAME", "myself");
  env_set(&spawn.env, "SHELL", "/x");
  env_set(&spawn.env, "PATH", "/nowhere");
  expect_text(run_spawn(&spawn), "[] me myself /x /nowhere\n");
}
END_TEST

/* Nothing comes from the agent's own environment. */
START_TEST(test_environment_is_only_what_is_given) {
  setenv("OF_THE_AGENT", "1", 1);
  struct spawn spawn;
  begin_spawn(&spawn, "env");
  env_set(&spawn.env, "A", "with = and\nnewline");
  char *text = run_spawn(&spawn);
  ck_assert_ptr_null(strstr(text, "OF_THE_AGENT"));
  ck_assert_ptr_nonnull(strstr(text, "A=with = and\nnewline\n"));
  free(text);
}
END_TEST

static char *run_argv(const char *path_variable, const char *name, int *number) {
  struct spawn spawn;
  struct error err = ERROR_INIT;
  int status;
  begin_spawn(&spawn, NULL);
  spawn.argv = calloc(2, sizeof(char *));
  spawn.argv[0] = copy(name);
  env_set(&spawn.env, "PATH", path_variable);
  *number = 0;
  if (spawn_run(&spawn, &err) == 0)
    return finish_spawn(&spawn, &status);
  ck_assert_int_eq(err.kind, ERROR_SPAWN_FAILED);
  ck_assert_ptr_nonnull(strstr(err.message, name));
  *number = err.number;
  spawn_free(&spawn);
  return NULL;
}

static void make_program(const char *path, const char *text, mode_t mode) {
  int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(fd_write_all(fd, text, strlen(text)), 0);
  close(fd);
  ck_assert_int_eq(chmod(path, mode), 0);
}

/* As execvp(3), with the PATH of the command and not of the agent. */
START_TEST(test_path) {
  int number;
  mkdir("a", 0755);
  mkdir("b", 0755);
  make_program("a/tool", "#!/bin/sh\necho a\n", 0644); /* not executable: passed over */
  make_program("b/tool", "#!/bin/sh\necho b\n", 0755);
  make_program("b/file", "x", 0755);
  expect_text(run_argv("/no/such:a/tool:a:b", "tool", &number), "b\n");
  ck_assert_ptr_null(run_argv("a", "tool", &number));
  ck_assert_int_eq(number, EACCES);
  ck_assert_ptr_null(run_argv("/no/such:a:/no/such", "tool", &number)); /* the best there was */
  ck_assert_int_eq(number, EACCES);
  ck_assert_ptr_null(run_argv("a", "other", &number));
  ck_assert_int_eq(number, ENOENT);
  ck_assert_ptr_null(run_argv("", "no-such-tool", &number));
  ck_assert_int_eq(number, ENOENT);
  ck_assert_int_eq(chdir("b"), 0);
  expect_text(run_argv("/no/such::", "tool", &number), "b\n"); /* an empty entry is the current directory */
  expect_text(run_argv("", "tool", &number), "b\n");
  ck_assert_int_eq(chdir(".."), 0);
  ck_assert_ptr_null(run_argv("a:b", "file", &number));
  ck_assert_int_eq(number, ENOEXEC);
  ck_assert_ptr_null(run_argv("/bin", "../a/tool", &number));
}
END_TEST

/* ---- users ---- */

static char *run_as(const char *user, const char *command) {
  struct spawn spawn;
  begin_spawn(&spawn, command);
  spawn.user = copy(user);
  return run_spawn(&spawn);
}

START_TEST(test_user) {
  if (geteuid() != 0)
    return; /* the other users' tests are for everybody */
  struct passwd *entry = getpwnam("nobody");
  ck_assert_ptr_nonnull(entry);
  char expected[300], uid[20];
  snprintf(uid, sizeof uid, "%u", entry->pw_uid);
  snprintf(expected, sizeof expected, "%u %u %s nobody nobody\n", entry->pw_uid, entry->pw_gid, entry->pw_dir);
  static const char text[] = "echo $(id -u) $(id -g) $HOME $USER $LOGNAME";
  expect_text(run_as("nobody", text), expected);
  expect_text(run_as(uid, text), expected);
  expect_text(run_as("12345", text), "12345 12345 / 12345 12345\n");
  char *status = run_as("nobody", "cat /proc/self/status");
  ck_assert_uint_eq(status_mask(status, "CapEff:"), 0);
  ck_assert_uint_eq(status_mask(status, "CapPrm:"), 0);
  unsigned ids[4];
  ck_assert_int_eq(sscanf(status_line(status, "\nUid:"), "%u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]), 4);
  for (int i = 0; i < 4; i++)
    ck_assert_uint_eq(ids[i], entry->pw_uid);
  free(status);
  /* The agent itself has not changed: glibc's own calls would do that to all threads. */
  ck_assert_uint_eq(geteuid(), 0);
  ck_assert_uint_eq(getegid(), 0);
}
END_TEST

/* Its stdout and stderr may be opened by name, as scripts do. */
START_TEST(test_user_opens_its_own_stderr) {
  if (geteuid() != 0)
    return;
  expect_text(run_as("nobody", "echo a >/dev/stdout; echo b >/proc/self/fd/1; echo c >/dev/fd/2 && echo d"),
              "a\nb\nd\n");
  struct spawn spawn;
  struct error err = ERROR_INIT;
  int status;
  begin_spawn(&spawn, "cat /dev/stdin");
  spawn.user = copy("nobody");
  spawn.stdin_pipe = true;
  ck_assert_int_eq(spawn_run(&spawn, &err), 0);
  ck_assert_int_eq(fd_write_all(spawn.in_fd, "in\n", 3), 0);
  fd_close(&spawn.in_fd);
  expect_text(finish_spawn(&spawn, &status), "in\n");
}
END_TEST

static enum error_kind spawn_error(struct spawn *spawn, int *number) {
  struct error err = ERROR_INIT;
  int status = spawn_run(spawn, &err);
  ck_assert_int_eq(status, -1);
  ck_assert_int_eq(spawn->out_fd, -1);
  ck_assert_int_eq(spawn->err_fd, -1);
  ck_assert_int_eq(spawn->in_fd, -1);
  ck_assert(err.message[0] != '\0');
  spawn_free(spawn);
  *number = err.number;
  return err.kind;
}

START_TEST(test_user_errors) {
  struct spawn spawn;
  int number;
  static const char *const unknown[] = {"no-such-user",         "",    "-1", "4294967295",
                                        "99999999999999999999", "12x", "+5", " 5"};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
    begin_spawn(&spawn, "true");
    spawn.user = copy(unknown[i]);
    ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_NOT_FOUND);
  }
  become_nobody();
  begin_spawn(&spawn, "true");
  spawn.user = copy("root");
  ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_PERMISSION);
  begin_spawn(&spawn, "id -u");
  spawn.user = copy("65534"); /* itself */
  char own[20];
  snprintf(own, sizeof own, "%u\n", geteuid());
  if (geteuid() == 65534)
    expect_text(run_spawn(&spawn), own);
  else
    spawn_free(&spawn);
}
END_TEST

START_TEST(test_sudo_as_root) {
  if (geteuid() != 0)
    return;
  struct spawn spawn;
  begin_spawn(&spawn, "echo $(id -u) $(id -g) $HOME $KEPT");
  spawn.sudo = true;
  spawn.user = copy("nobody"); /* --user is overruled */
  env_set(&spawn.env, "HOME", "/somewhere");
  env_set(&spawn.env, "KEPT", "yes");
  expect_text(run_spawn(&spawn), "0 0 /somewhere yes\n");
}
END_TEST

/* --cap-drop ALL: root without the right to change groups still runs what root may run. */
START_TEST(test_sudo_without_capabilities) {
  if (geteuid() != 0)
    return;
  for (int capability = 0; capability <= 40; capability++)
    prctl(PR_CAPBSET_DROP, (unsigned long)capability, 0, 0, 0);
  /* The bounding set acts at the next execve(2): this program is started again as its own helper. */
  char path[4096];
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  ck_assert_int_gt(n, 0);
  path[n] = '\0';
  pid_t pid = fork();
  if (pid == 0) {
    execl(path, path, "without-capabilities", NULL);
    _exit(99);
  }
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}
END_TEST

/* Outside of a test: no asserts here. */
static int without_capabilities(void) {
  struct spawn spawn;
  struct error err = ERROR_INIT;
  char text[10] = "";
  int status;
  spawn_init(&spawn);
  spawn.command = strdup("id -u");
  spawn.sudo = true;
  spawn.nofile = (struct rlimit){100, 100};
  if (spawn_run(&spawn, &err) < 0) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  if (waitpid(spawn.pid, &status, 0) != spawn.pid || status != 0)
    return 2;
  if (read(spawn.out_fd, text, sizeof text - 1) != 2 || strcmp(text, "0\n") != 0)
    return 3;
  spawn_free(&spawn);
  /* Somebody else it cannot become, and it says so. */
  spawn.command = strdup("id -u");
  spawn.user = strdup("nobody");
  spawn.nofile = (struct rlimit){100, 100};
  if (spawn_run(&spawn, &err) == 0 || err.kind != ERROR_SPAWN_FAILED || err.number != EPERM)
    return 4;
  spawn_free(&spawn);
  return 0;
}

START_TEST(test_sudo_that_is_not_there) {
  struct spawn spawn;
  struct error err = ERROR_INIT;
  become_nobody();
  begin_spawn(&spawn, "true");
  spawn.sudo = true;
  env_set(&spawn.env, "PATH", "/nowhere");
  ck_assert_int_eq(spawn_run(&spawn, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_SPAWN_FAILED);
  ck_assert_int_eq(err.number, ENOENT);
  ck_assert_ptr_nonnull(strstr(err.message, "sudo"));
  spawn_free(&spawn);
  /* One that is there is called with what we mean. */
  mkdir("/tmp/sandkeeper-unit-sudo", 0755);
  make_program("/tmp/sandkeeper-unit-sudo/sudo", "#!/bin/sh\necho \"$@\"\n", 0755);
  begin_spawn(&spawn, "echo hi");
  spawn.sudo = true;
  env_set(&spawn.env, "PATH", "/tmp/sandkeeper-unit-sudo");
  expect_text(run_spawn(&spawn), "-E -n -- /bin/sh -c echo hi\n");
  begin_spawn(&spawn, NULL);
  spawn.argv = calloc(3, sizeof(char *));
  spawn.argv[0] = copy("prog");
  spawn.argv[1] = copy("arg");
  spawn.sudo = true;
  env_set(&spawn.env, "PATH", "/tmp/sandkeeper-unit-sudo");
  expect_text(run_spawn(&spawn), "-E -n -- prog arg\n");
  unlink("/tmp/sandkeeper-unit-sudo/sudo");
  rmdir("/tmp/sandkeeper-unit-sudo");
}
END_TEST

/* ---- failures ---- */

/* [8, 9] Each step fails with its own errno, nothing stays: no zombie, no descriptor. */
START_TEST(test_failures_leave_nothing) {
  struct spawn spawn;
  int number, fds = count_fds();
  mkdir("closed", 0000);
  for (int i = 0; i < 100; i++) {
    begin_spawn(&spawn, "true");
    spawn.working_dir = copy("/no/such");
    ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_NOT_FOUND);
    ck_assert_int_eq(number, ENOENT);
    begin_spawn(&spawn, "true");
    spawn.working_dir = copy("/etc/passwd");
    ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_WRONG_TYPE);
    begin_spawn(&spawn, "true");
    spawn.stdin_pipe = true;
    free(spawn.shell);
    spawn.shell = copy("/no/such/sh");
    ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_SPAWN_FAILED);
    ck_assert_int_eq(number, ENOENT);
    begin_spawn(&spawn, "true");
    spawn.nofile = (struct rlimit){10, 5}; /* soft over hard: EINVAL */
    ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_SPAWN_FAILED);
    ck_assert_int_eq(number, EINVAL);
  }
  ck_assert_int_eq(count_fds(), fds);
  ck_assert(!has_zombie());
  become_nobody();
  begin_spawn(&spawn, "true");
  spawn.working_dir = copy("closed");
  ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_PERMISSION);
  ck_assert_int_eq(number, EACCES);
}
END_TEST

START_TEST(test_no_descriptors_left) {
  struct spawn spawn;
  struct rlimit few = {(rlim_t)count_fds() + 3, 4096}, before;
  int number;
  getrlimit(RLIMIT_NOFILE, &before);
  for (int i = 0; i < 6; i++, few.rlim_cur++) {
    begin_spawn(&spawn, "true");
    spawn.stdin_pipe = true;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    struct error err = ERROR_INIT;
    int status = spawn_run(&spawn, &err), exit_status;
    setrlimit(RLIMIT_NOFILE, &before);
    if (status == 0) {
      fd_close(&spawn.in_fd);
      free(finish_spawn(&spawn, &exit_status));
      continue;
    }
    ck_assert_int_eq(err.kind, ERROR_SPAWN_FAILED);
    ck_assert_int_eq(err.number, EMFILE);
    spawn_free(&spawn);
  }
  (void)number;
}
END_TEST

START_TEST(test_limit_of_processes) {
  struct spawn spawn;
  struct rlimit none, before;
  int number;
  become_nobody();
  getrlimit(RLIMIT_NPROC, &before);
  none = before;
  none.rlim_cur = 0;
  ck_assert_int_eq(setrlimit(RLIMIT_NPROC, &none), 0);
  begin_spawn(&spawn, "true");
  ck_assert_int_eq(spawn_error(&spawn, &number), ERROR_SPAWN_FAILED);
  ck_assert_int_eq(number, EAGAIN);
  setrlimit(RLIMIT_NPROC, &before);
}
END_TEST

/* ---- env.c, user.c, oom.c ---- */

START_TEST(test_env) {
  struct env env, other;
  env_init(&env);
  ck_assert_ptr_null(env_get(&env, "A"));
  env_unset(&env, "A");
  for (int i = 0; i < 100; i++) {
    char name[16];
    snprintf(name, sizeof name, "N%d", i);
    ck_assert_int_eq(env_set(&env, name, name), 0);
    ck_assert_ptr_null(env.vars[env.count]);
  }
  ck_assert_int_eq(env_set(&env, "N1", "new"), 0); /* and not N10 .. N19 */
  ck_assert_str_eq(env_get(&env, "N1"), "new");
  ck_assert_str_eq(env_get(&env, "N10"), "N10");
  ck_assert_uint_eq(env.count, 100);
  env_unset(&env, "N1");
  ck_assert_ptr_null(env_get(&env, "N1"));
  ck_assert_uint_eq(env.count, 99);
  ck_assert_ptr_null(env.vars[99]);
  env_init(&other);
  ck_assert_int_eq(env_copy(&other, &env), 0);
  env_free(&env);
  ck_assert_str_eq(env_get(&other, "N99"), "N99");
  env_free(&other);
  env_free(&other);

  char *agents[] = {"PATH=/bin", "SANDKEEPER_TOKEN=secret", "SANDKEEPER=x", "no-equals-sign", "EMPTY=", "=odd", NULL};
  env_init(&env);
  ck_assert_int_eq(env_inherit(&env, agents), 0);
  ck_assert_str_eq(env_get(&env, "PATH"), "/bin");
  ck_assert_str_eq(env_get(&env, "EMPTY"), "");
  ck_assert_str_eq(env_get(&env, "SANDKEEPER"), "x");
  ck_assert_ptr_null(env_get(&env, "SANDKEEPER_TOKEN"));
  env_free(&env);
}
END_TEST

static bool is_in(const char *name, void *names) {
  return strstr(names, name) != NULL;
}

START_TEST(test_env_many_at_once) {
  char *agents[] = {"A=1", "B=x=y", "C=3", "A=4", "D=", NULL}, meant[] = "A D E";
  struct env env;
  env_init(&env);
  env_remove_if(&env, is_in, meant);
  ck_assert_uint_eq(env.count, 0);
  ck_assert_int_eq(env_inherit(&env, agents), 0);
  env_remove_if(&env, is_in, meant);
  ck_assert_uint_eq(env.count, 2);
  ck_assert_str_eq(env.vars[0], "B=x=y");
  ck_assert_str_eq(env.vars[1], "C=3");
  ck_assert_ptr_null(env.vars[2]);
  ck_assert_int_eq(env_add(&env, "E", "5"), 0);
  ck_assert_str_eq(env_get(&env, "E"), "5");
  ck_assert_ptr_null(env.vars[3]);
  env_free(&env);
}
END_TEST

/* A name that is there twice, which execve(2) allows: removing it removes it. */
START_TEST(test_env_with_a_name_twice) {
  char *agents[] = {"A=1", "B=2", "A=3", NULL};
  struct env env;
  env_init(&env);
  ck_assert_int_eq(env_inherit(&env, agents), 0);
  env_unset(&env, "A");
  ck_assert_ptr_null(env_get(&env, "A"));
  env_free(&env);
  env_init(&env);
  ck_assert_int_eq(env_inherit(&env, agents), 0);
  ck_assert_int_eq(env_set(&env, "A", "4"), 0);
  env_unset(&env, "A");
  ck_assert_ptr_null(env_get(&env, "A"));
  ck_assert_str_eq(env_get(&env, "B"), "2");
  env_free(&env);
}
END_TEST

START_TEST(test_every_user_of_the_machine) {
  struct passwd *entry;
  setpwent();
  int n = 0;
  while ((entry = getpwent()) && n++ < 100) {
    struct user user;
    struct error err = ERROR_INIT;
    ck_assert_int_eq(user_lookup(entry->pw_name, &user, &err), 0);
    ck_assert_uint_eq(user.uid, entry->pw_uid);
    ck_assert_uint_eq(user.gid, entry->pw_gid);
    ck_assert_str_eq(user.name, entry->pw_name);
    ck_assert_uint_eq(user.n_groups, 0);
    ck_assert_int_eq(user_read_groups(&user, &err), 0);
    gid_t groups[100];
    int n_groups = 100;
    ck_assert_int_ge(getgrouplist(entry->pw_name, entry->pw_gid, groups, &n_groups), 0);
    ck_assert_uint_eq(user.n_groups, (size_t)n_groups);
    for (int i = 0; i < n_groups; i++) {
      bool found = false;
      for (size_t j = 0; j < user.n_groups; j++)
        found |= user.groups[j] == groups[i];
      ck_assert(found);
    }
    user_free(&user);
    user_free(&user);
  }
  endpwent();
  ck_assert_int_gt(n, 1);
}
END_TEST

START_TEST(test_oom_count) {
  oom_init();
  oom_init();
  int64_t count = oom_count();
  ck_assert_int_ge(count, -1);
  ck_assert_int_ge(oom_count(), count);
}
END_TEST

static void set_up(void) {
  signals_block();
  snprintf(core_directory, sizeof core_directory, "/tmp/sandkeeper-unit-XXXXXX");
  ck_assert_ptr_nonnull(mkdtemp(core_directory));
  ck_assert_int_eq(chmod(core_directory, 0755), 0);
  ck_assert_int_eq(chdir(core_directory), 0);
}

static void remove_directory(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", core_directory);
  ck_assert_int_eq(system(command), 0);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "without-capabilities") == 0)
    return without_capabilities();
  Suite *suite = suite_create("spawn");
  TCase *tcase = tcase_create("spawn");
  tcase_set_timeout(tcase, 60);
  tcase_add_checked_fixture(tcase, set_up, remove_directory);
  tcase_add_test(tcase, test_signals);
  tcase_add_test(tcase, test_own_session);
  tcase_add_test(tcase, test_no_inherited_descriptors);
  tcase_add_test(tcase, test_stdio);
  tcase_add_test(tcase, test_child_ends_block);
  tcase_add_test(tcase, test_limits_umask_oom);
  tcase_add_test(tcase, test_working_dir);
  tcase_add_test(tcase, test_environment_is_filled_in);
  tcase_add_test(tcase, test_environment_is_only_what_is_given);
  tcase_add_test(tcase, test_path);
  tcase_add_test(tcase, test_user);
  tcase_add_test(tcase, test_user_opens_its_own_stderr);
  tcase_add_test(tcase, test_sudo_as_root);
  tcase_add_test(tcase, test_sudo_without_capabilities);
  tcase_add_test(tcase, test_no_descriptors_left);
  tcase_add_test(tcase, test_env);
  tcase_add_test(tcase, test_env_with_a_name_twice);
  tcase_add_test(tcase, test_env_many_at_once);
  tcase_add_test(tcase, test_every_user_of_the_machine);
  tcase_add_test(tcase, test_oom_count);
  suite_add_tcase(suite, tcase);
  /* These become somebody else, who cannot remove the folder. */
  TCase *other = tcase_create("as somebody else");
  tcase_set_timeout(other, 60);
  tcase_add_unchecked_fixture(other, set_up, remove_directory);
  tcase_add_test(other, test_oom_score_that_is_refused);
  tcase_add_test(other, test_user_errors);
  tcase_add_test(other, test_sudo_that_is_not_there);
  tcase_add_test(other, test_failures_leave_nothing);
  tcase_add_test(other, test_limit_of_processes);
  suite_add_tcase(suite, other);
  return run_suite(suite);
}
