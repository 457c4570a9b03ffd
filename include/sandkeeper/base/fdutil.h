/* fdutil.h - file descriptors and owned pointers. An empty descriptor is -1, an empty pointer NULL; the cleanup
 * attributes close or free at the end of the scope, and a value is handed on with fd_steal() or steal_pointer(). */
#ifndef SANDKEEPER_BASE_FDUTIL_H
#define SANDKEEPER_BASE_FDUTIL_H

#include <stddef.h>
#include <sys/types.h>

#define cleanup_close __attribute__((cleanup(fd_cleanup)))
#define cleanup_free __attribute__((cleanup(pointer_cleanup)))

void fd_close(int *fd); /* closes if >= 0, sets -1; errno kept */
void fd_cleanup(int *fd);
void pointer_cleanup(void *pointer); /* a `char **` or the like; frees, errno kept */

static inline int fd_steal(int *fd) {
  int value = *fd;
  *fd = -1;
  return value;
}

#define steal_pointer(p)            \
  __extension__({                   \
    __typeof__(*(p)) value_ = *(p); \
    *(p) = NULL;                    \
    value_;                         \
  })

int fd_set_nonblock(int fd); /* 0, or -1 with errno */

/* Whole-buffer read and write on a blocking descriptor, EINTR retried. write: 0 or -1 with errno. read: the bytes
 * read (less than len only at the end), or -1 with errno. */
int fd_write_all(int fd, const void *bytes, size_t len);
ssize_t fd_read_all(int fd, void *bytes, size_t len);

/* Reads a small file (of /proc, /sys or /etc) to its end, at most `max` - 1 bytes, and ends it with NUL.
 * Returns the bytes, or -1 with errno; EFBIG when it is longer. */
ssize_t fd_read_file(const char *path, char *out, size_t max);

/* Marks every open descriptor from `lowest` up close-on-exec (close_range(2), or /proc/self/fd before 5.11). */
void fd_cloexec_from(int lowest);

#endif
