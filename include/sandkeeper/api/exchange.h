/* exchange.h - one HTTP request and its answer, as api/ sees them. net/http_answer.c implements it for a socket,
 * api/inner_exchange.c for a payload; a route reads the request, answers once, and hears when the client has gone.
 *
 * Life: a route's handle() is called with a new exchange. It (or later code on the loop) must answer exactly once, with
 * reply(), fail(), stream() or send_file(). Until then the client waits. The exchange is freed by net/ after its end;
 * `gone`, if set, is called exactly once, at that end, whether the answer went out whole or the client left. After
 * gone() nobody may touch the exchange. The client leaving is also noticed while it waits for an answer, for the next
 * piece of a stream, or for its upload to go on; a client that closes only its sending side counts as gone then, as it
 * cannot be told apart.
 *
 * No function below calls back into api/ before it returns, and none re-enters the loop. All may be called from
 * handle(), body(), pull() and from any other code on the loop, but not from gone().
 */
#ifndef SANDKEEPER_API_EXCHANGE_H
#define SANDKEEPER_API_EXCHANGE_H

#include "sandkeeper/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct api;
struct exchange;

#define EXCHANGE_PIECE_MAX (256u * 1024u) /* the longest piece of a stream */

enum { STREAM_WAIT, STREAM_MORE, STREAM_END }; /* what pull() returns */

struct exchange_ops {
  /* Request. Strings live as long as the exchange; NULL when absent. Header names are compared without case. Query
   * values are percent-decoded and end with a NUL; *len (may be NULL) tells of a NUL inside. */
  const char *(*header)(struct exchange *x, const char *name);
  const char *(*query)(struct exchange *x, const char *name, size_t *len);

  /* The announced length of the body, or -1 when it comes in chunks. */
  int64_t (*body_length)(struct exchange *x);

  /* Adds a header to the answer; before the answer. A value with CR or LF is dropped. */
  void (*add_header)(struct exchange *x, const char *name, const char *value);

  /* The whole answer; *body is moved (may be NULL: empty). For HEAD the body is left out, Content-Length stays. A
   * failed buffer becomes a 500. `content_type` may be NULL. */
  void (*reply)(struct exchange *x, unsigned status, const char *content_type, struct buf *body);

  /* An error in the shape that net/ uses for its own: {"code":404,"message":"...","error":{"code":404,"message":"..."}}
   */
  void (*fail)(struct exchange *x, unsigned status, const char *format, ...) __attribute__((format(printf, 3, 4)));

  /* A chunked answer: pull() is called when the socket can take more. It puts the next piece into *out (empty, any
   * length up to EXCHANGE_PIECE_MAX) and says STREAM_MORE; or STREAM_WAIT when there is nothing yet (then wake() goes
   * on); or STREAM_END (with or without a last piece). What is there is flushed at once; pieces that are ready together
   * go out together. `out` fails to grow over the limit or without memory: the answer is then cut off. */
  void (*stream)(struct exchange *x, unsigned status, const char *content_type,
                 int (*pull)(struct exchange *x, struct buf *out));
  /* The same with a length that is known, so with Content-Length. A stream that ends before it is cut off. */
  void (*stream_sized)(struct exchange *x, unsigned status, const char *content_type, uint64_t length,
                       int (*pull)(struct exchange *x, struct buf *out));
  void (*wake)(struct exchange *x); /* pull() may have something now; cheap, idempotent, never calls back */

  /* Sends `length` bytes of a regular file from `offset` by sendfile; fd is taken over. Only for local file systems: it
   * runs on the loop. A file that becomes shorter meanwhile ends the connection. */
  void (*send_file)(struct exchange *x, unsigned status, const char *content_type, int fd, uint64_t offset,
                    uint64_t length);

  /* For a route with a body sink (below). hold_body(), inside handle(): the client is not asked for its body yet (no
   * "100 Continue"), until resume_body(). resume_body() also goes on after body() took less than it was given. An
   * answer given while held spares a client that waits for "100 Continue" its upload. */
  void (*hold_body)(struct exchange *x);
  void (*resume_body)(struct exchange *x);
};

struct exchange {
  const struct exchange_ops *ops;
  struct api *api;
  const char *method;       /* "GET" */
  const char *path;         /* raw, still percent-encoded, without the query */
  const char *peer_address; /* text, for the log */
  const struct buf *body;   /* the whole body of a buffered route; never NULL in handle() */
  void *state;              /* the handler's own */
  void (*gone)(struct exchange *x);
};

/* How a route takes its request body. */
struct route {
  const char *methods; /* "GET HEAD"; another method is answered 405 with Allow. HEAD goes with GET everywhere */
  const char *path;    /* exact, or a prefix when it ends in a slash and a star. Several routes may share a path */
  size_t body_max;     /* longer bodies: 413. 0: buffered, a body is read and dropped; sink, no limit */
  bool open;           /* needs no token, is answered to any Origin and while the agent stops (/health) */
  /* Buffered (body == NULL): called once the whole body is in x->body. Sink: called when the head is complete. */
  void (*handle)(struct exchange *x);
  /* Sink: takes up to len bytes and returns how many; less than len pauses the client until resume_body(). len 0 with
   * `last` true: the body is complete, answer now or later. An aborted upload only gets gone(). May answer early (an
   * error): the rest of the body is then read and dropped, up to 64 MiB, or the connection closed. */
  size_t (*body)(struct exchange *x, const char *bytes, size_t len, bool last);
};

#endif
