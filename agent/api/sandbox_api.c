#include "sandkeeper/api/sandbox_api.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/envelope.h"
#include "sandkeeper/api/sandbox_info.h"
#include "sandkeeper/base/percent.h"

#include <string.h>

#define SEGMENTS_MAX 2

/* Room for an id in a path, decoded. */
#define ID_MAX 4096

/* What the path of a request says. */
struct sandbox_path {
  bool plural; /* /sandboxes */
  size_t n_segments;
  struct {
    const char *at;
    size_t len;
  } segments[SEGMENTS_MAX];
  bool too_long;
};

static const char *behind(const char *path, const char *prefix) {
  size_t len = strlen(prefix);
  return strncmp(path, prefix, len) == 0 && (path[len] == '\0' || path[len] == '/') ? path + len : NULL;
}

static struct sandbox_path split(const char *path) {
  struct sandbox_path split = {0};
  const char *rest = behind(path, "/api/v1/sandboxes");
  split.plural = rest != NULL;
  if (!rest)
    rest = behind(path, "/api/v1/sandbox");
  while (rest && *rest == '/') {
    size_t len = strcspn(++rest, "/");
    if (len == 0 && rest[len] == '\0')
      break; /* a slash at the end says nothing */
    if (split.n_segments == SEGMENTS_MAX) {
      split.too_long = true;
      break;
    }
    split.segments[split.n_segments].at = rest;
    split.segments[split.n_segments++].len = len;
    rest += len;
  }
  return split;
}

static bool is_own_id(const struct api *api, const struct sandbox_path *path) {
  char id[ID_MAX];
  const char *own = api->sandbox->options.id;
  if (path->segments[0].len > sizeof id)
    return false;
  ptrdiff_t len = percent_decode(id, path->segments[0].at, path->segments[0].len, false);
  return len >= 0 && (size_t)len == strlen(own) && memcmp(id, own, (size_t)len) == 0;
}

static void get(struct exchange *x) {
  struct envelope envelope;
  envelope_begin(&envelope, x);
  sandbox_info_write(&envelope.out, x);
  envelope_send(&envelope);
}

void sandbox_api_handle(struct exchange *x) {
  struct sandbox_path path = split(x->path);
  if (path.n_segments != 1 || path.too_long) {
    envelope_fail(x, 404, "there is nothing at %.200s", x->path);
  } else if (!is_own_id(x->api, &path)) {
    envelope_fail(x, 404, "there is no sandbox %.200s here; this one is %s", path.segments[0].at,
                  x->api->sandbox->options.id);
  } else {
    get(x);
  }
}
