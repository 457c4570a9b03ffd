#include "sandkeeper/net/ws_session.h"

#include "sandkeeper/base/log.h"
#include "sandkeeper/base/utf8.h"

#include <libwebsockets.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

/* The library copies what the socket does not take at once: this bounds the copy. */
#define WRITE_MAX (128u * 1024u)

/* For a close frame to go out and to be answered; the library's own figure for the steps behind it. */
#define CLOSE_SECONDS 5

_Static_assert(LWS_PRE <= BUF_HEADROOM, "a frame's header fits in front of a buffer");

/* ---- the end ---- */

static void drop_in(struct ws_session *session) {
  session->ws->buffered -= session->in.len;
  buf_free(&session->in);
}

void ws_session_end(struct ws_session *session) {
  struct rpc_session *rpc = session->rpc;
  session->rpc = NULL;
  if (rpc)
    rpc_session_close(rpc);
  drop_in(session);
  buf_free(&session->out);
  loop_watch_stop(session->ws->loop, &session->hangup);
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
  lws_callback_on_writable(session->wsi);
}

static int close_now(struct ws_session *session, unsigned code, const char *reason) {
  char text[WS_REASON_MAX];
  snprintf(text, sizeof text, "%s", reason);
  lws_close_reason(session->wsi, (enum lws_close_status)code, (unsigned char *)text, strlen(text));
  ws_session_end(session);
  return -1;
}

/* ---- for api/ ---- */

static void wake(struct peer *peer) {
  struct ws_session *session = (struct ws_session *)(void *)peer;
  lws_callback_on_writable(session->wsi);
}

static void hold(struct peer *peer, bool held) {
  struct ws_session *session = (struct ws_session *)(void *)peer;
  if (session->held == held)
    return;
  session->held = held;
  if (held && session->half_closed)
    ws_session_kill(session);
  lws_rx_flow_control(session->wsi, held ? 0 : 1);
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
    lws_callback_on_writable(session->wsi);
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
  if (len == 0 && utf8_incomplete_tail((const uint8_t *)session->in.data, session->in.len) > 0) {
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
  if (lws_frame_is_binary(wsi)) {
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

static int write_frame(struct ws_session *session, char *bytes, size_t len, int protocol) {
  if (lws_write(session->wsi, (unsigned char *)bytes, len, (enum lws_write_protocol)protocol) < 0)
    return -1;
  ws_session_touch(session);
  lws_callback_on_writable(session->wsi); /* for the next one, if there is any */
  return 0;
}

/* The header of a later fragment overwrites bytes of the one before, which are sent. */
static int write_fragment(struct ws_session *session) {
  size_t left = session->out.len - session->out_sent;
  size_t len = left < WRITE_MAX ? left : WRITE_MAX;
  int protocol = session->out_sent == 0 ? LWS_WRITE_TEXT : LWS_WRITE_CONTINUATION;
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
  lws_callback_on_writable(session->wsi);
  return 0;
}

int ws_session_writeable(struct ws_session *session) {
  struct ws *ws = session->ws;
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
  if (ws->out.failed) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_UNEXPECTED_CONDITION, "there is no memory for an answer");
    return 0;
  }
  if (ws->out.len > WRITE_MAX) {
    buf_move(&session->out, &ws->out);
    session->out_sent = 0;
    return write_fragment(session);
  }
  return write_frame(session, ws->out.data, ws->out.len, LWS_WRITE_TEXT);
}
