#include "sandkeeper/core/idle.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/resident.h"

#define QUIET (2 * CLOCK_SECOND)

/* Trimming costs a page fault for each page that is needed again: some 0.1 ms in all. */
#define WORTH_COMMANDS 50
#define BYTES_AS_ONE_COMMAND (1024u * 1024u)

void idle_init(struct idle *idle, struct commands *commands) {
  *idle = (struct idle){.commands = commands};
  loop_timer_init(&idle->timer);
}

void idle_stop(struct idle *idle) {
  if (idle->commands)
    loop_timer_stop(idle->commands->loop, &idle->timer);
}

static uint64_t work_done(const struct idle *idle) {
  const struct command_counts *counts = &idle->commands->counts;
  return idle->jobs + counts->started +
         (counts->bytes[STREAM_STDOUT] + counts->bytes[STREAM_STDERR]) / BYTES_AS_ONE_COMMAND;
}

static void on_quiet(struct loop_timer *timer) {
  struct idle *idle = timer->arg;
  uint64_t work = work_done(idle);
  if (idle->commands->counts.running > 0 || (work < idle->work + WORTH_COMMANDS && !idle->due))
    return; /* the last child to end touches it again */
  idle->work = work;
  idle->due = false;
  resident_trim();
}

void idle_touch(struct idle *idle) {
  struct loop *loop = idle->commands->loop;
  loop_timer_start(loop, &idle->timer, loop_now(loop) + QUIET, on_quiet, idle);
}

/* The end of a thread touches 0.5 MB of glibc's code. */
void idle_workers_left(struct idle *idle) {
  idle->due = true;
  idle_touch(idle);
}

void idle_jobs(struct idle *idle, uint32_t jobs) {
  idle->jobs += jobs;
  idle_touch(idle);
}
