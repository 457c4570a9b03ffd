#include "sandkeeper/core/files_keep.h"

#include "sandkeeper/base/fdutil.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#define ACL_NAME "system.posix_acl_access" /* acl(5); as an attribute it can be copied without libacl */
#define VALUE_MAX 65536                    /* XATTR_SIZE_MAX and XATTR_LIST_MAX, linux/limits.h */

/* Not kept, since the kernel takes them away too when a file is written: they vouch for the old content. */
static bool is_kept(const char *name) {
  return strcmp(name, "security.capability") != 0 && strcmp(name, "security.ima") != 0 &&
         strcmp(name, "security.evm") != 0;
}

static void copy_attribute(int from, int to, const char *name, char *value) {
  ssize_t len = fgetxattr(from, name, value, VALUE_MAX);
  if (len >= 0)
    (void)!fsetxattr(to, name, value, (size_t)len, 0);
}

static void copy_attributes(int from, int to) {
  cleanup_free char *names = NULL;
  ssize_t len = flistxattr(from, NULL, 0);
  if (len > 0)
    names = malloc((size_t)len + VALUE_MAX);
  if (names) {
    char *value = names + len;
    len = flistxattr(from, names, (size_t)len);
    for (ssize_t at = 0; at < len; at += (ssize_t)strlen(names + at) + 1)
      if (is_kept(names + at))
        copy_attribute(from, to, names + at, value);
  }
}

void files_keep(int fd, const struct stat *old, int old_fd, mode_t mode) {
  struct stat now;
  if (fstat(fd, &now) < 0)
    return;
  bool group_kept = now.st_gid == old->st_gid || fchown(fd, (uid_t)-1, old->st_gid) == 0;
  if (!group_kept)
    mode = (mode & (mode_t) ~(S_ISGID | S_IRWXG)) | (mode & S_IRWXO) << 3;
  /* The directory's default ACL may have given the new file one that the old file does not have. */
  (void)!fremovexattr(fd, ACL_NAME);
  if (old_fd >= 0)
    copy_attributes(old_fd, fd);
  /* As long as the file is ours: once it is another user's, root needs CAP_FOWNER for this, which a container may lack.
   * With an ACL the mode's group bits are the mask, here as there. */
  (void)!fchmod(fd, mode & 01777);
  bool owner_kept = now.st_uid == old->st_uid || fchown(fd, old->st_uid, (gid_t)-1) == 0;
  if (!owner_kept)
    mode &= (mode_t)~S_ISUID;
  /* Again: a change of owner clears the set-ID bits. */
  (void)!fchmod(fd, mode & 07777);
}
