/* file_ahead.h - an open file read piece by piece on a worker, a little ahead of who takes the pieces. Memory stays the
 * same whatever the file's size, and the loop never waits for the file system.
 *
 * For the loop's thread. What the worker touches is kept apart and outlives the reader when the file system hangs. */
#ifndef SANDKEEPER_API_FILE_AHEAD_H
#define SANDKEEPER_API_FILE_AHEAD_H

#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/error.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/worker.h"

#include <stddef.h>
#include <stdint.h>

struct file_ahead;

struct file_ahead_spec {
  const char *what;  /* "read_stream", for messages; a literal */
  int64_t timeout;   /* ns, for messages: --file-timeout */
  uint64_t offset;   /* of the first byte */
  uint64_t end;      /* of the part that is wanted; UINT64_MAX: the file's, wherever that is */
  size_t piece;      /* bytes of the file in one piece; the last one is shorter */
  size_t buffer_max; /* bytes of a piece as it is handed on */
  /* Turns a piece into what is handed on, on the worker; NULL: the bytes themselves. A failed `out` is an error. */
  void (*encode)(const void *arg, const uint8_t *bytes, size_t len, uint64_t offset, struct buf *out);
  void *arg; /* encode's own, taken over; freed by free_arg when nobody can use it any more */
  void (*free_arg)(void *arg);
};

struct file_piece {
  struct buf bytes; /* as encoded */
  size_t len;       /* bytes of the file it stands for */
  uint64_t offset;
};

/* Starts reading. `path` and `source` are taken over in any case, and so is spec->arg. `changed` is called on the loop,
 * never inside this or another call here, when file_ahead_take() has news. NULL and *err. */
struct file_ahead *file_ahead_new(struct workers *workers, char *path, struct files_source *source,
                                  const struct file_ahead_spec *spec, void (*changed)(void *arg), void *arg,
                                  struct error *err);
void file_ahead_free(struct file_ahead *ahead); /* takes NULL */

enum file_ahead_state { AHEAD_WAIT, AHEAD_PIECE, AHEAD_END, AHEAD_FAILED };

/* AHEAD_PIECE: *piece has the next one. Its buffer is exchanged: what it held before is used for a later piece, so hand
 * the same struct in again (buf_init() it first, with BUF_HEADROOM). AHEAD_FAILED: file_ahead_error() says why. */
enum file_ahead_state file_ahead_take(struct file_ahead *ahead, struct file_piece *piece);
const struct error *file_ahead_error(const struct file_ahead *ahead);

#endif
