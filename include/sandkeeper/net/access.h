/* access.h - who may come in: token, Origin, and the checks of a WebSocket upgrade. One place for both servers: the
 * gate asks for the head it has peeked at, net/http.c for every request that libmicrohttpd has parsed.
 * docs/protocol.md, section 1.
 */
#ifndef SANDKEEPER_NET_ACCESS_H
#define SANDKEEPER_NET_ACCESS_H

#include "sandkeeper/net/http_head.h"
#include "sandkeeper/net/options.h"

#include <stdbool.h>
#include <stddef.h>

/* A refusal. The message never holds a secret, and of what the client sent at most a short path. */
struct refusal {
  unsigned status; /* HTTP; 0: not refused */
  char message[256];
};

/* Token and Origin. The token is right in any of its places: Authorization: Bearer, X-Access-Token, X-API-Key, or the
 * subprotocol bearer.TOKEN; it is compared in a time that depends on the right token's length only. Origin counts when
 * no token is configured. Returns true when the request may go on. */
bool access_allowed(const struct net_options *options, const struct http_head *head, struct refusal *refusal);

/* True when the request has an Origin that is not the server's own and that --allow-origin names: its answer may be
 * shown to that page (CORS). */
bool access_cross_origin(const struct net_options *options, const struct http_head *head);

/* Notes in the log who a client says it works for: the SDKs' X-Project-ID and X-Service-ID. They mean no more than
 * that.
 */
void access_note_client(const struct http_head *head, const char *address);

/* True for the path of a WebSocket session, whatever {id} is in it. */
bool access_is_websocket_path(struct text path);

/* A request that wants to become a WebSocket session: path, id, token, Origin, method, version, key and query are
 * checked. */
struct upgrade {
  char key[25];         /* Sec-WebSocket-Key: 24 characters */
  size_t max_message;   /* the longest message to send to this client */
  struct text protocol; /* the offered subprotocol bearer.X to echo; points into the head; absent: none */
};
bool access_upgrade(const struct net_options *options, const struct http_head *head, struct upgrade *upgrade,
                    struct refusal *refusal);

#endif
