/* idle.h - gives memory back when a burst of work is over.
 *
 * Work touches pages of code and leaves free memory inside the heap; neither goes back by itself. Two seconds after the
 * last child has ended or a worker has done its last job, and only when there was enough work to be worth it,
 * base/resident.h trims both; and once more after the last worker has left, 10 s later. Nothing ticks: the timer runs
 * once after each. Owner: the sandbox. */
#ifndef SANDKEEPER_CORE_IDLE_H
#define SANDKEEPER_CORE_IDLE_H

#include "sandkeeper/core/commands.h"

struct idle {
  struct commands *commands;
  struct loop_timer timer;
  uint64_t jobs; /* done by workers, and sessions that have ended */
  uint64_t work; /* what was done when it trimmed last */
  bool due;      /* to be trimmed whatever was done */
};

void idle_init(struct idle *idle, struct commands *commands);
void idle_stop(struct idle *idle);

/* A child has ended: wait for the burst's end. */
void idle_touch(struct idle *idle);

/* Workers have done so many jobs, or so many sessions have ended. */
void idle_jobs(struct idle *idle, uint32_t jobs);

/* The last worker leaves. */
void idle_workers_left(struct idle *idle);

#endif
