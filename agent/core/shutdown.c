#include "sandkeeper/core/shutdown.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"

#include <stdio.h>

/* What is left over is the kernel's: as PID 1 our exit ends the whole namespace. */
#define PATIENCE (500 * CLOCK_MS)

static struct sandbox *sandbox_of(struct terminator *terminator) {
  return LIST_OWNER(terminator, struct sandbox, terminator);
}

/* Groups by number first: they are hit before the first look at /proc has come back. */
static void signal_groups(struct terminator *terminator, int signal) {
  LIST_FOREACH (&sandbox_of(terminator)->commands.live, node) {
    struct command *command = LIST_OWNER(node, struct command, node);
    bool signaled;
    if (command_signal(command, signal, &signaled, NULL) == 0 && signaled && command->pid)
      terminator_signaled(terminator, command->pid);
  }
}

static pid_t no_leader(struct terminator *terminator) {
  (void)terminator;
  return 0;
}

static void leave(struct sandbox *sandbox) {
  loop_timer_stop(sandbox->loop, &sandbox->shutdown_timer);
  sandbox->commands.emptied = NULL;
  sandbox->on_stopped(sandbox->arg);
}

static void on_patience_ended(struct loop_timer *timer) {
  leave(timer->arg);
}

static void on_emptied(void *arg) {
  leave(arg);
}

/* All processes are gone, or given up. The commands still have to see their leaders' deaths. */
static void all_dead(struct terminator *terminator) {
  struct sandbox *sandbox = sandbox_of(terminator);
  int survivors = terminator_survivors(terminator);
  if (survivors != 0)
    LOG(LOG_WARN, "shutdown", "processes left behind", LOG_I("count", survivors));
  if (list_is_empty(&sandbox->commands.live)) {
    leave(sandbox);
    return;
  }
  sandbox->commands.emptied = on_emptied;
  sandbox->commands.emptied_arg = sandbox;
  loop_timer_start(sandbox->loop, &sandbox->shutdown_timer, loop_now(sandbox->loop) + PATIENCE, on_patience_ended,
                   sandbox);
}

static const struct terminator_ops ops = {.signal = signal_groups, .leader = no_leader, .done = all_dead};

void shutdown_begin(struct sandbox *sandbox, const char *why) {
  struct terminator *terminator = &sandbox->terminator;
  if (sandbox->stopping) {
    LOG(LOG_INFO, "shutdown", "hurried", LOG_S("by", why));
    if (terminator_is_active(terminator))
      terminator_start(terminator, 0);
    return;
  }
  LOG(LOG_INFO, "shutdown", "stopping", LOG_S("by", why), LOG_I("running", sandbox->commands.counts.running));
  sandbox->stopping = true;
  sandbox->commands.refusing = true;
  sandbox->on_stopping(sandbox->arg);
  terminator_init(terminator, sandbox->loop, sandbox->workers, &ops);
  snprintf(terminator->mark, sizeof terminator->mark, COMMANDS_MARK "=%s.", sandbox->commands.run_id);
  terminator->mark_is_prefix = true;
  terminator->own_children = true;
  terminator_start(terminator, sandbox->options.grace);
}
