/* killer.h - decides how a command is ended: TERM, a grace, KILL, and when to stop waiting. Pure: it is told the time
 * and what is still alive, and says what to do next. core/command_end.c does it.
 *
 * The promise behind the numbers (docs/protocol.md 4.1): SIGTERM at the deadline, SIGKILL one second later, the caller
 * is told at latest 1.5 s after the deadline, also when something cannot be killed (a process in state D).
 */
#ifndef SANDKEEPER_CORE_KILLER_H
#define SANDKEEPER_CORE_KILLER_H

#include "sandkeeper/base/clock.h"

#include <stdbool.h>
#include <stdint.h>

#define KILLER_GRACE (1 * CLOCK_SECOND)
#define KILLER_PATIENCE (300 * CLOCK_MS)  /* after KILL, for what cannot die */
#define KILLER_LOOK_FIRST (20 * CLOCK_MS) /* between two looks at what is still alive; doubles */
#define KILLER_LOOK_MOST (200 * CLOCK_MS)

enum killer_action {
  KILLER_WAIT, /* nothing to do before `wake` */
  KILLER_TERM, /* send TERM and CONT to group and tree, then say what is alive */
  KILLER_KILL, /* the same with KILL; comes also while a look is outstanding */
  KILLER_LOOK, /* look what is alive */
  KILLER_DONE, /* the end: `survivors` stands */
};

struct killer {
  enum { KILLER_IDLE, KILLER_WATCHED, KILLER_STARTED, KILLER_TERMED, KILLER_KILLED, KILLER_ENDED } phase;
  int64_t kill_at, give_up_at; /* monotonic ns; give_up_at is known when it watches, and from the KILL on */
  int64_t look_at;             /* not again before */
  int64_t interval;            /* to the next look */
  int64_t wake;                /* when killer_next wants to be asked again at latest */
  bool looking;                /* an answer is outstanding */
  bool signaling;              /* it is of a look that sends a signal: what was alive then may be gone by now */
  bool hinted;                 /* something ended meanwhile: the answer may be out of date */
  int survivors;               /* of the last look that only looked, since it began or since the KILL, or 0; -1: there
                                  was none, or /proc could not be read */
};

void killer_init(struct killer *killer);

/* Begins: TERM now, KILL after `grace`, also when it only watched so far. A second call may only bring the KILL
 * forward. */
void killer_start(struct killer *killer, int64_t now, int64_t grace);

/* Only watches, for `patience`, what a signal that a client sent has left. Nothing when it is active already. */
void killer_watch(struct killer *killer, int64_t now, int64_t patience);

/* The caller itself sends a signal with a look: watches what it leaves, for `patience` from now, also when it watched
 * before. An end under way stays as it is. */
void killer_signaled(struct killer *killer, int64_t now, int64_t patience);

/* Something ended: worth a look at once. */
void killer_hint(struct killer *killer, int64_t now);

/* What to do now. After TERM, KILL or LOOK the caller reports with killer_saw(), and asks again. One who asks late (the
 * container was frozen) still gets the KILL, and KILLER_PATIENCE behind it. */
enum killer_action killer_next(struct killer *killer, int64_t now);

/* The result of a look: how many live processes the command still has; -1: /proc could not be read. */
void killer_saw(struct killer *killer, int64_t now, int survivors);

static inline bool killer_is_active(const struct killer *killer) {
  return killer->phase != KILLER_IDLE && killer->phase != KILLER_ENDED;
}

#endif
