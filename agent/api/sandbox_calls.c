/* The calls that need no payloads: look, list, stop, start, extend, delete. */
#include "sandkeeper/api/sandbox_calls.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/envelope.h"

#include <stdlib.h>

static void answer_info(struct exchange *x) {
  struct envelope envelope;
  envelope_begin(&envelope, x);
  sandbox_info_write(&envelope.out, x);
  envelope_send(&envelope);
}

bool sandbox_calls_allowed(struct exchange *x) {
  if (x->api->sandbox->life.life.state != LIFE_DESTROYING)
    return true;
  envelope_fail(x, 409, "sandbox %s is being destroyed", x->api->sandbox->options.id);
  return false;
}

void sandbox_call_get(struct exchange *x, json_object *body) {
  (void)body;
  answer_info(x);
}

/* ---- list ---- */

static void answer_list(struct exchange *x, const struct sandbox_filter *filter) {
  struct envelope envelope;
  envelope_begin(&envelope, x);
  json_out_object(&envelope.out);
  sandbox_info_write_list(&envelope.out, x, filter);
  json_out_object_end(&envelope.out);
  envelope_send(&envelope);
}

void sandbox_call_list(struct exchange *x, json_object *body) {
  struct sandbox_filter filter;
  struct error err = ERROR_INIT;
  if (sandbox_params_filter(body, &filter, &err) < 0)
    envelope_fail(x, 400, "%s", err.message);
  else
    answer_list(x, &filter);
}

void sandbox_call_list_query(struct exchange *x, json_object *body) {
  struct sandbox_filter filter;
  struct error err = ERROR_INIT;
  (void)body;
  if (sandbox_params_filter_query(x, &filter, &err) < 0)
    envelope_fail(x, 400, "%s", err.message);
  else
    answer_list(x, &filter);
}

/* ---- stop, start, restart: answered when it is done ---- */

struct wait {
  struct life_waiter waiter;
  struct exchange *x;
};

static void on_settled(struct life_waiter *waiter) {
  struct wait *wait = LIST_OWNER(waiter, struct wait, waiter);
  answer_info(wait->x);
}

static void on_gone(struct exchange *x) {
  struct wait *wait = x->state;
  sandbox_life_forget(&wait->waiter);
  free(wait);
}

static void wish(struct exchange *x, void (*make)(struct sandbox *sandbox, struct life_waiter *waiter)) {
  if (!sandbox_calls_allowed(x))
    return;
  struct wait *wait = calloc(1, sizeof *wait);
  if (!wait) {
    envelope_fail(x, 500, "there is no memory for the request");
    return;
  }
  list_init(&wait->waiter.node);
  wait->waiter.done = on_settled;
  wait->x = x;
  x->state = wait;
  x->gone = on_gone;
  make(x->api->sandbox, &wait->waiter);
}

void sandbox_call_stop(struct exchange *x, json_object *body) {
  (void)body;
  wish(x, sandbox_life_stop);
}

void sandbox_call_start(struct exchange *x, json_object *body) {
  (void)body;
  wish(x, sandbox_life_start);
}

void sandbox_call_restart(struct exchange *x, json_object *body) {
  (void)body;
  wish(x, sandbox_life_restart);
}

/* ---- times ---- */

void sandbox_call_extend(struct exchange *x, json_object *body) {
  struct error err = ERROR_INIT;
  int64_t by;
  if (!sandbox_calls_allowed(x))
    return;
  if (sandbox_params_extend(body, &by, &err) < 0) {
    envelope_fail(x, 400, "%s", err.message);
    return;
  }
  sandbox_life_extend(x->api->sandbox, by);
  answer_info(x);
}

/* Again: the same answer, as long as there is one to give it. */
void sandbox_call_delete(struct exchange *x, json_object *body) {
  (void)body;
  sandbox_life_destroy(x->api->sandbox);
  answer_info(x);
}
