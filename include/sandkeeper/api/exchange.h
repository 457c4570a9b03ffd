/* exchange.h - one HTTP request and its answer, as api/ sees them. net/http.c is the only implementer; api/ reads the
 * request, answers once, and hears when the client has gone.
 *
 * Life: a route's handle() is called with a new exchange. It (or later code on the loop) must answer exactly once, with
 * reply(), stream() or send_file(). Until then the client waits. The exchange is freed by net/ after its end; `gone`,
 * if set, is called exactly once, at that end, whether the answer went out whole or the client left.
 */
#ifndef SANDKEEPER_API_EXCHANGE_H
#define SANDKEEPER_API_EXCHANGE_H

#include "sandkeeper/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct exchange;
struct exchange_ops {
  /* Request. Strings live as long as the exchange; NULL when absent. Header names are compared without case. Query
   * values are percent-decoded; *len (may be NULL) tells of a NUL inside. */
  const char *(*header)(struct exchange *x, const char *name);
  const char *(*query)(struct exchange *x, const char *name, size_t *len);

  /* Adds a header to the answer; before reply() or stream(). Values must hold no CR or LF. */
  void (*add_header)(struct exchange *x, const char *name, const char *value);

  /* The whole answer; *body is moved (may be NULL: empty). For HEAD the body is left out, Content-Length stays. */
  void (*reply)(struct exchange *x, unsigned status, const char *content_type, struct buf *body);

  /* A chunked answer: pull() is called when the socket can take more. It puts the next piece into *out (empty, any
   * length up to 256 KiB) and says STREAM_MORE; or STREAM_WAIT when there is nothing yet (then wake() goes on); or
   * STREAM_END (with or without a last piece). Each piece is flushed at once. */
  void (*stream)(struct exchange *x, unsigned status, const char *content_type,
                 int (*pull)(struct exchange *x, struct buf *out));
  void (*wake)(struct exchange *x); /* after STREAM_WAIT; cheap, idempotent, never calls back before it returns */

  /* Sends `length` bytes of a regular file from `offset` by sendfile; fd is taken over. Only for local file systems. */
  void (*send_file)(struct exchange *x, unsigned status, const char *content_type, int fd, uint64_t offset,
                    uint64_t length);

  /* For a route with a body sink (below): go on after body() returned less than it was given. */
  void (*resume_body)(struct exchange *x);
};

enum { STREAM_WAIT, STREAM_MORE, STREAM_END };

struct exchange {
  const struct exchange_ops *ops;
  struct api *api;
  const char *method;       /* "GET" */
  const char *path;         /* raw, still percent-encoded, without the query */
  const char *peer_address; /* text, for the log */
  const struct buf *body;   /* the whole body of a buffered route */
  void *state;              /* the handler's own */
  void (*gone)(struct exchange *x);
};

/* How a route takes its request body. */
struct route {
  const char *methods; /* "GET HEAD"; another method is answered 405 with Allow */
  const char *path;    /* exact, or a prefix when it ends in a slash-star: "/api/v1/sandbox/" "*" */
  size_t body_max;     /* longer bodies: 413 */
  bool open;           /* needs no token (/health) */
  /* Buffered (body == NULL): called once the whole body is in x->body. Sink: called when the head is complete. */
  void (*handle)(struct exchange *x);
  /* Sink: takes up to len bytes and returns how many; less than len pauses the client until resume_body(). len 0 with
   * `last` true: the body is complete, answer now or later. An aborted upload only gets gone(). May answer early (an
   * error): the rest of the body is then read and dropped, or the connection closed. */
  size_t (*body)(struct exchange *x, const char *bytes, size_t len, bool last);
};

#endif
