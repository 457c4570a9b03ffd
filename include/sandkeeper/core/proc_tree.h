/* proc_tree.h - finds the processes that belong to a command, and signals them, by reading /proc. Blocking: on workers.
 *
 * A process belongs to a command when one of these holds:
 *   - it carries the command's mark in its environment (SANDKEEPER_RUN=..., inherited by every descendant),
 *   - it is in the session of the leader while the leader's number is still pinned (not reaped yet),
 *   - an ancestor of it belongs,
 *   - `own_children` is set and its parent is this process: orphans come to us, whatever they did to their environment,
 *   - an earlier scan found it (same pid, same start time).
 * So one that left the group by setsid, or was orphaned and given a new parent, is found; one that cleared its
 * environment is found as long as a scan saw its parent. A number alone never counts: each signal goes through a pidfd
 * that was checked against the start time, so a recycled number is not hit.
 */
#ifndef SANDKEEPER_CORE_PROC_TREE_H
#define SANDKEEPER_CORE_PROC_TREE_H

#include "sandkeeper/core/proc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_tree {
  /* What to look for. */
  const char *mark; /* "SANDKEEPER_RUN=..."; a prefix of the variable's text when `mark_is_prefix` */
  bool mark_is_prefix;
  bool own_children;     /* every child of this process counts, but those it had before it was the agent */
  pid_t leader;          /* leader whose session counts; 0: none. Pinned (not reaped) when the scan is asked for */
  uint64_t leader_start; /* its start then: a scan may begin later, when the number is another's. 0: not known */
  const pid_t *signaled; /* groups that have got this scan's signal already */
  size_t n_signaled;

  /* Found so far; grows from scan to scan. */
  struct proc_id *members;
  size_t n_members, capacity;
};

void proc_tree_init(struct proc_tree *tree);
void proc_tree_free(struct proc_tree *tree);

/* Scans /proc, adds what it finds, forgets what is gone (zombies are gone). Then sends `signal` (0: none) to every
 * member, and SIGCONT behind SIGTERM, so that a stopped one dies too; a member of a group that has got it already is
 * left out, unless it is SIGKILL. While processes come and go too fast for a list of /proc, and after a SIGKILL while
 * any are left, it looks and signals again, 20 times at most. Returns the number of members, or -1 with errno when
 * /proc cannot be read, or hides the leader (but 0 with own_children when this process has no child); members known
 * before are signalled all the same. The leader itself counts as a member. */
int proc_tree_scan(struct proc_tree *tree, int signal);

#endif
