/* Reads the bodies and queries of the control-plane calls. */
#include "sandkeeper/api/params.h"
#include "sandkeeper/api/sandbox_calls.h"
#include "sandkeeper/core/quantity.h"

#include <errno.h>
#include <json-c/linkhash.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT_DEFAULT 20
#define LIMIT_MAX 1000
#define OFFSET_MAX 1000000000
#define LABELS_MAX 256
#define CPU_MAX (1000 * 1000) /* thousandths: a thousand CPUs */

static int wrap(struct error *err, const char *where) {
  return error_wrap(err, "%s", where);
}

/* ---- spec ---- */

static int read_quantities(struct sandbox_spec *spec, struct error *err) {
  if (spec->cpu && quantity_parse("spec.cpu", spec->cpu, 1000, &spec->limits.cpu, err) < 0)
    return -1;
  if (spec->cpu && (spec->limits.cpu < CGROUP_CPU_LEAST || spec->limits.cpu > CPU_MAX))
    return error_set(err, ERROR_INVALID, 0, "spec.cpu: \"%.64s\" is out of range; it takes %dm to %d", spec->cpu,
                     CGROUP_CPU_LEAST, CPU_MAX / 1000);
  return spec->memory ? quantity_parse("spec.memory", spec->memory, 1, &spec->limits.memory, err) : 0;
}

/* An empty string counts as not given: that is how the SDKs' types say it. */
static int read_text(json_object *object, const char *field, const char **text, struct error *err) {
  if (params_string(object, field, false, text, err) < 0)
    return -1;
  if (*text && !(*text)[0])
    *text = NULL;
  return 0;
}

int sandbox_params_spec(json_object *body, struct sandbox_spec *spec, struct error *err) {
  json_object *object;
  *spec = (struct sandbox_spec){0};
  if (params_typed(body, "spec", json_type_object, false, &object, err) < 0)
    return -1;
  if (!object)
    return 0;
  if (read_text(object, "cpu", &spec->cpu, err) < 0 || read_text(object, "memory", &spec->memory, err) < 0 ||
      read_text(object, "image", &spec->image, err) < 0)
    return wrap(err, "spec");
  return read_quantities(spec, err);
}

/* ---- labels ---- */

static int copy_label(struct life_label *label, const char *name, json_object *value, struct error *err) {
  const char *text;
  char what[128];
  snprintf(what, sizeof what, "labels: \"%.64s\"", name);
  if (params_plain_string(value, what, &text, err) < 0)
    return -1;
  label->name = strdup(name);
  label->value = strdup(text);
  return label->name && label->value ? 0 : error_set_errno(err, ENOMEM, "labels");
}

int sandbox_params_labels(json_object *body, struct life_label **labels, size_t *n_labels, struct error *err) {
  json_object *object;
  *labels = NULL;
  *n_labels = 0;
  if (params_typed(body, "labels", json_type_object, false, &object, err) < 0)
    return -1;
  size_t count = object ? (size_t)json_object_object_length(object) : 0;
  if (count == 0)
    return 0;
  if (count > LABELS_MAX)
    return error_set(err, ERROR_INVALID, 0, "labels: they are %zu; it takes at most %d", count, LABELS_MAX);
  struct life_label *made = calloc(count, sizeof *made);
  if (!made)
    return error_set_errno(err, ENOMEM, "labels");
  size_t n = 0;
  json_object_object_foreach(object, name, value) {
    if (copy_label(&made[n++], name, value, err) < 0) {
      life_labels_free(made, n);
      return -1;
    }
  }
  *labels = made;
  *n_labels = n;
  return 0;
}

/* ---- times ---- */

int sandbox_params_ttl(json_object *body, int64_t *ttl, struct error *err) {
  int64_t hours;
  if (params_integer(body, "ttl_hours", 0, LIFE_HOURS_MAX, 0, &hours, NULL, err) < 0)
    return -1;
  *ttl = hours * 3600 * CLOCK_SECOND;
  return 0;
}

int sandbox_params_extend(json_object *body, int64_t *by, struct error *err) {
  int64_t hours, seconds;
  bool has_hours, has_seconds;
  if (params_integer(body, "hours", 0, LIFE_HOURS_MAX, 0, &hours, &has_hours, err) < 0 ||
      params_integer(body, "seconds", 1, LIFE_EXTEND_SECONDS_MAX, 0, &seconds, &has_seconds, err) < 0)
    return -1;
  if (has_hours && has_seconds)
    return error_set(err, ERROR_INVALID, 0, "hours: give either hours or seconds, not both");
  *by = has_seconds ? seconds * CLOCK_SECOND : hours > 0 ? hours * 3600 * CLOCK_SECOND : LIFE_EXTEND_DEFAULT;
  return 0;
}

/* ---- who and which ---- */

int sandbox_params_user_id(json_object *body, const char **user_id, struct error *err) {
  if (params_string(body, "user_id", false, user_id, err) < 0)
    return -1;
  if (*user_id && strlen(*user_id) > SANDBOX_USER_ID_MAX)
    return error_set(err, ERROR_INVALID, 0, "user_id: it takes at most %d bytes", SANDBOX_USER_ID_MAX);
  return 0;
}

/* A limit of 0 is the default: the SDKs cannot tell it from none. */
static void set_limit(struct sandbox_filter *filter, int64_t limit) {
  filter->limit = limit > 0 ? limit : LIMIT_DEFAULT;
}

int sandbox_params_filter(json_object *body, struct sandbox_filter *filter, struct error *err) {
  int64_t limit;
  *filter = (struct sandbox_filter){0};
  if (read_text(body, "user_id", &filter->user_id, err) < 0 || read_text(body, "status", &filter->status, err) < 0 ||
      params_integer(body, "limit", 0, LIMIT_MAX, 0, &limit, NULL, err) < 0 ||
      params_integer(body, "offset", 0, OFFSET_MAX, 0, &filter->offset, NULL, err) < 0)
    return -1;
  set_limit(filter, limit);
  return 0;
}

static int query_text(struct exchange *x, const char *name, const char **text, struct error *err) {
  size_t len;
  *text = x->ops->query(x, name, &len);
  if (*text && strlen(*text) != len)
    return error_set(err, ERROR_INVALID, 0, "%s: it takes text without a NUL character", name);
  if (*text && !(*text)[0])
    *text = NULL;
  return 0;
}

static int query_integer(struct exchange *x, const char *name, int64_t max, int64_t *value, struct error *err) {
  const char *text;
  *value = 0;
  if (query_text(x, name, &text, err) < 0)
    return -1;
  if (!text)
    return 0;
  bool digits = strlen(text) < 18 && strspn(text, "0123456789") == strlen(text);
  *value = digits ? strtoll(text, NULL, 10) : -1;
  if (*value < 0 || *value > max)
    return error_set(err, ERROR_INVALID, 0, "%s: it takes a whole number from 0 to %lld", name, (long long)max);
  return 0;
}

int sandbox_params_filter_query(struct exchange *x, struct sandbox_filter *filter, struct error *err) {
  int64_t limit;
  *filter = (struct sandbox_filter){0};
  if (query_text(x, "user_id", &filter->user_id, err) < 0 || query_text(x, "status", &filter->status, err) < 0 ||
      query_integer(x, "limit", LIMIT_MAX, &limit, err) < 0 ||
      query_integer(x, "offset", OFFSET_MAX, &filter->offset, err) < 0)
    return -1;
  set_limit(filter, limit);
  return 0;
}
