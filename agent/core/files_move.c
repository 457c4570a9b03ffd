#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_cancel.h"
#include "sandkeeper/core/files_keep.h"
#include "sandkeeper/core/files_temp.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PIECE 262144

static int fail(int number, const char *source, const char *destination, struct error *err) {
  if (number == EEXIST || number == ENOTEMPTY)
    return error_set(err, ERROR_EXISTS, number, "cannot move %s to %s: the destination exists", source, destination);
  return error_set_errno(err, number, "cannot move %s to %s", source, destination);
}

static int copy_link(const char *source, const char *destination, struct error *err) {
  char text[PATH_MAX];
  ssize_t len = readlink(source, text, sizeof text - 1);
  if (len < 0)
    return fail(errno, source, destination, err);
  text[len] = '\0';
  if (symlink(text, destination) < 0)
    return fail(errno, source, destination, err);
  return 0;
}

/* The destination appears whole, at the end. */
static int copy_file(const char *path, const struct files_source *source, const char *destination, struct error *err) {
  struct files_write_how how = {.has_mode = true, .mode = source->st.st_mode & 07777};
  struct files_upload *upload = files_upload_begin(destination, &how, err);
  cleanup_free char *piece = malloc(PIECE);
  int status = upload ? 0 : -1;
  if (upload && !piece)
    status = error_set_errno(err, ENOMEM, "cannot move %s", path);
  uint64_t done = 0;
  ssize_t n = 1;
  while (status == 0 && n > 0) {
    n = files_read_at(source, path, done, piece, PIECE, err);
    status = n < 0 ? -1 : files_upload_bytes(upload, piece, (size_t)n, err);
    done += n > 0 ? (uint64_t)n : 0;
  }
  struct files_written written;
  if (status == 0)
    status = files_upload_commit(upload, &written, err);
  files_upload_free(upload);
  return status;
}

/* Owner, attributes and times follow, as far as they may. */
static void keep(const struct files_source *source, const char *destination) {
  cleanup_close int fd = open(destination, O_WRONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0)
    return;
  files_keep(fd, &source->st, source->fd, source->st.st_mode & 07777);
  struct timespec times[2] = {source->st.st_atim, source->st.st_mtim};
  (void)!futimens(fd, times);
}

static int move_file(const char *source, const char *destination, struct error *err) {
  struct files_source from;
  if (files_open(source, &from, err) < 0)
    return -1;
  int status = copy_file(source, &from, destination, err);
  if (status == 0)
    keep(&from, destination);
  files_close(&from);
  return status;
}

static int move_across(const char *source, const char *destination, bool overwrite, struct error *err) {
  struct stat st, there;
  if (lstat(source, &st) < 0)
    return fail(errno, source, destination, err);
  bool exists = lstat(destination, &there) == 0;
  if (exists && !overwrite)
    return fail(EEXIST, source, destination, err);
  if (S_ISDIR(st.st_mode))
    return error_set(err, ERROR_WRONG_TYPE, EXDEV,
                     "cannot move %s to %s: a directory does not move to another file system", source, destination);
  /* A rename would replace a link, not write to its target. */
  if (exists && (!S_ISREG(there.st_mode) || S_ISLNK(st.st_mode)) && unlink(destination) < 0)
    return fail(errno, source, destination, err);
  int status = S_ISLNK(st.st_mode) ? copy_link(source, destination, err) : move_file(source, destination, err);
  if (status == 0 && (files_cancelled() || unlink(source) < 0))
    return fail(errno, source, destination, err);
  return status;
}

int files_move(const char *source, const char *destination, bool overwrite, struct error *err) {
  if (files_cancelled())
    return fail(errno, source, destination, err);
  int status = overwrite ? rename(source, destination) : files_rename_fresh(AT_FDCWD, source, AT_FDCWD, destination);
  if (status == 0)
    return 0;
  if (errno != EXDEV)
    return fail(errno, source, destination, err);
  return move_across(source, destination, overwrite, err);
}
