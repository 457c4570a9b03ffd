/* gate.h - one port for two libraries. The gate accepts, looks at the head of the first request without taking it, and
 * hands the socket on: a sound WebSocket upgrade to net/ws.c, every other sound request to net/http.c. A head that is
 * malformed, too long or too slow it answers itself.
 *
 *   accepted -> waiting for the head -> handed on
 *                                    -> answered, then drained until the client has closed (at most 2 s)
 *
 * A client has 5 s for its head. At most 1024 connections wait; one more ends the oldest.
 */
#ifndef SANDKEEPER_NET_GATE_H
#define SANDKEEPER_NET_GATE_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/net/http.h"
#include "sandkeeper/net/options.h"
#include "sandkeeper/net/ws.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct gate;

/* All arguments outlive the gate. `ws` may be NULL (tests): upgrades are then answered 503. */
struct gate *gate_new(struct loop *loop, const struct net_options *options, struct ws *ws, struct http *http,
                      struct error *err);
void gate_free(struct gate *gate);

/* Listens on one more address (at most 16). Port 0 takes a port that an earlier call got from the kernel, else the
 * kernel picks one. The log says "gate: listening" with address and port. `optional`, for the default pair 0.0.0.0 and
 * [::]: a machine that has IPv4 or IPv6 switched off is no error, but logged. 0, or -1 and *err. */
int gate_listen(struct gate *gate, const struct sockaddr *address, socklen_t length, bool optional, struct error *err);

/* From now on a WebSocket upgrade is answered 503. HTTP still gets through: /health says that the agent stops, the rest
 * http.c refuses (http_set_stopping). */
void gate_set_stopping(struct gate *gate);

/* Closes the listening sockets. What is accepted already is still served. */
void gate_close_listeners(struct gate *gate);

/* For gate_listen() with optional addresses: the number of sockets that listen. */
unsigned gate_listening(const struct gate *gate);

/* The port of the first address that has one; 0: there are Unix sockets only. */
unsigned gate_port(const struct gate *gate);

/* Connections that wait for the rest of their head. */
unsigned gate_waiting(const struct gate *gate);

#endif
