/* The start of a command: spawn.c on a worker, and what the loop does when it comes back. */
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/command.h"
#include "sandkeeper/core/commands.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct start_job {
  struct job job;
  struct command *command; /* a reference; NULL: nobody waits any more */
  struct spawn spawn;
  int64_t began, began_wall; /* on the worker: the loop may learn of the start much later */
  int status;
  struct error error;
};

static void start_work(struct job *job) {
  struct start_job *start = (struct start_job *)job;
  start->began = clock_monotonic();
  start->began_wall = clock_wall();
  start->status = spawn_run(&start->spawn, &start->error);
}

static void start_free(struct start_job *start) {
  spawn_free(&start->spawn);
  free(start);
}

/* Nobody waits any more: a program that runs after all must not. It is not reaped yet, or its number is nobody's: the
 * reaper knows no command for it and only takes its status. */
static void start_abandon(struct job *job) {
  struct start_job *start = (struct start_job *)job;
  if (start->status == 0 && start->spawn.pid > 0)
    kill(-start->spawn.pid, SIGKILL);
  start_free(start);
}

static void fail(struct command *command, const struct error *error) {
  command->error = malloc(sizeof *command->error);
  if (command->error)
    *command->error = *error;
  command_ref(command);
  loop_timer_stop(command->table->loop, &command->timeout_timer);
  command_io_close_stdin(command, error);
  commands_on_failed(command->table, command);
  command_set_state(command, COMMAND_FAILED);
  command_unref(command);
}

static void run(struct command *command, struct start_job *start) {
  command->pid = start->spawn.pid;
  command_io_start(command, &start->spawn);
  if (!command->has_early_exit)
    list_append(&command->table->unreaped, &command->unreaped_node);
  command->reaped = command->has_early_exit;
  command_set_state(command, COMMAND_RUNNING);
  /* The leader may be gone already; what it started is not, if its time has passed. */
  if (!command->has_early_exit || command->ending)
    command_end_start(command);
  if (command->has_early_exit)
    command_leader_died(command, command->signal ? CLD_KILLED : CLD_EXITED,
                        command->signal ? command->signal : command->exit_code);
}

static void start_done(struct job *job, enum job_end end) {
  struct start_job *start = (struct start_job *)job;
  struct command *command = start->command;
  if (!command) {
    if (end == JOB_DONE)
      start_abandon(job);
    return;
  }
  start->command = NULL;
  command->start = NULL;
  if (end == JOB_TIMED_OUT) {
    struct error error = ERROR_INIT;
    error_set(&error, ERROR_TIMED_OUT, 0, "command %s: its program did not start in time; its file system may hang",
              command->id);
    fail(command, &error);
  } else {
    commands_on_started(command->table, loop_now(command->table->loop) - command->started);
    command->started = start->began;
    command->started_wall = start->began_wall;
    if (start->status < 0) {
      command->program = steal_pointer(&start->spawn.program);
      fail(command, &start->error);
    } else {
      run(command, start);
    }
    start_free(start);
  }
  command_unref(command);
}

int command_start(struct command *command, struct spawn *spawn, struct error *err) {
  struct start_job *start = calloc(1, sizeof *start);
  if (!start)
    return error_set_errno(err, ENOMEM, "starting a command");
  start->job = (struct job){.class = JOB_SPAWN, .work = start_work, .done = start_done, .abandon = start_abandon};
  start->spawn = *spawn;
  spawn_init(spawn);
  if (workers_submit(command->table->workers, &start->job, NULL, false, err) < 0) {
    start_free(start);
    return -1;
  }
  start->command = command_ref(command);
  command->start = start;
  command_end_submitted(command);
  return 0;
}

void command_start_let_go(struct command *command) {
  struct start_job *start = command->start;
  if (!start)
    return;
  command->start = NULL;
  start->command = NULL;
  command_unref(command);
}

void command_start_give_up(struct command *command) {
  struct error error = ERROR_INIT;
  if (command->reason == REASON_TIMED_OUT)
    error_set(&error, ERROR_TIMED_OUT, 0, "command %s: its program did not start within its timeout", command->id);
  else
    error_set(&error, ERROR_STOPPED, 0, "command %s: it was stopped before its program had started", command->id);
  command_ref(command);
  command_start_let_go(command);
  fail(command, &error);
  command_unref(command);
}

pid_t command_starting_pid(const struct command *command) {
  return command->start ? atomic_load(&command->start->spawn.pid) : 0;
}
