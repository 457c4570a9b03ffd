/* buf.h - bytes that grow, with a maximum from birth.
 *
 * A failure (no memory, over the maximum) is sticky: `failed` is set, later appends do nothing, and a writer
 * checks once at the end. A buffer may keep `headroom` bytes free in front of its data, so that a transport
 * can put its frame header there without a copy (libwebsockets writes into LWS_PRE bytes before the payload).
 *
 * Owner: whoever holds the struct; buf_free() or buf_move() ends that. */
#ifndef SANDKEEPER_BASE_BUF_H
#define SANDKEEPER_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BUF_HEADROOM 32 /* at least LWS_PRE of libwebsockets; net/ws.c asserts it at compile time */

struct buf {
  char *data;      /* first byte; NULL while nothing was allocated */
  size_t len;      /* bytes in use */
  size_t capacity; /* bytes that fit behind `data` without growing */
  size_t max;      /* len never passes it */
  size_t headroom; /* bytes free before `data` */
  bool failed;
};

/* No allocation happens before the first append. */
void buf_init(struct buf *buf, size_t max, size_t headroom);
void buf_free(struct buf *buf); /* back to the state after buf_init, max and headroom kept */

/* Empties it and clears `failed`; keeps the memory if it is at most `keep` bytes. */
void buf_reset(struct buf *buf, size_t keep);

/* Moves the contents with their maximum and headroom; `from` is left empty and usable. Frees what `to` held. */
void buf_move(struct buf *to, struct buf *from);

/* 0, or -1 when it failed now or before; nothing is appended then. */
int buf_append(struct buf *buf, const void *bytes, size_t len);
int buf_append_string(struct buf *buf, const char *string);
int buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A place for `len` more bytes behind the data, or NULL. The caller fills it and adds to `len` what it used. */
char *buf_reserve(struct buf *buf, size_t len);

/* Ends the data with a NUL that does not count into len, and returns it; NULL when it failed. */
const char *buf_string(struct buf *buf);

#endif
