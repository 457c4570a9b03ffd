#include "sandkeeper/core/command.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/oom.h"
#include "sandkeeper/core/reader.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void command_spec_init(struct command_spec *spec) {
  *spec = (struct command_spec){0};
  spawn_init(&spec->spawn);
}

void command_spec_free(struct command_spec *spec) {
  spawn_free(&spec->spawn);
  free(spec->title);
  free(spec->input);
  command_spec_init(spec);
}

static void first_input_done(struct command_input *input, const struct error *error) {
  (void)error; /* a program that does not read its stdin is no fault */
  struct command *command = LIST_OWNER(input, struct command, first_input);
  free(command->first_input_bytes);
  command->first_input_bytes = NULL;
}

static void take_input(struct command *command, struct command_spec *spec) {
  list_init(&command->first_input.node);
  command->keep_stdin = spec->keep_stdin;
  if (!spec->input)
    return;
  command->first_input_bytes = steal_pointer(&spec->input);
  command->first_input = (struct command_input){
      .bytes = command->first_input_bytes,
      .len = spec->input_len,
      .eof = !spec->keep_stdin,
      .done = first_input_done,
  };
  list_append(&command->inputs, &command->first_input.node);
  command->n_inputs = 1;
  command->inputs_bytes = spec->input_len;
}

struct command *command_new(struct commands *table, struct command_spec *spec) {
  struct command *command = calloc(1, sizeof *command);
  if (!command)
    return NULL;
  command->table = table;
  command->references = 1;
  memcpy(command->id, spec->id, sizeof command->id);
  command->title = steal_pointer(&spec->title);
  command->title_is_argv = spec->title_is_argv;
  command->hidden = spec->hidden;
  command->by_sudo = spec->spawn.sudo && geteuid() != 0;
  command->of_image = spec->of_image;
  command->state = COMMAND_STARTING;
  command->timeout = spec->timeout;
  command->idle_timeout = spec->idle_timeout;
  command->in_fd = -1;
  command->oom_count = oom_count();
  command->end = UINT64_MAX;
  list_init(&command->node);
  list_init(&command->unreaped_node);
  list_init(&command->observers);
  list_init(&command->readers);
  list_init(&command->inputs);
  loop_watch_init(&command->in_watch);
  loop_timer_init(&command->stall_timer);
  loop_timer_init(&command->timeout_timer);
  loop_timer_init(&command->idle_timer);
  command_log_init(&command->log, COMMAND_LOG_CAPACITY);
  terminator_init(&command->terminator, table->loop, table->workers, &command_terminator_ops);
  for (int s = 0; s < STREAMS; s++) {
    command->pipes[s] = (struct command_pipe){.command = command, .stream = (enum stream)s, .fd = -1};
    loop_watch_init(&command->pipes[s].watch);
  }
  take_input(command, spec);
  return command;
}

struct command *command_ref(struct command *command) {
  command->references++;
  return command;
}

/* Not the stall timer: a pipe that a background child holds may be paused beyond the end. */
static void stop_timers(struct command *command) {
  struct loop *loop = command->table->loop;
  loop_timer_stop(loop, &command->timeout_timer);
  loop_timer_stop(loop, &command->idle_timer);
  terminator_stop(&command->terminator);
}

void command_unref(struct command *command) {
  if (--command->references > 0) {
    if (command_is_over(command) && !command->known && command->references == command_io_open_pipes(command))
      commands_drop_log(command->table, command);
    return;
  }
  stop_timers(command);
  loop_timer_stop(command->table->loop, &command->stall_timer);
  loop_watch_stop(command->table->loop, &command->in_watch);
  fd_close(&command->in_fd);
  list_remove(&command->node);
  list_remove(&command->unreaped_node);
  size_t memory = command_log_memory(&command->log);
  command_log_free(&command->log);
  commands_account_log(command->table, command, memory);
  free(command->first_input_bytes);
  free(command->error);
  free(command->program);
  free(command->title);
  free(command);
}

void command_let_go(struct command *command) {
  command_ref(command);
  stop_timers(command);
  loop_timer_stop(command->table->loop, &command->stall_timer);
  command_start_let_go(command);
  command_io_close_all(command);
  command_unref(command);
}

void command_observe(struct command *command, struct command_observer *observer) {
  list_append(&command->observers, &observer->node);
}

void command_unobserve(struct command_observer *observer) {
  list_remove(&observer->node);
}

const char *command_reason_name(enum command_reason reason) {
  static const char *const names[REASONS] = {"exited", "signaled", "timed_out", "idle_timed_out"};
  return names[reason];
}

/* Each observer once, also when one detaches others meanwhile: they are moved aside first. */
static void tell_observers(struct command *command) {
  struct list told;
  list_init(&told);
  while (!list_is_empty(&command->observers)) {
    struct list *node = command->observers.next;
    list_remove(node);
    list_append(&told, node);
  }
  while (!list_is_empty(&told)) {
    struct command_observer *observer = LIST_FIRST(&told, struct command_observer, node);
    list_remove(&observer->node);
    list_append(&command->observers, &observer->node);
    observer->changed(observer, command);
  }
}

void command_set_state(struct command *command, enum command_state state) {
  command_ref(command);
  command->state = state;
  reader_notify_all(command);
  tell_observers(command);
  command_unref(command);
}

/* True when the kernel's OOM killer struck while it ran and it, or a descendant whose end it passed on as 128 + 9, died
 * of SIGKILL. */
static bool was_oom_killed(const struct command *command) {
  if (command->oom_count < 0 || (command->signal != SIGKILL && command->exit_code != 128 + SIGKILL))
    return false;
  return oom_count() > command->oom_count;
}

static void finish(struct command *command) {
  if (command->state == COMMAND_RUNNING) { /* given up: it cannot be killed */
    command->signal = SIGKILL;
    command->exit_code = 128 + SIGKILL;
  }
  command->finished = loop_now(command->table->loop);
  command->finished_wall = clock_wall();
  command->end = command->log.head;
  command->oom_killed = was_oom_killed(command);
  stop_timers(command);
  command_io_close_stdin(command, NULL);
  command_ref(command);
  command->state = COMMAND_FINISHED; /* the table may forget it at once */
  commands_on_finished(command->table, command);
  command_set_state(command, COMMAND_FINISHED);
  command_unref(command);
}

void command_check_finished(struct command *command) {
  if (command->state != COMMAND_RUNNING && command->state != COMMAND_EXITED)
    return;
  if (terminator_is_active(&command->terminator))
    return;
  bool exited = command->state == COMMAND_EXITED;
  /* One that had to be ended is over when the killer says so: what a slow reader has not taken yet is in the pipe and
   * goes to the log afterwards. */
  if (command->ending ? exited || command->survivors != 0 : exited && command_io_is_drained(command))
    finish(command);
}

void command_leader_died(struct command *command, int code, int status) {
  if (command->state != COMMAND_RUNNING)
    return; /* given up before */
  if (code == CLD_EXITED) {
    command->exit_code = status;
  } else {
    command->signal = status;
    command->exit_code = 128 + status;
    if (command->reason == REASON_EXITED)
      command->reason = REASON_SIGNALED;
  }
  command_ref(command);
  command_set_state(command, COMMAND_EXITED);
  command_io_leader_died(command);
  command_end_leader_died(command); /* there may be something to wait for */
  command_check_finished(command);
  command_unref(command);
}
