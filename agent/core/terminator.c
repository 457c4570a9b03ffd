#include "sandkeeper/core/terminator.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* A signal waits so long for a first look. */
#define FIRST_LOOK (300 * CLOCK_MS)

struct scan_job {
  struct job job;
  struct terminator *terminator; /* NULL: nobody waits any more */
  struct proc_tree tree;
  char mark[TERMINATOR_MARK_MAX];
  pid_t *groups;    /* the tree's */
  uint64_t signals; /* one bit a signal, the lowest is number 1 */
  int survivors;
};

static void run(struct terminator *terminator);

static void forget_groups(struct terminator *terminator) {
  free(terminator->groups);
  terminator->groups = NULL;
  terminator->n_groups = 0;
}

/* Without memory the group's members get the signal twice. */
void terminator_signaled(struct terminator *terminator, pid_t group) {
  pid_t *groups = reallocarray(terminator->groups, terminator->n_groups + 1, sizeof(pid_t));
  if (!groups)
    return;
  terminator->groups = groups;
  terminator->groups[terminator->n_groups++] = group;
}

void terminator_init(struct terminator *terminator, struct loop *loop, struct workers *workers,
                     const struct terminator_ops *ops) {
  *terminator = (struct terminator){.loop = loop, .workers = workers, .ops = ops};
  killer_init(&terminator->killer);
  proc_tree_init(&terminator->tree);
  loop_timer_init(&terminator->timer);
  loop_timer_init(&terminator->due_timer);
}

void terminator_stop(struct terminator *terminator) {
  loop_timer_stop(terminator->loop, &terminator->timer);
  loop_timer_stop(terminator->loop, &terminator->due_timer);
  proc_tree_free(&terminator->tree);
  forget_groups(terminator);
  if (terminator->scan)
    terminator->scan->terminator = NULL;
  terminator->scan = NULL;
}

/* ---- looking at what is alive ---- */

static void scan_work(struct job *job) {
  struct scan_job *scan = (struct scan_job *)job;
  uint64_t signals = scan->signals;
  do {
    scan->survivors = proc_tree_scan(&scan->tree, signals ? __builtin_ctzll(signals) + 1 : 0);
    signals &= signals - 1;
  } while (signals);
}

static void scan_free(struct scan_job *scan) {
  proc_tree_free(&scan->tree);
  free(scan->groups);
  free(scan);
}

static void scan_abandon(struct job *job) {
  scan_free((struct scan_job *)job);
}

static void scan_submit(struct terminator *terminator, uint64_t signals);
static void send_due(struct terminator *terminator);

static void scan_back(struct terminator *terminator, int survivors) {
  bool again = terminator->scan_again;
  uint64_t signals = terminator->scan_signals;
  terminator->scan = NULL;
  terminator->scan_again = false;
  terminator->scan_signals = 0;
  if (signals || (again && !terminator->due_signal)) {
    scan_submit(terminator, signals);
    return;
  }
  if (terminator->due_signal) {
    send_due(terminator);
    return;
  }
  killer_saw(&terminator->killer, loop_now(terminator->loop), survivors);
  run(terminator);
}

static void scan_done(struct job *job, enum job_end end) {
  struct scan_job *scan = (struct scan_job *)job;
  struct terminator *terminator = scan->terminator;
  int survivors = -1;
  scan->terminator = NULL;
  if (end == JOB_DONE) {
    survivors = scan->survivors;
    if (terminator) {
      terminator->tree = scan->tree; /* the members found so far */
      proc_tree_init(&scan->tree);
    }
    scan_free(scan);
  }
  if (terminator)
    scan_back(terminator, survivors);
}

static int scan_begin(struct terminator *terminator, uint64_t signals) {
  struct scan_job *scan = calloc(1, sizeof *scan);
  if (!scan)
    return -1;
  scan->job = (struct job){.class = JOB_SPAWN, .work = scan_work, .done = scan_done, .abandon = scan_abandon};
  memcpy(scan->mark, terminator->mark, sizeof scan->mark);
  scan->tree = terminator->tree;
  scan->tree.mark = scan->mark;
  scan->tree.mark_is_prefix = terminator->mark_is_prefix;
  scan->tree.own_children = terminator->own_children;
  scan->tree.leader = terminator->ops->leader(terminator);
  scan->tree.leader_start = scan->tree.leader ? proc_start_of(scan->tree.leader) : 0;
  scan->tree.signaled = terminator->groups;
  scan->tree.n_signaled = terminator->n_groups;
  scan->signals = signals;
  if (workers_submit(terminator->workers, &scan->job, NULL, false, NULL) < 0) {
    free(scan); /* the tree is still the terminator's */
    return -1;
  }
  proc_tree_init(&terminator->tree);
  scan->groups = steal_pointer(&terminator->groups);
  terminator->n_groups = 0;
  scan->terminator = terminator;
  terminator->scan = scan;
  return 0;
}

/* Looks, and sends signals to what it finds. While a look is out, the next one waits for it, with all signals that come
 * meanwhile. */
static void scan_submit(struct terminator *terminator, uint64_t signals) {
  if (terminator->scan) {
    terminator->scan_again = true;
    terminator->scan_signals |= signals;
  } else if (scan_begin(terminator, signals) < 0) {
    killer_saw(&terminator->killer, loop_now(terminator->loop), -1);
  }
}

/* ---- the killer's decisions ---- */

static void on_wake(struct loop_timer *timer) {
  run(timer->arg);
}

static void signal_now(struct terminator *terminator, int signal) {
  terminator->due_signal = 0;
  loop_timer_stop(terminator->loop, &terminator->due_timer);
  forget_groups(terminator);
  terminator->ops->signal(terminator, signal);
  scan_submit(terminator, UINT64_C(1) << (signal - 1));
}

static void send_due(struct terminator *terminator) {
  signal_now(terminator, terminator->due_signal);
}

static void on_due(struct loop_timer *timer) {
  send_due(timer->arg);
}

/* A child that shed the mark and left the group can only be told by its parent, and the parent may die of the signal at
 * once. So all are looked for first; but a look that takes long is not waited for. */
static void signal_all(struct terminator *terminator, int signal) {
  if (terminator->due_signal)
    send_due(terminator);
  int64_t due = loop_now(terminator->loop) + FIRST_LOOK;
  if (terminator->own_children ||
      loop_timer_start(terminator->loop, &terminator->due_timer, due, on_due, terminator) < 0) {
    signal_now(terminator, signal);
    return;
  }
  terminator->due_signal = signal;
  scan_submit(terminator, 0);
}

static void run(struct terminator *terminator) {
  struct killer *killer = &terminator->killer;
  int64_t now = loop_now(terminator->loop);
  while (killer_is_active(killer)) {
    switch (killer_next(killer, now)) {
    case KILLER_TERM:
      signal_all(terminator, SIGTERM);
      break;
    case KILLER_KILL: /* TERM has looked */
      if (terminator->due_signal)
        send_due(terminator);
      signal_now(terminator, SIGKILL);
      break;
    case KILLER_LOOK: /* what comes to light after the KILL gets it too */
      scan_submit(terminator, killer->phase == KILLER_KILLED ? UINT64_C(1) << (SIGKILL - 1) : 0);
      break;
    case KILLER_WAIT:
      loop_timer_start(terminator->loop, &terminator->timer, killer->wake, on_wake, terminator);
      return;
    case KILLER_DONE:
      loop_timer_stop(terminator->loop, &terminator->timer);
      loop_timer_stop(terminator->loop, &terminator->due_timer);
      terminator->due_signal = 0;
      terminator->ops->done(terminator);
      return;
    }
  }
}

void terminator_start(struct terminator *terminator, int64_t grace) {
  killer_start(&terminator->killer, loop_now(terminator->loop), grace);
  run(terminator);
}

void terminator_watch(struct terminator *terminator, int64_t patience) {
  if (terminator_is_active(terminator))
    return;
  killer_watch(&terminator->killer, loop_now(terminator->loop), patience);
  run(terminator);
}

void terminator_signal(struct terminator *terminator, int signal, int64_t patience) {
  killer_signaled(&terminator->killer, loop_now(terminator->loop), FIRST_LOOK + patience);
  signal_all(terminator, signal);
  run(terminator);
}

void terminator_hint(struct terminator *terminator) {
  killer_hint(&terminator->killer, loop_now(terminator->loop));
  run(terminator);
}
