/* terminator.h - ends processes for good: carries out what core/killer.h decides, with looks at /proc on a worker.
 *
 * It serves one command (its group, and its descendants by the command's mark) or, at shutdown, everything that this
 * agent ever started (the mark's prefix). Owner: whoever embeds it; terminator_stop() before it is freed.
 */
#ifndef SANDKEEPER_CORE_TERMINATOR_H
#define SANDKEEPER_CORE_TERMINATOR_H

#include "sandkeeper/core/killer.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/core/proc_tree.h"
#include "sandkeeper/core/worker.h"

#define TERMINATOR_MARK_MAX 64

struct terminator;
struct terminator_ops {
  /* Signals at once, by number, what is certainly ours (groups whose leaders are not reaped), and names each by
   * terminator_signaled(): the look at /proc that follows sends its members nothing more but a KILL. */
  void (*signal)(struct terminator *terminator, int signal);
  /* The leader whose session may be trusted by number; 0: none. */
  pid_t (*leader)(struct terminator *terminator);
  /* The end, once for each start. May free the terminator's owner. */
  void (*done)(struct terminator *terminator);
};

struct terminator {
  struct loop *loop;
  struct workers *workers;
  const struct terminator_ops *ops;
  char mark[TERMINATOR_MARK_MAX]; /* of a process's environment, "SANDKEEPER_RUN=..." */
  bool mark_is_prefix;
  bool own_children; /* core/proc_tree.h */

  struct killer killer;
  struct proc_tree tree;
  struct loop_timer timer;
  int due_signal; /* waits for a first look; 0: none */
  struct loop_timer due_timer;
  struct scan_job *scan; /* outstanding */
  bool scan_again;       /* another look waits for it */
  uint64_t scan_signals; /* and sends these: one bit a signal, the lowest is number 1 */
  pid_t *groups;         /* signalled by number, for the next look */
  size_t n_groups;
};

void terminator_init(struct terminator *terminator, struct loop *loop, struct workers *workers,
                     const struct terminator_ops *ops);
void terminator_stop(struct terminator *terminator);

/* TERM now, KILL after `grace` ns. Again: only brings the KILL forward. done() may be called inside. */
void terminator_start(struct terminator *terminator, int64_t grace);

/* Only counts, for `patience` ns at most, what is still alive. Nothing when it is started already. */
void terminator_watch(struct terminator *terminator, int64_t patience);

/* Sends one signal to everything that is found, and then counts for `patience` ns at most. */
void terminator_signal(struct terminator *terminator, int signal, int64_t patience);

/* For ops->signal. */
void terminator_signaled(struct terminator *terminator, pid_t group);

/* Something ended: look at once instead of later. */
void terminator_hint(struct terminator *terminator);

static inline bool terminator_is_active(const struct terminator *terminator) {
  return killer_is_active(&terminator->killer);
}

/* After done(): processes that are still alive; -1 when they could not be counted. */
static inline int terminator_survivors(const struct terminator *terminator) {
  return terminator->killer.survivors;
}

#endif
