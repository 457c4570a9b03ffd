/* prompt.h - POST /prompt: a prompt comes in, a handler program answers it, its events go out as they happen.
 * docs/protocol.md, section 5.
 *
 *   head --> body --> prepared --> answering --> over
 *                 \-> refused: 400, 429, 500, 501, 503, 507
 *
 *   head       the refusals that need no body: no handler, stopped, all places taken
 *   body       collected; a slow one holds no place
 *   prepared   parsed; its files lie in a private directory. On a worker when it is long or has files
 *   answering  a source of events (prompt_run.h) is pulled by the client
 */
#ifndef SANDKEEPER_API_PROMPT_H
#define SANDKEEPER_API_PROMPT_H

#include "sandkeeper/api/exchange.h"

#include <stddef.h>
#include <stdint.h>

#define PROMPT_BODY_MAX (64u * 1024u * 1024u) /* of the route */

/* The strings outlive the api. */
struct prompt_options {
  const char *handler;   /* a command for the shell, a JSON array of words, "echo" (built in), or "none" */
  int64_t timeout;       /* ns; 0: none */
  uint32_t concurrency;  /* prompts at once */
  const char *text_type; /* what text events are called: "text" or "text_chunk" */
};

enum prompt_end {
  PROMPT_DONE,    /* answered to the end */
  PROMPT_FAILED,  /* the handler ended with an error */
  PROMPT_LEFT,    /* the client went away */
  PROMPT_REFUSED, /* never begun: a bad request, or no place */
  PROMPT_ENDS
};

/* All prompts. Owner: the api. */
struct prompts {
  struct prompt_options options;
  uint32_t running; /* places taken */
  uint64_t ended[PROMPT_ENDS];
};

/* What /health says of the handler: "echo", "none" or "command". The command itself may hold a secret, and /health
 * needs no token. */
const char *prompt_handler_name(const struct prompts *prompts);

/* The route POST /prompt, with a body sink of at most PROMPT_BODY_MAX. */
void prompt_handle(struct exchange *x);
size_t prompt_body(struct exchange *x, const char *bytes, size_t len, bool last);

#endif
