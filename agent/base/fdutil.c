#include "sandkeeper/base/fdutil.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436 /* the same number on every architecture */
#endif
#define CLOSE_RANGE_CLOEXEC_FLAG 4u /* linux/close_range.h, which older headers lack */

/* Without /proc and without close_range there is nothing left but to try; an inherited descriptor above this is not
 * something a starter leaves open by accident. */
#define LAST_RESORT_FDS 4096

void fd_close(int *fd) {
  if (*fd < 0)
    return;
  int saved = errno;
  close(*fd); /* Linux has released it also when close reports EINTR or EIO: never again */
  *fd = -1;
  errno = saved;
}

void fd_cleanup(int *fd) {
  fd_close(fd);
}

void pointer_cleanup(void *pointer) {
  void *owned;
  memcpy(&owned, pointer, sizeof owned); /* the variable may be any kind of pointer */
  int saved = errno;
  free(owned);
  errno = saved;
}

int fd_set_nonblock(int fd) {
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0)
    return -1;
  if ((flags & O_NONBLOCK) != 0)
    return 0;
  return fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

int fd_write_all(int fd, const void *bytes, size_t len) {
  const char *at = bytes;
  while (len > 0) {
    ssize_t n = write(fd, at, len);
    if (n < 0) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    at += n;
    len -= (size_t)n;
  }
  return 0;
}

ssize_t fd_read_all(int fd, void *bytes, size_t len) {
  char *at = bytes;
  size_t done = 0;
  while (done < len) {
    ssize_t n = read(fd, at + done, len - done);
    if (n < 0) {
      if (errno == EINTR)
        continue;
      return -1;
    }
    if (n == 0)
      break;
    done += (size_t)n;
  }
  return (ssize_t)done;
}

ssize_t fd_read_file(const char *path, char *out, size_t max) {
  if (max == 0) {
    errno = EFBIG;
    return -1;
  }
  out[0] = '\0';
  cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0)
    return -1;
  ssize_t n = fd_read_all(fd, out, max);
  if (n >= 0 && (size_t)n == max) {
    n = -1;
    errno = EFBIG;
  }
  out[n < 0 ? 0 : n] = '\0';
  return n;
}

static void mark(int fd) {
  int flags = fcntl(fd, F_GETFD);
  if (flags >= 0 && (flags & FD_CLOEXEC) == 0)
    fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
}

void fd_cloexec_from(int lowest) {
  if (lowest < 0)
    lowest = 0;
  if (syscall(SYS_close_range, (unsigned)lowest, ~0u, CLOSE_RANGE_CLOEXEC_FLAG) == 0)
    return;

  DIR *dir = opendir("/proc/self/fd");
  if (dir == NULL) {
    for (int fd = lowest; fd < LAST_RESORT_FDS; fd++)
      mark(fd);
    return;
  }
  struct dirent *entry;
  while ((entry = readdir(dir)) != NULL) {
    char *end;
    long fd = strtol(entry->d_name, &end, 10);
    if (end != entry->d_name && *end == '\0' && fd >= lowest)
      mark((int)fd);
  }
  closedir(dir);
}
