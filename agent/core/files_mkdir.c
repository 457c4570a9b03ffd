#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_cancel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int make(const char *path) {
  return files_cancelled() ? -1 : mkdir(path, 0777);
}

static bool is_directory(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Cuts off the last component; false when none is left. */
static bool cut(char *path) {
  size_t len = strlen(path);
  while (len > 0 && path[len - 1] == '/')
    len--;
  while (len > 0 && path[len - 1] != '/')
    len--;
  while (len > 0 && path[len - 1] == '/')
    len--;
  path[len] = '\0';
  return len > 0;
}

/* Puts back what was cut off last, of a path of `full` bytes in all. */
static void extend(char *path, size_t full) {
  size_t len = strlen(path);
  if (len < full)
    path[len] = '/';
}

/* From the directory upwards until one can be made or is there, then down again. Directories that somebody else makes
 * at the same time are fine. */
static int make_parents(const char *path, char *part, struct error *err) {
  size_t full = strlen(path);
  int status = -1;
  errno = ENOENT;
  while (status < 0 && errno == ENOENT && cut(part))
    status = make(part);
  while (status == 0 || errno == EEXIST) {
    extend(part, full);
    if (strlen(part) == full)
      return 0;
    status = make(part);
  }
  return error_set_errno(err, errno, "cannot make the directory %s", path);
}

int files_mkdir(const char *path, const mode_t *mode, struct error *err) {
  int status = make(path);
  if (status < 0 && errno == ENOENT) {
    cleanup_free char *part = strdup(path);
    if (!part)
      return error_set_errno(err, ENOMEM, "cannot make the directory %s", path);
    if (make_parents(path, part, err) < 0)
      return -1;
    status = make(path);
  }
  if (status < 0 && errno == EEXIST)
    return is_directory(path) ? 0
                              : error_set(err, ERROR_EXISTS, EEXIST,
                                          "cannot make the directory %s: something else has that name", path);
  if (status < 0)
    return error_set_errno(err, errno, "cannot make the directory %s", path);
  if (mode && chmod(path, *mode) < 0)
    return error_set_errno(err, errno, "cannot change the mode of %s", path);
  return 0;
}
