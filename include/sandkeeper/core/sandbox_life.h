/* sandbox_life.h - carries out what core/life.h decides: ends commands, waits until they are gone, takes new ones
 * again, lets the agent end when its time is over.
 *
 * To stop means: no command and no prompt is started any more; those there are get TERM, and KILL after --grace; then
 * what finished commands have left in the background goes the same way. The image's own command is spared. Files,
 * health, and the logs of finished commands go on.
 *
 * Owner: the sandbox. For the loop's thread.
 */
#ifndef SANDKEEPER_CORE_SANDBOX_LIFE_H
#define SANDKEEPER_CORE_SANDBOX_LIFE_H

#include "sandkeeper/base/list.h"
#include "sandkeeper/core/life.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/core/terminator.h"

#include <stdbool.h>

struct sandbox;

struct sandbox_life {
  struct life life;
  struct list waiters;
  bool ending;                /* the commands are being ended */
  int64_t began;              /* monotonic ns */
  struct terminator leavings; /* of finished commands */
  struct loop_timer expiry;
  struct loop_task settled; /* tells the waiters */
};

/* Waits for the state to settle; the struct is the caller's. `done` is called once, on the loop, never inside the call
 * that starts the wait. */
struct life_waiter {
  struct list node;
  void (*done)(struct life_waiter *waiter);
};

/* ttl: ns; 0: it does not expire. */
void sandbox_life_init(struct sandbox *sandbox, int64_t ttl);
void sandbox_life_free(struct sandbox *sandbox);

/* The waiter hears when the sandbox has stopped, started or restarted; when another call came meanwhile, it may be in
 * another state by then. Not for a sandbox that is being destroyed. */
void sandbox_life_stop(struct sandbox *sandbox, struct life_waiter *waiter);
void sandbox_life_start(struct sandbox *sandbox, struct life_waiter *waiter);
void sandbox_life_restart(struct sandbox *sandbox, struct life_waiter *waiter);
void sandbox_life_forget(struct life_waiter *waiter); /* it does not want to hear any more; fine after done() */

/* Ends all commands, so that their clients hear of it, and then the agent, with exit code 0. */
void sandbox_life_destroy(struct sandbox *sandbox);

/* Moves the time of its end by that many ns. */
void sandbox_life_extend(struct sandbox *sandbox, int64_t by);
/* Says when it ends: ns of wall time; 0: never. */
void sandbox_life_set_expiry(struct sandbox *sandbox, int64_t expires);

/* When something last happened: a call that changed something, or a command. Wall time. */
int64_t sandbox_life_last_active(const struct sandbox *sandbox);
void sandbox_life_touch(struct sandbox *sandbox);

#endif
