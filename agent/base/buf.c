#include "sandkeeper/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most documents are a few hundred bytes: one allocation for them. */
#define FIRST_CAPACITY 256

void buf_init(struct buf *buf, size_t max, size_t headroom) {
  *buf = (struct buf){.max = max, .headroom = headroom};
}

static void release(struct buf *buf) {
  if (buf->data != NULL)
    free(buf->data - buf->headroom);
  buf->data = NULL;
  buf->capacity = 0;
}

void buf_free(struct buf *buf) {
  release(buf);
  buf->len = 0;
  buf->failed = false;
}

void buf_reset(struct buf *buf, size_t keep) {
  if (buf->capacity > keep)
    release(buf);
  buf->len = 0;
  buf->failed = false;
}

void buf_move(struct buf *to, struct buf *from) {
  if (to == from)
    return;
  release(to);
  *to = *from;
  buf_init(from, to->max, to->headroom);
}

/* Makes `capacity` at least `need`, which is at most `max`. One byte more is always there, for buf_string(). */
static int grow(struct buf *buf, size_t need) {
  size_t capacity = buf->capacity > buf->max / 2 ? buf->max : buf->capacity * 2;
  if (capacity < FIRST_CAPACITY)
    capacity = buf->max < FIRST_CAPACITY ? buf->max : FIRST_CAPACITY;
  if (capacity < need)
    capacity = need;
  if (capacity > SIZE_MAX - buf->headroom - 1)
    return -1;

  char *start = buf->data == NULL ? NULL : buf->data - buf->headroom;
  start = realloc(start, buf->headroom + capacity + 1);
  if (start == NULL)
    return -1;
  buf->data = start + buf->headroom;
  buf->capacity = capacity;
  return 0;
}

char *buf_reserve(struct buf *buf, size_t len) {
  if (buf->failed)
    return NULL;
  /* The maximum first: memory that is there from a longer content does not count. */
  if (buf->len > buf->max || len > buf->max - buf->len) {
    buf->failed = true;
    return NULL;
  }
  if (buf->data != NULL && len <= buf->capacity - buf->len)
    return buf->data + buf->len;
  if (grow(buf, buf->len + len) != 0) {
    buf->failed = true;
    return NULL;
  }
  return buf->data + buf->len;
}

int buf_append(struct buf *buf, const void *bytes, size_t len) {
  if (len == 0)
    return buf->failed ? -1 : 0;
  char *place = buf_reserve(buf, len);
  if (place == NULL)
    return -1;
  memcpy(place, bytes, len);
  buf->len += len;
  return 0;
}

int buf_append_string(struct buf *buf, const char *string) {
  return buf_append(buf, string, strlen(string));
}

int buf_printf(struct buf *buf, const char *format, ...) {
  char small[128];
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  int len = vsnprintf(small, sizeof small, format, args);
  va_end(args);

  int result = -1;
  if (len < 0) {
    buf->failed = true;
  } else if ((size_t)len < sizeof small) {
    result = buf_append(buf, small, (size_t)len);
  } else {
    /* The NUL goes where buf_string() would put it: that byte is always there. */
    char *place = buf_reserve(buf, (size_t)len);
    if (place != NULL) {
      vsnprintf(place, (size_t)len + 1, format, again);
      buf->len += (size_t)len;
      result = 0;
    }
  }
  va_end(again);
  return result;
}

const char *buf_string(struct buf *buf) {
  if (buf->failed)
    return NULL;
  if (buf->data == NULL)
    return "";
  buf->data[buf->len] = '\0';
  return buf->data;
}
