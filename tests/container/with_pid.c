/* with_pid PID COMMAND... - starts COMMAND as process PID of this pid namespace, leader of a session and group of the
 * same number, as soon as that number is free. Says "started", and ends when COMMAND has ended. clone3(2) with set_tid
 * wants Linux 5.5 and CAP_SYS_ADMIN. */
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t try_start(pid_t wanted) {
  struct clone_args args;
  memset(&args, 0, sizeof args);
  args.exit_signal = SIGCHLD;
  args.set_tid = (uintptr_t)&wanted;
  args.set_tid_size = 1;
  return (pid_t)syscall(SYS_clone3, &args, sizeof args);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fputs("usage: with_pid PID COMMAND...\n", stderr);
    return 2;
  }
  pid_t pid, wanted = (pid_t)strtol(argv[1], NULL, 10);
  while ((pid = try_start(wanted)) < 0 && errno == EEXIST) {
    const struct timespec pause = {.tv_nsec = 200000};
    nanosleep(&pause, NULL);
  }
  if (pid < 0) {
    perror("clone3");
    return 1;
  }
  if (pid == 0) {
    setsid();
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    _exit(127);
  }
  puts("started");
  fflush(stdout);
  int status;
  if (waitpid(pid, &status, 0) < 0)
    return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
