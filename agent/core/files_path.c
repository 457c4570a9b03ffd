#include "sandkeeper/core/files_path.h"

#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINKS_MAX 40  /* as the kernel's own limit, path_resolution(7) */
#define ATTEMPTS 1000 /* to look at a name that is replaced all the time */

char *files_path(const char *workdir, const char *bytes, size_t len, const char *name, struct error *err) {
  if (len == 0) {
    error_set(err, ERROR_INVALID, 0, "%s must not be empty", name);
    return NULL;
  }
  if (memchr(bytes, '\0', len)) {
    error_set(err, ERROR_INVALID, 0, "%s must not hold a NUL byte", name);
    return NULL;
  }
  size_t prefix = bytes[0] == '/' ? 0 : strlen(workdir) + 1;
  if (len >= PATH_MAX || prefix >= PATH_MAX - len) {
    error_set_errno(err, ENAMETOOLONG, "%s %.*s", name, len < PATH_MAX ? (int)len : PATH_MAX, bytes);
    return NULL;
  }
  char *path = malloc(prefix + len + 1);
  if (!path) {
    error_set_errno(err, ENOMEM, "%s", name);
    return NULL;
  }
  if (prefix > 0) {
    memcpy(path, workdir, prefix - 1);
    path[prefix - 1] = '/';
  }
  memcpy(path + prefix, bytes, len);
  path[prefix + len] = '\0';
  return path;
}

size_t files_path_split(const char *path, size_t *name, size_t *name_len) {
  size_t end = strlen(path);
  while (end > 0 && path[end - 1] == '/')
    end--;
  size_t start = end;
  while (start > 0 && path[start - 1] != '/')
    start--;
  *name = start;
  *name_len = end - start;
  size_t parent = start;
  while (parent > 1 && path[parent - 1] == '/')
    parent--;
  return parent;
}

char *files_path_parent(const char *path) {
  size_t name, name_len;
  size_t len = files_path_split(path, &name, &name_len);
  return len == 0 ? strdup(".") : strndup(path, len);
}

bool files_path_is_dots(const char *name, size_t len) {
  return (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.');
}

void files_target_free(struct files_target *target) {
  fd_close(&target->dir);
  free(target->dir_path);
  free(target->name);
  target->dir_path = NULL;
  target->name = NULL;
}

/* What a link's text means: a path of its own, or one beside the link. NULL without memory or when it is too long. */
static char *join_link(const char *dir_path, const char *text) {
  if (text[0] == '/')
    return strdup(text);
  size_t before = strlen(dir_path);
  size_t len = strlen(text);
  if (before + 1 + len >= PATH_MAX) {
    errno = ENAMETOOLONG;
    return NULL;
  }
  char *path = malloc(before + 1 + len + 1);
  if (path) {
    memcpy(path, dir_path, before);
    path[before] = '/';
    memcpy(path + before + 1, text, len + 1);
  }
  return path;
}

/* `asked` is the client's path, for messages. Opens the directory of `path` and looks at the last component, without
 * following it. */
static int look(const char *asked, const char *path, bool make_parents, struct files_target *target,
                struct error *err) {
  size_t at, len;
  files_path_split(path, &at, &len);
  /* "dir/" and "dir/.." can only be directories. */
  if (len == 0 || path[at + len] == '/' || files_path_is_dots(path + at, len))
    return error_set(err, ERROR_WRONG_TYPE, EISDIR, "cannot write %s: it is a directory's path, not a file's", asked);
  target->dir_path = files_path_parent(path);
  target->name = strndup(path + at, len);
  if (!target->dir_path || !target->name)
    return error_set_errno(err, ENOMEM, "cannot write %s", asked);
  target->dir = open(target->dir_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (target->dir < 0 && errno == ENOENT && make_parents) {
    if (files_mkdir(target->dir_path, NULL, err) < 0)
      return error_wrap(err, "cannot write %s", asked);
    target->dir = open(target->dir_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  }
  if (target->dir < 0)
    return error_set_errno(err, errno, "cannot write %s", asked);
  target->exists = fstatat(target->dir, target->name, &target->st, AT_SYMLINK_NOFOLLOW) == 0;
  if (!target->exists && errno != ENOENT)
    return error_set_errno(err, errno, "cannot write %s", asked);
  return 0;
}

/* One step: *path becomes what the link says. */
static int follow(const char *asked, char **path, const struct files_target *target, struct error *err) {
  char text[PATH_MAX];
  ssize_t len = readlinkat(target->dir, target->name, text, sizeof text - 1);
  if (len < 0)
    return error_set_errno(err, errno, "cannot write %s", asked);
  text[len] = '\0';
  char *next = join_link(target->dir_path, text);
  if (!next)
    return error_set_errno(err, errno, "cannot write %s", asked);
  free(*path);
  *path = next;
  return 0;
}

static int find(const char *path, bool make_parents, struct files_target *target, struct error *err) {
  cleanup_free char *current = strdup(path);
  if (!current)
    return error_set_errno(err, ENOMEM, "cannot write %s", path);
  for (int links = 0; links <= LINKS_MAX; links++) {
    *target = (struct files_target){.dir = -1};
    if (look(path, current, make_parents, target, err) < 0) {
      files_target_free(target);
      return -1;
    }
    if (!target->exists || !S_ISLNK(target->st.st_mode))
      return 0;
    int status = follow(path, &current, target, err);
    files_target_free(target);
    if (status < 0)
      return -1;
  }
  return error_set_errno(err, ELOOP, "cannot write %s", path);
}

/* What the kernel finds under a path. */
struct seen {
  bool exists;
  struct stat st;
};

static int see(const char *path, struct seen *seen, struct error *err) {
  seen->exists = stat(path, &seen->st) == 0;
  /* Links that the kernel does not follow (fs.protected_symlinks, a mount with nosymfollow) are not followed by hand.
   */
  if (!seen->exists && errno != ENOENT)
    return error_set_errno(err, errno, "cannot write %s", path);
  return 0;
}

static bool is_same(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

int files_target_find(const char *path, bool make_parents, struct files_target *target, struct error *err) {
  struct seen first, then;
  if (see(path, &first, err) < 0)
    return -1;
  for (int i = 0; i < ATTEMPTS; i++, first = then) {
    int status = find(path, make_parents && !first.exists, target, err);
    if (!first.exists || (status < 0 && err && err->kind == ERROR_INTERNAL))
      return status;
    if (status == 0 && target->exists && is_same(&target->st, &first.st))
      return 0;
    if (status == 0)
      files_target_free(target);
    /* Somebody may just have replaced it. */
    if (see(path, &then, err) < 0)
      return -1;
    if (!then.exists || !is_same(&first.st, &then.st))
      continue;
    /* Links in /proc are no texts: "pipe:[123]" and "/tmp/x (deleted)" lead nowhere by hand, but the kernel knows what
     * they are. When it comes to another file than the hand does, only the kernel's way may be used. */
    *target = (struct files_target){.dir = -1, .exists = true, .direct = true, .st = then.st};
    return 0;
  }
  return error_set(err, ERROR_BUSY, 0, "cannot write %s: other programs keep replacing it", path);
}
