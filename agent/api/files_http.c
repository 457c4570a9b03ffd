#include "sandkeeper/api/api.h"
#include "sandkeeper/api/file_job.h"
#include "sandkeeper/api/files_route.h"
#include "sandkeeper/api/rpc_error.h"
#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static unsigned status_of(enum error_kind kind) {
  switch (kind) {
  case ERROR_INVALID:
    return 400;
  case ERROR_NOT_FOUND:
    return 404;
  case ERROR_PERMISSION:
    return 403;
  case ERROR_WRONG_TYPE:
  case ERROR_EXISTS:
    return 409;
  case ERROR_TOO_LARGE:
    return 413;
  case ERROR_NO_SPACE:
    return 507;
  case ERROR_BUSY:
    return 503;
  case ERROR_TIMED_OUT:
    return 504;
  default:
    return 500;
  }
}

void files_http_fail(struct exchange *x, const struct error *error) {
  struct buf body;
  struct json_out out;
  buf_init(&body, 8 * ERROR_MESSAGE_MAX, 0); /* an escaped byte takes up to six */
  json_out_begin(&out, &body);
  json_out_object(&out);
  json_out_key(&out, "error");
  rpc_error_write(&out, error, NULL, NULL);
  json_out_object_end(&out);
  x->ops->reply(x, status_of(error->kind), "application/json", &body);
}

static char *decode(const char *text, size_t len, size_t *decoded, struct error *err) {
  size_t bad;
  char *bytes = malloc(base64_decoded_length(len) + 1);
  if (!bytes) {
    error_set_errno(err, ENOMEM, "path_b64");
    return NULL;
  }
  ssize_t n = base64_decode(bytes, text, len, &bad);
  if (n >= 0) {
    *decoded = (size_t)n;
    return bytes;
  }
  free(bytes);
  error_set(err, ERROR_INVALID, 0, "path_b64: it is not base64 at character %zu", bad);
  return NULL;
}

static char *find_path(struct exchange *x, struct error *err) {
  size_t len = 0, encoded_len = 0;
  const char *path = x->ops->query(x, "path", &len);
  const char *encoded = x->ops->query(x, "path_b64", &encoded_len);
  cleanup_free char *workdir = file_workdir();
  cleanup_free char *decoded = NULL;
  if (!workdir) {
    error_set_errno(err, ENOMEM, "path");
    return NULL;
  }
  if (path && encoded)
    error_set(err, ERROR_INVALID, 0, "path and path_b64: only one of them can be given");
  else if (path)
    return files_path(workdir, path, len, "path", err);
  else if (!encoded)
    error_set(err, ERROR_INVALID, 0, "path: it is missing; /files?path=/some/file");
  else if ((decoded = decode(encoded, encoded_len, &len, err)))
    return files_path(workdir, decoded, len, "path_b64", err);
  return NULL;
}

char *files_http_path(struct exchange *x) {
  struct error error = ERROR_INIT;
  char *path = find_path(x, &error);
  if (!path)
    files_http_fail(x, &error);
  return path;
}

int files_http_switch(struct exchange *x, const char *name, bool *value, struct error *err) {
  const char *text = x->ops->query(x, name, NULL);
  *value = false;
  if (!text || strcmp(text, "0") == 0 || strcmp(text, "false") == 0)
    return 0;
  if (*text && strcmp(text, "1") != 0 && strcmp(text, "true") != 0)
    return error_set(err, ERROR_INVALID, 0, "%s: it takes 1 or 0, not \"%.64s\"", name, text);
  *value = true;
  return 0;
}
