/* The pool and its rolling updates, as they are with one sandbox that cannot be replaced. */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/envelope.h"

#include <string.h>

static void uint_member(struct json_out *out, const char *name, uint64_t value) {
  json_out_key(out, name);
  json_out_uint(out, value);
}

static void string_member(struct json_out *out, const char *name, const char *value) {
  json_out_key(out, name);
  json_out_string(out, value);
}

static void time_member(struct json_out *out, const char *name, int64_t wall) {
  char text[CLOCK_RFC3339_SIZE];
  json_out_key(out, name);
  if (wall > 0)
    json_out_string(out, clock_rfc3339(wall, text));
  else
    json_out_null(out); /* Go's time.Time takes no empty string */
}

static void pool_status(struct exchange *x) {
  const struct life *life = &x->api->sandbox->life.life;
  bool active = life->state == LIFE_ACTIVE;
  struct envelope envelope;
  struct json_out *out = &envelope.out;
  envelope_begin(&envelope, x);
  json_out_object(out);
  uint_member(out, "total", 1);
  uint_member(out, "active", active);
  uint_member(out, "warm", 0);
  uint_member(out, "creating", 0);
  uint_member(out, "deleting", 0);
  uint_member(out, "deleted", 0);
  uint_member(out, "warm_pool_size", 0);
  uint_member(out, "max_total", 1);
  uint_member(out, "utilization", active);
  uint_member(out, "warm_ratio", 0);
  json_out_key(out, "healthy");
  json_out_bool(out, true);
  string_member(out, "health_message", "");
  time_member(out, "last_scale_at", 0);
  time_member(out, "last_allocate_at", life->allocated);
  json_out_object_end(out);
  envelope_send(&envelope);
}

static void rolling_status(struct exchange *x) {
  struct envelope envelope;
  envelope_begin(&envelope, x);
  json_out_object(&envelope.out);
  string_member(&envelope.out, "phase", "idle");
  uint_member(&envelope.out, "progress", 0);
  json_out_object_end(&envelope.out);
  envelope_send(&envelope);
}

static void rolling_start(struct exchange *x) {
  envelope_fail(x, 409, "a container cannot replace its own image; start one from the new image and delete this one");
}

static void rolling_cancel(struct exchange *x) {
  envelope_fail(x, 409, "there is no rolling update to cancel: a container cannot replace its own image");
}

static const struct admin_row {
  const char *path, *method;
  void (*handle)(struct exchange *x);
} rows[] = {
    {"/admin/pool/status", "GET", pool_status},
    {"/admin/rolling/status", "GET", rolling_status},
    {"/admin/rolling/start", "POST", rolling_start},
    {"/admin/rolling/cancel", "POST", rolling_cancel},
};

void admin_api_handle(struct exchange *x) {
  const char *method = strcmp(x->method, "HEAD") == 0 ? "GET" : x->method;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (strcmp(rows[i].path, x->path) != 0)
      continue;
    if (strcmp(rows[i].method, method) == 0) {
      rows[i].handle(x);
      return;
    }
    const char *allow = strcmp(rows[i].method, "GET") == 0 ? "GET, HEAD" : rows[i].method;
    x->ops->add_header(x, "Allow", allow);
    envelope_fail(x, 405, "%s does not take %.20s; it takes %s", x->path, x->method, allow);
    return;
  }
  envelope_fail(x, 404, "there is nothing at %.200s", x->path);
}
