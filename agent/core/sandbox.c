#include "sandkeeper/core/sandbox.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/files_cleaner.h"
#include "sandkeeper/core/files_leftovers.h"
#include "sandkeeper/core/init_command.h"
#include "sandkeeper/core/oom.h"
#include "sandkeeper/core/reaper.h"
#include "sandkeeper/core/shutdown.h"

#include <signal.h>
#include <unistd.h>

static void on_child(void *arg) {
  struct sandbox *sandbox = arg;
  reaper_pass(&sandbox->commands);
  idle_touch(&sandbox->idle);
  if (sandbox->stopping && terminator_is_active(&sandbox->terminator))
    terminator_hint(&sandbox->terminator);
}

static void on_jobs(void *arg, uint32_t jobs) {
  struct sandbox *sandbox = arg;
  idle_jobs(&sandbox->idle, jobs);
}

static void on_workers_left(void *arg) {
  struct sandbox *sandbox = arg;
  idle_workers_left(&sandbox->idle);
}

static void on_stop(void *arg, int signal) {
  struct sandbox *sandbox = arg;
  /* TERM comes to all commands with the end itself. */
  if (sandbox->image_command && signal != SIGTERM)
    init_command_signal(sandbox->image_command, signal);
  shutdown_begin(sandbox, signals_name(signal));
}

static void on_other(void *arg, int signal) {
  struct sandbox *sandbox = arg;
  LOG(LOG_DEBUG, "signals", sandbox->image_command ? "handed on" : "ignored", LOG_S("signal", signals_name(signal)));
  if (sandbox->image_command)
    init_command_signal(sandbox->image_command, signal);
}

int sandbox_init(struct sandbox *sandbox, const struct sandbox_options *options, char **environment,
                 struct error *err) {
  *sandbox = (struct sandbox){.options = *options};
  loop_timer_init(&sandbox->shutdown_timer);
  sandbox->loop = loop_new(NULL, err);
  if (!sandbox->loop)
    return -1;
  sandbox->started = loop_now(sandbox->loop);
  sandbox->started_wall = clock_wall();
  oom_init();
  if (access("/proc/self/stat", R_OK) < 0)
    LOG(LOG_WARN, "sandbox", "no /proc: descendants that leave their group cannot be found");
  sandbox->workers = workers_new(sandbox->loop, options->file_timeout, err);
  if (!sandbox->workers)
    return -1;
  sandbox_life_init(sandbox, options->ttl);
  sandbox->options.commands.sandbox_id = options->id;
  if (commands_init(&sandbox->commands, sandbox->loop, sandbox->workers, &sandbox->options.commands, environment, err) <
      0)
    return -1;
  idle_init(&sandbox->idle, &sandbox->commands);
  const struct workers_observer observer = {.jobs_done = on_jobs, .all_left = on_workers_left, .arg = sandbox};
  workers_observe(sandbox->workers, &observer);
  const struct signals_handler handler = {.child = on_child, .stop = on_stop, .other = on_other, .arg = sandbox};
  sandbox->signals = signals_new(sandbox->loop, &handler, err);
  if (!sandbox->signals)
    return -1;
  files_cleaner_start(sandbox->workers);
  reaper_become_subreaper();
  reaper_pass(&sandbox->commands); /* children that a shell left us by exec, dead before the signalfd was there */
  return 0;
}

void sandbox_free(struct sandbox *sandbox) {
  if (sandbox->stopping)
    terminator_stop(&sandbox->terminator);
  signals_free(sandbox->signals);
  idle_stop(&sandbox->idle);
  if (sandbox->workers) {
    sandbox_life_free(sandbox);
    commands_free(&sandbox->commands);
  }
  workers_free(sandbox->workers);
  files_leftovers_end();
  loop_free(sandbox->loop);
}
