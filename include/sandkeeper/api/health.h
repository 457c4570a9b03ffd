/* health.h - GET /health: is the agent alive, and who is it? docs/protocol.md, section 2. */
#ifndef SANDKEEPER_API_HEALTH_H
#define SANDKEEPER_API_HEALTH_H

#include "sandkeeper/api/exchange.h"

#include <stdbool.h>
#include <stdint.h>

struct api;

struct health {
  bool stopping;              /* answered 503 then */
  const char *sandbox_id;     /* NULL: null */
  const char *version;        /* never NULL */
  const char *prompt_handler; /* "echo", a command, or NULL: left out */
  int64_t uptime;             /* ns */
  uint64_t running, finished; /* commands */
};

/* Fills *out for this moment. Part of api/api.c; the tests' helpers have their own. The strings live as long as the
 * api. */
void api_health(struct api *api, struct health *out);

/* The route's handler: GET and HEAD. */
void health_handle(struct exchange *x);

#endif
