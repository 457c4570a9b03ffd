/* sandbox_api.h - the control-plane calls of the SDKs, answered for the one sandbox that this agent is.
 * docs/protocol.md, section 6. */
#ifndef SANDKEEPER_API_SANDBOX_API_H
#define SANDKEEPER_API_SANDBOX_API_H

#include "sandkeeper/api/exchange.h"

#include <stdint.h>

struct api;

#define SANDBOX_API_BODY_MAX (256u * 1024u) /* a longer one would hold the loop while json-c parses it */

/* What only the container's maker knows. The strings outlive the api. */
struct sandbox_api_options {
  const char *preview_url;  /* NULL: http:// and the request's Host */
  const char *preview_host; /* NULL: none */
  int port;                 /* where the agent listens; 0: on no port, or not known */
};

struct sandbox_api {
  struct sandbox_api_options options;
  uint64_t requests; /* the number in request_id */
};

/* The routes /api/v1/sandbox, /api/v1/sandboxes and all below them. */
void sandbox_api_handle(struct exchange *x);

#endif
