/* http.h - the HTTP server: libmicrohttpd, driven from our loop, and a table of routes. A route sees the exchange of
 * api/exchange.h and nothing of the library.
 *
 * What no route has to care about: token and Origin (net/access.h), CORS for allowed origins and their preflight, 404,
 * 405 with Allow, 413, HEAD, keep-alive, 100-continue, a WebSocket upgrade that comes too late (426), and clients that
 * are slow or leave:
 *   - a head must come within 10 s of the connection, and within 60 s of the answer before it;
 *   - a body has 20 s, and 2 ms more for each byte that has come (500 bytes a second; never more than 60 s ahead);
 *   - a client that takes nothing of its answer for 60 s is cut off.
 */
#ifndef SANDKEEPER_NET_HTTP_H
#define SANDKEEPER_NET_HTTP_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/error.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/net/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct http;

/* The routes are looked up in the order given; one that names the path exactly goes before one with a star. All
 * arguments outlive the server. `api` is put into every exchange. */
struct http *http_new(struct loop *loop, const struct net_options *options, const struct route *routes, size_t n_routes,
                      struct api *api, struct error *err);

/* Ends every exchange (gone() is called) and connection. */
void http_free(struct http *http);

/* Before http_adopt(): false when there is no room for one more. Near the limit the connection that has waited longest
 * for its next request is cut. */
bool http_make_room(struct http *http);

/* Takes the socket, with nothing read from it yet. */
void http_adopt(struct http *http, int fd, const struct sockaddr *address, socklen_t length);

/* From now on every route that is not `open` is answered 503, and connections are closed after their answer. Answers
 * under way go on. */
void http_set_stopping(struct http *http);

/* Calls done(), later, when no answer is awaited or under way any more, at the deadline (loop_now()) at the latest. A
 * request that is not whole is not waited for. */
void http_finish(struct http *http, int64_t deadline, void (*done)(void *arg), void *arg);

/* Called at the end of every request that had a whole head: for /metrics. `route` is NULL where none fits; status is 0
 * when the client left before its answer. */
typedef void http_observer_fn(void *arg, const struct route *route, unsigned status, int64_t duration_ns);
void http_observe(struct http *http, http_observer_fn *fn, void *arg);

struct http_stats {
  unsigned connections; /* open now */
  unsigned exchanges;   /* requests under way */
};
struct http_stats http_stats(const struct http *http);

#endif
