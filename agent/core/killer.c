#include "sandkeeper/core/killer.h"

void killer_init(struct killer *killer) {
  *killer = (struct killer){.survivors = -1, .wake = CLOCK_NEVER};
}

static void begin(struct killer *killer, int64_t now) {
  killer->interval = 0;
  killer->look_at = now;
  killer->survivors = -1;
  killer->wake = now;
}

void killer_start(struct killer *killer, int64_t now, int64_t grace) {
  if (!killer_is_active(killer) || killer->phase == KILLER_WATCHED) {
    begin(killer, now);
    killer->phase = KILLER_STARTED;
    killer->kill_at = now + grace;
  } else if (now + grace < killer->kill_at) {
    killer->kill_at = now + grace;
    killer->wake = now;
  }
}

void killer_watch(struct killer *killer, int64_t now, int64_t patience) {
  if (killer_is_active(killer))
    return;
  begin(killer, now);
  killer->phase = KILLER_WATCHED;
  killer->give_up_at = now + patience;
}

void killer_signaled(struct killer *killer, int64_t now, int64_t patience) {
  killer_watch(killer, now, patience);
  if (killer->phase == KILLER_WATCHED && killer->give_up_at < now + patience)
    killer->give_up_at = now + patience;
  killer->looking = true;
  killer->signaling = true;
}

void killer_hint(struct killer *killer, int64_t now) {
  killer->hinted = killer->looking;
  killer->look_at = now;
  killer->interval = 0;
}

static enum killer_action wait_until(struct killer *killer, int64_t time) {
  killer->wake = time;
  return KILLER_WAIT;
}

static enum killer_action act(struct killer *killer, enum killer_action action) {
  killer->looking = true;
  killer->signaling = action != KILLER_LOOK;
  return action;
}

static int64_t earlier(int64_t a, int64_t b) {
  return a < b ? a : b;
}

enum killer_action killer_next(struct killer *killer, int64_t now) {
  if (killer->phase == KILLER_IDLE)
    return wait_until(killer, CLOCK_NEVER);
  if (killer->phase == KILLER_ENDED)
    return KILLER_DONE;
  if (killer->phase == KILLER_STARTED) {
    killer->phase = KILLER_TERMED;
    return act(killer, KILLER_TERM);
  }
  bool termed = killer->phase == KILLER_TERMED;
  bool all_gone = !killer->looking && killer->survivors == 0;
  if (termed && !all_gone && now >= killer->kill_at) {
    killer->phase = KILLER_KILLED;
    killer->give_up_at = now + KILLER_PATIENCE;
    killer->survivors = -1; /* what was counted before says nothing any more */
    killer->interval = 0;   /* and it is over soon */
    return act(killer, KILLER_KILL);
  }
  /* The end comes also while a look is outstanding: a hung /proc must not break the promise. */
  if (all_gone || (!termed && now >= killer->give_up_at)) {
    killer->phase = KILLER_ENDED;
    return KILLER_DONE;
  }
  if (!killer->looking && now >= killer->look_at)
    return act(killer, KILLER_LOOK);
  int64_t next = termed ? killer->kill_at : killer->give_up_at;
  return wait_until(killer, killer->looking ? next : earlier(next, killer->look_at));
}

void killer_saw(struct killer *killer, int64_t now, int survivors) {
  killer->looking = false;
  killer->survivors = killer->signaling && survivors > 0 ? -1 : survivors;
  killer->interval = killer->interval ? earlier(2 * killer->interval, KILLER_LOOK_MOST) : KILLER_LOOK_FIRST;
  killer->look_at = killer->hinted ? now : now + killer->interval;
  killer->hinted = false;
  killer->wake = now;
}
