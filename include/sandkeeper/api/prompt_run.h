/* prompt_run.h - one prompt under way: what prompt.c shares with the sources of events. Nobody else includes it. */
#ifndef SANDKEEPER_API_PROMPT_RUN_H
#define SANDKEEPER_API_PROMPT_RUN_H

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/body.h"
#include "sandkeeper/api/prompt.h"
#include "sandkeeper/api/prompt_events.h"
#include "sandkeeper/api/prompt_request.h"
#include "sandkeeper/core/command.h"
#include "sandkeeper/core/reader.h"

#include <stdbool.h>

/* A source fills until so much waits for the client, or one event more. */
#define PROMPT_FILL (64u * 1024u)

#define PROMPT_STDERR_TAIL 4096u /* docs/protocol.md, section 5 */
#define PROMPT_STDERR_LINE 1024u /* of one line in the agent's log */

struct prompt_source;
struct prepare_job;

/* Freed when the client has gone, no job is outstanding and the source is over. */
struct prompt {
  struct exchange *x; /* NULL: the client has gone, or has all */
  struct api *api;
  struct body body;
  struct prompt_request request;
  struct prepare_job *prepare; /* outstanding */
  bool has_place;
  bool answered; /* the answer's head is given */
  enum prompt_end end;
  int64_t started; /* monotonic ns */

  const struct prompt_source *source; /* NULL: not there yet */
  struct prompt_events events;
  struct buf pending; /* events that the client has not taken yet */
  size_t sent;        /* of them */
  bool ended;         /* nothing comes behind the pending ones */

  /* prompt_echo.c */
  size_t echo_block, echo_at;

  /* prompt_handler.c */
  struct command *command; /* a reference; NULL: not started */
  struct command_observer observer;
  struct reader reader;
  struct loop_timer closed_timer; /* stdout is closed, the handler lives on */
  bool closed_stdout;             /* ... and was ended for it */
  char tail[PROMPT_STDERR_TAIL];  /* the last bytes of stderr */
  size_t tail_len;
  char stderr_line[PROMPT_STDERR_LINE]; /* for the log */
  size_t stderr_line_len;
  unsigned log_lines; /* in this turn */
};

struct prompt_source {
  bool writes_files; /* the file blocks are to be on disk */
  /* Begins; calls prompt_answer() or prompt_refuse(), now or later. */
  void (*start)(struct prompt *prompt);
  /* Appends events to prompt->pending. STREAM_MORE, STREAM_WAIT (then prompt_wake() later) or STREAM_END. */
  int (*fill)(struct prompt *prompt);
  /* The client has gone: end. False: something still runs; prompt_over() follows later. */
  bool (*leave)(struct prompt *prompt);
  /* Lets go of everything. */
  void (*free)(struct prompt *prompt);
};
extern const struct prompt_source prompt_echo, prompt_handler;

/* The answer begins: 200, and its events are pulled. */
void prompt_answer(struct prompt *prompt);
/* No answer: {"error":message} with that status. */
void prompt_refuse(struct prompt *prompt, unsigned status, const char *message);
void prompt_wake(struct prompt *prompt);
/* After leave() said false: nothing runs any more. May free the prompt. */
void prompt_over(struct prompt *prompt);

#endif
