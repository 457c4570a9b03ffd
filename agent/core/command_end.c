/* How a command is brought to its end: signals, deadlines, and the terminator for its group and its descendants. */
#include "sandkeeper/base/clock.h"
#include "sandkeeper/core/command.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/signals.h"

#include <errno.h>
#include <signal.h>

/* How long the end of a command that a client signalled waits for what the signal hit, before survivors are told. */
#define SETTLE (200 * CLOCK_MS)
#define LAST_SIGNAL 64

static struct loop *loop_of(const struct command *command) {
  return command->table->loop;
}

/* The group may be signalled by number only while the leader, dead or alive, is not reaped: until then neither its pid
 * nor its group can be given to another. */
static bool group_is_ours(const struct command *command) {
  return command->pid > 0 && !command->reaped;
}

/* A stopped process acts on these only once it goes on. */
static bool asks_for_the_end(int number) {
  return number == SIGTERM || number == SIGHUP || number == SIGINT || number == SIGQUIT;
}

static bool stops(int number) {
  return number == SIGSTOP || number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
}

static uint64_t bit_of(int number) {
  return UINT64_C(1) << (number - 1);
}

static int signal_group(const struct command *command, int number) {
  if (kill(-command->pid, number) < 0)
    return -1;
  if (asks_for_the_end(number))
    kill(-command->pid, SIGCONT);
  return 0;
}

/* Each signal once, as the kernel keeps them for a process that does not run yet: one that stops takes back one that
 * continues, and the other way round. */
static void keep_signal(struct command *command, int number) {
  if (stops(number))
    command->pending_signals &= ~bit_of(SIGCONT);
  else if (number == SIGCONT || asks_for_the_end(number))
    command->pending_signals &= ~(bit_of(SIGSTOP) | bit_of(SIGTSTP) | bit_of(SIGTTIN) | bit_of(SIGTTOU));
  command->pending_signals |= bit_of(number);
}

static void send_kept_signals(struct command *command) {
  for (int number = 1; number <= LAST_SIGNAL; number++)
    if (command->pending_signals & bit_of(number)) {
      command->was_signaled = true;
      signal_group(command, number);
    }
}

int command_signal(struct command *command, int number, bool *signaled, struct error *err) {
  *signaled = true;
  if (command->state == COMMAND_STARTING) {
    keep_signal(command, number);
    return 0;
  }
  if (command->state != COMMAND_RUNNING || !group_is_ours(command)) {
    *signaled = false;
    return 0;
  }
  if (signal_group(command, number) < 0)
    return error_set_errno(err, errno, "sending %s to command %s", signals_name(number), command->id);
  command->was_signaled = true;
  return 0;
}

/* ---- terminator ---- */

static struct command *command_of(struct terminator *terminator) {
  return LIST_OWNER(terminator, struct command, terminator);
}

static void terminator_signals(struct terminator *terminator, int number) {
  struct command *command = command_of(terminator);
  if (group_is_ours(command) && signal_group(command, number) == 0)
    terminator_signaled(terminator, command->pid);
}

static pid_t terminator_leader(struct terminator *terminator) {
  struct command *command = command_of(terminator);
  return group_is_ours(command) ? command->pid : 0;
}

static void terminator_done(struct terminator *terminator) {
  struct command *command = command_of(terminator);
  command->survivors = terminator_survivors(terminator);
  command_ref(command);
  command_set_state(command, command->state); /* who waits for the count hears of it */
  command_check_finished(command);
  command_unref(command);
}

const struct terminator_ops command_terminator_ops = {
    .signal = terminator_signals,
    .leader = terminator_leader,
    .done = terminator_done,
};

static void on_start_given_up(struct loop_timer *timer) {
  command_start_give_up(timer->arg);
}

/* There is nothing to signal yet. */
static void end_start(struct command *command, int64_t grace) {
  int64_t kill_at = loop_now(loop_of(command)) + grace;
  if (command->ending && command->kill_at <= kill_at)
    return;
  command->ending = true;
  command->kill_at = kill_at;
  loop_timer_start(loop_of(command), &command->timeout_timer, kill_at + KILLER_PATIENCE, on_start_given_up, command);
}

void command_end(struct command *command, enum command_reason reason, int64_t grace) {
  if (command_is_over(command))
    return;
  if (command->reason == REASON_EXITED && command->state != COMMAND_EXITED)
    command->reason = reason;
  if (command->state == COMMAND_STARTING) {
    end_start(command, grace);
    return;
  }
  command->ending = true;
  terminator_start(&command->terminator, grace);
}

void command_signal_tree(struct command *command, int number, int64_t patience) {
  command->was_signaled = true;
  terminator_signal(&command->terminator, number, patience);
}

/* ---- deadlines ---- */

static void on_timeout(struct loop_timer *timer) {
  command_end(timer->arg, REASON_TIMED_OUT, KILLER_GRACE);
}

static void on_idle(struct loop_timer *timer) {
  struct command *command = timer->arg;
  /* The timer is not moved for every piece of output: it looks when it fires. */
  if (command_io_is_paused(command)) /* it may have something to say */
    command->last_output = loop_now(loop_of(command));
  int64_t due = command->last_output + command->idle_timeout;
  if (due > loop_now(loop_of(command)))
    loop_timer_start(loop_of(command), &command->idle_timer, due, on_idle, command);
  else
    command_end(command, REASON_IDLE_TIMED_OUT, KILLER_GRACE);
}

/* A start that hangs must not make the caller wait longer than it asked for. Its time is counted anew from the start of
 * the program. */
void command_end_submitted(struct command *command) {
  struct loop *loop = loop_of(command);
  if (command->timeout > 0)
    loop_timer_start(loop, &command->timeout_timer, loop_now(loop) + command->timeout, on_timeout, command);
}

void command_end_start(struct command *command) {
  struct loop *loop = loop_of(command);
  command->last_output = command->started;
  loop_timer_stop(loop, &command->timeout_timer);
  if (command->ending) {
    int64_t grace = command->kill_at - loop_now(loop);
    terminator_start(&command->terminator, grace > 0 ? grace : 0);
    return;
  }
  if (command->timeout > 0)
    loop_timer_start(loop, &command->timeout_timer, command->started + command->timeout, on_timeout, command);
  if (command->idle_timeout > 0)
    loop_timer_start(loop, &command->idle_timer, command->started + command->idle_timeout, on_idle, command);
  send_kept_signals(command);
}

void command_end_leader_died(struct command *command) {
  loop_timer_stop(loop_of(command), &command->timeout_timer);
  loop_timer_stop(loop_of(command), &command->idle_timer);
  if (terminator_is_active(&command->terminator))
    terminator_hint(&command->terminator);
  else if (command->was_signaled)
    terminator_watch(&command->terminator, SETTLE);
}
