/* create, update and configure: what they ask for is checked at once, then done in turn, one call after the other, so
 * that of fifty creates at the same time one claims the sandbox and the others find it claimed.
 *
 *   waiting --> claim (create) --> limits, on a worker --> payloads --> answered
 *
 * A client that leaves before its turn is forgotten; one that leaves later is not waited for, and the change goes on:
 * it may ask again, as after a lost connection, and finds it done.
 */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/envelope.h"
#include "sandkeeper/api/params.h"
#include "sandkeeper/api/payloads.h"
#include "sandkeeper/api/sandbox_calls.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/worker.h"

#include <stdlib.h>

#define CHANGES_MAX 256

enum change_kind { CHANGE_CREATE, CHANGE_UPDATE, CHANGE_CONFIGURE };

/* Writing the limits. Owned by the worker when the change no longer waits for it. */
struct limits_job {
  struct job job;
  struct change *change; /* NULL: nobody waits */
  struct cgroup_limits limits;
  struct error err;
};

struct change {
  struct list node; /* in the api's */
  struct api *api;
  struct exchange *x; /* NULL: the client has left */
  enum change_kind kind;
  bool begun;
  bool with_list; /* the answer has the items too */
  json_object *body;

  const char *user_id;
  struct life_label *labels;
  size_t n_labels;
  int64_t ttl;
  struct sandbox_spec spec;
  json_object *payloads; /* borrowed from the body; NULL: not given */

  int64_t expires_before; /* what a create that fails puts back */
  struct limits_job *job;
  struct payload_run run;
  struct error warning; /* limits that a create could not set */
};

static struct life *life_of(const struct change *change) {
  return &change->api->sandbox->life.life;
}

/* ---- the queue ---- */

static void begin(struct change *change);

static void begin_next(struct loop_task *task) {
  struct api *api = task->arg;
  struct change *change = LIST_FIRST(&api->control.changes, struct change, node);
  if (change && !change->begun)
    begin(change);
}

static void begin_later(struct api *api) {
  loop_defer(api->sandbox->loop, &api->control.next, begin_next, api);
}

/* Takes it out of the queue. The client, if there is one, must have been answered, or it is gone. */
static void change_free(struct change *change) {
  struct api *api = change->api;
  if (change->x)
    change->x->gone = NULL;
  if (change->job)
    change->job->change = NULL;
  list_remove(&change->node);
  api->control.n_changes--;
  payload_run_free(&change->run);
  life_labels_free(change->labels, change->n_labels);
  json_object_put(change->body);
  free(change);
  begin_later(api);
}

static void on_gone(struct exchange *x) {
  struct change *change = x->state;
  change->x = NULL;
  if (!change->begun)
    change_free(change);
}

/* ---- answers ---- */

static void write_warning(struct json_out *out, const struct error *warning) {
  json_out_key(out, "warnings");
  json_out_array(out);
  if (warning->kind != ERROR_NONE)
    json_out_string(out, warning->message);
  json_out_array_end(out);
}

static void write_created(struct json_out *out, struct change *change) {
  json_out_object(out);
  json_out_key(out, "sandbox");
  sandbox_info_write(out, change->x);
  write_warning(out, &change->warning);
  if (change->with_list) {
    struct sandbox_filter filter;
    sandbox_params_filter(change->body, &filter, NULL); /* it was read before */
    sandbox_info_write_list(out, change->x, &filter);
  }
  json_out_object_end(out);
}

static void succeed(struct change *change) {
  struct envelope envelope;
  if (change->x) {
    envelope_begin(&envelope, change->x);
    if (change->kind == CHANGE_CREATE)
      write_created(&envelope.out, change);
    else
      sandbox_info_write(&envelope.out, change->x);
    envelope_send(&envelope);
  }
  change_free(change);
}

static void refuse(struct change *change, unsigned status, const struct error *why) {
  LOG(LOG_INFO, "control", "refused", LOG_I("status", (int)status), LOG_S("reason", why->message));
  if (change->x)
    envelope_fail(change->x, status, "%s", why->message);
  change_free(change);
}

/* Refuses what has been begun: a create gives back what it claimed. */
static void give_up(struct change *change, unsigned status, const struct error *why) {
  if (change->kind == CHANGE_CREATE) {
    sandbox_life_set_expiry(change->api->sandbox, change->expires_before);
    life_unclaim(life_of(change));
  }
  refuse(change, status, why);
}

/* ---- payloads ---- */

static void on_payloads_done(struct payload_run *run, void *arg) {
  struct change *change = arg;
  struct sandbox_api *control = &change->api->control;
  if (run->failure.kind != ERROR_NONE) {
    struct error why = run->failure;
    give_up(change, why.kind == ERROR_STOPPED ? 503 : why.kind == ERROR_INTERNAL ? 500 : 400, &why);
    return;
  }
  if (change->payloads && change->kind != CHANGE_CONFIGURE) {
    json_object_put(control->payloads);
    control->payloads = json_object_get(change->payloads);
  }
  succeed(change);
}

/* configure without payloads does again what create or update has brought: the SDKs' documentation has it so. */
static void run_payloads(struct change *change) {
  json_object *payloads = change->payloads;
  if (!payloads && change->kind == CHANGE_CONFIGURE)
    payloads = change->api->control.payloads;
  if (payloads && json_object_array_length(payloads) > 0)
    payload_run_start(&change->run, change->api, payloads, on_payloads_done, change);
  else
    on_payloads_done(&change->run, change);
}

/* ---- limits ---- */

static void limits_set(struct change *change, const struct error *err) {
  const struct sandbox_spec *spec = &change->spec;
  if (err->kind != ERROR_NONE && change->kind == CHANGE_CREATE) {
    LOG(LOG_WARN, "control", "limits not set", LOG_S("reason", err->message));
    change->warning = *err;
  } else if (err->kind != ERROR_NONE) {
    give_up(change, 409, err);
    return;
  }
  if (life_note_spec(life_of(change), spec->cpu, spec->memory, spec->image) < 0) {
    struct error no_memory = ERROR_INIT;
    error_set(&no_memory, ERROR_INTERNAL, 0, "there is no memory for the spec");
    give_up(change, 500, &no_memory);
    return;
  }
  run_payloads(change);
}

static void work(struct job *job) {
  struct limits_job *limits = LIST_OWNER(job, struct limits_job, job);
  cgroup_apply(&limits->limits, &limits->err);
}

static void on_worked(struct job *job, enum job_end end) {
  struct limits_job *limits = LIST_OWNER(job, struct limits_job, job);
  struct change *change = limits->change;
  struct error err = ERROR_INIT;
  if (end == JOB_TIMED_OUT)
    error_set(&err, ERROR_TIMED_OUT, 0, "spec: the kernel takes too long to set the limits");
  else
    err = limits->err;
  limits->change = NULL;
  if (end == JOB_DONE)
    free(limits);
  if (!change)
    return;
  change->job = NULL;
  limits_set(change, &err);
}

static void abandon(struct job *job) {
  free(LIST_OWNER(job, struct limits_job, job));
}

static void set_limits(struct change *change) {
  struct error err = ERROR_INIT;
  if (change->spec.limits.cpu == 0 && change->spec.limits.memory == 0) {
    limits_set(change, &err);
    return;
  }
  struct limits_job *limits = calloc(1, sizeof *limits);
  if (limits) {
    limits->job = (struct job){.class = JOB_FILE, .work = work, .done = on_worked, .abandon = abandon};
    limits->limits = change->spec.limits;
    if (workers_submit(change->api->sandbox->workers, &limits->job, NULL, true, &err) == 0) {
      limits->change = change;
      change->job = limits;
      return;
    }
    free(limits);
  } else {
    error_set(&err, ERROR_INTERNAL, 0, "spec: there is no memory to set the limits");
  }
  limits_set(change, &err);
}

/* ---- the claim ---- */

/* Answers a create that has nothing to do. */
static bool is_claimed(struct change *change) {
  struct error why = ERROR_INIT;
  switch (life_claim_of(life_of(change), change->user_id)) {
  case LIFE_UNCLAIMED:
    return false;
  case LIFE_OWN:
    succeed(change);
    return true;
  case LIFE_TAKEN:
    break;
  }
  error_set(&why, ERROR_EXISTS, 0, "sandbox %.200s belongs to user %.*s", change->api->sandbox->options.id,
            SANDBOX_USER_ID_MAX, life_of(change)->user_id);
  refuse(change, 409, &why);
  return true;
}

static void claim(struct change *change) {
  struct sandbox *sandbox = change->api->sandbox;
  struct life *life = life_of(change);
  int64_t now = clock_wall();
  if (life_claim(life, change->user_id, now) < 0) {
    struct error why = ERROR_INIT;
    error_set(&why, ERROR_INTERNAL, 0, "there is no memory for the claim");
    refuse(change, 500, &why);
    return;
  }
  LOG(LOG_INFO, "control", "claimed", LOG_S("user_id", change->user_id));
  life_set_labels(life, steal_pointer(&change->labels), change->n_labels);
  change->n_labels = 0;
  change->expires_before = life->expires;
  if (change->ttl > 0)
    sandbox_life_set_expiry(sandbox, now + change->ttl);
  set_limits(change);
}

static void begin(struct change *change) {
  struct sandbox *sandbox = change->api->sandbox;
  struct error why = ERROR_INIT;
  change->begun = true;
  sandbox_life_touch(sandbox);
  if (life_of(change)->state == LIFE_DESTROYING) {
    error_set(&why, ERROR_STOPPED, 0, "sandbox %.200s is being destroyed", sandbox->options.id);
    refuse(change, 409, &why);
  } else if (change->kind == CHANGE_CREATE) {
    if (!is_claimed(change))
      claim(change);
  } else if (life_of(change)->state != LIFE_ACTIVE) {
    error_set(&why, ERROR_STOPPED, 0, "sandbox %.200s is %s; start it first", sandbox->options.id,
              life_status(life_of(change)));
    refuse(change, 409, &why);
  } else {
    set_limits(change);
  }
}

/* ---- what is asked for ---- */

static int check_update(json_object *body, const struct change *change, struct error *err) {
  const char *image;
  bool has_spec = change->spec.cpu || change->spec.memory || change->spec.image;
  if (params_string(body, "image", false, &image, err) < 0)
    return -1;
  if (image && !image[0])
    image = NULL;
  if (!has_spec && !image && !change->payloads)
    return error_set(err, ERROR_INVALID, 0, "spec, image, payloads: it takes at least one of them");
  if (image || change->spec.image)
    return error_set(err, ERROR_EXISTS, 0, "%s: a running container cannot change its image",
                     image ? "image" : "spec.image");
  return 0;
}

static int read_create(json_object *body, struct change *change, struct error *err) {
  struct sandbox_filter filter;
  if (sandbox_params_user_id(body, &change->user_id, err) < 0 || sandbox_params_ttl(body, &change->ttl, err) < 0 ||
      sandbox_params_labels(body, &change->labels, &change->n_labels, err) < 0 ||
      sandbox_params_filter(body, &filter, err) < 0)
    return -1;
  if (!change->user_id || !change->user_id[0])
    return error_set(err, ERROR_INVALID, 0, "user_id: it is missing; it says whose sandbox this is");
  return 0;
}

static int read_change(json_object *body, struct change *change, struct error *err) {
  if (change->kind == CHANGE_CREATE && read_create(body, change, err) < 0)
    return -1;
  if (change->kind != CHANGE_CONFIGURE && sandbox_params_spec(body, &change->spec, err) < 0)
    return -1;
  if (payloads_parse(body, &change->payloads, err) < 0)
    return -1;
  return change->kind == CHANGE_UPDATE ? check_update(body, change, err) : 0;
}

static struct change *change_new(struct exchange *x, json_object *body, enum change_kind kind) {
  struct sandbox_api *control = &x->api->control;
  if (control->n_changes == CHANGES_MAX) {
    envelope_fail(x, 503, "%d creates and changes wait already", CHANGES_MAX);
    return NULL;
  }
  struct change *change = calloc(1, sizeof *change);
  if (!change) {
    envelope_fail(x, 500, "there is no memory for the request");
    return NULL;
  }
  change->api = x->api;
  change->kind = kind;
  change->body = json_object_get(body);
  list_append(&control->changes, &change->node);
  control->n_changes++;
  return change;
}

/* A create of a claimed sandbox changes nothing and need not wait for what is under way, unless that is the claim. */
static bool may_go_ahead(const struct change *change) {
  if (change->kind != CHANGE_CREATE || life_claim_of(life_of(change), change->user_id) == LIFE_UNCLAIMED)
    return false;
  const struct change *first = LIST_FIRST(&change->api->control.changes, struct change, node);
  return !(first->begun && first->kind == CHANGE_CREATE);
}

static void ask(struct exchange *x, json_object *body, enum change_kind kind, bool with_list) {
  struct change *change = change_new(x, body, kind);
  struct error err = ERROR_INIT;
  if (!change)
    return;
  change->x = x;
  change->with_list = with_list;
  if (read_change(body, change, &err) < 0) {
    refuse(change, err.kind == ERROR_EXISTS ? 409 : err.kind == ERROR_INTERNAL ? 500 : 400, &err);
    return;
  }
  x->state = change;
  x->gone = on_gone;
  if (may_go_ahead(change))
    begin(change);
  else
    begin_later(x->api);
}

void sandbox_call_create(struct exchange *x, json_object *body) {
  ask(x, body, CHANGE_CREATE, false);
}

static bool has_any(json_object *body, const char *const *fields) {
  for (; *fields; fields++)
    if (params_get(body, *fields))
      return true;
  return false;
}

/* The Go SDK sends both to one place; what is in the body tells. A user_id alone may be either: it gets both answers.
 */
void sandbox_call_create_or_list(struct exchange *x, json_object *body) {
  static const char *const of_create[] = {"spec", "labels", "payloads", "ttl_hours", NULL};
  static const char *const of_list[] = {"status", "limit", "offset", NULL};
  bool has_user = params_get(body, "user_id") != NULL;
  if (has_any(body, of_create))
    ask(x, body, CHANGE_CREATE, false);
  else if (has_user && !has_any(body, of_list))
    ask(x, body, CHANGE_CREATE, true);
  else
    sandbox_call_list(x, body);
}

void sandbox_call_update(struct exchange *x, json_object *body) {
  ask(x, body, CHANGE_UPDATE, false);
}

void sandbox_call_configure(struct exchange *x, json_object *body) {
  ask(x, body, CHANGE_CONFIGURE, false);
}

/* ---- life ---- */

void sandbox_api_init(struct api *api, const struct sandbox_api_options *options) {
  struct sandbox_api *control = &api->control;
  *control = (struct sandbox_api){.options = *options};
  list_init(&control->changes);
  loop_task_init(&control->next);
}

void sandbox_api_free(struct api *api) {
  struct sandbox_api *control = &api->control;
  if (!control->changes.next)
    return;
  while (!list_is_empty(&control->changes))
    change_free(LIST_FIRST(&control->changes, struct change, node));
  loop_task_cancel(&control->next);
  json_object_put(control->payloads);
  control->payloads = NULL;
}
