#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_cancel.h"
#include "sandkeeper/core/files_keep.h"
#include "sandkeeper/core/files_path.h"
#include "sandkeeper/core/files_temp.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE 262144

static int fail(int number, const char *source, const char *destination, struct error *err) {
  if (number == EEXIST || number == ENOTEMPTY)
    return error_set(err, ERROR_EXISTS, number, "cannot move %s to %s: the destination exists", source, destination);
  return error_set_errno(err, number, "cannot move %s to %s", source, destination);
}

/* ---- between file systems ---- */

/* Where a path's last component stands. */
struct place {
  const char *path;
  char *dir_path, *name;
  int dir;
};

static void place_free(struct place *place) {
  fd_close(&place->dir);
  free(place->dir_path);
  free(place->name);
}

static int place_find(const char *path, struct place *place) {
  size_t at, len;
  files_path_split(path, &at, &len);
  *place = (struct place){.path = path, .dir = -1};
  if (len == 0 || path[at + len] == '/' || files_path_is_dots(path + at, len)) {
    errno = EISDIR;
    return -1;
  }
  place->dir_path = files_path_parent(path);
  place->name = strndup(path + at, len);
  if (!place->dir_path || !place->name) {
    errno = ENOMEM;
    return -1;
  }
  place->dir = open(place->dir_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  return place->dir < 0 ? -1 : 0;
}

/* Over an old file by way of a second name, so that one of the two is there at any moment. */
static int make_link(const char *text, const struct stat *st, const struct place *to, bool overwrite) {
  char other[FILES_TEMP_NAME_SIZE];
  const char *name = to->name;
  if (overwrite && files_temp_name(other) < 0)
    return -1;
  if (overwrite)
    name = other;
  if (symlinkat(text, to->dir, name) < 0)
    return -1;
  (void)!fchownat(to->dir, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW);
  if (!overwrite || renameat(to->dir, name, to->dir, to->name) == 0)
    return 0;
  int number = errno;
  unlinkat(to->dir, name, 0);
  errno = number;
  return -1;
}

static int move_link(const char *source, const struct stat *st, const struct place *to, bool overwrite,
                     struct error *err) {
  char text[PATH_MAX];
  ssize_t len = readlink(source, text, sizeof text - 1);
  if (len < 0)
    return fail(errno, source, to->path, err);
  text[len] = '\0';
  return make_link(text, st, to, overwrite) < 0 ? fail(errno, source, to->path, err) : 0;
}

static int copy(const struct files_source *source, const char *path, int fd, const char *destination,
                struct error *err) {
  cleanup_free char *piece = malloc(PIECE);
  if (!piece)
    return fail(ENOMEM, path, destination, err);
  for (uint64_t done = 0;;) {
    ssize_t got = files_read_at(source, path, done, piece, PIECE, err);
    if (got <= 0)
      return got < 0 ? -1 : 0;
    for (ssize_t put = 0; put < got;) {
      if (files_cancelled())
        return fail(errno, path, destination, err);
      ssize_t n = write(fd, piece + put, (size_t)(got - put));
      if (n < 0 && errno != EINTR)
        return fail(errno, path, destination, err);
      put += n > 0 ? n : 0;
    }
    done += (uint64_t)got;
    files_moved();
  }
}

/* Owner, attributes and times follow, as far as they may. */
static void keep(const struct files_source *source, int fd) {
  files_keep(fd, &source->st, source->fd, source->st.st_mode & 07777);
  struct timespec times[2] = {source->st.st_atim, source->st.st_mtim};
  (void)!futimens(fd, times);
}

/* The destination appears whole, at the end. As with a rename, nothing of an old one is kept, and its other names go on
 * showing the old content. */
static int move_file(const char *path, const struct place *to, bool overwrite, struct error *err) {
  struct files_source source;
  if (files_open(path, &source, err) < 0)
    return -1;
  struct files_temp temp;
  int status = files_temp_open(&temp, to->dir, to->dir_path, 0600);
  if (status < 0)
    fail(errno, path, to->path, err);
  if (status == 0)
    status = copy(&source, path, temp.fd, to->path, err);
  if (status == 0) {
    keep(&source, temp.fd);
    status = files_temp_flush(&temp);
    if (status == 0)
      status = files_temp_install(&temp, to->name, overwrite ? FILES_TEMP_FRESH : FILES_TEMP_NOTHING);
    if (status < 0)
      fail(errno, path, to->path, err);
  }
  files_temp_drop(&temp);
  files_close(&source);
  return status;
}

static int move_across(const char *source, const char *destination, bool overwrite, struct error *err) {
  struct stat st, there;
  if (lstat(source, &st) < 0)
    return fail(errno, source, destination, err);
  if (!overwrite && lstat(destination, &there) == 0)
    return fail(EEXIST, source, destination, err);
  if (S_ISDIR(st.st_mode))
    return error_set(
        err, ERROR_WRONG_TYPE, EXDEV,
        "cannot move %s to %s: the kernel does not rename this directory (another file system, or one that comes "
        "from the container's image); `mv` copies it",
        source, destination);
  struct place to;
  int status = place_find(destination, &to);
  if (status < 0)
    fail(errno, source, destination, err);
  else if (S_ISLNK(st.st_mode))
    status = move_link(source, &st, &to, overwrite, err);
  else
    status = move_file(source, &to, overwrite, err);
  place_free(&to);
  if (status == 0 && (files_cancelled() || unlink(source) < 0))
    return fail(errno, source, destination, err);
  return status;
}

/* ---- one file under both names ---- */

/* One entry of one directory, come to by two ways: "a/f" and "a/../a/f", or through a bind mount. */
static bool is_one_name(const char *a, const char *b) {
  struct place one = {.dir = -1}, two = {.dir = -1};
  struct stat st_one, st_two;
  bool same = place_find(a, &one) == 0 && place_find(b, &two) == 0 && strcmp(one.name, two.name) == 0 &&
              fstat(one.dir, &st_one) == 0 && fstat(two.dir, &st_two) == 0 && st_one.st_dev == st_two.st_dev &&
              st_one.st_ino == st_two.st_ino;
  place_free(&one);
  place_free(&two);
  return same;
}

/* rename(2) leaves two names of one file as they are, and calls it done; and the copy of a file over itself, when a
 * bind mount shows it a second time, would be removed with the source. *same: it was dealt with here. */
static int move_within(const char *source, const char *destination, bool *same, struct error *err) {
  struct stat from, to;
  *same = lstat(source, &from) == 0 && lstat(destination, &to) == 0 && !S_ISDIR(from.st_mode) &&
          from.st_dev == to.st_dev && from.st_ino == to.st_ino;
  if (!*same || is_one_name(source, destination))
    return 0;
  if (from.st_nlink < 2) /* the file is mounted over another one */
    return fail(EBUSY, source, destination, err);
  return unlink(source) < 0 ? fail(errno, source, destination, err) : 0;
}

int files_move(const char *source, const char *destination, bool overwrite, struct error *err) {
  if (files_cancelled())
    return fail(errno, source, destination, err);
  bool same = false;
  int status = overwrite ? move_within(source, destination, &same, err) : 0;
  if (same)
    return status;
  status = overwrite ? rename(source, destination) : files_rename_fresh(AT_FDCWD, source, AT_FDCWD, destination);
  if (status == 0)
    return 0;
  if (errno != EXDEV)
    return fail(errno, source, destination, err);
  return move_across(source, destination, overwrite, err);
}
