#include "sandkeeper/core/files_place.h"

#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files_cancel.h"
#include "sandkeeper/core/files_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define STALL_MS 5000
#define PIECE 65536

int files_place_open(const char *path, const struct files_target *target, bool append, struct error *err) {
  if (files_cancelled())
    return error_set_errno(err, errno, "cannot write %s", path);
  int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (append ? O_APPEND : 0);
  int fd;
  if (target->direct)
    fd = open(path, flags);
  else
    fd = openat(target->dir, target->name, flags | O_NOFOLLOW | (target->exists ? 0 : O_CREAT), 0666);
  if (fd < 0 && errno == ENXIO && target->exists && S_ISFIFO(target->st.st_mode))
    return error_set(err, ERROR_IO, ENXIO, "cannot write %s: it is a FIFO and no process reads from it", path);
  if (fd < 0 && errno == ENXIO && target->exists && S_ISSOCK(target->st.st_mode))
    return error_set(err, ERROR_WRONG_TYPE, ENXIO, "cannot write %s: it is a socket", path);
  if (fd < 0)
    return error_set_errno(err, errno, "cannot write %s", path);
  return fd;
}

int files_place_stream(int fd, const char *path, const void *bytes, size_t len, struct error *err) {
  size_t done = 0;
  while (done < len) {
    if (files_cancelled())
      return error_set_errno(err, errno, "cannot write %s", path);
    ssize_t n = write(fd, (const char *)bytes + done, len - done);
    if (n >= 0) {
      done += (size_t)n;
      continue;
    }
    if (errno == EINTR)
      continue;
    if (errno != EAGAIN)
      return error_set_errno(err, errno, "cannot write %s (%zu of %zu bytes are written)", path, done, len);
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    if (poll(&waiting, 1, STALL_MS) == 0)
      return error_set(err, ERROR_TIMED_OUT, 0,
                       "cannot write %s: nothing is taken for %d s (%zu of %zu bytes are written)", path,
                       STALL_MS / 1000, done, len);
  }
  return 0;
}

/* For file systems that cannot reserve: is there room for what is more than before? */
static int check_room(int fd, uint64_t more) {
  struct statvfs fs;
  if (more == 0 || fstatvfs(fd, &fs) < 0 || fs.f_blocks == 0)
    return 0;
  uint64_t blocks = geteuid() == 0 ? fs.f_bfree : fs.f_bavail;
  if (blocks >= more / fs.f_frsize + 1)
    return 0;
  errno = ENOSPC;
  return -1;
}

/* Makes sure of the space for [start, start + len) without changing what is read. 0, or -1 with ENOSPC or EDQUOT. */
static int reserve(int fd, uint64_t size, uint64_t start, uint64_t len) {
  if (len == 0)
    return 0;
  int status;
  do
    status = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)len);
  while (status < 0 && errno == EINTR);
  if (status == 0)
    return 0;
  if (errno == ENOSPC || errno == EDQUOT) {
    int number = errno;
    (void)!ftruncate(fd, (off_t)size); /* gives back what was reserved behind the end */
    errno = number;
    return -1;
  }
  return check_room(fd, start + len > size ? start + len - size : 0);
}

/* Copies a part of a file to where `fd` stands. */
static int copy(int fd, const char *path, const struct files_bytes *content, struct error *err) {
  uint64_t len = content->fd_len;
  cleanup_free char *piece = malloc(PIECE);
  if (!piece)
    return error_set_errno(err, ENOMEM, "cannot write %s", path);
  for (uint64_t done = 0; done < len;) {
    size_t want = len - done < PIECE ? (size_t)(len - done) : PIECE;
    ssize_t n = pread(content->fd, piece, want, (off_t)(content->fd_start + done));
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return error_set_errno(err, n < 0 ? errno : EIO, "cannot write %s: the temporary file", path);
    if (files_place_stream(fd, path, piece, (size_t)n, err) < 0)
      return -1;
    files_moved();
    done += (uint64_t)n;
  }
  return 0;
}

static int put(int fd, const char *path, const struct files_bytes *content, struct error *err) {
  if (content->bytes || content->len > 0)
    return files_place_stream(fd, path, content->bytes, content->len, err);
  return copy(fd, path, content, err);
}

static int write_regular(int fd, const char *path, const struct files_bytes *content, const struct files_write_how *how,
                         struct error *err) {
  struct stat st;
  if (fstat(fd, &st) < 0)
    return error_set_errno(err, errno, "cannot write %s", path);
  if (files_cancelled())
    return error_set_errno(err, errno, "cannot write %s", path);
  uint64_t size = (uint64_t)st.st_size;
  uint64_t len = content->bytes ? content->len : content->fd_len;
  uint64_t start = how->append ? size : how->at_offset ? how->offset : 0;
  if (len > INT64_MAX || start > INT64_MAX - len)
    return error_set_errno(err, EFBIG, "cannot write %s", path);
  if (how->has_mode && fchmod(fd, how->mode) < 0)
    return error_set_errno(err, errno, "cannot change the mode of %s", path);
  if (reserve(fd, size, start, len) < 0)
    return error_set_errno(err, errno, "cannot write %s", path);
  if (how->at_offset && lseek(fd, (off_t)start, SEEK_SET) < 0)
    return error_set_errno(err, errno, "cannot write %s", path);
  if (put(fd, path, content, err) < 0) {
    /* What was written behind the end goes again. Not when appending: other programs may have appended meanwhile. */
    if (!how->append && start + len > size)
      (void)!ftruncate(fd, (off_t)size);
    return -1;
  }
  bool whole = !how->append && !how->at_offset;
  if (whole && size > len && ftruncate(fd, (off_t)len) < 0 && errno != EINVAL && errno != EPERM)
    return error_set_errno(err, errno, "cannot cut %s", path);
  /* Once more: each write has taken the set-ID bits away, unless this is root. */
  if (how->has_mode && (how->mode & (S_ISUID | S_ISGID)) != 0 && fchmod(fd, how->mode) < 0)
    return error_set_errno(err, errno, "cannot change the mode of %s", path);
  return 0;
}

/* Whoever waited for the lock may hold a file that an edit has replaced: what is added to that is lost. */
static bool is_replaced(const struct files_target *target, const struct stat *st) {
  struct stat now;
  if (target->direct)
    return false;
  return fstatat(target->dir, target->name, &now, AT_SYMLINK_NOFOLLOW) < 0 || now.st_dev != st->st_dev ||
         now.st_ino != st->st_ino;
}

int files_place_write(int fd, const char *path, const struct files_target *target, const struct files_bytes *content,
                      const struct files_write_how *how, bool locked, struct error *err) {
  struct stat st;
  if (fstat(fd, &st) < 0)
    return error_set_errno(err, errno, "cannot write %s", path);
  if (S_ISDIR(st.st_mode))
    return error_set_errno(err, EISDIR, "cannot write %s", path);
  if (!S_ISREG(st.st_mode))
    return put(fd, path, content, err);
  if (!locked && files_lock(st.st_dev, st.st_ino) < 0)
    return error_set(err, ERROR_BUSY, errno, "cannot write %s: another write to it has not ended", path);
  int status = 1;
  if (!(how->append || how->at_offset) || !is_replaced(target, &st))
    status = write_regular(fd, path, content, how, err);
  if (!locked)
    files_unlock(st.st_dev, st.st_ino);
  if (status == 0 && how->sync && fsync(fd) < 0)
    status = error_set_errno(err, errno, "cannot sync %s", path);
  return status;
}
