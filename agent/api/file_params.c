#include "sandkeeper/api/file_job.h"

#include "sandkeeper/api/params.h"
#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODE_MAX 07777
#define B64_NAME_SIZE 64

char *file_workdir(void) {
  char *path = getcwd(NULL, 0);
  /* One that was removed, or lies outside of a chroot, is told with something else in front. */
  if (path && path[0] == '/')
    return path;
  free(path);
  return strdup("/");
}

/* The bytes of a field that comes as text or, for what is not UTF-8, as base64 under another name. *bytes is NULL when
 * neither is there; it is the caller's to free. */
static int parse_bytes(json_object *params, const char *field, char **bytes, size_t *len, struct error *err) {
  char b64_name[B64_NAME_SIZE];
  snprintf(b64_name, sizeof b64_name, "%s_b64", field);
  const char *text, *encoded;
  size_t text_len, encoded_len, bad;
  *bytes = NULL;
  *len = 0;
  if (params_bytes(params, field, false, &text, &text_len, err) < 0 ||
      params_bytes(params, b64_name, false, &encoded, &encoded_len, err) < 0)
    return -1;
  if (text && encoded)
    return error_set(err, ERROR_INVALID, 0, "%s and %s: only one of them can be given", field, b64_name);
  if (!text && !encoded)
    return 0;
  *len = text_len;
  *bytes = malloc((text ? text_len : base64_decoded_length(encoded_len)) + 1);
  if (!*bytes)
    return error_set_errno(err, ENOMEM, "%s", field);
  if (text) {
    memcpy(*bytes, text, text_len);
    return 0;
  }
  ssize_t n = base64_decode(*bytes, encoded, encoded_len, &bad);
  if (n >= 0) {
    *len = (size_t)n;
    return 0;
  }
  free(*bytes);
  *bytes = NULL;
  return error_set(err, ERROR_INVALID, 0, "%s: it is not base64 at character %zu", b64_name, bad);
}

char *file_params_path(json_object *params, const char *field, struct error *err) {
  cleanup_free char *bytes = NULL;
  size_t len;
  if (parse_bytes(params, field, &bytes, &len, err) < 0)
    return NULL;
  if (!bytes) {
    error_set(err, ERROR_INVALID, 0, "%s: it is missing; it takes a string", field);
    return NULL;
  }
  cleanup_free char *workdir = file_workdir();
  if (!workdir) {
    error_set_errno(err, ENOMEM, "%s", field);
    return NULL;
  }
  return files_path(workdir, bytes, len, field, err);
}

int file_params_name(json_object *params, const char *field, char **name, struct error *err) {
  size_t len;
  if (parse_bytes(params, field, name, &len, err) < 0)
    return -1;
  if (!*name)
    return 0;
  (*name)[len] = '\0';
  if (!memchr(*name, '\0', len))
    return 0;
  free(*name);
  *name = NULL;
  return error_set(err, ERROR_INVALID, 0, "%s: a name holds no NUL byte", field);
}

int file_params_how(json_object *params, bool at_offset, struct files_write_how *how, struct error *err) {
  int64_t mode, offset = 0;
  *how = (struct files_write_how){.append = false};
  if (params_integer(params, "mode", 0, MODE_MAX, 0, &mode, &how->has_mode, err) < 0 ||
      params_bool(params, "append", false, &how->append, err) < 0 ||
      params_bool(params, "fsync", false, &how->sync, err) < 0 ||
      (at_offset && params_integer(params, "offset", 0, INT64_MAX, 0, &offset, &how->at_offset, err) < 0))
    return -1;
  if (how->append && how->at_offset)
    return error_set(err, ERROR_INVALID, 0, "append and offset: only one of them can be given");
  how->mode = (mode_t)mode;
  how->offset = (uint64_t)offset;
  return 0;
}

void file_timed_out(struct error *error, const struct job *job, const char *method, const char *path,
                    int64_t timeout_ns) {
  double seconds = (double)timeout_ns / (double)CLOCK_SECOND;
  if (job->state == JOB_WAITING) /* only the loop changes this state */
    error_set(error, ERROR_TIMED_OUT, 0, "%s %s: not begun: a call before it on this connection has not ended for %g s",
              method, path, seconds);
  else
    error_set(error, ERROR_TIMED_OUT, 0, "%s %s: the file system has not answered for %g s", method, path, seconds);
}
