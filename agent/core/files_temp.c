#include "sandkeeper/core/files_temp.h"

#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files_cancel.h"
#include "sandkeeper/core/files_leftovers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NOREPLACE 1 /* RENAME_NOREPLACE, linux/fs.h; musl has no renameat2 */

int files_temp_name(char name[FILES_TEMP_NAME_SIZE]) {
  uint8_t random[16];
  ssize_t n;
  do
    n = getrandom(random, sizeof random, 0);
  while (n < 0 && errno == EINTR);
  if (n != (ssize_t)sizeof random)
    return -1;
  char *out = name + sprintf(name, "%s", FILES_TEMP_PREFIX);
  for (size_t i = 0; i < sizeof random; i++)
    out += sprintf(out, "%02x", random[i]);
  return 0;
}

/* linkat needs /proc for a file without a name, unless the process has CAP_DAC_READ_SEARCH. */
static bool can_link_anonymous(void) {
  return access("/proc/self/fd", X_OK) == 0;
}

static int link_anonymous(int fd, int dir, const char *name) {
  char by_descriptor[32];
  snprintf(by_descriptor, sizeof by_descriptor, "/proc/self/fd/%d", fd);
  return linkat(AT_FDCWD, by_descriptor, dir, name, AT_SYMLINK_FOLLOW);
}

static void forget(struct files_temp *temp) {
  files_leftovers_forget(temp->leftover);
  temp->leftover = -1;
}

/* Chooses a name and notes it, before it exists. */
static int announce(struct files_temp *temp) {
  if (files_temp_name(temp->name) < 0)
    return -1;
  temp->leftover = files_leftovers_note(temp->dir_path, temp->name);
  return 0;
}

int files_temp_open(struct files_temp *temp, int dir, const char *dir_path, mode_t mode) {
  *temp = (struct files_temp){.fd = -1, .dir = dir, .dir_path = dir_path, .leftover = -1};
  if (can_link_anonymous()) {
    temp->fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
    if (temp->fd >= 0)
      return 0;
    /* EISDIR and ENOENT: a kernel or a file system that takes it for an ordinary open; EINVAL: FUSE servers. */
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL && errno != ENOSYS)
      return -1;
  }
  if (announce(temp) < 0)
    return -1;
  temp->fd = openat(dir, temp->name, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, mode);
  if (temp->fd < 0) {
    int number = errno;
    forget(temp);
    errno = number;
    return -1;
  }
  temp->named = true;
  return 0;
}

static int open_unlinked(int dir, const char *dir_path) {
  int fd = openat(dir, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0)
    return fd;
  struct files_temp temp;
  if (files_temp_open(&temp, dir, dir_path, 0600) < 0)
    return -1;
  fd = fd_steal(&temp.fd);
  files_temp_drop(&temp);
  return fd;
}

int files_temp_open_anonymous(struct files_temp *temp, int dir) {
  static const char *const elsewhere[] = {"/var/tmp", "/tmp", "/dev/shm"};
  *temp = (struct files_temp){.fd = -1, .dir = -1, .leftover = -1};
  if (dir >= 0)
    temp->fd = openat(dir, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  for (size_t i = 0; temp->fd < 0 && i < sizeof elsewhere / sizeof *elsewhere; i++) {
    cleanup_close int other = open(elsewhere[i], O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (other >= 0)
      temp->fd = open_unlinked(other, elsewhere[i]);
  }
  return temp->fd < 0 ? -1 : 0;
}

int files_temp_flush(const struct files_temp *temp) {
  int twin = fcntl(temp->fd, F_DUPFD_CLOEXEC, 0);
  if (twin < 0)
    return -1;
  return close(twin) < 0 && errno != EINTR ? -1 : 0;
}

int files_rename_fresh(int from_dir, const char *from, int to_dir, const char *to) {
  if (syscall(SYS_renameat2, from_dir, from, to_dir, to, NOREPLACE) == 0)
    return 0;
  if (errno != EINVAL && errno != ENOSYS)
    return -1;
  /* A file system that cannot promise it: look first. */
  struct stat st;
  if (fstatat(to_dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0) {
    errno = EEXIST;
    return -1;
  }
  return renameat(from_dir, from, to_dir, to);
}

/* Renames the file's own name to the target's. */
static int replace(struct files_temp *temp, const char *name, enum files_temp_over over) {
  if (files_cancelled())
    return -1;
  int status = over == FILES_TEMP_NOTHING ? files_rename_fresh(temp->dir, temp->name, temp->dir, name)
                                          : renameat(temp->dir, temp->name, temp->dir, name);
  if (status < 0)
    return -1;
  temp->named = false;
  forget(temp);
  return 0;
}

int files_temp_install(struct files_temp *temp, const char *name, enum files_temp_over over) {
  if (files_cancelled())
    return -1;
  if (temp->named)
    return replace(temp, name, over);
  if (over != FILES_TEMP_OLD) {
    if (link_anonymous(temp->fd, temp->dir, name) == 0)
      return 0;
    if (errno != EEXIST || over == FILES_TEMP_NOTHING)
      return -1;
  }
  if (announce(temp) < 0)
    return -1;
  int status = link_anonymous(temp->fd, temp->dir, temp->name);
  if (status == 0) {
    temp->named = true;
    status = replace(temp, name, over);
  }
  if (status < 0) {
    int number = errno;
    if (temp->named)
      unlinkat(temp->dir, temp->name, 0);
    temp->named = false;
    forget(temp);
    errno = number;
  }
  return status;
}

void files_temp_unname(struct files_temp *temp) {
  if (temp->named)
    unlinkat(temp->dir, temp->name, 0);
  temp->named = false;
  temp->dir = -1;
  forget(temp);
}

void files_temp_drop(struct files_temp *temp) {
  /* Closed first: NFS and FUSE keep a removed file under another name as long as it is open. */
  fd_close(&temp->fd);
  files_temp_unname(temp);
}
