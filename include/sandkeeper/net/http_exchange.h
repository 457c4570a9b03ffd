/* http_exchange.h - inside net/: what http.c (the server and its connections), http_exchange.c (one request, as the
 * library carries it), http_judge.c (its head) and http_answer.c (its answer) share. Nobody else includes it.
 *
 * How libmicrohttpd 0.9.75 calls us, read from its source:
 *   - The handler is called when the head is there, then for each piece of body, then once more. An answer queued in
 * the first call makes it close the connection, so only refusals that want that are given there.
 *   - A connection that has nothing to say must be suspended: a content reader that returns 0 is called again at once,
 * and a handler that leaves bytes is never called again. Resumed, the same call is made again.
 *   - Suspended, it does not look at its socket, and it overlooks an end that comes with a client's last bytes: we
 * watch for it ourselves.
 */
#ifndef SANDKEEPER_NET_HTTP_EXCHANGE_H
#define SANDKEEPER_NET_HTTP_EXCHANGE_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/net/address.h"
#include "sandkeeper/net/http.h"
#include "sandkeeper/net/http_head.h"

struct MHD_Connection;
struct MHD_Daemon;
struct MHD_Response;

struct http {
  struct loop *loop;
  const struct net_options *options;
  const struct route *routes;
  size_t n_routes;
  struct api *api;
  struct MHD_Daemon *daemon;
  struct loop_watch watch; /* the library's epoll descriptor */
  struct loop_timer timer; /* the library's timeouts */
  struct loop_task run;    /* it has something to do */
  struct list connections; /* struct http_connection */
  struct list ended;       /* those whose client sends no more */
  struct list idle;        /* those between two requests, the longest first */
  unsigned n_connections, n_exchanges;
  bool stopping;
  void (*finished)(void *arg); /* http_finish(): not NULL while it waits */
  void *finished_arg;
  struct loop_timer finish_timer;
  struct loop_task finish_task;
  http_observer_fn *observer;
  void *observer_arg;
};

/* One for each connection of the library. */
struct http_connection {
  struct http *http;
  struct list node;
  struct list idle_node;   /* in http.idle after its first request, while there is no other */
  int fd;                  /* the library's */
  struct loop_watch watch; /* for the client's end */
  bool half_closed;        /* it has come */
  struct list ended_node;  /* in http.ended then */
  char address[ADDRESS_TEXT_SIZE];
  struct loop_timer timer;        /* for the head, the body or the file, whichever is under way */
  int64_t body_until;             /* how long the client may take for what it has sent so far */
  struct http_exchange *exchange; /* NULL between requests */
};

void http_run_soon(struct http *http);
void http_look_if_finished(struct http *http); /* after an exchange's end */

/* The connection's clock. A client that is late is cut off. */
void http_expect_head(struct http_connection *connection, int64_t within);
void http_expect_body(struct http_connection *connection);
void http_body_came(struct http_connection *connection, size_t len);
void http_expect_nothing(struct http_connection *connection);
void http_cut(struct http_connection *connection, const char *why); /* ends it from our side */

/* How far a request is. */
enum http_phase {
  HTTP_PHASE_NEW,      /* the head is not whole */
  HTTP_PHASE_HEAD,     /* the head has been judged; the body is not asked for yet */
  HTTP_PHASE_BODY,     /* the body comes in; without one this phase is passed at once */
  HTTP_PHASE_COMPLETE, /* the request is whole; the answer is awaited or under way */
};

/* A query value, decoded. */
struct http_decoded {
  struct http_decoded *next;
  size_t len;
  char text[];
};

struct http_exchange {
  struct exchange public; /* must be first: routes hand it back */
  struct http *http;
  struct http_connection *link;
  struct MHD_Connection *connection;
  int64_t started;

  char *target, *path; /* the request's, as sent; and its path alone */
  struct http_head head;
  const struct route *route;
  struct http_decoded *decoded;
  enum http_phase phase;

  struct buf body;   /* of a buffered route */
  uint64_t received; /* bytes of body taken */
  uint64_t dropped;  /* bytes of it that came after an early answer */
  bool held;         /* the route does not want the body yet */

  bool answered;
  bool close_early; /* answer at once, and let the library close the connection */
  unsigned status;
  struct MHD_Response *response; /* until it is queued */
  struct buf headers;            /* of the answer: name NUL value NUL ... */
  struct buf answer;             /* its whole body */

  int (*pull)(struct exchange *x, struct buf *out); /* its streamed body */
  struct buf piece;
  size_t piece_sent;
  bool ended;

  int file; /* its body is this file, owned by the response; -1 */
  uint64_t file_end;

  bool suspended;
  bool woken; /* http_exchange_resume() came while not suspended */
  bool client_left;
};

static inline struct http_exchange *http_exchange_of(struct exchange *x) {
  return (struct http_exchange *)(void *)x;
}

/* Made as soon as the request line is there. NULL without memory. */
struct http_exchange *http_exchange_new(struct http_connection *link, struct MHD_Connection *connection,
                                        const char *target);

/* The library's handler call; the result is its MHD_YES (1) or MHD_NO (0). */
int http_exchange_continue(struct http_exchange *x, const char *method, const char *version, const char *bytes,
                           size_t *len);

/* Nothing can be done before somebody calls http_exchange_resume(), or the client leaves. Only from inside a call of
 * the library. */
void http_exchange_suspend(struct http_exchange *x);
void http_exchange_resume(struct http_exchange *x); /* fine when not suspended: x->woken tells then */

/* http_answer.c: what routes call. */
extern const struct exchange_ops http_exchange_ops;
void http_answer_watch_file(struct http_exchange *x); /* from the moment it is being sent */

/* http_judge.c: reads the head, and finds the route or answers what is no route's business. */
void http_exchange_judge(struct http_exchange *x, const char *method, const char *version);

/* The client has left, or is treated so. */
void http_exchange_leave(struct http_exchange *x);

/* The library has finished with the request. Frees it. */
void http_exchange_end(struct http_exchange *x);

#endif
