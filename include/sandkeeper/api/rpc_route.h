/* rpc_route.h - POST /rpc: JSON-RPC without a WebSocket, by the same dispatch (api/rpc.h). docs/protocol.md 3.4.
 *
 * One request is one session. Its answer is the response alone, or, to a client that accepts application/x-ndjson,
 * every message of the session as it happens, one a line. A client that stops reading costs one message and one piece
 * of an answer; what is not pulled waits in the command's log.
 */
#ifndef SANDKEEPER_API_RPC_ROUTE_H
#define SANDKEEPER_API_RPC_ROUTE_H

#include "sandkeeper/api/exchange.h"

#include <stdbool.h>
#include <stddef.h>

/* The route POST /rpc, with a body sink. It has its own limit for the body (api->options.max_message), so the route's
 * is 0. */
void rpc_route_handle(struct exchange *x);
size_t rpc_route_body(struct exchange *x, const char *bytes, size_t len, bool last);

#endif
