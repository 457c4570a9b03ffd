/* commands.h - the table of commands: starts them, finds them by id, forgets the oldest, keeps all logs within a bound.
 *
 * Owner: the sandbox. For the loop's thread.
 */
#ifndef SANDKEEPER_CORE_COMMANDS_H
#define SANDKEEPER_CORE_COMMANDS_H

#include "sandkeeper/core/command.h"
#include "sandkeeper/core/worker.h"

#include <signal.h>

/* The environment variable by which a command's descendants are found: "<run>.c<number>", or "<run>.i<number>" for the
 * image's own command, which a stop of the sandbox spares. */
#define COMMANDS_MARK "SANDKEEPER_RUN"
#define COMMANDS_MARK_CLIENTS "c"
#define COMMANDS_MARK_IMAGE "i"

struct commands_options {
  const char *sandbox_id;  /* SANDBOX_ID for the commands */
  const char *working_dir; /* where a command starts when its spec does not say */
  const char *shell;       /* NULL: bash or sh */
  const char *user;        /* NULL: as the agent */
  mode_t umask;
  uint32_t max_running;
  uint32_t keep_finished;
  uint64_t log_memory;   /* bytes, for all logs together */
  int64_t stall_timeout; /* ns */
  struct rlimit nofile;  /* what the children get */
  int oom_score_adj;     /* what the children get */
};

struct command_counts {
  uint32_t running, finished; /* now */
  uint64_t started, failed;   /* ever */
  uint64_t ended[REASONS];
  uint64_t bytes[STREAMS];
  uint64_t dropped; /* bytes that a log let go */
  uint64_t log_memory;
  uint64_t orphans; /* reaped processes that were no command's leader */
  /* Time from request to running program; bounds in commands.c. */
#define SPAWN_BUCKETS 10
  uint64_t spawn_buckets[SPAWN_BUCKETS + 1];
  int64_t spawn_sum;
};
extern const int64_t commands_spawn_bounds[SPAWN_BUCKETS]; /* ns, upper bounds; the last bucket has none */

struct commands {
  struct loop *loop;
  struct workers *workers;
  struct commands_options options;
  struct env env; /* what commands get; /api/v1/env adds to it */
  char run_id[17];
  uint64_t sequence;
  void *by_id; /* tsearch(3) tree of struct command */
  struct list live, finished, unreaped;
  struct list lingering; /* forgotten, but somebody still holds their pipes, or waits for their result */
  struct command_counts counts;
  bool refusing;              /* the sandbox is stopped or the agent shuts down */
  void (*emptied)(void *arg); /* no live command is left; may be NULL */
  void *emptied_arg;
  void (*quiet)(void *arg); /* no live command is left but the image's own; may be NULL */
  void *quiet_arg;
};

/* The strings in options must live as long as the table; the environment is copied. */
int commands_init(struct commands *commands, struct loop *loop, struct workers *workers,
                  const struct commands_options *options, char **environment, struct error *err);
/* All commands must have ended, or are left behind: nothing of them calls back any more. Comes before workers_free().
 */
void commands_free(struct commands *commands);

/* Starts a command; the spec is taken over in any case. *command is a new reference. *existing: one with this id was
 * there and nothing was started. The start itself is under way when this returns: its failure comes as COMMAND_FAILED.
 * -1: ERROR_BUSY (max_running), ERROR_STOPPED, ERROR_INTERNAL. */
int commands_start(struct commands *commands, struct command_spec *spec, struct command **command, bool *existing,
                   struct error *err);

/* NULL and ERROR_NOT_FOUND when there is none. A borrowed pointer. */
struct command *commands_find(struct commands *commands, const char *id, struct error *err);

/* Forgets a finished command. -1: ERROR_BUSY when it still runs. */
int commands_remove(struct commands *commands, struct command *command, struct error *err);

/* Ends every live command but the image's own. */
void commands_end_all(struct commands *commands, int64_t grace);

/* No live command is left but the image's own. */
bool commands_is_quiet(const struct commands *commands);

/* The reaper saw this child dead, not reaped yet. False: it is no command's. */
bool commands_child_died(struct commands *commands, const siginfo_t *info);
void commands_child_reaped(struct commands *commands, pid_t pid);

/* ---- for the files of a command ---- */
void commands_on_started(struct commands *commands, int64_t took); /* ns from request to running program */
void commands_on_finished(struct commands *commands, struct command *command);
void commands_on_failed(struct commands *commands, struct command *command);
/* Nobody can ask for this log any more. A background child may hold the pipes: they go on being read. */
void commands_drop_log(struct commands *commands, struct command *command);
/* Before `want` bytes go into a log: makes room among the old ones if it must grow. When the running commands alone
 * pass the bound of all logs, none grows beyond what it has or a pipe holds. */
void commands_limit_log(struct commands *commands, struct command *command, size_t want);
/* A log grew or shrank: keeps the sum, and lets old logs go when it passes the bound. */
void commands_account_log(struct commands *commands, struct command *command, size_t before);

#endif
