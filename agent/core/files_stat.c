#include "sandkeeper/core/files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* As libmagic and the shared mime database call them. */
static const char *type_of_special(mode_t mode) {
  switch (mode & S_IFMT) {
  case S_IFDIR:
    return "inode/directory";
  case S_IFIFO:
    return "inode/fifo";
  case S_IFSOCK:
    return "inode/socket";
  case S_IFCHR:
    return "inode/chardevice";
  case S_IFBLK:
    return "inode/blockdevice";
  default:
    return "";
  }
}

/* A file that may not be read still has a size: no error. */
static void find_type(const char *path, struct files_info *info) {
  struct files_source source;
  struct image_type type;
  if (files_open(path, &source, NULL) < 0)
    return;
  if (files_type(&source, path, &type, NULL) == 0)
    memcpy(info->mime, type.mime, sizeof info->mime);
  files_close(&source);
}

int files_stat(const char *path, struct files_info *info, struct error *err) {
  *info = (struct files_info){.exists = false};
  struct stat own;
  if (lstat(path, &own) < 0) {
    /* Nothing can be below a file. */
    if (errno == ENOENT || errno == ENOTDIR)
      return 0;
    return error_set_errno(err, errno, "cannot stat %s", path);
  }
  info->is_symlink = S_ISLNK(own.st_mode);
  if (!info->is_symlink) {
    info->st = own;
  } else if (stat(path, &info->st) < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return 0;
    return error_set_errno(err, errno, "cannot stat %s", path);
  }
  info->exists = true;
  if (S_ISREG(info->st.st_mode))
    find_type(path, info);
  else
    snprintf(info->mime, sizeof info->mime, "%s", type_of_special(info->st.st_mode));
  return 0;
}
