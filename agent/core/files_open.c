#include "sandkeeper/core/files_open.h"

#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Not O_NOATIME: it needs to be the owner. O_NONBLOCK is for the moment between the look and the open. */
#define READ_FLAGS (O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

enum file_system { LOCAL, REMOTE, KERNEL };

/* Local: the pages come from this machine's disk or memory. Kernel: the content is made when it is read, and st_size is
 * 0 or 4096. All others (NFS, FUSE, 9p, CIFS, ceph, and what nobody has heard of) may wait for a network or a program.
 * The numbers are those of linux/magic.h, which musl-gcc does not find; f2fs's and zfs's are their own. */
static enum file_system file_system_of(int fd) {
  struct statfs fs;
  if (fstatfs(fd, &fs) < 0)
    return REMOTE;
  switch ((unsigned long)fs.f_type) {
  case 0xef53:     /* ext2, ext3, ext4 */
  case 0x58465342: /* xfs */
  case 0x9123683e: /* btrfs */
  case 0xf2f52010: /* f2fs */
  case 0x2fc12fc1: /* zfs */
  case 0x794c7630: /* overlayfs: what lies below it is taken for local */
  case 0x01021994: /* tmpfs */
  case 0x858458f6: /* ramfs */
  case 0x73717368: /* squashfs */
  case 0xe0f5e1e2: /* erofs */
    return LOCAL;
  case 0x9fa0:     /* proc */
  case 0x62656572: /* sysfs */
  case 0x0027e0eb: /* cgroup */
  case 0x63677270: /* cgroup2 */
  case 0x64626720: /* debugfs */
  case 0x74726163: /* tracefs */
  case 0x73636673: /* securityfs */
    return KERNEL;
  default:
    return REMOTE;
  }
}

static int refuse_type(const char *path, mode_t mode, struct error *err) {
  const char *what = "no regular file";
  if (S_ISDIR(mode))
    return error_set(err, ERROR_WRONG_TYPE, EISDIR, "cannot read %s: it is a directory", path);
  if (S_ISFIFO(mode))
    what = "a FIFO";
  else if (S_ISSOCK(mode))
    what = "a socket";
  else if (S_ISCHR(mode) || S_ISBLK(mode))
    what = "a device";
  return error_set(err, ERROR_WRONG_TYPE, 0, "cannot read %s: it is %s", path, what);
}

int files_open(const char *path, struct files_source *source, struct error *err) {
  *source = (struct files_source){.fd = -1};
  /* O_PATH holds the inode without opening it: a FIFO's writer does not see a reader come and go, a tape does not wind.
   * Only a regular file is then opened, by way of its descriptor, so that it is the same one. */
  cleanup_close int held = open(path, O_PATH | O_CLOEXEC);
  if (held < 0 || fstat(held, &source->st) < 0)
    return error_set_errno(err, errno, "cannot read %s", path);
  if (!S_ISREG(source->st.st_mode))
    return refuse_type(path, source->st.st_mode, err);
  char by_descriptor[32];
  snprintf(by_descriptor, sizeof by_descriptor, "/proc/self/fd/%d", held);
  cleanup_close int fd = open(by_descriptor, READ_FLAGS);
  if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) /* no /proc in this container */
    fd = open(path, READ_FLAGS);
  if (fd < 0 || fstat(fd, &source->st) < 0)
    return error_set_errno(err, errno, "cannot read %s", path);
  if (!S_ISREG(source->st.st_mode))
    return refuse_type(path, source->st.st_mode, err);
  enum file_system kind = file_system_of(fd);
  source->local = kind == LOCAL;
  /* A FUSE server may stand in for /proc (lxcfs) and say 0 as well. */
  source->sized = kind == LOCAL || (kind == REMOTE && source->st.st_size > 0);
  source->fd = fd_steal(&fd);
  return 0;
}

void files_close(struct files_source *source) {
  fd_close(&source->fd);
}

ssize_t files_read_at(const struct files_source *source, const char *path, uint64_t offset, void *bytes, size_t len,
                      struct error *err) {
  size_t done = 0;
  if (offset > INT64_MAX)
    return 0;
  if (len > INT64_MAX - offset)
    len = (size_t)(INT64_MAX - offset);
  while (done < len) {
    ssize_t n = pread(source->fd, (char *)bytes + done, len - done, (off_t)(offset + done));
    if (n == 0)
      break;
    if (n > 0) {
      done += (size_t)n;
      continue;
    }
    if (errno == EINTR)
      continue;
    /* Files of /proc that wait for something to happen give what there is. */
    if (errno == EAGAIN && done > 0)
      break;
    return error_set_errno(err, errno, "cannot read %s", path);
  }
  return (ssize_t)done;
}

int files_type(const struct files_source *source, const char *path, struct image_type *type, struct error *err) {
  cleanup_free uint8_t *bytes = malloc(IMAGE_TYPE_LOOK);
  if (!bytes)
    return error_set_errno(err, ENOMEM, "cannot read %s", path);
  ssize_t len = files_read_at(source, path, 0, bytes, IMAGE_TYPE_LOOK, err);
  if (len < 0)
    return -1;
  return image_type_detect(bytes, (size_t)len, (size_t)len < IMAGE_TYPE_LOOK, type, err);
}

int files_read_whole(const struct files_source *source, const char *path, size_t max, uint8_t **bytes, size_t *len,
                     struct error *err) {
  /* One byte more than it should have, to see the end in one read. */
  uint64_t size = source->st.st_size > 0 ? (uint64_t)source->st.st_size : 4095;
  size_t room = size < max ? (size_t)size + 1 : max + 1;
  cleanup_free uint8_t *read = malloc(room);
  size_t done = 0;
  while (read) {
    ssize_t n = files_read_at(source, path, done, read + done, room - done, err);
    if (n < 0)
      return -1;
    done += (size_t)n;
    if (done < room) {
      *bytes = steal_pointer(&read);
      *len = done;
      return 0;
    }
    if (done > max)
      return 1;
    room = room < max / 2 ? room * 2 : max + 1;
    uint8_t *more = realloc(read, room);
    if (!more)
      break;
    read = more;
  }
  return error_set_errno(err, ENOMEM, "cannot read %s", path);
}
