/* files_path.h - where a write really goes: links followed by hand, up to the directory and the name that a rename
 * needs. A temporary file must lie beside the link's target, not beside the link. Part of core/files.h's work. */
#ifndef SANDKEEPER_CORE_FILES_PATH_H
#define SANDKEEPER_CORE_FILES_PATH_H

#include "sandkeeper/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

struct files_target {
  int dir;        /* O_PATH descriptor of the directory; -1 when `direct` */
  char *dir_path; /* a path that led there; NULL when `direct` */
  char *name;     /* in that directory; NULL when `direct` */
  bool exists;
  bool direct;    /* no name leads to it (/dev/stdout, /proc/PID/fd/N): only the path given does, and only by open */
  struct stat st; /* of what exists: never a link */
};

/* Follows `path` as far as the kernel does, makes missing parents if asked, and fills *target, which owns what is in
 * it: files_target_free() after a success. Anything may exist there, see st; only a path that ends in a slash, "." or
 * ".." is ERROR_WRONG_TYPE.
 */
int files_target_find(const char *path, bool make_parents, struct files_target *target, struct error *err);
void files_target_free(struct files_target *target);

/* Where the last component stands, slashes behind it left out (*name_len is 0 for "/"). Returns the length of the part
 * before it without the slashes between: 0 when there is none, 1 for the root. */
size_t files_path_split(const char *path, size_t *name, size_t *name_len);

/* The part before the last component, "." when there is none. The caller frees it. NULL without memory. */
char *files_path_parent(const char *path);

/* "." or "..". */
bool files_path_is_dots(const char *name, size_t len);

#endif
