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

/* Turns in a row that the library may take for itself: it has a pong, a ping or a close frame at most. */
#define OWN_TURNS_MAX 4

/* Turns to write that a session gets in one go. The others have theirs before it gets more. */
#define TURNS_AT_ONCE 8

/* For a close frame to go out and to be answered. */
#define CLOSE_TIME (5 * CLOCK_SECOND)

/* The same after a fault, when the client's answer may not be understood any more. */
#define FAULT_TIME (200 * CLOCK_MS)

/* Our own bit among the library's reasons not to read; its others are 0, 6 and 7. */
#define PONG_REASON (1 << 3)

_Static_assert(LWS_PRE <= BUF_HEADROOM, "a frame's header fits in front of a buffer");

/* ---- driving the library ---- */

/* Tells the library what its socket is ready for. False when it has closed the socket, and the session is gone. */
static bool serve(struct ws_session *session, int events) {
  struct ws *ws = session->ws;
  struct lws_pollfd polled = {.fd = session->fd, .events = LWS_POLLIN | LWS_POLLOUT, .revents = (short)events};
  session->step = events & LWS_POLLOUT ? WS_STEP_TURN : WS_STEP_READ;
  ws->served = session;
  lws_service_fd(ws->context, &polled);
  if (!ws->served)
    return false;
  ws->served = NULL;
  session->step = WS_STEP_NONE;
  session->blocked = lws_partial_buffered(session->wsi) != 0;
  return true;
}

/* Not to read: the client is held, or a pong is due, or all that would be read is its end while a frame is half sent,
 * which the library would look at again and again. */
static bool is_reading(const struct ws_session *session) {
  if (session->half_closed && session->blocked)
    return false;
  return session->ended || (!session->held && !session->pong_pause);
}

static void update_watch(struct ws_session *session) {
  uint32_t events = is_reading(session) ? EPOLLIN : 0;
  if (session->blocked)
    events |= EPOLLOUT;
  if (!session->half_closed)
    events |= EPOLLRDHUP;
  loop_watch_change(session->ws->loop, &session->watch, events);
}

/* Reading goes on when no reason is left not to. Done at once: later it would look like a change of the library's own.
 */
static void read_or_not(struct ws_session *session, int reason, bool enable) {
  int change = enable ? LWS_RXFLOW_REASON_APPLIES_ENABLE : LWS_RXFLOW_REASON_APPLIES_DISABLE;
  session->ws->inside++;
  lws_rx_flow_control(session->wsi, change | LWS_RXFLOW_REASON_FLAG_PROCESS_NOW | reason);
  session->ws->inside--;
}

static void on_task(struct loop_task *task);

void ws_session_ask_turn(struct ws_session *session) {
  session->turn_due = true;
  if (session->ws->served != session && !session->blocked)
    loop_defer(session->ws->loop, &session->task, on_task, session);
}

void ws_session_kill(struct ws_session *session) {
  session->kill_due = true;
  loop_defer(session->ws->loop, &session->task, on_task, session);
}

/* What the library has read and kept is parsed at the end of the next turn: by then it asks for none, and another ping
 * will be noticed. */
static void end_pong_pause(struct ws_session *session) {
  session->pong_pause = false;
  session->turn_due = true;
  read_or_not(session, PONG_REASON, true);
}

/* Gives the turns to write that are due, while the socket takes what is written. A turn in which the library does not
 * ask us was one for a frame of its own, or for the rest of one; it needs another then. False when the session is gone.
 */
static bool give_turns(struct ws_session *session) {
  for (int i = 0; i < TURNS_AT_ONCE && session->turn_due && !session->blocked; i++) {
    bool paused = session->pong_pause;
    session->turn_due = false;
    session->asked = false;
    if (!serve(session, LWS_POLLOUT))
      return false;
    if (session->blocked)
      session->own_turns = 0;
    else if (!session->asked && ++session->own_turns < OWN_TURNS_MAX)
      session->turn_due = true;
    if (session->asked && paused) /* so the pong is out */
      end_pong_pause(session);
  }
  if (session->turn_due && !session->blocked)
    loop_defer(session->ws->loop, &session->task, on_task, session);
  update_watch(session);
  return true;
}

static void on_task(struct loop_task *task) {
  struct ws_session *session = task->arg;
  if (session->kill_due)
    serve(session, LWS_POLLHUP);
  else
    give_turns(session);
}

static void on_socket(struct loop_watch *watch, uint32_t events) {
  struct ws_session *session = watch->arg;
  bool broken = (events & (EPOLLHUP | EPOLLERR)) != 0;
  if (events & EPOLLRDHUP)
    session->half_closed = true;
  if ((broken && !is_reading(session)) || (session->half_closed && (session->held || session->blocked))) {
    serve(session, LWS_POLLHUP);
    return;
  }
  if ((broken || events & EPOLLIN) && is_reading(session) && !serve(session, LWS_POLLIN))
    return;
  if (events & EPOLLOUT) {
    session->blocked = false;
    session->turn_due = true;
  }
  give_turns(session);
}

/* The library asks for the thread's number whenever it has changed what it would poll the socket for; that it asks is
 * what we want to know. While it reads, it wants to write then: a pong or a close frame. It keeps one ping, and drops
 * those that come in the same read before it is answered, so nothing more is parsed until the pong is out. */
void ws_session_polled(struct ws_session *session) {
  if (session->step == WS_STEP_TURN)
    return;
  if (session->step == WS_STEP_READ && !session->ended && !session->pong_pause) {
    session->pong_pause = true;
    read_or_not(session, PONG_REASON, false);
  }
  session->own_turns = 0;
  ws_session_ask_turn(session);
}

/* ---- the end ---- */

static void drop_in(struct ws_session *session) {
  session->ws->buffered -= session->in.len;
  buf_free(&session->in);
}

static void on_time_over(struct loop_timer *timer) {
  ws_session_kill(timer->arg);
}

static void start_timer(struct ws_session *session, int64_t time, loop_timer_fn *fn) {
  struct loop *loop = session->ws->loop;
  loop_timer_start(loop, &session->timer, loop_now(loop) + time, fn, session);
}

void ws_session_end(struct ws_session *session) {
  struct rpc_session *rpc = session->rpc;
  if (session->ended)
    return;
  session->ended = true;
  session->rpc = NULL;
  if (rpc)
    rpc_session_close(rpc);
  drop_in(session);
  buf_free(&session->out);
  list_remove(&session->node);
  if (session->wsi) { /* so that it can read the client's close frame */
    read_or_not(session, LWS_RXFLOW_REASON_USER_BOOL, true);
    read_or_not(session, PONG_REASON, true);
  }
  start_timer(session, CLOSE_TIME, on_time_over);
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
  start_timer(session, CLOSE_TIME, on_time_over);
  ws_session_ask_turn(session);
}

static int close_now(struct ws_session *session, unsigned code, const char *reason) {
  char text[WS_REASON_MAX];
  snprintf(text, sizeof text, "%s", reason);
  lws_close_reason(session->wsi, (enum lws_close_status)code, (unsigned char *)text, strlen(text));
  ws_session_end(session);
  /* The frame goes out in a turn of its own. The library asks for it, but that is not noticed when it wanted to write
   * for another reason before. */
  session->turn_due = true;
  return -1;
}

static void on_fault_time_over(struct loop_timer *timer) {
  struct ws_session *session = timer->arg;
  shutdown(session->fd, SHUT_WR);
  start_timer(session, CLOSE_TIME, on_time_over);
}

/* The library sends a close frame and waits for one, which it may not understand any more: it has thrown away the rest
 * of what it was reading. RFC 6455, 7.1.7, wants the server to close the connection. */
void ws_session_fails(struct ws_session *session) {
  if (session->ended)
    return;
  ws_session_end(session);
  start_timer(session, FAULT_TIME, on_fault_time_over);
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

/* ---- for api/ ---- */

static void wake(struct peer *peer) {
  ws_session_ask_turn((struct ws_session *)(void *)peer);
}

static void hold(struct peer *peer, bool held) {
  struct ws_session *session = (struct ws_session *)(void *)peer;
  if (session->held == held || session->ended)
    return;
  session->held = held;
  read_or_not(session, LWS_RXFLOW_REASON_USER_BOOL, !held);
  if (!held) /* its pong may be waiting to be read */
    ws_session_touch(session);
  if (held && session->half_closed)
    ws_session_kill(session);
  else
    ws_session_ask_turn(session); /* for what the library has read and kept, and for the watch */
}

static const struct peer_ops ops = {.wake = wake, .hold = hold};

/* ---- opening ---- */

int ws_session_opened(struct ws_session *session) {
  struct error err = ERROR_INIT;
  struct ws *ws = session->ws;
  if (loop_watch_start(ws->loop, &session->watch, session->fd, EPOLLIN | EPOLLRDHUP, on_socket, session) < 0)
    return -1;
  session->peer.ops = &ops;
  session->rpc = rpc_session_open(ws->api, &session->peer, &err);
  if (!session->rpc)
    ws_session_refuse(session, LWS_CLOSE_STATUS_UNEXPECTED_CONDITION, err.message);
  else if (ws->closing)
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
  /* Built without extensions, as for the static agent, the library lets the first reserved bit through. */
  if (lws_get_reserved_bits(wsi)) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_PROTOCOL_ERR, "reserved bits are set");
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
  session->turn_due = true; /* for the next one, if there is any */
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
  session->turn_due = true;
  return 0;
}

static int write_message(struct ws_session *session) {
  struct ws *ws = session->ws;
  if (!rpc_session_pull(session->rpc, &ws->out)) {
    buf_reset(&ws->out, WRITE_MAX);
    return ws->closing && !rpc_session_has_more(session->rpc) ? close_now(session, ws->close_code, ws->close_reason)
                                                              : 0;
  }
  /* The library wants an address for an empty message too. */
  if (ws->out.failed || (!ws->out.data && !buf_reserve(&ws->out, 1))) {
    ws_session_refuse(session, LWS_CLOSE_STATUS_UNEXPECTED_CONDITION, "there is no memory for an answer");
    return 0;
  }
  if (ws->out.len <= WRITE_MAX)
    return write_frame(session, ws->out.data, ws->out.len, first_frame(session));
  buf_move(&session->out, &ws->out);
  session->out_sent = 0;
  return write_fragment(session);
}

static int take_turn(struct ws_session *session) {
  if (session->ended)
    return 0;
  if (session->half_closed) /* nothing may become half sent; what the client has sent before is still read */
    return 0;
  if (session->close_code)
    return close_now(session, session->close_code, session->close_reason);
  if (session->ping_due)
    return write_ping(session);
  if (session->out.len > 0)
    return write_fragment(session);
  return write_message(session);
}

/* Outside of serve() the library gives a turn while it closes everything. */
int ws_session_writeable(struct ws_session *session) {
  if (session->step != WS_STEP_TURN)
    return 0;
  session->asked = true;
  session->own_turns = 0;
  int result = take_turn(session);
  session->step = WS_STEP_READ;
  return result;
}
