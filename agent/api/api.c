#include "sandkeeper/api/api.h"

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/api/files_route.h"
#include "sandkeeper/api/health.h"
#include "sandkeeper/api/metrics.h"
#include "sandkeeper/api/prompt.h"
#include "sandkeeper/api/rpc_route.h"
#include "sandkeeper/api/sandbox_api.h"

#define ALL_METHODS "GET HEAD POST PUT PATCH DELETE" /* which of them a path takes it says itself */

const struct route api_routes[] = {
    {.methods = "GET HEAD", .path = "/health", .open = true, .handle = health_handle},
    {.methods = "GET HEAD", .path = "/files", .handle = files_get_handle},
    {.methods = "PUT", .path = "/files", .handle = files_put_handle, .body = files_put_body},
    {.methods = "DELETE", .path = "/files", .handle = files_delete_handle},
    {.methods = "GET HEAD", .path = "/metrics", .handle = metrics_handle},
    {.methods = "POST", .path = "/prompt", .body_max = PROMPT_BODY_MAX, .handle = prompt_handle, .body = prompt_body},
    {.methods = "POST", .path = "/rpc", .handle = rpc_route_handle, .body = rpc_route_body},
    {.methods = ALL_METHODS,
     .path = "/api/v1/sandbox/*",
     .body_max = SANDBOX_API_BODY_MAX,
     .handle = sandbox_api_handle},
    {.methods = ALL_METHODS,
     .path = "/api/v1/sandboxes",
     .body_max = SANDBOX_API_BODY_MAX,
     .handle = sandbox_api_handle},
    {.methods = ALL_METHODS,
     .path = "/api/v1/sandboxes/*",
     .body_max = SANDBOX_API_BODY_MAX,
     .handle = sandbox_api_handle},
    {.methods = "POST", .path = "/api/v1/env", .body_max = SANDBOX_API_BODY_MAX, .handle = env_api_handle},
    {.methods = ALL_METHODS, .path = "/admin/*", .body_max = SANDBOX_API_BODY_MAX, .handle = admin_api_handle},
};
const size_t api_n_routes = sizeof api_routes / sizeof *api_routes;

void api_health(struct api *api, struct health *out) {
  const struct sandbox *sandbox = api->sandbox;
  *out = (struct health){
      .stopping = sandbox->stopping || sandbox->life.life.state == LIFE_DESTROYING,
      .sandbox_id = sandbox->options.id,
      .version = api->options.version,
      .prompt_handler = prompt_handler_name(&api->prompts),
      .uptime = loop_now(sandbox->loop) - sandbox->started,
      .running = sandbox->commands.counts.running,
      .finished = sandbox->commands.counts.finished,
  };
}
