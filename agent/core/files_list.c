#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_cancel.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The names of a directory, one behind the other with their NULs. In one large block, so that its memory goes back to
 * the system at the end, however many there were. */
struct names {
  char *bytes;
  size_t len, room;
  size_t n;
};

static int add_name(struct names *names, const char *name, const char *path, struct error *err) {
  size_t len = strlen(name) + 1;
  if (len > names->room - names->len) {
    size_t room = names->room ? names->room * 2 : 16384;
    if (room > FILES_LIST_MAX) {
      if (err)
        err->limit = FILES_LIST_MAX;
      return error_set(err, ERROR_TOO_LARGE, 0, "cannot list %s: more than %u bytes of names", path, FILES_LIST_MAX);
    }
    char *more = realloc(names->bytes, room);
    if (!more)
      return error_set_errno(err, ENOMEM, "cannot list %s", path);
    names->bytes = more;
    names->room = room;
  }
  memcpy(names->bytes + names->len, name, len);
  names->len += len;
  names->n++;
  return 0;
}

static int read_names(DIR *stream, const char *path, const char *after, struct names *names, struct error *err) {
  struct dirent *entry;
  while ((void)(errno = 0), (entry = readdir(stream))) {
    const char *name = entry->d_name;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || (after && strcmp(name, after) <= 0))
      continue;
    if (add_name(names, name, path, err) < 0)
      return -1;
  }
  return errno == 0 ? 0 : error_set_errno(err, errno, "cannot list %s", path);
}

static int compare(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static const char **sort_names(const struct names *names) {
  const char **sorted = calloc(names->n + 1, sizeof *sorted);
  if (!sorted)
    return NULL;
  const char *name = names->bytes;
  for (size_t i = 0; i < names->n; i++) {
    sorted[i] = name;
    name += strlen(name) + 1;
  }
  qsort(sorted, names->n, sizeof *sorted, compare);
  return sorted;
}

/* False for one that is gone meanwhile. What cannot be looked at is told as far as it can. */
static bool look(int dir, const char *name, struct files_entry *entry) {
  struct stat st;
  *entry = (struct files_entry){.name = name, .modified = FILES_TIME_UNKNOWN};
  if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
    return errno != ENOENT;
  entry->is_symlink = S_ISLNK(st.st_mode);
  struct stat target;
  if (entry->is_symlink && fstatat(dir, name, &target, AT_NO_AUTOMOUNT) == 0)
    st = target;
  entry->size = (uint64_t)st.st_size;
  entry->modified = files_modified(&st);
  entry->mode = st.st_mode;
  entry->is_dir = S_ISDIR(st.st_mode);
  return true;
}

static int fill(int dir, const char *path, const struct names *names, size_t limit, struct files_list *list,
                struct error *err) {
  cleanup_free const char **sorted = sort_names(names);
  size_t wanted = names->n < limit ? names->n : limit;
  list->entries = calloc(wanted + 1, sizeof *list->entries);
  if (!sorted || !list->entries)
    return error_set_errno(err, ENOMEM, "cannot list %s", path);
  size_t i = 0;
  for (; i < names->n && list->n < wanted; i++) {
    if (look(dir, sorted[i], &list->entries[list->n]))
      list->n++;
    files_moved();
  }
  list->more = i < names->n;
  return 0;
}

int files_list(const char *path, const char *after, size_t limit, struct files_list *list, struct error *err) {
  *list = (struct files_list){.n = 0};
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
  DIR *stream = fd < 0 ? NULL : fdopendir(fd);
  if (!stream) {
    error_set_errno(err, errno, "cannot list %s", path);
    fd_close(&fd);
    return -1;
  }
  struct names names = {.bytes = NULL};
  int status = read_names(stream, path, after, &names, err);
  list->names = names.bytes;
  if (status == 0)
    status = fill(dirfd(stream), path, &names, limit, list, err);
  closedir(stream);
  if (status < 0)
    files_list_free(list);
  return status;
}

void files_list_free(struct files_list *list) {
  free(list->entries);
  free(list->names);
  *list = (struct files_list){.n = 0};
}
