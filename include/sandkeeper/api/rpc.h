/* rpc.h - JSON-RPC 2.0: parse, dispatch, errors, batches. Knows no transport: messages come in as bytes and are pulled
 * out as bytes (api/peer.h). docs/protocol.md section 3 is the contract.
 */
#ifndef SANDKEEPER_API_RPC_H
#define SANDKEEPER_API_RPC_H

#include "sandkeeper/api/peer.h"
#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/error.h"

#include <stdbool.h>
#include <stddef.h>

struct api; /* api/api.h: the sandbox and the options that the methods need */
struct rpc_session;

/* One client's calls. `peer` outlives the session. NULL when there is no memory. */
struct rpc_session *rpc_session_open(struct api *api, struct peer *peer, struct error *err);

/* The client has gone: nothing is pulled any more and every call ends. Commands go on. */
void rpc_session_close(struct rpc_session *session);

/* A session that is not fed faster than this is not parsed on the loop: json-c takes some ms a megabyte. */
#define RPC_PARSE_INLINE_MAX (256u * 1024u)

/* One whole message of the client. The bytes are the caller's again when it returns: one that is longer than
 * RPC_PARSE_INLINE_MAX is copied, so hand it over with rpc_session_take(). May call peer->ops. */
void rpc_session_receive(struct rpc_session *session, const char *message, size_t len);

/* The same for a message in a buffer, whose content is taken (the buffer is left empty). A long one is parsed on a
 * worker; meanwhile the peer is held, so that the order of messages stays. */
void rpc_session_take(struct rpc_session *session, struct buf *message);

/* Moves the next outgoing message into *out, an initialised buffer with BUF_HEADROOM whose content is replaced (its
 * memory may be kept and reused: pass the same buffer again). False: nothing to send now, or not so soon
 * (rpc_session_has_more); wake() will tell. True with out->failed: there was no memory for it, and the client has to be
 * cut off, since it would miss something. May call peer->ops->hold; never re-enters the loop. */
bool rpc_session_pull(struct rpc_session *session, struct buf *out);

/* After a pull that gave nothing: it has taken long enough, and goes on in another turn of the loop. */
bool rpc_session_has_more(const struct rpc_session *session);

/* True when every request received so far has been answered and the answer pulled (POST /rpc ends its answer then). */
bool rpc_session_idle(const struct rpc_session *session);

#endif
