/* ws.h - WebSocket sessions: libwebsockets, driven from our loop.
 *
 * A session is one client's JSON-RPC session (api/rpc.h) on one socket. It owns no buffer while nothing is half
 * received or half sent.
 *
 * Receiving: a message may come in any number of fragments; whole ones go to rpc_session_receive(). Over max_message:
 * close 1009. Half-received messages of all sessions together over max_buffered: close 1013. Binary: 1003. Invalid
 * UTF-8: 1007. Sending: when the socket can take more, one message is pulled (rpc_session_pull) and written, at most
 * 128 KiB at a time, longer ones as fragments. No queue: what is not pulled stays where it is. Pings: a session that is
 * silent in both directions for 20 s gets one; silent for 20 s more, it is dropped.
 */
#ifndef SANDKEEPER_NET_WS_H
#define SANDKEEPER_NET_WS_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/net/access.h"
#include "sandkeeper/net/options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api;
struct ws;

/* One for each process: libwebsockets' log and allocator are global. It sets SIGPIPE to ignored, which children would
 * inherit. All arguments outlive it. `api` is handed to rpc_session_open(). */
struct ws *ws_new(struct loop *loop, const struct net_options *options, struct api *api, struct error *err);

/* Drops all sessions without a close frame. */
void ws_free(struct ws *ws);

/* True while one more session fits and the descriptor is in the range that libwebsockets can handle. */
bool ws_has_room(const struct ws *ws, int fd);

/* Takes a socket whose request has been read and found right, and answers the handshake. Not from inside a callback of
 * a session (api/peer.h, api/rpc.h). */
void ws_adopt(struct ws *ws, int fd, const struct upgrade *upgrade, const char *peer_address);

/* Runs the loop until ws_stop(). */
void ws_run(struct ws *ws);
void ws_stop(struct ws *ws);

/* Ends every session in good order: what is still to be sent goes out first, then a close frame. `done` is called once
 * on the loop when all are gone, at `deadline` (monotonic ns) at the latest, when the rest is dropped; also when there
 * were none. New sessions get the same. */
void ws_close_all(struct ws *ws, unsigned code, const char *reason, int64_t deadline, void (*done)(void *arg),
                  void *arg);

struct ws_stats {
  unsigned sessions;
  size_t buffered; /* bytes of half-received messages */
};
struct ws_stats ws_stats(const struct ws *ws);

#endif
