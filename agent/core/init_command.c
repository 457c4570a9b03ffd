#include "sandkeeper/core/init_command.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/shutdown.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void run(struct init_command *init);

int64_t init_command_next_pause(int64_t pause, int64_t ran) {
  if (pause == 0 || ran >= INIT_COMMAND_GOOD_RUN)
    return INIT_COMMAND_PAUSE_FIRST;
  return pause >= INIT_COMMAND_PAUSE_MOST / 2 ? INIT_COMMAND_PAUSE_MOST : 2 * pause;
}

static void on_pause_over(struct loop_timer *timer) {
  run(timer->arg);
}

/* A terminal belongs to the group in its foreground, which was the command's. */
static void take_terminal_back(void) {
  if (isatty(STDIN_FILENO))
    tcsetpgrp(STDIN_FILENO, getpgrp()); /* SIGTTOU is blocked: allowed from the background */
}

static void ended(struct init_command *init, int exit_code, int64_t ran) {
  struct sandbox *sandbox = init->sandbox;
  command_unobserve(&init->observer);
  command_unref(steal_pointer(&init->command));
  take_terminal_back();
  if (sandbox->stopping)
    return;
  if (init->restart) {
    init->pause = init_command_next_pause(init->pause, ran);
    LOG(LOG_WARN, "command", "restarting", LOG_S("program", init->argv[0]), LOG_I("exit_code", exit_code),
        LOG_I("pause_ms", init->pause / CLOCK_MS));
    /* Without memory for a timer it is not started again; the agent lives on. */
    loop_timer_start(sandbox->loop, &init->timer, loop_now(sandbox->loop) + init->pause, on_pause_over, init);
    return;
  }
  LOG(LOG_INFO, "command", "ended", LOG_S("program", init->argv[0]), LOG_I("exit_code", exit_code));
  if (init->keep_alive)
    return;
  init->exit_code = exit_code;
  shutdown_begin(sandbox, "the end of the image's command");
}

static void on_changed(struct command_observer *observer, struct command *command) {
  struct init_command *init = observer->arg;
  if (command->state == COMMAND_FINISHED) {
    ended(init, command->exit_code, command->finished - command->started);
  } else if (command->state == COMMAND_FAILED) {
    int number = command->error ? command->error->number : 0;
    LOG(LOG_ERROR, "command", "cannot start", LOG_S("error", command->error ? command->error->message : "no memory"));
    ended(init, number == ENOENT ? INIT_COMMAND_NOT_FOUND : INIT_COMMAND_NOT_EXECUTABLE, 0);
  }
}

static int copy_words(char *const *words, char ***copy) {
  size_t n = 0;
  while (words[n])
    n++;
  *copy = calloc(n + 1, sizeof **copy);
  for (size_t i = 0; *copy && i < n; i++)
    if (!((*copy)[i] = strdup(words[i])))
      return -1;
  return *copy ? 0 : -1;
}

static int start(struct init_command *init, struct error *err) {
  struct commands *commands = &init->sandbox->commands;
  struct command_spec spec;
  bool existing;
  command_spec_init(&spec);
  spec.hidden = true;
  spec.of_image = true;
  spec.spawn.inherit_stdio = true;
  if (copy_words(init->argv, &spec.spawn.argv) < 0 || env_copy(&spec.spawn.env, &commands->env) < 0) {
    command_spec_free(&spec);
    return error_set_errno(err, ENOMEM, "starting the image's command");
  }
  if (commands_start(commands, &spec, &init->command, &existing, err) < 0)
    return -1;
  init->observer = (struct command_observer){.changed = on_changed, .arg = init};
  list_init(&init->observer.node);
  command_observe(init->command, &init->observer);
  return 0;
}

static void run(struct init_command *init) {
  struct error err = ERROR_INIT;
  if (init->sandbox->stopping || start(init, &err) == 0)
    return;
  LOG(LOG_ERROR, "command", "cannot start", LOG_S("error", err.message));
  init->pause = init_command_next_pause(init->pause, 0);
  loop_timer_start(init->sandbox->loop, &init->timer, loop_now(init->sandbox->loop) + init->pause, on_pause_over, init);
}

int init_command_start(struct init_command *init, struct sandbox *sandbox, char *const *argv, bool keep_alive,
                       bool restart, struct error *err) {
  *init = (struct init_command){
      .sandbox = sandbox, .argv = argv, .keep_alive = keep_alive, .restart = restart, .command = NULL};
  loop_timer_init(&init->timer);
  list_init(&init->observer.node);
  if (start(init, err) < 0)
    return -1;
  sandbox->image_command = init;
  return 0;
}

void init_command_signal(struct init_command *init, int signal) {
  bool signaled;
  if (init->command && signal != SIGCHLD && signal != SIGPIPE)
    command_signal(init->command, signal, &signaled, NULL);
}

void init_command_stop(struct init_command *init) {
  if (!init->sandbox)
    return;
  loop_timer_stop(init->sandbox->loop, &init->timer);
  command_unobserve(&init->observer);
  if (init->command)
    command_unref(steal_pointer(&init->command));
  init->sandbox->image_command = NULL;
}
