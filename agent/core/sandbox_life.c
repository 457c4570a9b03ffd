#include "sandkeeper/core/sandbox_life.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/sandbox.h"
#include "sandkeeper/core/shutdown.h"

#include <stdio.h>

/* What is left of the grace for what finished commands have left behind, at least; never more than the grace itself. */
#define LEAVINGS_GRACE (1 * CLOCK_SECOND)

static void act(struct sandbox *sandbox, enum life_action action);

static struct sandbox *sandbox_of(struct terminator *terminator) {
  return LIST_OWNER(terminator, struct sandbox, life.leavings);
}

/* ---- ending commands ---- */

static void tell_waiters(struct loop_task *task) {
  struct sandbox *sandbox = task->arg;
  struct list *waiters = &sandbox->life.waiters;
  if (sandbox->life.ending)
    return;
  /* One at a time: done() may forget others. */
  while (!list_is_empty(waiters)) {
    struct life_waiter *waiter = LIST_FIRST(waiters, struct life_waiter, node);
    list_remove(&waiter->node);
    waiter->done(waiter);
  }
}

static void settle(struct sandbox *sandbox) {
  loop_defer(sandbox->loop, &sandbox->life.settled, tell_waiters, sandbox);
}

static void ended(struct terminator *terminator) {
  struct sandbox *sandbox = sandbox_of(terminator);
  struct sandbox_life *life = &sandbox->life;
  int survivors = terminator_survivors(terminator);
  if (survivors != 0)
    LOG(LOG_WARN, "life", "processes left behind", LOG_I("count", survivors));
  life->ending = false;
  act(sandbox, life_ended(&life->life));
  LOG(LOG_INFO, "life", "commands ended", LOG_S("status", life_status(&life->life)));
  settle(sandbox);
}

/* They have no number that is certainly theirs: only the look at /proc finds and signals them. */
static void signal_nothing(struct terminator *terminator, int signal) {
  (void)terminator, (void)signal;
}

static pid_t no_leader(struct terminator *terminator) {
  (void)terminator;
  return 0;
}

static const struct terminator_ops leavings_ops = {.signal = signal_nothing, .leader = no_leader, .done = ended};

/* The commands are gone; a finished one may have left something in the background that nobody has ended. */
static void end_leavings(void *arg) {
  struct sandbox *sandbox = arg;
  struct terminator *terminator = &sandbox->life.leavings;
  int64_t grace = sandbox->options.grace;
  int64_t left = sandbox->life.began + grace - loop_now(sandbox->loop);
  int64_t least = grace < LEAVINGS_GRACE ? grace : LEAVINGS_GRACE;
  sandbox->commands.quiet = NULL;
  terminator_stop(terminator);
  terminator_init(terminator, sandbox->loop, sandbox->workers, &leavings_ops);
  snprintf(terminator->mark, sizeof terminator->mark, COMMANDS_MARK "=%s." COMMANDS_MARK_CLIENTS,
           sandbox->commands.run_id);
  terminator->mark_is_prefix = true;
  terminator_start(terminator, left > least ? left : least);
}

static void end_commands(struct sandbox *sandbox) {
  struct commands *commands = &sandbox->commands;
  LOG(LOG_INFO, "life", "ending commands", LOG_S("status", life_status(&sandbox->life.life)),
      LOG_I("running", commands->counts.running));
  commands->refusing = true;
  sandbox->life.ending = true;
  sandbox->life.began = loop_now(sandbox->loop);
  commands_end_all(commands, sandbox->options.grace);
  if (commands_is_quiet(commands)) {
    end_leavings(sandbox);
    return;
  }
  commands->quiet = end_leavings;
  commands->quiet_arg = sandbox;
}

static void act(struct sandbox *sandbox, enum life_action action) {
  switch (action) {
  case LIFE_NOTHING:
    break;
  case LIFE_END:
    end_commands(sandbox);
    break;
  case LIFE_ADMIT:
    sandbox->commands.refusing = sandbox->stopping;
    break;
  case LIFE_LEAVE:
    if (!sandbox->stopping)
      shutdown_begin(sandbox, "the end of the sandbox");
    break;
  }
}

/* ---- wishes ---- */

static void wait_for(struct sandbox *sandbox, struct life_waiter *waiter, enum life_action action) {
  sandbox_life_touch(sandbox);
  list_append(&sandbox->life.waiters, &waiter->node);
  act(sandbox, action);
  settle(sandbox);
}

void sandbox_life_stop(struct sandbox *sandbox, struct life_waiter *waiter) {
  wait_for(sandbox, waiter, life_stop(&sandbox->life.life));
}

void sandbox_life_start(struct sandbox *sandbox, struct life_waiter *waiter) {
  wait_for(sandbox, waiter, life_start(&sandbox->life.life));
}

void sandbox_life_restart(struct sandbox *sandbox, struct life_waiter *waiter) {
  wait_for(sandbox, waiter, life_restart(&sandbox->life.life));
}

void sandbox_life_forget(struct life_waiter *waiter) {
  list_remove(&waiter->node);
}

void sandbox_life_destroy(struct sandbox *sandbox) {
  sandbox_life_touch(sandbox);
  act(sandbox, life_destroy(&sandbox->life.life));
}

/* ---- times ---- */

static void on_expiry(struct loop_timer *timer) {
  struct sandbox *sandbox = timer->arg;
  LOG(LOG_INFO, "life", "expired");
  sandbox_life_destroy(sandbox);
}

/* The time is promised as a date but waited for by the monotonic clock: setting the machine's clock moves no end. */
static void arm_expiry(struct sandbox *sandbox) {
  if (sandbox->life.life.expires == 0) {
    loop_timer_stop(sandbox->loop, &sandbox->life.expiry);
    return;
  }
  int64_t left = sandbox->life.life.expires - clock_wall();
  int64_t now = loop_now(sandbox->loop);
  int64_t deadline = left < 0 ? now : left > INT64_MAX - now ? INT64_MAX : now + left;
  if (loop_timer_start(sandbox->loop, &sandbox->life.expiry, deadline, on_expiry, sandbox) < 0)
    LOG(LOG_ERROR, "life", "the sandbox will not expire: no memory for its timer");
}

void sandbox_life_extend(struct sandbox *sandbox, int64_t by) {
  sandbox_life_touch(sandbox);
  life_extend(&sandbox->life.life, clock_wall(), by);
  arm_expiry(sandbox);
}

void sandbox_life_set_expiry(struct sandbox *sandbox, int64_t expires) {
  sandbox->life.life.expires = expires;
  arm_expiry(sandbox);
}

void sandbox_life_touch(struct sandbox *sandbox) {
  sandbox->life.life.last_active = clock_wall();
}

int64_t sandbox_life_last_active(const struct sandbox *sandbox) {
  const struct commands *commands = &sandbox->commands;
  int64_t last = sandbox->life.life.last_active;
  if (commands->counts.running > 0)
    return clock_wall();
  if (list_is_empty(&commands->finished))
    return last;
  const struct command *newest = LIST_OWNER(commands->finished.prev, struct command, node);
  return newest->finished_wall > last ? newest->finished_wall : last;
}

/* ---- */

void sandbox_life_init(struct sandbox *sandbox, int64_t ttl) {
  struct sandbox_life *life = &sandbox->life;
  life_init(&life->life, sandbox->started_wall, ttl);
  list_init(&life->waiters);
  loop_timer_init(&life->expiry);
  loop_task_init(&life->settled);
  terminator_init(&life->leavings, sandbox->loop, sandbox->workers, &leavings_ops);
  arm_expiry(sandbox);
}

void sandbox_life_free(struct sandbox *sandbox) {
  struct sandbox_life *life = &sandbox->life;
  sandbox->commands.quiet = NULL;
  loop_timer_stop(sandbox->loop, &life->expiry);
  loop_task_cancel(&life->settled);
  terminator_stop(&life->leavings);
  life_free(&life->life);
}
