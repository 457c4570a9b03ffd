/* error.h - the one error object.
 *
 * A function that can fail takes a `struct error *` as its last argument and returns -1 (or NULL) when it
 * failed; the object then says what happened. It is set once, where the fault is seen; callers may only add
 * context in front with error_wrap(). Nothing below main() prints an error or exits because of one.
 * docs/architecture.md ("Errors") explains the whole rule.
 *
 * The kinds are those of docs/protocol.md; api/rpc_error.c gives each its number on the wire.
 */
#ifndef SANDKEEPER_BASE_ERROR_H
#define SANDKEEPER_BASE_ERROR_H

#include <stdint.h>

enum error_kind {
  ERROR_NONE,
  ERROR_INVALID,       /* a parameter is wrong; the message names it and says what it takes */
  ERROR_NOT_FOUND,     /* file, directory, cmd_id, user does not exist */
  ERROR_TIMED_OUT,     /* a promised time passed */
  ERROR_PERMISSION,    /* EACCES, EPERM, EROFS */
  ERROR_WRONG_TYPE,    /* is a directory, not a directory, not a regular file, stdin is closed */
  ERROR_EDIT_CONFLICT, /* old_text found 0 or 2+ times: `count`, `lines` */
  ERROR_TOO_LARGE,     /* over `limit` */
  ERROR_NO_SPACE,      /* ENOSPC, EDQUOT */
  ERROR_SPAWN_FAILED,  /* the program could not be started: `number` */
  ERROR_STOPPED,       /* the sandbox is stopped */
  ERROR_BUSY,          /* a limit of running or queued work is reached; nothing was started */
  ERROR_EXISTS,        /* the target exists */
  ERROR_IO,            /* any other errno: `number` */
  ERROR_INTERNAL,      /* no memory, or a fault of ours */
};

/* Room for a path of PATH_MAX (4096) and a sentence around it. */
#define ERROR_MESSAGE_MAX 4608
#define ERROR_LINES_MAX 20

struct error {
  enum error_kind kind;
  int number;       /* errno, or 0 */
  uint64_t limit;   /* ERROR_TOO_LARGE, ERROR_BUSY: the limit, in the unit that the message names */
  uint32_t count;   /* ERROR_EDIT_CONFLICT: matches found */
  uint32_t n_lines; /* ERROR_EDIT_CONFLICT: entries of `lines` in use */
  uint64_t lines[ERROR_LINES_MAX];
  char message[ERROR_MESSAGE_MAX]; /* one sentence: the thing, then the reason; cut at a UTF-8 border */
};

#define ERROR_INIT \
  { .kind = ERROR_NONE }

/* Sets kind, errno and message. Always returns -1, so that a caller can `return error_set(...)`.
 * `err` may be NULL: the caller does not want to know. `limit`, `count` and `lines` are left as they are: the caller
 * fills them before or after. */
int error_set(struct error *err, enum error_kind kind, int number, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* As error_set, with the kind that belongs to the errno (error_kind_of_errno) and ": " and its text behind the
 * message. Returns -1. */
int error_set_errno(struct error *err, int number, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Puts context and ": " in front of the message. Returns -1. */
int error_wrap(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For main() and the subcommands, while there is no log: one line on stderr. A control character, which a value from
 * the command line may hold, becomes "?". */
void error_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ENOENT -> NOT_FOUND; EACCES, EPERM, EROFS -> PERMISSION; EISDIR, ENOTDIR -> WRONG_TYPE; ENOSPC, EDQUOT -> NO_SPACE;
 * EEXIST -> EXISTS; ENOMEM -> INTERNAL; all others, ENAMETOOLONG and ELOOP among them, -> IO with the number. */
enum error_kind error_kind_of_errno(int number);

/* The kind's name on the wire ("not_found", "io_error", ...); never NULL. */
const char *error_kind_name(enum error_kind kind);

#endif
