#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/utf8.h"
#include "sandkeeper/core/files_open.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHARACTER_MAX 4 /* bytes of the longest UTF-8 character */

void files_content_free(struct files_content *content) {
  free(content->bytes);
  content->bytes = NULL;
  content->len = 0;
}

static int refuse_image(const char *path, uint64_t size, uint64_t max, struct error *err) {
  if (err)
    err->limit = max;
  return error_set(err, ERROR_TOO_LARGE, 0,
                   "cannot read %s: the image has %s%llu bytes and one answer holds %llu of an image: use read_stream",
                   path, size > max ? "" : "more than ", (unsigned long long)size, (unsigned long long)max);
}

static int read_image(const struct files_source *source, const char *path, uint64_t max, struct files_content *content,
                      struct error *err) {
  if (max > FILES_IMAGE_MAX)
    max = FILES_IMAGE_MAX;
  if ((uint64_t)source->st.st_size > max)
    return refuse_image(path, (uint64_t)source->st.st_size, max, err);
  int status = files_read_whole(source, path, (size_t)max, &content->bytes, &content->len, err);
  if (status > 0)
    return refuse_image(path, max, max, err);
  content->size = content->len;
  return status;
}

/* The bytes of a character that `before` bytes in front of the wanted place begin and that ends behind it. */
static size_t rest_of_character(const uint8_t *bytes, size_t len, size_t before) {
  size_t begun = utf8_incomplete_tail(bytes, before);
  size_t n;
  if (begun == 0 || utf8_next(bytes + before - begun, len - before + begun, &n) != UTF8_CHARACTER || n <= begun)
    return 0;
  return n - begun;
}

/* How many of the first `limit` bytes to give, when more follow: what begins a character at their end is left for the
 * next read. A character that is longer than the limit comes whole: a client that pages must get on. */
static size_t cut(const uint8_t *bytes, size_t len, size_t limit) {
  size_t begun = utf8_incomplete_tail(bytes, limit);
  size_t n;
  if (begun < limit)
    return limit - begun;
  return utf8_next(bytes, len, &n) == UTF8_CHARACTER ? n : limit;
}

/* What was read from the file: bytes[0, got) at `from`. */
struct piece {
  uint64_t from;
  size_t got;
  bool end; /* the file ends behind them */
};

/* Leaves of the piece in content->bytes what is wanted: from `offset`, which lies at most 3 bytes behind piece.from. */
static void fill_text(struct files_content *content, struct piece piece, uint64_t offset, size_t limit) {
  size_t before = (size_t)(offset - piece.from);
  size_t skipped = piece.got < before ? piece.got : before;
  skipped += rest_of_character(content->bytes, piece.got, skipped);
  size_t len = piece.got - skipped;
  memmove(content->bytes, content->bytes + skipped, len);
  content->offset = piece.from + (skipped > before ? skipped : before);
  content->len = len > limit ? cut(content->bytes, len, limit) : len;
  content->truncated = content->len < len || !piece.end;
  content->lossy = utf8_valid_prefix(content->bytes, content->len) < content->len;
}

/* The size that fstat told may be wrong: 0 in /proc, and files grow and shrink. What was read is right. */
static uint64_t size_seen(const struct files_source *source, struct piece piece) {
  uint64_t told = (uint64_t)source->st.st_size;
  uint64_t seen = piece.from + piece.got;
  if (piece.got == 0)
    return told < piece.from ? told : piece.from;
  return piece.end || seen > told ? seen : told;
}

static int read_text(const struct files_source *source, const char *path, uint64_t offset, size_t limit,
                     struct files_content *content, struct error *err) {
  size_t before = offset < CHARACTER_MAX - 1 ? (size_t)offset : CHARACTER_MAX - 1;
  size_t want = before + limit + CHARACTER_MAX;
  /* What was read to find the type is the start of a text from its beginning. */
  size_t have = 0;
  if (offset == 0)
    have = content->len < want ? content->len : want;
  if (content->len < want) {
    uint8_t *room = realloc(content->bytes, want);
    if (!room)
      return error_set_errno(err, ENOMEM, "cannot read %s", path);
    content->bytes = room;
  }
  struct piece piece = {.from = offset - before};
  ssize_t n = files_read_at(source, path, piece.from + have, content->bytes + have, want - have, err);
  if (n < 0)
    return -1;
  piece.got = have + (size_t)n;
  piece.end = piece.got < want;
  content->size = size_seen(source, piece);
  fill_text(content, piece, offset, limit);
  return 0;
}

int files_read(const char *path, uint64_t offset, size_t limit, uint64_t image_max, struct files_content *content,
               struct error *err) {
  *content = (struct files_content){.len = 0};
  struct files_source source;
  if (files_open(path, &source, err) < 0)
    return -1;
  /* A small file is read whole at once, one byte more than it should have to see its end. */
  uint64_t size = (uint64_t)source.st.st_size;
  size_t look = size > 0 && size < IMAGE_TYPE_LOOK ? (size_t)size + 1 : IMAGE_TYPE_LOOK;
  content->bytes = malloc(look);
  ssize_t len = -1;
  if (content->bytes)
    len = files_read_at(&source, path, 0, content->bytes, look, err);
  else
    error_set_errno(err, ENOMEM, "cannot read %s", path);
  int status = len < 0 ? -1 : 0;
  if (status == 0) {
    content->len = (size_t)len;
    status = image_type_detect(content->bytes, content->len, content->len < look, &content->type, err);
  }
  if (status == 0 && content->type.image) {
    free(content->bytes);
    content->bytes = NULL;
    content->len = 0;
    status = read_image(&source, path, image_max, content, err);
  } else if (status == 0) {
    status = read_text(&source, path, offset, limit, content, err);
  }
  files_close(&source);
  if (status < 0)
    files_content_free(content);
  return status < 0 ? -1 : 0;
}
