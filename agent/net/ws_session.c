#include "sandkeeper/net/ws_session.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/base/utf8.h"

#include <libwebsockets.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* The library copies what the socket does not take at once: this bounds the copy. */
#define WRITE_MAX (128u * 1024u)

/* For a close frame to go out and to be answered; the library's own figure for the steps behind it. */
#define CLOSE_SECONDS 5

_Static_assert(LWS_PRE <= BUF_HEADROOM, "a frame's header fits in front of a buffer");

/* After a close frame of the library's own making, for a client that does not answer as it should. */
#define LAST_TIME (200 * CLOCK_MS)

/* Our own bit among the library's reasons not to read; its others are 0, 6 and 7. */
#define PONG_REASON (1 << 3)

void ws_session_ask_turn(struct ws_session *session) {
  session->turn_due = true;
  session->ws->inside++;
  lws_callback_on_writable(session->wsi);
  session->ws->inside--;
}

/* Reading goes on when no reason is left not to. Done at once: later it would look like a change of the library's own.
 */
static void read_or_not(struct ws_session *session, int reason, bool enable) {
  int change = enable ? LWS_RXFLOW_REASON_APPLIES_ENABLE : LWS_RXFLOW_REASON_APPLIES_DISABLE;
  session->ws->inside++;
  lws_rx_flow_control(session->wsi, change | LWS_RXFLOW_REASON_FLAG_PROCESS_NOW | reason);
  session->ws->inside--;
}

/* ---- the end ---- */

static void drop_in(struct ws_session *session) {
  session->ws->buffered -= session->in.len;
  buf_free(&session->in);
}

void ws_session_end(struct ws_session *session) {
  struct rpc_session *rpc = session->rpc;
  session->rpc = NULL;
  session->ended = true;
  if (rpc)
    rpc_session_close(rpc);
  drop_in(session);
  buf_free(&session->out);
  loop_watch_stop(session->ws->loop, &session->hangup);
  list_remove(&session->pong_node);
  list_remove(&session->node);
}

void ws_session_kill(struct ws_session *session) {
  lws_set_timeout(session->wsi, PENDING_TIMEOUT_USER_REASON_BASE, LWS_TO_KILL_ASYNC);
}

/* The frame is sent from the turn to write, never by a negative result while receiving: that would throw away what has
 * been read and not parsed, and the client's own close frame would no longer be understood. */
void ws_session_refuse(struct ws_session *session, unsigned code, const char *reason) {
  if (session->close_code)
    return;
  LOG(LOG_INFO, "ws", "closing", LOG_S("address", session->address), LOG_I("code", code), LOG_S("reason", reason));
  session->close_code = code;
  snprintf(session->close_reason, sizeof session->close_reason, "%s", reason);
  drop_in(session);
  lws_set_timeout(session->wsi, PENDING_TIMEOUT_USER_REASON_BASE, CLOSE_SECONDS);
  ws_session_ask_turn(session);
}

static int close_now(struct ws_session *session, unsigned code, const char *reason) {
  char text[WS_REASON_MAX];
  snprintf(text, sizeof text, "%s", reason);
  lws_close_reason(session->wsi, (enum lws_close_status)code, (unsigned char *)text, strlen(text));
  ws_session_end(session);
  return -1;
}

static void on_last_time(struct loop_timer *timer) {
  struct ws_session *session = timer->arg;
  shutdown(lws_get_socket_fd(session->wsi), SHUT_WR);
}

/* The library sends a close frame and waits for one, which it may not understand any more: it has thrown away the rest
 * of what it was reading. RFC 6455, 7.1.7, wants the server to close the connection. */
void ws_session_fails(struct ws_session *session) {
  struct loop *loop = session->ws->loop;
  if (session->rpc)
    loop_timer_start(loop, &session->timer, loop_now(loop) + LAST_TIME, on_last_time, session);
  ws_session_end(session);
}

/* The library would answer a close frame of one byte, which is malformed, with the same. */
int ws_session_peer_closes(struct ws_session *session, size_t len) {
  if (len != 1) {
    ws_session_end(session);
    return 0;
  }
  lws_close_reason(session->wsi, LWS_CLOSE_STATUS_PROTOCOL_ERR, NULL, 0);
  ws_session_fails(session);
  return -1;
}

/* ---- pongs ---- */

/* The library keeps one ping, and drops those that come in the same read before it is answered. It asks for a turn to
 * write then, and on that occasion calls us, if we have not asked before: nothing more is parsed until the pong is out.
 */
void ws_session_polled(struct ws_session *session) {
  if (!session->rpc || session->turn_due || session->pong_pause)
    return;
  session->pong_pause = true;
  read_or_not(session, PONG_REASON, false);
}

/* Only from between the library's turns. Allowing it to read makes it ask for a turn to write when it has bytes left,
 * and then the next ping would not be noticed; so it is given that turn at once, before it parses them. */
void ws_session_go_on(struct ws_session *session) {
  struct ws *ws = session->ws;
  struct lws_pollfd writeable = {.fd = session->fd, .events = LWS_POLLIN | LWS_POLLOUT, .revents = LWS_POLLOUT};
  list_remove(&session->pong_node);
  session->pong_pause = false;
  session->turn_due = true; /* the turn's end is no news */
  ws->going_on = session;
  read_or_not(session, PONG_REASON, true);
  lws_service_fd(ws->context, &writeable);
  if (ws->going_on && !session->pong_pause) /* it lives */
    ws_session_ask_turn(session);
  ws->going_on = NULL;
}

/* ---- for api/ ---- */

static void wake(struct peer *peer) {
  struct ws_session *session = (struct ws_session *)(void *)peer;
  ws_session_ask_turn(session);
}

static void hold(struct peer *peer, bool held) {
  struct ws_session *session = (struct ws_session *)(void *)peer;
  if (session->held == held)
    return;
  session->held = held;
  if (held && session->half_closed)
    ws_session_kill(session);
  read_or_not(session, LWS_RXFLOW_REASON_USER_BOOL, !held);
}

static const struct peer_ops ops = {.wake = wake, .hold = hold};

/* ---- opening ---- */

/* The library does not look at the socket while the client is held, and when the client has closed its side while a
 * frame is half sent it looks again and again for 5 s. */
static void on_hangup(struct loop_watch *watch, uint32_t events) {
  struct ws_session *session = watch->arg;
  (void)events;
  loop_watch_stop(session->ws->loop, watch);
  session->half_closed = true;
  if (session->held || lws_partial_buffered(session->wsi))
    ws_session_kill(session);
}

int ws_session_opened(struct ws_session *session) {
  struct error err = ERROR_INIT;
  session->peer.ops = &ops;
  session->rpc = rpc_session_open(session->ws->api, &session->peer, &err);
  if (!session->rpc) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_UNEXPECTED_CONDITION, err.message);
    return 0;
  }
  loop_watch_start(session->ws->loop, &session->hangup, session->fd, EPOLLRDHUP | EPOLLET, on_hangup, session);
  if (session->ws->closing)
    ws_session_ask_turn(session);
  return 0;
}

/* ---- receiving ---- */

static void refuse_too_long(struct ws_session *session) {
  char reason[WS_REASON_MAX];
  snprintf(reason, sizeof reason, "the message is longer than %zu bytes", session->ws->options->max_message);
  ws_session_refuse(session, LWS_CLOSE_STATUS_MESSAGE_TOO_LARGE, reason);
}

static void take_fragment(struct ws_session *session, const char *bytes, size_t len, bool final) {
  struct ws *ws = session->ws;
  if (len > ws->options->max_buffered - ws->buffered) {
    ws_session_refuse(session, 1013, "too many half-received messages");
    return;
  }
  if (buf_append(&session->in, bytes, len) < 0) {
    ws_session_refuse(session, 1013, "there is no memory for the message");
    return;
  }
  ws->buffered += len;
  if (!final)
    return;
  /* The library checks every fragment that has bytes, so this is left for a last one that has none. */
  if (len == 0 && !session->binary && utf8_incomplete_tail((const uint8_t *)session->in.data, session->in.len) > 0) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_INVALID_PAYLOAD, "the message ends inside a character");
    return;
  }
  ws->buffered -= session->in.len; /* from here on it is the api's */
  rpc_session_take(session->rpc, &session->in);
}

int ws_session_receive(struct ws_session *session, const char *bytes, size_t len) {
  struct lws *wsi = session->wsi;
  ws_session_touch(session);
  if (session->close_code || !session->rpc)
    return 0;
  session->binary = lws_frame_is_binary(wsi);
  if (session->binary && !session->ws->options->binary) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_UNACCEPTABLE_OPCODE, "only text messages are taken");
    return 0;
  }
  size_t announced = lws_remaining_packet_payload(wsi);
  size_t limit = session->ws->options->max_message;
  if (announced > limit || session->in.len + len > limit - announced)
    refuse_too_long(session);
  else if (lws_is_first_fragment(wsi) && lws_is_final_fragment(wsi))
    rpc_session_receive(session->rpc, bytes ? bytes : "", len);
  else
    take_fragment(session, bytes, len, lws_is_final_fragment(wsi));
  return 0;
}

/* ---- sending ---- */

static int first_frame(const struct ws_session *session) {
  return session->binary ? LWS_WRITE_BINARY : LWS_WRITE_TEXT;
}

static int write_frame(struct ws_session *session, char *bytes, size_t len, int protocol) {
  if (lws_write(session->wsi, (unsigned char *)bytes, len, (enum lws_write_protocol)protocol) < 0)
    return -1;
  ws_session_touch(session);
  ws_session_ask_turn(session); /* for the next one, if there is any */
  return 0;
}

/* The header of a later fragment overwrites bytes of the one before, which are sent. */
static int write_fragment(struct ws_session *session) {
  size_t left = session->out.len - session->out_sent;
  size_t len = left < WRITE_MAX ? left : WRITE_MAX;
  int protocol = session->out_sent == 0 ? first_frame(session) : LWS_WRITE_CONTINUATION;
  if (len < left)
    protocol |= LWS_WRITE_NO_FIN;
  char *bytes = session->out.data + session->out_sent;
  session->out_sent += len;
  int result = write_frame(session, bytes, len, protocol);
  if (len == left) {
    buf_free(&session->out);
    session->out_sent = 0;
  }
  return result;
}

/* An empty one is of no use to a client that waits for its pong: the library tells of pongs with a payload only. */
static int write_ping(struct ws_session *session) {
  char frame[LWS_PRE + 8] = {0};
  session->ping_due = false;
  memcpy(frame + LWS_PRE, "are you?", 8);
  if (lws_write(session->wsi, (unsigned char *)frame + LWS_PRE, 8, LWS_WRITE_PING) < 0)
    return -1;
  ws_session_ask_turn(session);
  return 0;
}

int ws_session_writeable(struct ws_session *session) {
  struct ws *ws = session->ws;
  session->turn_due = false;
  if (ws->going_on == session)
    return 0;
  if (session->pong_pause && !list_is_linked(&session->pong_node))
    list_append(&ws->ponged, &session->pong_node);
  if (session->ended)
    return 0;
  if (session->half_closed) /* nothing may become half sent; what the client has sent before is still read */
    return 0;
  if (session->close_code)
    return close_now(session, session->close_code, session->close_reason);
  if (!session->rpc)
    return 0;
  if (session->ping_due)
    return write_ping(session);
  if (session->out.len > 0)
    return write_fragment(session);
  if (!rpc_session_pull(session->rpc, &ws->out)) {
    buf_reset(&ws->out, WRITE_MAX);
    return ws->closing ? close_now(session, ws->close_code, ws->close_reason) : 0;
  }
  /* The library wants an address for an empty message too. */
  if (ws->out.failed || (!ws->out.data && !buf_reserve(&ws->out, 1))) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_UNEXPECTED_CONDITION, "there is no memory for an answer");
    return 0;
  }
  if (ws->out.len > WRITE_MAX) {
    buf_move(&session->out, &ws->out);
    session->out_sent = 0;
    return write_fragment(session);
  }
  return write_frame(session, ws->out.data, ws->out.len, first_frame(session));
}
