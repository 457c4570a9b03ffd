/* spawn.h - starts one program and says exactly why when it cannot.
 *
 * Blocking: it runs on a worker (core/worker.h). The new process is made by clone(CLONE_VM|CLONE_VFORK|CLONE_PIDFD): it
 * costs the same whatever memory the agent holds (fork: 5 ms at 64 MB), the calling thread alone waits until the
 * program runs, and a failed step is handed back through the shared memory with its errno. What the new process does
 * before execve(2) is spawn_child.c.
 */
#ifndef SANDKEEPER_CORE_SPAWN_H
#define SANDKEEPER_CORE_SPAWN_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/env.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

struct spawn {
  /* What to run; strings owned by the struct. */
  char *command;     /* run by the shell, or NULL */
  char **argv;       /* instead of command: no shell; NULL-terminated */
  char *shell;       /* NULL: /bin/bash if it is there, else /bin/sh */
  char *working_dir; /* absolute, or relative to the agent's own directory */
  char *user;        /* name or uid; NULL: as the agent */
  bool sudo;         /* as root, with the environment kept */
  struct env env;    /* complete but for what is filled in where missing: PATH HOME USER LOGNAME SHELL */
  mode_t umask;
  bool stdin_pipe;    /* else stdin is /dev/null */
  bool inherit_stdio; /* the agent's own stdin, stdout and stderr (the image's command) */
  int oom_score_adj;
  struct rlimit nofile; /* given back to the child: the agent raised its own */

  /* What came of it. */
  _Atomic pid_t pid; /* written by the new process itself before anything else: so the reaper knows a child that dies
                        before spawn_run() has returned */
  char *program;     /* what was to be executed: argv[0], the shell or sudo; set also when it failed */
  int in_fd, out_fd, err_fd; /* the agent's ends, non-blocking; -1 where there is none */
};

void spawn_init(struct spawn *spawn);
void spawn_free(struct spawn *spawn); /* closes the descriptors that are still there */

/* 0, and pid and descriptors are set; or -1: ERROR_NOT_FOUND (working_dir, user), ERROR_WRONG_TYPE (working_dir),
 * ERROR_PERMISSION (user), ERROR_SPAWN_FAILED with `number`; no process is left. */
int spawn_run(struct spawn *spawn, struct error *err);

#endif
