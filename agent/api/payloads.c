#include "sandkeeper/api/payloads.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/inner_exchange.h"
#include "sandkeeper/api/params.h"
#include "sandkeeper/api/rpc_parse.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The routes that a payload may call, and what they take. */
struct payload_api {
  const char *path;
  const char *method;
  const char *content_type;
  json_type types[2]; /* of the body */
  const char *takes;
};

static const struct payload_api apis[] = {
    {"/api/v1/env", "POST", "application/json", {json_type_object}, "an object of variables, here or in envs"},
    {"/rpc", "POST", "application/json", {json_type_object, json_type_array}, "a JSON-RPC request or an array of them"},
    {"/prompt", "POST", "application/json", {json_type_object}, "an object with a prompt"},
    {"/files", "PUT", "application/octet-stream", {json_type_string}, "the file's content as a string"},
};

/* ---- what is asked for ---- */

static const struct payload_api *find_api(const char *target) {
  size_t len = strcspn(target, "?");
  for (size_t i = 0; i < sizeof apis / sizeof *apis; i++)
    if (strlen(apis[i].path) == len && memcmp(apis[i].path, target, len) == 0)
      return &apis[i];
  return NULL;
}

static bool is_env(const struct payload_api *api) {
  return api == &apis[0];
}

static bool has_type(const struct payload_api *api, json_object *body) {
  for (size_t i = 0; i < 2; i++)
    if (api->types[i] != json_type_null && json_object_is_type(body, api->types[i]))
      return true;
  return false;
}

/* The body that the route gets: for the environment it may be in either place. An empty envs beside a body is what a
 * client sends that always fills in the field. */
static json_object *body_of(const struct payload_api *api, json_object *payload) {
  json_object *envs = is_env(api) ? params_get(payload, "envs") : NULL, *body = params_get(payload, "body");
  return envs && (!body || json_object_object_length(envs) > 0) ? envs : body;
}

static int check(json_object *payload, struct error *err) {
  const char *target;
  json_object *envs;
  if (!json_object_is_type(payload, json_type_object))
    return error_set(err, ERROR_INVALID, 0, "it takes an object with api and body");
  if (params_string(payload, "api", true, &target, err) < 0 ||
      params_typed(payload, "envs", json_type_object, false, &envs, err) < 0)
    return -1;
  const struct payload_api *api = find_api(target);
  if (!api)
    return error_set(err, ERROR_INVALID, 0,
                     "api: \"%.200s\" is not known; it takes /api/v1/env, /rpc, /files?path=..., /prompt", target);
  if (envs && json_object_object_length(envs) > 0 && !is_env(api))
    return error_set(err, ERROR_INVALID, 0, "envs: only /api/v1/env takes them, not %s", api->path);
  if (!has_type(api, body_of(api, payload)))
    return error_set(err, ERROR_INVALID, 0, "body: %s takes %s", api->path, api->takes);
  return 0;
}

int payloads_parse(json_object *body, json_object **payloads, struct error *err) {
  if (params_typed(body, "payloads", json_type_array, false, payloads, err) < 0)
    return -1;
  size_t count = *payloads ? json_object_array_length(*payloads) : 0;
  if (count > PAYLOADS_MAX)
    return error_set(err, ERROR_INVALID, 0, "payloads: they are %zu; it takes at most %d", count, PAYLOADS_MAX);
  for (size_t i = 0; i < count; i++)
    if (check(json_object_array_get_idx(*payloads, i), err) < 0)
      return error_wrap(err, "payloads[%zu]", i);
  return 0;
}

/* ---- what the answer says ---- */

/* Keeps the first reason only. */
static void set_reason(struct payload_run *run, const char *text, const char *otherwise) {
  if (run->has_reason)
    return;
  run->has_reason = true;
  error_set(&run->reason, ERROR_INVALID, 0, "%.2000s", text && text[0] ? text : otherwise);
}

static const char *string_member(json_object *object, const char *name) {
  json_object *value = json_object_object_get(object, name);
  return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : NULL;
}

static void judge_exit(struct payload_run *run, json_object *result) {
  json_object *code =
      json_object_is_type(result, json_type_object) ? json_object_object_get(result, "exit_code") : NULL;
  char text[600];
  if (!json_object_is_type(code, json_type_int) || json_object_get_int(code) == 0)
    return;
  const char *output = string_member(result, "output");
  size_t len = output ? strlen(output) : 0;
  snprintf(text, sizeof text, "the command ended with exit code %d%s%.500s", json_object_get_int(code),
           len > 0 ? ": " : "",
           len > 500 ? output + len - 500
           : len > 0 ? output
                     : "");
  set_reason(run, text, "");
}

static void judge_error(struct payload_run *run, json_object *error) {
  if (json_object_is_type(error, json_type_object))
    set_reason(run, string_member(error, "message"), "an error");
  else if (json_object_is_type(error, json_type_string))
    set_reason(run, json_object_get_string(error), "an error");
}

/* One JSON value of the answer: a JSON-RPC response, an event of a prompt, an error of a route. */
static void judge(struct payload_run *run, json_object *value) {
  if (!json_object_is_type(value, json_type_object))
    return;
  const char *type = string_member(value, "type");
  judge_error(run, json_object_object_get(value, "error"));
  judge_exit(run, json_object_object_get(value, "result"));
  if (type && strcmp(type, "error") == 0)
    set_reason(run, string_member(value, "message"), "an error event");
}

/* Routes' plain errors have a message and no more. */
static void judge_status(struct payload_run *run, unsigned status, json_object *last) {
  char text[64];
  if (status > 0 && status < 400)
    return;
  snprintf(text, sizeof text, status ? "HTTP status %u" : "its answer was cut off", status);
  set_reason(run, json_object_is_type(last, json_type_object) ? string_member(last, "message") : NULL, text);
}

static void stop_looking(struct payload_run *run) {
  json_tokener_free(run->tokener);
  run->tokener = NULL;
}

/* An answer to a batch is taken apart: it may be long, and of each response only the reason is kept. */
static size_t skip_between(const char *bytes, size_t len) {
  size_t n = 0;
  while (n < len && strchr("[,] \t\r\n", bytes[n]) && bytes[n])
    n++;
  return n;
}

static void on_take(void *arg, const char *bytes, size_t len) {
  struct payload_run *run = arg;
  while (run->tokener && len > 0) {
    if (!run->in_value) {
      size_t skipped = skip_between(bytes, len);
      bytes += skipped;
      len -= skipped;
      run->in_value = len > 0;
      continue;
    }
    json_object *value = json_tokener_parse_ex(run->tokener, bytes, (int)len);
    enum json_tokener_error state = json_tokener_get_error(run->tokener);
    size_t used = json_tokener_get_parse_end(run->tokener);
    if (state == json_tokener_success) {
      judge(run, value);
      json_object_put(run->last);
      run->last = value;
      run->in_value = false;
      bytes += used;
      len -= used;
    } else if (state == json_tokener_continue) {
      return;
    } else {
      stop_looking(run); /* no JSON: the status decides */
    }
  }
}

/* ---- one after the other ---- */

static void next(struct payload_run *run);

static const char *target_of(json_object *payload) {
  return json_object_get_string(params_get(payload, "api"));
}

static void finish_answer(struct payload_run *run) {
  inner_exchange_free(run->inner);
  run->inner = NULL;
  if (run->tokener)
    stop_looking(run);
  json_object_put(run->last);
  run->last = NULL;
}

static void fail(struct payload_run *run, const struct error *why) {
  const char *target = target_of(json_object_array_get_idx(run->payloads, run->index));
  run->failure = *why;
  error_wrap(&run->failure, "payloads[%zu] (%.*s)", run->index, (int)strcspn(target, "?"), target);
  run->done(run, run->arg);
}

static void on_ended(void *arg, unsigned status) {
  struct payload_run *run = arg;
  judge_status(run, status, run->last);
  if (status == 503)
    run->reason.kind = ERROR_STOPPED;
  finish_answer(run);
  if (run->has_reason) {
    fail(run, &run->reason);
    return;
  }
  run->index++;
  next(run);
}

static const struct inner_ops inner_ops = {.take = on_take, .ended = on_ended};

static void write_body(const struct payload_api *api, json_object *value, struct buf *body) {
  buf_init(body, 8 * SANDBOX_API_BODY_MAX, 0);
  if (api->types[0] == json_type_string)
    buf_append(body, json_object_get_string(value), (size_t)json_object_get_string_len(value));
  else
    buf_append_string(body, json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN));
}

static void next(struct payload_run *run) {
  if (run->index == json_object_array_length(run->payloads)) {
    run->done(run, run->arg);
    return;
  }
  json_object *payload = json_object_array_get_idx(run->payloads, run->index);
  const struct payload_api *api = find_api(target_of(payload));
  struct error err = ERROR_INIT;
  struct buf body;
  write_body(api, body_of(api, payload), &body);
  run->has_reason = false;
  run->in_value = false;
  run->tokener = json_tokener_new_ex(RPC_DEPTH_MAX);
  if (body.failed || !run->tokener) {
    buf_free(&body);
    error_set(&err, ERROR_INTERNAL, 0, "there is no memory for it");
  } else {
    run->inner = inner_exchange_start(run->api, api_routes, api_n_routes, api->method, target_of(payload),
                                      api->content_type, &body, &inner_ops, run, &err);
  }
  if (!run->inner) {
    finish_answer(run);
    fail(run, &err);
  }
}

static void begin(struct loop_task *task) {
  next(task->arg);
}

void payload_run_start(struct payload_run *run, struct api *api, json_object *payloads,
                       void (*done)(struct payload_run *run, void *arg), void *arg) {
  *run = (struct payload_run){.api = api, .done = done, .arg = arg};
  run->payloads = payloads ? json_object_get(payloads) : NULL;
  loop_task_init(&run->task);
  loop_defer(api->sandbox->loop, &run->task, begin, run);
}

void payload_run_free(struct payload_run *run) {
  if (!run->api)
    return;
  loop_task_cancel(&run->task);
  finish_answer(run);
  json_object_put(run->payloads);
  *run = (struct payload_run){0};
}
