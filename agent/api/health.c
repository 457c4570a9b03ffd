#include "sandkeeper/api/health.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/json_out.h"

#define BODY_MAX 4096

static void write_string_or_null(struct json_out *out, const char *string) {
  if (string)
    json_out_string(out, string);
  else
    json_out_null(out);
}

static void write_health(struct json_out *out, const struct health *health) {
  char timestamp[CLOCK_RFC3339_SIZE];
  json_out_object(out);
  json_out_key(out, "status");
  json_out_string(out, health->stopping ? "stopping" : "ok");
  json_out_key(out, "sandbox_id");
  write_string_or_null(out, health->sandbox_id);
  json_out_key(out, "timestamp");
  json_out_string(out, clock_rfc3339(clock_wall(), timestamp));
  json_out_key(out, "version");
  json_out_string(out, health->version);
  json_out_key(out, "uptime_ms");
  json_out_int(out, health->uptime / CLOCK_MS);
  json_out_key(out, "commands");
  json_out_object(out);
  json_out_key(out, "running");
  json_out_uint(out, health->running);
  json_out_key(out, "finished");
  json_out_uint(out, health->finished);
  json_out_object_end(out);
  if (health->prompt_handler) {
    json_out_key(out, "prompt_handler");
    json_out_string(out, health->prompt_handler);
  }
  json_out_object_end(out);
  json_out_end(out);
}

void health_handle(struct exchange *x) {
  struct health health = {0};
  struct buf body;
  struct json_out out;
  api_health(x->api, &health);
  buf_init(&body, BODY_MAX, 0);
  json_out_begin(&out, &body);
  write_health(&out, &health);
  x->ops->add_header(x, "Cache-Control", "no-store");
  x->ops->reply(x, health.stopping ? 503 : 200, "application/json", &body);
}
