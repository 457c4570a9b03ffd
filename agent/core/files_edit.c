#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_lock.h"
#include "sandkeeper/core/files_open.h"
#include "sandkeeper/core/files_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Each failed attempt means that somebody else's change went through. Eight of our own at once, each with many edits of
 * one file, pass this only when luck never comes: with 16 it happened. */
#define ATTEMPTS 1000

struct text {
  const char *bytes;
  size_t len;
};

struct edit {
  const char *path;
  struct text old_text, new_text;
  bool replace_all;
};

static const char *find(struct text in, struct text what) {
  return memmem(in.bytes, in.len, what.bytes, what.len);
}

static uint64_t count_lines(const char *from, const char *to) {
  uint64_t lines = 0;
  while (from < to && (from = memchr(from, '\n', (size_t)(to - from)))) {
    lines++;
    from++;
  }
  return lines;
}

/* Where old_text stands. */
struct places {
  uint64_t count;
  uint32_t n_lines;
  uint64_t lines[ERROR_LINES_MAX]; /* of the first ones */
};

static void add_place(struct places *places, uint64_t line) {
  if (places->n_lines < ERROR_LINES_MAX)
    places->lines[places->n_lines++] = line;
  places->count++;
}

/* Those that do not overlap. */
static void find_places(struct text in, struct text what, struct places *places) {
  *places = (struct places){.count = 0};
  uint64_t line = 1;
  const char *counted = in.bytes;
  const char *end = in.bytes + in.len;
  struct text rest = in;
  const char *at;
  while ((at = find(rest, what))) {
    if (places->n_lines < ERROR_LINES_MAX) {
      line += count_lines(counted, at);
      counted = at;
    }
    add_place(places, line);
    rest.bytes = at + what.len;
    rest.len = (size_t)(end - rest.bytes);
  }
}

/* "aa" stands in "aaa" once without an overlap, but it is not clear where: then a second place is added. */
static void find_overlap(struct text in, struct text what, struct places *places) {
  const char *first = find(in, what);
  size_t len = (size_t)(in.bytes + in.len - first) - 1;
  if (len > 2 * what.len - 2)
    len = 2 * what.len - 2;
  const char *second = find((struct text){first + 1, len}, what);
  if (second)
    add_place(places, places->lines[0] + count_lines(first, second));
}

static int conflict(const char *path, const struct places *places, struct error *err) {
  if (places->count == 0)
    error_set(err, ERROR_EDIT_CONFLICT, 0, "cannot edit %s: old_text is not in it", path);
  else
    error_set(err, ERROR_EDIT_CONFLICT, 0,
              "cannot edit %s: old_text is in it %llu times: give more of the text around the place, or replace_all",
              path, (unsigned long long)places->count);
  if (err) {
    err->count = places->count < UINT32_MAX ? (uint32_t)places->count : UINT32_MAX;
    err->n_lines = places->n_lines;
    memcpy(err->lines, places->lines, sizeof err->lines);
  }
  return -1;
}

static int too_large(const char *path, struct error *err) {
  if (err)
    err->limit = FILES_EDIT_MAX;
  return error_set(err, ERROR_TOO_LARGE, 0, "cannot edit %s: a file of more than %u bytes", path, FILES_EDIT_MAX);
}

/* The new content: `count` places replaced. */
static int build(const struct edit *edit, struct text old, uint64_t count, char **bytes, size_t *len,
                 struct error *err) {
  size_t kept = old.len - (size_t)count * edit->old_text.len;
  if (kept > FILES_EDIT_MAX || (edit->new_text.len > 0 && count > (FILES_EDIT_MAX - kept) / edit->new_text.len))
    return too_large(edit->path, err);
  *len = kept + (size_t)count * edit->new_text.len;
  char *out = *bytes = malloc(*len + 1);
  if (!out)
    return error_set_errno(err, ENOMEM, "cannot edit %s", edit->path);
  const char *end = old.bytes + old.len;
  const char *at;
  while ((at = find(old, edit->old_text))) {
    out = mempcpy(out, old.bytes, (size_t)(at - old.bytes));
    out = mempcpy(out, edit->new_text.bytes, edit->new_text.len);
    old.bytes = at + edit->old_text.len;
    old.len = (size_t)(end - old.bytes);
  }
  memcpy(out, old.bytes, old.len);
  return 0;
}

/* Reads, replaces and writes while the inode is locked. *changed: somebody else was faster. */
static int edit_locked(const struct edit *edit, const struct files_source *source, struct files_edited *edited,
                       bool *changed, struct error *err) {
  cleanup_free uint8_t *bytes = NULL;
  struct text old = {.len = 0};
  int status = files_read_whole(source, edit->path, FILES_EDIT_MAX, &bytes, &old.len, err);
  if (status != 0)
    return status > 0 ? too_large(edit->path, err) : -1;
  old.bytes = (const char *)bytes;
  struct places places;
  find_places(old, edit->old_text, &places);
  if (places.count == 1 && !edit->replace_all)
    find_overlap(old, edit->old_text, &places);
  if (places.count == 0 || (places.count > 1 && !edit->replace_all))
    return conflict(edit->path, &places, err);
  cleanup_free char *content = NULL;
  size_t len = 0;
  if (build(edit, old, places.count, &content, &len, err) < 0)
    return -1;
  struct files_written written;
  if (files_write_if_same(edit->path, content, len, &source->st, &written, changed, err) < 0)
    return -1;
  *edited = (struct files_edited){.line = places.lines[0], .count = places.count, .atomic = written.atomic};
  return 0;
}

/* Whoever waited for the lock may find another file under the path. */
static bool is_still(const char *path, const struct stat *seen) {
  struct stat now;
  return stat(path, &now) == 0 && now.st_dev == seen->st_dev && now.st_ino == seen->st_ino;
}

static int attempt(const struct edit *edit, struct files_edited *edited, bool *changed, struct error *err) {
  struct files_source source;
  if (files_open(edit->path, &source, err) < 0)
    return error_wrap(err, "edit");
  int status;
  if (files_lock(source.st.st_dev, source.st.st_ino) < 0) {
    status = error_set(err, ERROR_BUSY, errno, "cannot edit %s: another change of it has not ended", edit->path);
  } else {
    /* A change in place while we waited is seen by a new look at the size and the times. */
    *changed = !is_still(edit->path, &source.st) || fstat(source.fd, &source.st) < 0;
    status = *changed ? -1 : edit_locked(edit, &source, edited, changed, err);
    files_unlock(source.st.st_dev, source.st.st_ino);
  }
  files_close(&source);
  return status;
}

int files_edit(const char *path, const void *old_text, size_t old_len, const void *new_text, size_t new_len,
               bool replace_all, struct files_edited *edited, struct error *err) {
  if (old_len == 0)
    return error_set(err, ERROR_INVALID, 0, "old_text must not be empty");
  struct edit edit = {path, {old_text, old_len}, {new_text, new_len}, replace_all};
  for (int i = 0; i < ATTEMPTS; i++) {
    bool changed = false;
    int status = attempt(&edit, edited, &changed, err);
    if (!changed)
      return status;
  }
  return error_set(err, ERROR_BUSY, 0, "cannot edit %s: other programs keep changing it", path);
}
