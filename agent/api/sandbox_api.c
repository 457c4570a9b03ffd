/* Which call a path and a method name. */
#include "sandkeeper/api/sandbox_api.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/envelope.h"
#include "sandkeeper/api/sandbox_calls.h"
#include "sandkeeper/base/percent.h"

#include <stdio.h>
#include <string.h>

#define SEGMENTS_MAX 2

/* Room for an id in a path, decoded. */
#define ID_MAX 4096

/* Stands in a pattern for this sandbox's id. */
#define ID "*"

enum form { SINGULAR = 1, PLURAL = 2, BOTH = 3 };

struct call_row {
  enum form form; /* /api/v1/sandbox or /api/v1/sandboxes */
  const char *method;
  const char *segments[SEGMENTS_MAX]; /* what stands in the path behind it */
  void (*handle)(struct exchange *x, json_object *body);
};

static const struct call_row rows[] = {
    {SINGULAR, "POST", {"create"}, sandbox_call_create},
    {SINGULAR, "POST", {"list"}, sandbox_call_list},
    {PLURAL, "GET", {NULL}, sandbox_call_list_query},
    {PLURAL, "POST", {NULL}, sandbox_call_create_or_list},
    {BOTH, "GET", {ID}, sandbox_call_get},
    {BOTH, "PATCH", {ID}, sandbox_call_update},
    {BOTH, "DELETE", {ID}, sandbox_call_delete},
    {BOTH, "POST", {ID, "stop"}, sandbox_call_stop},
    {BOTH, "POST", {ID, "start"}, sandbox_call_start},
    {BOTH, "POST", {ID, "restart"}, sandbox_call_restart},
    {BOTH, "POST", {ID, "extend"}, sandbox_call_extend},
    {BOTH, "POST", {ID, "configure"}, sandbox_call_configure},
};

struct segment {
  const char *at;
  size_t len;
};

struct call_path {
  enum form form;
  size_t n_segments; /* over SEGMENTS_MAX: no call has so many */
  struct segment segments[SEGMENTS_MAX + 1];
};

static struct call_path split(const char *path) {
  static const char plural[] = "/api/v1/sandboxes";
  size_t plural_len = sizeof plural - 1;
  struct call_path split = {.form = SINGULAR};
  if (strncmp(path, plural, plural_len) == 0)
    split.form = PLURAL;
  const char *rest = path + plural_len - (split.form == PLURAL ? 0 : strlen("es"));
  while (*rest == '/' && rest[1] && split.n_segments <= SEGMENTS_MAX) { /* a slash at the end says nothing */
    size_t len = strcspn(++rest, "/");
    split.segments[split.n_segments++] = (struct segment){rest, len};
    rest += len;
  }
  return split;
}

static bool is_own_id(const struct api *api, const struct segment *segment) {
  char id[ID_MAX];
  const char *own = api->sandbox->options.id;
  if (segment->len > sizeof id)
    return false;
  ptrdiff_t len = percent_decode(id, segment->at, segment->len, false);
  return len >= 0 && (size_t)len == strlen(own) && memcmp(id, own, (size_t)len) == 0;
}

static bool is_word(const struct segment *segment, const char *word) {
  return segment->len == strlen(word) && memcmp(segment->at, word, segment->len) == 0;
}

static bool row_fits(const struct call_row *row, const struct call_path *path, bool own_id) {
  if (!(row->form & path->form))
    return false;
  for (size_t i = 0; i < SEGMENTS_MAX; i++) {
    const char *wanted = row->segments[i];
    if (!wanted || i >= path->n_segments)
      return !wanted && i == path->n_segments;
    if (strcmp(wanted, ID) == 0 ? !own_id : !is_word(&path->segments[i], wanted))
      return false;
  }
  return path->n_segments == SEGMENTS_MAX;
}

static void refuse(struct exchange *x, const struct call_path *path, bool own_id, const char *allow) {
  if (allow[0]) {
    x->ops->add_header(x, "Allow", allow);
    envelope_fail(x, 405, "%.200s does not take %.20s; it takes %s", x->path, x->method, allow);
  } else if (path->n_segments > 0 && !own_id) {
    envelope_fail(x, 404, "there is no sandbox %.*s here; this one is %s", (int)path->segments[0].len % ID_MAX,
                  path->segments[0].at, x->api->sandbox->options.id);
  } else {
    envelope_fail(x, 404, "there is nothing at %.200s", x->path);
  }
}

static void call(struct exchange *x, const struct call_row *row) {
  bool has_body = strcmp(row->method, "POST") == 0 || strcmp(row->method, "PATCH") == 0;
  json_object *body = NULL;
  if (has_body && !(body = envelope_body(x)))
    return;
  row->handle(x, body);
  json_object_put(body);
}

void sandbox_api_handle(struct exchange *x) {
  struct call_path path = split(x->path);
  bool own_id = path.n_segments > 0 && is_own_id(x->api, &path.segments[0]);
  const char *method = strcmp(x->method, "HEAD") == 0 ? "GET" : x->method;
  char allow[64] = "";
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (!row_fits(&rows[i], &path, own_id))
      continue;
    if (strcmp(rows[i].method, method) == 0) {
      call(x, &rows[i]);
      return;
    }
    snprintf(allow + strlen(allow), sizeof allow - strlen(allow), "%s%s", allow[0] ? ", " : "", rows[i].method);
    if (strcmp(rows[i].method, "GET") == 0)
      snprintf(allow + strlen(allow), sizeof allow - strlen(allow), ", HEAD");
  }
  refuse(x, &path, own_id, allow);
}
