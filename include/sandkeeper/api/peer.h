/* peer.h - what api/ sees of a client's connection, whichever transport carries it.
 *
 * Sending is pulled: api/ never pushes bytes. When something may be waiting it calls wake(); the transport, once its
 * socket can take a message, calls back (rpc_session_pull) and sends what it gets. So a client that does not read costs
 * the position it has reached, and no queue.
 */
#ifndef SANDKEEPER_API_PEER_H
#define SANDKEEPER_API_PEER_H

#include <stdbool.h>
#include <stddef.h>

struct peer;
struct peer_ops {
  /* A message may be waiting. Cheap, idempotent, never calls back into api/ before it returns. */
  void (*wake)(struct peer *peer);
  /* Stop or go on delivering what the client sends: rpc_session_receive() is not called while held. */
  void (*hold)(struct peer *peer, bool held);
};

/* Embedded in the transport's own session; lives until the transport has closed the api's side of it. */
struct peer {
  const struct peer_ops *ops;
  size_t max_message; /* bytes: the longest message this client takes, 1024 at least; SIZE_MAX: no limit */
  bool answers_only;  /* it takes responses and no notifications: a method need not send them */
};

#endif
