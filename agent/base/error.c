#include "sandkeeper/base/error.h"

#include "sandkeeper/base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What vsnprintf had to cut may end in the middle of a character. `len` is what it wanted to write. */
static size_t fit(char *text, size_t size, int len) {
  if (len < 0) {
    text[0] = '\0';
    return 0;
  }
  size_t used = (size_t)len;
  if (used >= size) {
    used = size - 1;
    used -= utf8_incomplete_tail((const uint8_t *)text, used);
    text[used] = '\0';
  }
  return used;
}

__attribute__((format(printf, 4, 0))) static void set(struct error *err, enum error_kind kind, int number,
                                                      const char *format, va_list args) {
  err->kind = kind;
  err->number = number;
  fit(err->message, sizeof err->message, vsnprintf(err->message, sizeof err->message, format, args));
}

int error_set(struct error *err, enum error_kind kind, int number, const char *format, ...) {
  if (err == NULL)
    return -1;
  va_list args;
  va_start(args, format);
  set(err, kind, number, format, args);
  va_end(args);
  return -1;
}

int error_set_errno(struct error *err, int number, const char *format, ...) {
  if (err == NULL)
    return -1;
  va_list args;
  va_start(args, format);
  set(err, error_kind_of_errno(number), number, format, args);
  va_end(args);

  /* strerror and not strerror_r: the latter has two incompatible forms, and for a known errno the former hands out a
   * constant in glibc and in musl, so threads do not disturb each other. */
  size_t len = strlen(err->message);
  char *rest = err->message + len;
  size_t room = sizeof err->message - len;
  fit(rest, room, snprintf(rest, room, ": %s", strerror(number)));
  return -1;
}

int error_wrap(struct error *err, const char *format, ...) {
  if (err == NULL)
    return -1;
  char context[ERROR_MESSAGE_MAX];
  va_list args;
  va_start(args, format);
  size_t len = fit(context, sizeof context - 2, vsnprintf(context, sizeof context - 2, format, args));
  va_end(args);
  context[len++] = ':';
  context[len++] = ' ';

  size_t old = strlen(err->message);
  size_t room = sizeof err->message - 1 - len;
  if (old > room)
    old = room - utf8_incomplete_tail((const uint8_t *)err->message, room);
  memmove(err->message + len, err->message, old);
  memcpy(err->message, context, len);
  err->message[len + old] = '\0';
  return -1;
}

void error_say(const char *format, ...) {
  char line[ERROR_MESSAGE_MAX + 64];
  va_list args;
  va_start(args, format);
  fit(line, sizeof line, vsnprintf(line, sizeof line, format, args));
  va_end(args);
  for (char *p = line; *p; p++)
    if ((unsigned char)*p < ' ' || *p == 0x7f)
      *p = '?';
  fprintf(stderr, "%s\n", line);
}

enum error_kind error_kind_of_errno(int number) {
  switch (number) {
  case ENOENT:
    return ERROR_NOT_FOUND;
  case EACCES:
  case EPERM:
  case EROFS:
    return ERROR_PERMISSION;
  case EISDIR:
  case ENOTDIR:
    return ERROR_WRONG_TYPE;
  case ENOSPC:
  case EDQUOT:
    return ERROR_NO_SPACE;
  case EEXIST:
    return ERROR_EXISTS;
  case ENOMEM:
    return ERROR_INTERNAL;
  default:
    return ERROR_IO;
  }
}

const char *error_kind_name(enum error_kind kind) {
  switch (kind) {
  case ERROR_NONE:
    return "none";
  case ERROR_INVALID:
    return "invalid_params";
  case ERROR_NOT_FOUND:
    return "not_found";
  case ERROR_TIMED_OUT:
    return "timed_out";
  case ERROR_PERMISSION:
    return "permission_denied";
  case ERROR_WRONG_TYPE:
    return "wrong_type";
  case ERROR_EDIT_CONFLICT:
    return "edit_conflict";
  case ERROR_TOO_LARGE:
    return "too_large";
  case ERROR_NO_SPACE:
    return "no_space";
  case ERROR_SPAWN_FAILED:
    return "spawn_failed";
  case ERROR_STOPPED:
    return "stopped";
  case ERROR_BUSY:
    return "busy";
  case ERROR_EXISTS:
    return "exists";
  case ERROR_IO:
    return "io_error";
  case ERROR_INTERNAL:
    return "internal_error";
  }
  return "internal_error";
}
