#include "sandkeeper/api/rpc_route.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/body.h"
#include "sandkeeper/api/rpc.h"
#include "sandkeeper/base/fdutil.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What a client that does not read holds is one of these, one message, and the command's log. */
#define PIECE_MAX (32u * 1024u)
#define MESSAGE_KEPT (128u * 1024u)
/* Messages in one turn of the loop: a method may still send notifications, which nobody gets. */
#define PULLS_PER_TURN 64

struct rpc_route {
  struct peer peer; /* must be first: the session hands it back */
  struct exchange *x;
  struct rpc_session *session;
  struct body body;
  bool stream;        /* NDJSON */
  bool answered;      /* as one response */
  struct buf message; /* pulled, and not sent whole yet; then the answer */
  size_t sent;        /* of the message and its newline */
  struct loop_task task;
};

/* ---- the answer as a stream ---- */

/* A message's bytes, then its newline. */
static void append_message(struct rpc_route *route, struct buf *out) {
  const struct buf *message = &route->message;
  size_t room = PIECE_MAX - out->len;
  if (route->sent < message->len) {
    size_t left = message->len - route->sent, n = left < room ? left : room;
    buf_append(out, message->data + route->sent, n);
    route->sent += n;
    room -= n;
  }
  if (route->sent == message->len && room > 0) {
    buf_append(out, "\n", 1);
    route->sent++;
  }
}

static int pull(struct exchange *x, struct buf *out) {
  struct rpc_route *route = x->state;
  struct buf *message = &route->message;
  for (;;) {
    if (message->len > 0 && route->sent <= message->len)
      append_message(route, out);
    if (out->len == PIECE_MAX || out->failed)
      return STREAM_MORE;
    buf_reset(message, MESSAGE_KEPT);
    route->sent = 0;
    if (rpc_session_pull(route->session, message)) {
      if (message->failed)
        out->failed = true; /* no memory: better a broken answer than one that lacks a message */
      continue;
    }
    buf_reset(message, MESSAGE_KEPT); /* what a method left in it is nothing */
    if (rpc_session_idle(route->session))
      return STREAM_END;
    return out->len > 0 ? STREAM_MORE : STREAM_WAIT;
  }
}

/* ---- the answer as one response ---- */

static const char notification[] = "{\"jsonrpc\":\"2.0\",\"method\":";

static bool is_notification(const struct buf *message) {
  size_t len = sizeof notification - 1;
  return message->len >= len && memcmp(message->data, notification, len) == 0;
}

static void on_task(struct loop_task *task) {
  struct rpc_route *route = task->arg;
  struct exchange *x = route->x;
  struct buf message;
  bool more = true;
  if (route->answered)
    return; /* a call wakes its peer once more when its response has been taken */
  buf_init(&message, SIZE_MAX, BUF_HEADROOM);
  for (int i = 0; i < PULLS_PER_TURN && more; i++) {
    more = rpc_session_pull(route->session, &message);
    if (more && !is_notification(&message))
      buf_move(&route->message, &message);
  }
  buf_free(&message);
  if (more) {
    loop_defer(x->api->sandbox->loop, &route->task, on_task, route);
  } else if (rpc_session_idle(route->session)) {
    route->answered = true;
    /* Requests without an id have no response: there is nothing to say (JSON-RPC 2.0, 4.1). */
    x->ops->reply(x, 200, route->message.len > 0 ? "application/json" : NULL, &route->message);
  }
}

/* ---- the session ---- */

static void wake(struct peer *peer) {
  struct rpc_route *route = (struct rpc_route *)peer;
  if (route->stream)
    route->x->ops->wake(route->x);
  else
    loop_defer(route->x->api->sandbox->loop, &route->task, on_task, route);
}

static void hold(struct peer *peer, bool held) {
  (void)peer, (void)held; /* there is one message, and it is here */
}

static const struct peer_ops peer_ops = {.wake = wake, .hold = hold};

/* The list of an Accept header names the type, whatever its q is: only who wants it writes it there. */
static bool accepts_ndjson(const char *accept) {
  static const char type[] = "application/x-ndjson";
  return accept && strcasestr(accept, type);
}

static void on_gone(struct exchange *x) {
  struct rpc_route *route = x->state;
  loop_task_cancel(&route->task);
  if (route->session)
    rpc_session_close(route->session);
  body_free(&route->body);
  buf_free(&route->message);
  free(route);
}

void rpc_route_handle(struct exchange *x) {
  struct rpc_route *route = calloc(1, sizeof *route);
  if (!route) {
    x->ops->fail(x, 503, "there is no memory for the request");
    return;
  }
  struct api *api = x->api;
  route->stream = accepts_ndjson(x->ops->header(x, "Accept"));
  route->peer = (struct peer){.ops = &peer_ops, .max_message = SIZE_MAX, .answers_only = !route->stream};
  route->x = x;
  loop_task_init(&route->task);
  body_init(&route->body, &api->bodies, api->options.max_message);
  buf_init(&route->message, SIZE_MAX, BUF_HEADROOM);
  x->state = route;
  x->gone = on_gone;
  body_take(&route->body, x, "", 0);
}

static void begin(struct rpc_route *route) {
  struct exchange *x = route->x;
  struct error error = ERROR_INIT;
  struct buf text;
  route->session = rpc_session_open(x->api, &route->peer, &error);
  if (!route->session) {
    x->ops->fail(x, 503, "%s", error.message);
    return;
  }
  buf_init(&text, SIZE_MAX, 0);
  body_move(&route->body, &text);
  if (route->stream) {
    x->ops->add_header(x, "Cache-Control", "no-cache");
    x->ops->stream(x, 200, "application/x-ndjson", pull);
  }
  rpc_session_take(route->session, &text);
  buf_free(&text);
  wake(&route->peer); /* an empty batch of notifications may have been over at once */
}

size_t rpc_route_body(struct exchange *x, const char *bytes, size_t len, bool last) {
  struct rpc_route *route = x->state;
  if (last)
    begin(route);
  else
    body_take(&route->body, x, bytes, len);
  return len;
}
