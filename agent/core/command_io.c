/* A command's pipes: output into the log, input into stdin. */
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/command.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/reader.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* Read at once: what a pipe holds by default (pipe(7)). */
#define READ_SIZE (64u * 1024u)
/* Read or written in one turn of the loop, so that one command that prints for ever, or takes its stdin as fast as it
 * is written, leaves time for the others. */
#define TURN_BUDGET (256u * 1024u)
/* A paused pipe is read again when the log has this much room, not for every byte that a reader takes. */
#define RESUME_ROOM (64u * 1024u)

#define INPUTS_MAX 64
#define INPUTS_BYTES_MAX (64u * 1024u * 1024u)

static void on_output(struct loop_watch *watch, uint32_t events);
static void on_input_ready(struct loop_watch *watch, uint32_t events);

static struct loop *loop_of(const struct command *command) {
  return command->table->loop;
}

/* ---- output ---- */

static void close_pipe(struct command_pipe *pipe) {
  if (pipe->fd < 0)
    return;
  loop_watch_stop(loop_of(pipe->command), &pipe->watch);
  fd_close(&pipe->fd);
  pipe->drain_left = 0;
  command_unref(pipe->command);
}

static void arm_stall_timer(struct command *command);

static void on_stall(struct loop_timer *timer) {
  arm_stall_timer(timer->arg);
}

/* Runs only while a pipe is paused. */
static void arm_stall_timer(struct command *command) {
  int64_t now = loop_now(loop_of(command));
  int64_t next = reader_stall(command, now, command->table->options.stall_timeout);
  if (next != CLOCK_NEVER)
    loop_timer_start(loop_of(command), &command->stall_timer, next, on_stall, command);
  command_io_resume(command);
}

/* There was no memory for the log. Later there may be. */
#define RETRY (100 * CLOCK_MS)

/* Stops watching altogether: a registered pipe whose writer is gone reports EPOLLHUP whatever is asked for, and would
 * spin. */
static void pause_pipe(struct command_pipe *pipe) {
  struct command *command = pipe->command;
  struct loop *loop = loop_of(command);
  loop_watch_stop(loop, &pipe->watch);
  if (command->log.size < command->log.limit)
    loop_timer_start(loop, &command->stall_timer, loop_now(loop) + RETRY, on_stall, command);
  else if (!loop_timer_is_started(&command->stall_timer))
    arm_stall_timer(command);
}

static void resume_pipe(struct command_pipe *pipe) {
  if (pipe->fd < 0 || pipe->watch.fd >= 0)
    return;
  if (loop_watch_start(loop_of(pipe->command), &pipe->watch, pipe->fd, EPOLLIN, on_output, pipe) < 0)
    close_pipe(pipe); /* no memory for a registration: the writer gets SIGPIPE, which is better than a silent hang */
}

bool command_io_is_paused(const struct command *command) {
  for (int s = 0; s < STREAMS; s++)
    if (command->pipes[s].fd >= 0 && command->pipes[s].watch.fd < 0)
      return true;
  return false;
}

void command_io_resume(struct command *command) {
  if (!command_io_is_paused(command))
    return;
  uint64_t held = command->log.head - reader_keep_from(command);
  if (held + RESUME_ROOM > command->log.limit)
    return;
  loop_timer_stop(loop_of(command), &command->stall_timer);
  for (int s = 0; s < STREAMS; s++)
    resume_pipe(&command->pipes[s]);
}

/* One readv into the ring. Returns the bytes, 0 when there is no more for now (pipe empty, closed or paused). */
static size_t read_once(struct command_pipe *pipe, size_t want) {
  struct command *command = pipe->command;
  struct command_log *log = &command->log;
  struct iovec iov[2];
  commands_limit_log(command->table, command, want);
  size_t memory = command_log_memory(log);
  uint64_t tail = log->tail;
  int pieces = command_log_reserve(log, want, reader_keep_from(command), iov);
  if (command_log_memory(log) != memory) /* also when nothing comes to be read */
    commands_account_log(command->table, command, memory);
  if (pieces == 0) {
    pause_pipe(pipe);
    return 0;
  }
  ssize_t n = readv(pipe->fd, iov, pieces);
  if (n <= 0) {
    if (n == 0 || (errno != EAGAIN && errno != EINTR))
      close_pipe(pipe);
    else if (errno == EAGAIN)
      pipe->drain_left = 0; /* somebody else, who opened the pipe by /proc, has read what was there */
    return 0;
  }
  command_log_commit(log, pipe->stream, (size_t)n);
  command->table->counts.bytes[pipe->stream] += (uint64_t)n;
  command->table->counts.dropped += log->tail - tail;
  return (size_t)n;
}

/* After the leader's death exactly what it left is read before the command is over; a background child may print for
 * ever. */
static bool is_draining(const struct command_pipe *pipe) {
  return pipe->command->state == COMMAND_EXITED && pipe->fd >= 0 && pipe->drain_left > 0;
}

static void read_pipe(struct command_pipe *pipe) {
  struct command *command = command_ref(pipe->command);
  size_t budget = TURN_BUDGET, total = 0;
  while (pipe->fd >= 0 && budget > 0) {
    size_t want = READ_SIZE;
    bool draining = is_draining(pipe);
    if (draining && (size_t)pipe->drain_left < want)
      want = (size_t)pipe->drain_left;
    size_t n = read_once(pipe, want);
    total += n;
    budget = n < budget ? budget - n : 0;
    if (draining && pipe->fd >= 0)
      pipe->drain_left -= (int)n;
    if (n < want || (draining && pipe->drain_left == 0))
      break; /* it is empty, most likely; if not, epoll says so */
  }
  if (total > 0)
    command->last_output = loop_now(loop_of(command));
  if (total > 0 || pipe->fd < 0)
    reader_notify_all(command); /* also of the end of a stream */
  command_unref(command);
}

static void on_output(struct loop_watch *watch, uint32_t events) {
  (void)events;
  struct command_pipe *pipe = watch->arg;
  struct command *command = command_ref(pipe->command);
  read_pipe(pipe);
  command_check_finished(command);
  command_unref(command);
}

void command_io_leader_died(struct command *command) {
  command_ref(command);
  for (int s = 0; s < STREAMS; s++) {
    struct command_pipe *pipe = &command->pipes[s];
    if (pipe->fd >= 0 && ioctl(pipe->fd, FIONREAD, &pipe->drain_left) < 0)
      pipe->drain_left = 0;
  }
  for (int s = 0; s < STREAMS; s++) {
    struct command_pipe *pipe = &command->pipes[s];
    if (is_draining(pipe) && pipe->watch.fd >= 0)
      read_pipe(pipe);
    else if (pipe->fd >= 0 && pipe->drain_left == 0 && pipe->watch.fd >= 0)
      read_once(pipe, 1); /* sees the end of the file, as a rule, and closes it at once */
  }
  command_unref(command);
}

bool command_io_is_drained(const struct command *command) {
  for (int s = 0; s < STREAMS; s++)
    if (command->pipes[s].fd >= 0 && command->pipes[s].drain_left > 0)
      return false;
  return true;
}

/* ---- input ---- */

static void finish_input(struct command *command, struct command_input *input, const struct error *error) {
  list_remove(&input->node);
  command->n_inputs--;
  command->inputs_bytes -= input->len;
  input->done(input, error);
}

void command_io_close_stdin(struct command *command, const struct error *why) {
  loop_watch_stop(loop_of(command), &command->in_watch);
  fd_close(&command->in_fd);
  struct error closed = ERROR_INIT;
  if (!why) {
    error_set(&closed, ERROR_WRONG_TYPE, EPIPE, "command %s: its stdin is closed", command->id);
    why = &closed;
  }
  while (!list_is_empty(&command->inputs))
    finish_input(command, LIST_FIRST(&command->inputs, struct command_input, node), why);
}

/* Writes one piece on. False: the pipe is full, or the budget is used up, or stdin was closed. */
static bool write_input(struct command *command, struct command_input *input, size_t *budget) {
  while (input->len > 0) {
    size_t len = input->len < *budget ? input->len : *budget;
    if (len == 0)
      return false;
    ssize_t n = write(command->in_fd, input->bytes, len);
    if (n < 0) {
      if (errno == EINTR)
        continue;
      if (errno != EAGAIN)
        command_io_close_stdin(command, NULL); /* EPIPE: it does not read, or has gone; harmless */
      return false;
    }
    input->bytes += n;
    input->len -= (size_t)n;
    *budget -= (size_t)n;
    command->inputs_bytes -= (size_t)n;
  }
  return true;
}

static void write_inputs(struct command *command) {
  size_t budget = TURN_BUDGET;
  command_ref(command);
  while (command->in_fd >= 0 && !list_is_empty(&command->inputs)) {
    struct command_input *input = LIST_FIRST(&command->inputs, struct command_input, node);
    if (!write_input(command, input, &budget))
      break;
    bool eof = input->eof;
    finish_input(command, input, NULL);
    if (eof)
      command_io_close_stdin(command, NULL);
  }
  if (command->in_fd >= 0) {
    if (list_is_empty(&command->inputs))
      loop_watch_stop(loop_of(command), &command->in_watch);
    else if (command->in_watch.fd < 0 && loop_watch_start(loop_of(command), &command->in_watch, command->in_fd,
                                                          EPOLLOUT, on_input_ready, command) < 0)
      command_io_close_stdin(command, NULL);
  }
  command_unref(command);
}

static void on_input_ready(struct loop_watch *watch, uint32_t events) {
  (void)events;
  write_inputs(watch->arg);
}

int command_input(struct command *command, struct command_input *input, struct error *err) {
  bool starting = command->state == COMMAND_STARTING && command->keep_stdin;
  if (command->in_fd < 0 && !starting)
    return error_set(err, ERROR_WRONG_TYPE, 0, "command %s: its stdin is closed", command->id);
  /* stdin_data alone may be longer than the limit: no subtraction here. */
  if (command->n_inputs >= INPUTS_MAX || command->inputs_bytes >= INPUTS_BYTES_MAX ||
      input->len > INPUTS_BYTES_MAX - command->inputs_bytes) {
    error_set(err, ERROR_BUSY, 0, "command %s: %u pieces (%zu bytes) wait for its stdin already", command->id,
              command->n_inputs, command->inputs_bytes);
    if (err)
      err->limit = command->n_inputs >= INPUTS_MAX ? INPUTS_MAX : INPUTS_BYTES_MAX;
    return -1;
  }
  list_append(&command->inputs, &input->node);
  command->n_inputs++;
  command->inputs_bytes += input->len;
  if (command->in_fd >= 0 && command->n_inputs == 1)
    write_inputs(command);
  return 0;
}

void command_input_cancel(struct command *command, struct command_input *input) {
  if (!list_is_linked(&input->node))
    return;
  list_remove(&input->node);
  command->n_inputs--;
  command->inputs_bytes -= input->len;
}

/* ---- start and end ---- */

void command_io_start(struct command *command, struct spawn *spawn) {
  int fds[STREAMS] = {fd_steal(&spawn->out_fd), fd_steal(&spawn->err_fd)};
  command->in_fd = fd_steal(&spawn->in_fd);
  for (int s = 0; s < STREAMS; s++) {
    if (fds[s] < 0)
      continue; /* it has the agent's own stdout and stderr */
    command->pipes[s].fd = fds[s];
    command_ref(command);
    resume_pipe(&command->pipes[s]);
  }
  if (command->in_fd >= 0)
    write_inputs(command);
}

int command_io_open_pipes(const struct command *command) {
  int open = 0;
  for (int s = 0; s < STREAMS; s++)
    open += command->pipes[s].fd >= 0;
  return open;
}

void command_io_close_all(struct command *command) {
  command_ref(command);
  command_io_close_stdin(command, NULL);
  for (int s = 0; s < STREAMS; s++)
    close_pipe(&command->pipes[s]);
  command_unref(command);
}
