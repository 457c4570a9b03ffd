/* sandbox_api.h - the control-plane calls of the SDKs, answered for the one sandbox that this agent is.
 * docs/protocol.md, section 6. */
#ifndef SANDKEEPER_API_SANDBOX_API_H
#define SANDKEEPER_API_SANDBOX_API_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/core/loop.h"

#include <json-c/json_object.h>
#include <stdint.h>

struct api;

#define SANDBOX_API_BODY_MAX (256u * 1024u) /* a longer one would hold the loop while json-c parses it */

/* What only the container's maker knows. The strings outlive the api. */
struct sandbox_api_options {
  const char *preview_url;  /* NULL: http:// and the request's Host */
  const char *preview_host; /* NULL: none */
  int port;                 /* where the agent listens; 0: on no port */
};

struct sandbox_api {
  struct sandbox_api_options options;
  uint64_t requests;   /* the number in request_id */
  struct list changes; /* creates, updates and configures, one after the other; the first is under way */
  uint32_t n_changes;
  struct loop_task next; /* begins the one that is first now */
  json_object *payloads; /* those of create, or of the last update; NULL: none */
};

void sandbox_api_init(struct api *api, const struct sandbox_api_options *options);
/* Before the core's sandbox goes; before or after the server that brought the exchanges. */
void sandbox_api_free(struct api *api);

/* The routes: /api/v1/sandbox, /api/v1/sandboxes and all below them; all below /admin; /api/v1/env. */
void sandbox_api_handle(struct exchange *x);
void admin_api_handle(struct exchange *x);
void env_api_handle(struct exchange *x);

#endif
