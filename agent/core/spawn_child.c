#include "sandkeeper/core/spawn_child.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's own struct sigaction, whose layout differs from the C library's; all zero is SIG_DFL without flags. It
 * is larger on no architecture. */
struct kernel_sigaction {
  uintptr_t words[8];
};

#define KERNEL_SIGSET_SIZE 8 /* _NSIG / 8 */
#define LAST_SIGNAL 64

/* The sanitizers keep a shadow of each thread's stack, and this code runs on a stack they do not know. */
#define UNSANITIZED __attribute__((no_sanitize("address", "undefined")))

UNSANITIZED static long call(long number, long a, long b, long c, long d) {
  return syscall(number, a, b, c, d);
}

UNSANITIZED static void fail(struct spawn_child *child, enum spawn_step step) {
  child->failed_errno = errno;
  child->failed_step = step;
  for (;;)
    call(SYS_exit_group, 127, 0, 0, 0);
}

/* Another program's ignored SIGPIPE, or libwebsockets' own, must not reach the command: `yes | head -1` would complain.
 */
UNSANITIZED static void reset_signals(void) {
  const struct kernel_sigaction initial = {{0}};
  for (int number = 1; number <= LAST_SIGNAL; number++)
    call(SYS_rt_sigaction, number, (long)&initial, 0, KERNEL_SIGSET_SIZE);
}

UNSANITIZED static void empty_signal_mask(void) {
  const uint64_t none = 0;
  call(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, KERNEL_SIGSET_SIZE);
}

UNSANITIZED static void raise_oom_score(const struct spawn_child *child) {
  long fd = call(SYS_openat, AT_FDCWD, (long)"/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC, 0);
  if (fd < 0)
    return; /* no /proc here: a preference is lost, no more */
  call(SYS_write, fd, (long)child->oom_score_adj, (long)child->oom_score_adj_len, 0);
  call(SYS_close, fd, 0, 0, 0);
}

UNSANITIZED static void set_user(struct spawn_child *child) {
  if (!child->change_user)
    return;
  /* Root without capabilities may not set groups; one who becomes who it is already does without. */
  bool already = call(SYS_geteuid, 0, 0, 0, 0) == (long)child->uid;
  if ((call(SYS_setgroups, (long)child->n_groups, (long)child->groups, 0, 0) < 0 && !already) ||
      (call(SYS_setresgid, (long)child->gid, (long)child->gid, (long)child->gid, 0) < 0 && !already) ||
      call(SYS_setresuid, (long)child->uid, (long)child->uid, (long)child->uid, 0) < 0)
    fail(child, SPAWN_STEP_USER);
}

/* Beside an image's own command the agent stays in the background of a terminal; a background group could not read it.
 * SIGTTOU is blocked here, so the kernel allows it. Without a terminal it fails, and nothing is lost. */
UNSANITIZED static void take_terminal(void) {
  pid_t group = (pid_t)call(SYS_getpid, 0, 0, 0, 0);
  call(SYS_ioctl, 0, TIOCSPGRP, (long)&group, 0);
}

UNSANITIZED static void set_stdio(struct spawn_child *child) {
  for (int fd = 0; fd < 3; fd++)
    if (child->stdio[fd] >= 0 && call(SYS_dup3, child->stdio[fd], fd, 0, 0) < 0)
      fail(child, SPAWN_STEP_STDIO);
  /* Ours are close-on-exec from birth; a library's may not be. */
  call(SYS_close_range, 3, (long)UINT32_MAX, CLOSE_RANGE_CLOEXEC, 0);
}

/* As execvp(3): go on after ENOENT, ENOTDIR and EACCES, and tell of EACCES if that was the best there was. A path of
 * its own is told of as it is. */
UNSANITIZED static void run_program(struct spawn_child *child) {
  int best = ENOENT;
  for (char *const *program = child->programs; *program; program++) {
    call(SYS_execve, (long)*program, (long)child->argv, (long)child->envp, 0);
    if (program == child->programs && !program[1])
      fail(child, SPAWN_STEP_EXEC);
    if (errno == EACCES)
      best = EACCES;
    else if (errno != ENOENT && errno != ENOTDIR)
      fail(child, SPAWN_STEP_EXEC);
  }
  errno = best;
  fail(child, SPAWN_STEP_EXEC);
}

UNSANITIZED int spawn_child_main(void *arg) {
  struct spawn_child *child = arg;
  atomic_store(child->pid, (pid_t)call(SYS_getpid, 0, 0, 0, 0));
  reset_signals();
  if ((child->new_session ? call(SYS_setsid, 0, 0, 0, 0) : call(SYS_setpgid, 0, 0, 0, 0)) < 0)
    fail(child, SPAWN_STEP_SESSION);
  set_stdio(child);
  if (!child->new_session)
    take_terminal();
  if (call(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)&child->nofile, 0) < 0)
    fail(child, SPAWN_STEP_LIMITS);
  raise_oom_score(child);
  call(SYS_umask, child->umask, 0, 0, 0);
  set_user(child);
  if (child->working_dir && call(SYS_chdir, (long)child->working_dir, 0, 0, 0) < 0)
    fail(child, SPAWN_STEP_WORKING_DIR);
  empty_signal_mask();
  run_program(child);
  return 127;
}
