#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_cancel.h"
#include "sandkeeper/core/files_path.h"
#include "sandkeeper/core/files_temp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Levels that are open at once. What lies deeper is moved up to the top first (it is about to go anyway), so that a
 * tree of any depth needs neither many descriptors nor much stack. */
#define DEPTH_MAX 48

/* overlayfs does not move a directory of a lower layer, which is what an image's are in a container (EXDEV). Then it is
 * gone into all the same, this deep at most: two descriptors and some hundred bytes of stack for each level. */
#define DEPTH_MOST 512

struct removal {
  const char *path; /* what the client wants gone, for messages */
  int top;          /* its directory */
};

static int fail(const struct removal *removal, const char *name, struct error *err) {
  return error_set_errno(err, errno, "cannot remove %s: in it, %s", removal->path, name);
}

/* Takes a directory that lies too deep to the top, under a name of its own. */
static int lift(const struct removal *removal, int dir, const char *name) {
  char lifted[FILES_TEMP_NAME_SIZE];
  if (files_temp_name(lifted) < 0)
    return -1;
  return renameat(dir, name, removal->top, lifted);
}

static int empty(const struct removal *removal, int dir, int depth, struct error *err);

static int remove_entry(const struct removal *removal, int dir, const char *name, int depth, struct error *err) {
  if (files_cancelled())
    return fail(removal, name, err);
  files_moved();
  if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
    return 0;
  /* Linux says EISDIR; POSIX and some file systems say EPERM, as they do for what may not be removed. */
  if (errno != EISDIR && errno != EPERM)
    return fail(removal, name, err);
  int number = errno;
  cleanup_close int inside = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (inside < 0) {
    if (errno == ENOTDIR)
      errno = number;
    return fail(removal, name, err);
  }
  if (depth >= DEPTH_MAX && lift(removal, dir, name) == 0)
    return 0;
  if (depth >= DEPTH_MAX && (errno != EXDEV || depth >= DEPTH_MOST))
    return fail(removal, name, err);
  if (empty(removal, inside, depth + 1, err) < 0)
    return -1;
  if (unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
    return 0;
  return fail(removal, name, err);
}

/* Removes what is in an open directory, once through. */
static int empty(const struct removal *removal, int dir, int depth, struct error *err) {
  int scanned = fcntl(dir, F_DUPFD_CLOEXEC, 0);
  DIR *stream = scanned < 0 ? NULL : fdopendir(scanned);
  if (!stream) {
    fd_close(&scanned);
    return fail(removal, "a directory", err);
  }
  rewinddir(stream);
  int status = 0;
  struct dirent *entry;
  while (status == 0 && (entry = readdir(stream)))
    if (!files_path_is_dots(entry->d_name, strlen(entry->d_name)))
      status = remove_entry(removal, dir, entry->d_name, depth, err);
  closedir(stream);
  return status;
}

static int remove_tree(const char *path, struct error *err) {
  cleanup_close int top = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (top < 0)
    return error_set_errno(err, errno, "cannot remove %s", path);
  struct removal removal = {path, top};
  /* Again while there is something: what was lifted up, or what a running program puts there meanwhile. */
  for (int pass = 0; pass < 100000; pass++) {
    if (empty(&removal, top, 0, err) < 0)
      return -1;
    if (rmdir(path) == 0 || errno == ENOENT)
      return 0;
    if (errno != ENOTEMPTY && errno != EEXIST)
      break;
  }
  return error_set_errno(err, errno, "cannot remove %s", path);
}

static int refuse(const char *path, struct error *err) {
  size_t at, len;
  files_path_split(path, &at, &len);
  if (len == 0)
    return error_set(err, ERROR_INVALID, 0, "path: the root directory is not removed");
  if (files_path_is_dots(path + at, len))
    return error_set(err, ERROR_INVALID, 0, "path must not end in . or ..: %s", path);
  return 0;
}

int files_remove(const char *path, bool recursive, struct error *err) {
  if (refuse(path, err) < 0)
    return -1;
  if (files_cancelled())
    return error_set_errno(err, errno, "cannot remove %s", path);
  if (unlink(path) == 0)
    return 0;
  int number = errno;
  struct stat st;
  if ((number != EISDIR && number != EPERM) || lstat(path, &st) < 0 || !S_ISDIR(st.st_mode))
    return error_set_errno(err, number, "cannot remove %s", path);
  if (rmdir(path) == 0)
    return 0;
  if (errno != ENOTEMPTY && errno != EEXIST)
    return error_set_errno(err, errno, "cannot remove %s", path);
  if (!recursive)
    return error_set(err, ERROR_WRONG_TYPE, ENOTEMPTY,
                     "cannot remove %s: the directory is not empty; recursive is needed", path);
  return remove_tree(path, err);
}
