/* inner_exchange.h - a call of one of the agent's own routes from inside, without a socket: what a payload of the
 * control plane asks for. The route sees an ordinary exchange.
 *
 * Nothing is called back inside inner_exchange_start(); all of it happens from tasks on the loop, a piece at a time, so
 * that a long answer holds nobody.
 */
#ifndef SANDKEEPER_API_INNER_EXCHANGE_H
#define SANDKEEPER_API_INNER_EXCHANGE_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/error.h"
#include "sandkeeper/core/loop.h"

#include <stdbool.h>
#include <stddef.h>

#define INNER_PIECE_MAX (128u * 1024u)

struct inner_decoded;

/* What the caller hears. ended() comes last and may free the exchange; take() may not. */
struct inner_ops {
  void (*take)(void *arg, const char *bytes, size_t len); /* the next piece of the answer */
  void (*ended)(void *arg, unsigned status);              /* the answer is whole; 0: it was cut off */
};

struct inner_exchange {
  struct exchange public; /* must be first: routes hand it back */
  struct loop *loop;
  const struct route *route;
  const struct inner_ops *inner_ops;
  void *arg;
  struct loop_task task;

  char *path;        /* its query behind a NUL */
  const char *query; /* NULL: there is none */
  struct inner_decoded *decoded;
  const char *content_type;
  struct buf body;
  size_t fed; /* bytes of it that a body sink has taken */
  bool held, body_ended;

  bool answered, ended;
  unsigned status;
  struct buf answer;
  size_t taken;
  int (*pull)(struct exchange *x, struct buf *out);
};

/* `target`: a path and maybe a query. `content_type` outlives the exchange; `body` is moved. NULL: ERROR_NOT_FOUND (no
 * such route), ERROR_INVALID (a percent sign in the query without two hex digits), ERROR_TOO_LARGE (the route's limit),
 * ERROR_INTERNAL (no memory). */
struct inner_exchange *inner_exchange_start(struct api *api, const struct route *routes, size_t n_routes,
                                            const char *method, const char *target, const char *content_type,
                                            struct buf *body, const struct inner_ops *inner_ops, void *arg,
                                            struct error *err);

/* At any time: for the route the client has left. NULL is fine. */
void inner_exchange_free(struct inner_exchange *inner);

#endif
