/* files_place.h - writing a file where it is: what cannot be replaced by a rename (a device, a FIFO, a bind mount, a
 * file with several names, one in a directory that may not be written) and what is only extended (append, offset). Part
 * of core/files.h's work.
 *
 * For a regular file the space is reserved before the first byte is changed, and the file is cut only after the last
 * one was written: a full disk leaves the old content. Other failures (EIO, a killed agent) leave what they leave. */
#ifndef SANDKEEPER_CORE_FILES_PLACE_H
#define SANDKEEPER_CORE_FILES_PLACE_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_path.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A content in memory, or in a part of a file. */
struct files_bytes {
  const void *bytes; /* NULL: in `fd` */
  size_t len;        /* of bytes */
  int fd;
  uint64_t fd_start, fd_len;
};

/* Opens the target, or makes it, for writing without waiting: a FIFO that nobody reads is an error. The descriptor, or
 * -1. */
int files_place_open(const char *path, const struct files_target *target, bool append, struct error *err);

/* Writes the whole content into the open target and does the rest of `how`. `locked`: the caller holds files_lock().
 * 0, or -1, or 1: it was to be extended and the target is another file by now; nothing is written then. */
int files_place_write(int fd, const char *path, const struct files_target *target, const struct files_bytes *content,
                      const struct files_write_how *how, bool locked, struct error *err);

/* Writes to a device or a FIFO, waiting up to 5 s whenever it takes nothing. */
int files_place_stream(int fd, const char *path, const void *bytes, size_t len, struct error *err);

#endif
