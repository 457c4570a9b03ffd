/* ws_session.h - inside net/: what ws.c (the library, its sockets, pings, the end) and ws_session.c (one session's
 * messages) share. Nobody else includes it. */
#ifndef SANDKEEPER_NET_WS_SESSION_H
#define SANDKEEPER_NET_WS_SESSION_H

#include "sandkeeper/api/peer.h"
#include "sandkeeper/api/rpc.h"
#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/net/ws.h"

struct lws;
struct lws_context;
struct lws_vhost;

#define WS_REASON_MAX 120 /* of the 123 bytes that a close frame has for it (RFC 6455, 5.5) */

struct ws {
  struct loop *loop;
  const struct net_options *options;
  struct api *api;
  struct lws_context *context;
  struct lws_vhost *vhost;
  bool stop;

  unsigned inside;           /* above 0 while the library is in a call of ours or we in one of its */
  struct ws_session *served; /* the one whose socket the library looks at just now; NULL also when it has closed it */
  int fd_limit;              /* the library's tables go so far */
  unsigned n_sessions;       /* from ws_adopt() until the library has closed the socket */
  struct ws_session *born;   /* the one that the library is taking just now, until it has it */

  /* Sessions that are open. */
  struct list alive;  /* by their last sign of life */
  struct list pinged; /* by the time of their ping */
  struct loop_timer ping_timer;

  size_t buffered; /* bytes of half-received messages */
  struct buf out;  /* the message being pulled; sessions share it */

  bool closing;
  unsigned close_code;
  char close_reason[WS_REASON_MAX];
  struct loop_timer close_timer;
  struct loop_task close_task;
  void (*closed)(void *arg);
  void *closed_arg;
};

/* What the library is doing for a session. */
enum ws_step {
  WS_STEP_NONE,
  WS_STEP_TURN, /* it has been told that the socket can be written to; ends when it has asked us */
  WS_STEP_READ, /* it reads, or parses what it has read before */
};

struct ws_session {
  struct peer peer; /* must be first: api/ hands it back */
  struct ws *ws;
  struct list node;
  struct lws *wsi;         /* NULL until the library has it */
  struct rpc_session *rpc; /* NULL before the handshake and when the session has ended */
  int fd;                  /* the library's, once it has it */
  char key[25];
  char *protocol; /* to echo in the handshake; NULL: none */
  char *address;
  int64_t since; /* of its place in `alive` or `pinged` */

  struct buf in;   /* fragments of a message that is not whole */
  struct buf out;  /* a message that goes out in fragments */
  size_t out_sent; /* bytes of it */

  enum ws_step step;
  bool held;           /* api/ does not want more */
  bool ping_due;       /* in the next turn */
  bool turn_due;       /* a turn to write is wanted */
  bool asked;          /* the library has asked us in this turn */
  uint8_t own_turns;   /* in which it has not */
  bool blocked;        /* a frame is half sent: the library copies what the socket does not take */
  bool pong_pause;     /* nothing is read until the pong is written */
  bool half_closed;    /* the client sends no more */
  bool kill_due;       /* to be dropped without a close frame */
  bool ended;          /* api's side is over; the library may still be closing */
  bool binary;         /* the kind of the message that came last */
  unsigned close_code; /* set: at the next turn to write a close frame goes out */
  char close_reason[WS_REASON_MAX];
  struct loop_watch watch; /* the socket */
  struct loop_task task;   /* turns to write, or the end */
  struct loop_timer timer; /* for the end to come in time */
};

void ws_session_touch(struct ws_session *session); /* a sign of life; ws.c */

/* Asks for a turn to write. */
void ws_session_ask_turn(struct ws_session *session);

/* The library's events. A negative result lets it close the socket, after the close frame that was asked for. */
int ws_session_opened(struct ws_session *session);
int ws_session_receive(struct ws_session *session, const char *bytes, size_t len);
int ws_session_writeable(struct ws_session *session);
int ws_session_peer_closes(struct ws_session *session, size_t len); /* with a payload of so many bytes */
void ws_session_fails(struct ws_session *session);                  /* the library has begun to close */
void ws_session_polled(struct ws_session *session);                 /* the library wants to poll for something else */

/* Asks for a close frame. What the client sends from now on is dropped. */
void ws_session_refuse(struct ws_session *session, unsigned code, const char *reason);

/* Drops the socket without one. */
void ws_session_kill(struct ws_session *session);

/* Ends api's side and gives the buffers back; may be called again. */
void ws_session_end(struct ws_session *session);

#endif
