#include "sandkeeper/core/killer.h"

void killer_init(struct killer *killer) {
  *killer = (struct killer){.survivors = -1, .wake = CLOCK_NEVER};
}

void killer_start(struct killer *killer, int64_t now, int64_t grace) {
  if (killer->phase == KILLER_IDLE || killer->phase == KILLER_ENDED) {
    killer->phase = KILLER_STARTED;
    killer->kill_at = now + grace;
  } else if (now + grace < killer->kill_at) {
    killer->kill_at = now + grace;
  }
  killer->give_up_at = killer->kill_at + KILLER_PATIENCE;
  killer->wake = now;
}

void killer_watch(struct killer *killer, int64_t now, int64_t patience) {
  if (killer_is_active(killer))
    return;
  killer->phase = KILLER_KILLED;
  killer->kill_at = now;
  killer->give_up_at = now + patience;
  killer->look_at = now;
  killer->wake = now;
}

void killer_hint(struct killer *killer, int64_t now) {
  killer->look_at = now;
  killer->interval = KILLER_LOOK_FIRST;
}

static enum killer_action wait_until(struct killer *killer, int64_t time) {
  killer->wake = time;
  return KILLER_WAIT;
}

static enum killer_action act(struct killer *killer, enum killer_action action) {
  killer->looking = true;
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
  /* The end comes also while a look is outstanding: a hung /proc must not break the promise. */
  if (now >= killer->give_up_at || (!killer->looking && killer->survivors == 0)) {
    killer->phase = KILLER_ENDED;
    return KILLER_DONE;
  }
  bool termed = killer->phase == KILLER_TERMED;
  if (termed && now >= killer->kill_at) {
    killer->phase = KILLER_KILLED;
    return act(killer, KILLER_KILL);
  }
  if (!killer->looking && now >= killer->look_at)
    return act(killer, KILLER_LOOK);
  int64_t next = termed ? killer->kill_at : killer->give_up_at;
  return wait_until(killer, killer->looking ? next : earlier(next, killer->look_at));
}

void killer_saw(struct killer *killer, int64_t now, int survivors) {
  killer->looking = false;
  killer->survivors = survivors;
  killer->interval = killer->interval ? earlier(2 * killer->interval, KILLER_LOOK_MOST) : KILLER_LOOK_FIRST;
  killer->look_at = now + killer->interval;
  killer->wake = now;
}
