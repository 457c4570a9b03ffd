/* init_command.h - the image's own command: what stands behind "--". It runs beside the agent with the container's
 * stdin, stdout and stderr and a process group of its own; signals are handed on to it; its end is the container's end.
 *
 *   RUNNING --> ended --> the agent shuts down with its exit code     (by default)
 *      ^          |-----> nothing                                     (keep_alive)
 *      |          '-----> pause --.                                   (restart)
 *      '--------------------------'
 *
 * It is a command of core/commands.h that no client sees: not listed, not counted, without a log, spared by a stop of
 * the sandbox. Owner: main(). For the loop's thread.
 */
#ifndef SANDKEEPER_CORE_INIT_COMMAND_H
#define SANDKEEPER_CORE_INIT_COMMAND_H

#include "sandkeeper/core/sandbox.h"

/* Between two runs, with --restart-command: doubles, up to the most. A run that took longer than the last of the three
 * starts the count anew. */
#define INIT_COMMAND_PAUSE_FIRST (100 * CLOCK_MS)
#define INIT_COMMAND_PAUSE_MOST (30 * CLOCK_SECOND)
#define INIT_COMMAND_GOOD_RUN (10 * CLOCK_SECOND)

/* Exit codes of a program that could not be started, as shells and Docker have them. */
#define INIT_COMMAND_NOT_FOUND 127
#define INIT_COMMAND_NOT_EXECUTABLE 126

struct init_command {
  struct sandbox *sandbox;
  char *const *argv; /* NULL-terminated; the caller's, must outlive this */
  bool keep_alive, restart;
  struct command *command; /* a reference; NULL: it does not run */
  struct command_observer observer;
  struct loop_timer timer; /* the pause before the next run */
  int64_t pause;
  int exit_code; /* of the agent, when the end of the command was the reason for its end; else 0 */
};

/* Starts it. A program that cannot be started ends the agent like one that ended, with 126 or 127. -1: no memory. */
int init_command_start(struct init_command *init, struct sandbox *sandbox, char *const *argv, bool keep_alive,
                       bool restart, struct error *err);

/* Hands a signal that the agent got on to the command's process group. SIGCHLD and SIGPIPE are not meant for it. */
void init_command_signal(struct init_command *init, int signal);

/* Detaches it; the command itself is the table's. Fine on a zeroed struct. */
void init_command_stop(struct init_command *init);

/* How long to wait before the next run. Pure. `pause`: the last one, 0 at first; `ran`: how long the last run took. */
int64_t init_command_next_pause(int64_t pause, int64_t ran);

#endif
