/* command.h - one command: a program that was started, what it prints, and how it ended.
 *
 *   STARTING --> RUNNING --> EXITED --> FINISHED --> (forgotten)
 *       \--> FAILED
 *
 *   STARTING  a worker is starting the program; no pid yet
 *   RUNNING   the leader lives
 *   EXITED    the leader is dead; what it wrote is being read (FIONREAD told how much), or its descendants are being
 * ended FINISHED  the result stands. A background child may still hold the pipes: they stay open and are read into the
 * log FAILED    the program could not be started; `error` says why
 *
 * Owner: reference counts. The table (core/commands.h) holds one while the command can be found by its id; so does
 * every caller that keeps a pointer, every job under way, and the pipes while they are open. All functions are for the
 * loop's thread. Functions that take a command do not call observers before they return, except where it is said.
 */
#ifndef SANDKEEPER_CORE_COMMAND_H
#define SANDKEEPER_CORE_COMMAND_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/core/command_log.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/core/spawn.h"
#include "sandkeeper/core/terminator.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define COMMAND_ID_MAX 128
/* How much of the command line is kept for listing; a line may be 128 KiB (MAX_ARG_STRLEN) and more. */
#define COMMAND_TITLE_MAX 4096

enum command_state { COMMAND_STARTING, COMMAND_RUNNING, COMMAND_EXITED, COMMAND_FINISHED, COMMAND_FAILED };
enum command_reason { REASON_EXITED, REASON_SIGNALED, REASON_TIMED_OUT, REASON_IDLE_TIMED_OUT, REASONS };

struct commands;
struct command;
struct start_job;

/* What to start; filled by the caller, taken over by commands_start(). */
struct command_spec {
  struct spawn spawn;
  char id[COMMAND_ID_MAX + 1];   /* empty: one is made */
  char *title;                   /* the command line as the client gave it, for listing; owned */
  bool title_is_argv;            /* `title` is a JSON array of words */
  int64_t timeout, idle_timeout; /* ns; 0: none */
  char *input;                   /* stdin_data; owned */
  size_t input_len;
  bool keep_stdin; /* stdin stays open for command_input() */
  bool hidden;     /* the agent's own (a prompt's handler, the image's command): no id, not listed */
  bool of_image; /* the image's own command: starts also while the sandbox is stopped, and commands_end_all() spares it
                  */
};
void command_spec_init(struct command_spec *spec);
void command_spec_free(struct command_spec *spec);

/* Told of every change of state. May detach itself and others; may drop references. */
struct command_observer {
  struct list node;
  void (*changed)(struct command_observer *observer, struct command *command);
  void *arg;
};

/* One output pipe. */
struct command_pipe {
  struct command *command;
  enum stream stream;
  struct loop_watch watch; /* fd -1 while paused */
  int fd;                  /* -1: closed */
  int drain_left;          /* bytes that were in it when the leader died and are not read yet */
};

/* Bytes on their way to stdin. Owned by the caller until `done` is called, exactly once: error NULL when all is in the
 * pipe. May be called inside command_input(). */
struct command_input {
  struct list node;
  const char *bytes;
  size_t len;
  bool eof; /* close stdin behind them */
  void (*done)(struct command_input *input, const struct error *error);
};

struct command {
  struct commands *table;
  int references;
  char id[COMMAND_ID_MAX + 1];
  char *title;
  bool title_is_argv;
  bool hidden;  /* not a client's: no id, not listed, not counted */
  bool by_sudo; /* the leader is the program sudo: the agent is not root */
  bool of_image;

  enum command_state state;
  struct error *error; /* FAILED */
  char *program;       /* FAILED: what could not be executed; may be NULL */
  struct list node;    /* in the table: live or finished */
  struct list unreaped_node;
  bool known; /* the table's reference */
  struct list observers;
  struct start_job *start; /* STARTING */

  pid_t pid;
  bool reaped;         /* the number is no longer ours */
  bool has_early_exit; /* it died before its start was known */
  int exit_code;       /* the program's, or 128 + signal */
  int signal;          /* 0: it exited */
  enum command_reason reason;
  bool oom_killed;
  int64_t oom_count;                   /* at its start; -1: cannot be known */
  int survivors;                       /* -1: could not be counted */
  int64_t started, finished;           /* monotonic ns */
  int64_t started_wall, finished_wall; /* ns since 1970 */

  struct command_log log;
  uint64_t end;        /* log position at FINISHED */
  struct list readers; /* core/reader.h */
  struct command_pipe pipes[STREAMS];
  struct loop_timer stall_timer;

  int in_fd; /* -1: closed */
  struct loop_watch in_watch;
  struct list inputs;
  size_t inputs_bytes;
  uint32_t n_inputs;
  bool keep_stdin;
  struct command_input first_input; /* stdin_data */
  char *first_input_bytes;

  int64_t timeout, idle_timeout, last_output;
  struct loop_timer timeout_timer, idle_timer;
  uint64_t pending_signals; /* kills while STARTING: one bit a signal, the lowest is number 1 */
  bool was_signaled;        /* a client sent a signal: survivors are counted at the end */
  bool ending;              /* command_end() was called: nothing may delay the end beyond the terminator's patience */
  int64_t kill_at;          /* monotonic ns: the KILL of one that is to end and is STARTING */

  /* Its mark, "SANDKEEPER_RUN=<run>.c<number>", is in the environment of every descendant. */
  struct terminator terminator;
};

struct command *command_ref(struct command *command);
void command_unref(struct command *command);

void command_observe(struct command *command, struct command_observer *observer);
void command_unobserve(struct command_observer *observer); /* fine when not observing, after list_init(&node) */

/* Sends a signal to the command's process group. *signaled is false, and nothing is signalled, when it has ended: its
 * number may be another's. While STARTING signals are kept and sent at the start. A signal that asks for the end is
 * followed by SIGCONT, so that a stopped process gets it. 0, or -1: ERROR_PERMISSION (a command run by sudo). */
int command_signal(struct command *command, int signal, bool *signaled, struct error *err);

/* Sends a signal to the group and to every descendant that left it, and counts for `patience` ns what lives on: then
 * terminator_is_active() becomes false and observers are told. Only while it is RUNNING. */
void command_signal_tree(struct command *command, int signal, int64_t patience);

/* Ends it for good: TERM to group and tree, KILL after `grace` ns. The result's reason is `reason` unless it has one.
 * While STARTING all that waits for the start, but not longer than it would take anyway: then it is FAILED, and what
 * starts later is killed. Observers hear of the end later. Fine to call again, and with a shorter grace. */
void command_end(struct command *command, enum command_reason reason, int64_t grace);

/* Queues bytes for stdin. -1: ERROR_WRONG_TYPE (stdin is closed or was never there), ERROR_BUSY (64 MiB or 64 pieces
 * wait); `done` is not called then. */
int command_input(struct command *command, struct command_input *input, struct error *err);
/* Takes back an input whose `done` was not called yet. What of it is in the pipe stays there. */
void command_input_cancel(struct command *command, struct command_input *input);

static inline bool command_is_over(const struct command *command) {
  return command->state == COMMAND_FINISHED || command->state == COMMAND_FAILED;
}
const char *command_reason_name(enum command_reason reason); /* "exited", "signaled", ... */

/* ---- between the files of a command; nobody else calls these ---- */

/* command.c */
struct command *command_new(struct commands *table, struct command_spec *spec);
void command_set_state(struct command *command, enum command_state state); /* and tells observers and readers */
void command_leader_died(struct command *command, int code, int status);   /* of siginfo_t: CLD_EXITED ..., si_status */
void command_check_finished(struct command *command);
void command_let_go(struct command *command); /* the table goes: no timer, job or pipe calls back any more */
/* command_start.c */
int command_start(struct command *command, struct spawn *spawn, struct error *err); /* the spawn is moved */
void command_start_give_up(struct command *command);       /* of one that is to end: it has FAILED when this returns */
pid_t command_starting_pid(const struct command *command); /* 0: there is none yet */
void command_start_let_go(struct command *command); /* a start under way becomes nobody's; what it starts is killed */
/* command_io.c */
void command_io_start(struct command *command, struct spawn *spawn);
void command_io_leader_died(struct command *command);
bool command_io_is_paused(const struct command *command); /* it could print if somebody read, or there was memory */
bool command_io_is_drained(const struct command *command);
void command_io_resume(struct command *command); /* a reader took bytes, stalled or left */
void command_io_close_stdin(struct command *command, const struct error *why);
int command_io_open_pipes(const struct command *command); /* each holds a reference */
void command_io_close_all(struct command *command);
/* command_end.c */
extern const struct terminator_ops command_terminator_ops;
void command_end_submitted(struct command *command); /* the start is under way */
void command_end_start(struct command *command);     /* it runs: the deadlines begin */
void command_end_leader_died(struct command *command);

#endif
