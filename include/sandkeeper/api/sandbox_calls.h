/* sandbox_calls.h - what the files of the control-plane calls share. */
#ifndef SANDKEEPER_API_SANDBOX_CALLS_H
#define SANDKEEPER_API_SANDBOX_CALLS_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/error.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/core/cgroup.h"
#include "sandkeeper/core/life.h"

#include <json-c/json_object.h>
#include <stdbool.h>

/* ---- sandbox_params.c ---- */

#define SANDBOX_USER_ID_MAX 1024

struct sandbox_spec {
  const char *cpu, *memory, *image; /* as written; NULL: not given; borrowed from the body */
  struct cgroup_limits limits;
};
int sandbox_params_spec(json_object *body, struct sandbox_spec *spec, struct error *err);

/* The labels as a new array. */
int sandbox_params_labels(json_object *body, struct life_label **labels, size_t *n_labels, struct error *err);

/* ttl_hours as ns; 0: not given. */
int sandbox_params_ttl(json_object *body, int64_t *ttl, struct error *err);
/* hours or seconds, or neither, as ns. */
int sandbox_params_extend(json_object *body, int64_t *by, struct error *err);

/* *user_id is NULL when it is absent. */
int sandbox_params_user_id(json_object *body, const char **user_id, struct error *err);

struct sandbox_filter {
  const char *user_id, *status; /* NULL: any */
  int64_t limit, offset;
};
int sandbox_params_filter(json_object *body, struct sandbox_filter *filter, struct error *err);
int sandbox_params_filter_query(struct exchange *x, struct sandbox_filter *filter, struct error *err);

/* ---- sandbox_info.c ---- */

/* What a client is told of the sandbox, as one object. */
void sandbox_info_write(struct json_out *out, struct exchange *x);

/* The members "items" and "pagination" of an open object. */
void sandbox_info_write_list(struct json_out *out, struct exchange *x, const struct sandbox_filter *filter);

/* ---- sandbox_calls.c: each answers the exchange, at once or later; `body` is an object, borrowed ---- */

void sandbox_call_get(struct exchange *x, json_object *body);
void sandbox_call_list(struct exchange *x, json_object *body);
void sandbox_call_list_query(struct exchange *x, json_object *body);
void sandbox_call_stop(struct exchange *x, json_object *body);
void sandbox_call_start(struct exchange *x, json_object *body);
void sandbox_call_restart(struct exchange *x, json_object *body);
void sandbox_call_extend(struct exchange *x, json_object *body);
void sandbox_call_delete(struct exchange *x, json_object *body);

/* False, and the exchange is answered, when the sandbox is on its way out. */
bool sandbox_calls_allowed(struct exchange *x);

/* ---- sandbox_change.c ---- */

void sandbox_call_create(struct exchange *x, json_object *body);
void sandbox_call_create_or_list(struct exchange *x, json_object *body);
void sandbox_call_update(struct exchange *x, json_object *body);
void sandbox_call_configure(struct exchange *x, json_object *body);

#endif
