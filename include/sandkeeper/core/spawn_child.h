/* spawn_child.h - the new process, between clone and execve. It shares the agent's memory while another thread of the
 * agent waits: raw system calls only (glibc's setresuid would change the agent's threads), no malloc, no locks. */
#ifndef SANDKEEPER_CORE_SPAWN_CHILD_H
#define SANDKEEPER_CORE_SPAWN_CHILD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

enum spawn_step {
  SPAWN_STEP_NONE, /* it runs */
  SPAWN_STEP_CLONE,
  SPAWN_STEP_SESSION,
  SPAWN_STEP_STDIO,
  SPAWN_STEP_LIMITS,
  SPAWN_STEP_USER,
  SPAWN_STEP_WORKING_DIR,
  SPAWN_STEP_EXEC,
};

struct spawn_child {
  _Atomic pid_t *pid;
  int stdio[3];     /* -1: keep the agent's */
  bool new_session; /* else only a process group of its own */
  bool change_user;
  uid_t uid;
  gid_t gid;
  const gid_t *groups;
  size_t n_groups;
  mode_t umask;
  const char *oom_score_adj; /* digits */
  size_t oom_score_adj_len;
  struct rlimit nofile;
  const char *working_dir; /* NULL: stay */
  char *const *programs;   /* paths to try in this order, as execvp(3) does over PATH */
  char *const *argv;
  char *const *envp;

  /* Out. */
  volatile enum spawn_step failed_step;
  volatile int failed_errno;
};

/* Runs in the new process; returns only by exit. `arg` is a struct spawn_child. */
int spawn_child_main(void *arg);

#endif
