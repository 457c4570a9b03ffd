/* proc.h - what /proc tells of a process (proc(5)). Each call opens a file of /proc, which waits for no disk. */
#ifndef SANDKEEPER_CORE_PROC_H
#define SANDKEEPER_CORE_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A process, also when its number is another's later. */
struct proc_id {
  pid_t pid;
  uint64_t start; /* clock ticks since boot: stat, field 22 */
  pid_t group;    /* when it was last seen */
};

struct proc_stat {
  struct proc_id id;
  pid_t parent, session;
};

/* 1; or 0: gone, or not for us to see, or a zombie, which is as good as gone (only then *found says which); or -1 with
 * errno: it cannot be told, for want of a descriptor or memory. */
int proc_read(pid_t pid, struct proc_stat *found);

/* The start time of a process; 0 when there is none. */
uint64_t proc_start_of(pid_t pid);

/* Looks for NAME=VALUE, or a prefix of it, in the environment that the process was started with. 1, 0 or -1 as above.
 * *empty: there is nothing in it, or the process is gone; not when it is not for us to see. */
int proc_has_variable(pid_t pid, const char *variable, bool is_prefix, bool *empty);

/* An environment without a byte is empty, as env -i makes it, or the process is in execve(2), and has a new memory
 * where its environment is not known to be yet: then this is true. */
bool proc_is_in_exec(pid_t pid);

#endif
