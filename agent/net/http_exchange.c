#include "sandkeeper/net/http_exchange.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/net/access.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

/* How much of a body is read and dropped after an early answer, so that a client that sends before it reads gets to it.
 */
#define DROP_MAX (64 * 1024 * 1024)

#define HEADERS_MAX (16 * 1024)

/* ---- suspending ---- */

void http_exchange_resume(struct http_exchange *x) {
  if (!x->suspended) {
    x->woken = true;
    return;
  }
  x->suspended = false;
  if (x->phase == HTTP_PHASE_BODY)
    http_expect_body(x->link);
  MHD_resume_connection(x->connection);
  http_run_soon(x->http);
}

void http_exchange_leave(struct http_exchange *x) {
  x->client_left = true;
  if (x->suspended)
    http_exchange_resume(x);
}

void http_exchange_suspend(struct http_exchange *x) {
  http_expect_nothing(x->link);
  x->suspended = true;
  MHD_suspend_connection(x->connection);
  if (x->link->half_closed)
    http_exchange_leave(x);
}

/* ---- the library's calls ---- */

static bool is_too_long(const struct http_exchange *x, uint64_t len) {
  return x->route->body_max > 0 && len > x->route->body_max;
}

static void fail_too_long(struct http_exchange *x) {
  x->public.ops->fail(&x->public, 413, "the body is longer than the %zu bytes that %.200s takes", x->route->body_max,
                      x->path);
}

static void begin(struct http_exchange *x, const char *method, const char *version) {
  http_expect_nothing(x->link);
  x->phase = HTTP_PHASE_HEAD;
  http_exchange_judge(x, method, version);
  if (x->answered)
    return;
  LOG(LOG_DEBUG, "http", "request", LOG_S("method", method), LOG_S("path", x->path),
      LOG_S("address", x->link->address));
  access_note_client(&x->head, x->link->address);
  if (is_too_long(x, x->head.content_length))
    fail_too_long(x);
  else if (x->route->body)
    x->route->handle(&x->public);
}

static int deliver(struct http_exchange *x) {
  if (!x->response) {
    http_exchange_suspend(x);
    return MHD_YES;
  }
  bool queued = MHD_queue_response(x->connection, x->status, x->response) == MHD_YES;
  MHD_destroy_response(x->response);
  x->response = NULL;
  if (queued && x->file >= 0)
    http_answer_watch_file(x);
  return queued ? MHD_YES : MHD_NO;
}

static int after_head(struct http_exchange *x) {
  bool has_body = http_head_has_body(&x->head);
  if (x->answered && (x->close_early || (has_body && x->head.expect_continue) ||
                      (!x->head.chunked && x->head.content_length > DROP_MAX)))
    return deliver(x);
  if (x->held && !x->answered) {
    http_exchange_suspend(x);
    return MHD_YES;
  }
  x->phase = HTTP_PHASE_BODY;
  if (has_body)
    http_expect_body(x->link);
  return MHD_YES;
}

static int drop_body(struct http_exchange *x, size_t *len) {
  x->dropped += *len;
  *len = 0;
  return x->dropped <= DROP_MAX ? MHD_YES : MHD_NO;
}

static int feed_sink(struct http_exchange *x, const char *bytes, size_t *len) {
  x->woken = false;
  size_t taken = x->route->body(&x->public, bytes, *len, false);
  x->received += taken;
  if (x->answered) {
    *len = 0;
  } else if (taken < *len) {
    *len -= taken;
    http_exchange_suspend(x);
    if (x->woken)
      http_exchange_resume(x);
  } else {
    *len = 0;
  }
  return x->client_left ? MHD_NO : MHD_YES;
}

static int take_body(struct http_exchange *x, const char *bytes, size_t *len) {
  http_body_came(x->link, *len);
  if (x->answered || (!x->route->body && x->route->body_max == 0))
    return drop_body(x, len);
  if (is_too_long(x, x->received + *len)) {
    fail_too_long(x);
    return drop_body(x, len);
  }
  if (x->route->body)
    return feed_sink(x, bytes, len);
  if (buf_append(&x->body, bytes, *len) < 0)
    x->public.ops->fail(&x->public, 503, "there is no memory for the body");
  x->received += *len;
  *len = 0;
  return MHD_YES;
}

static void complete(struct http_exchange *x) {
  http_expect_nothing(x->link);
  x->phase = HTTP_PHASE_COMPLETE;
  if (x->answered)
    return;
  if (x->route->body) {
    x->route->body(&x->public, NULL, 0, true);
  } else {
    x->public.body = &x->body;
    x->route->handle(&x->public);
  }
}

int http_exchange_continue(struct http_exchange *x, const char *method, const char *version, const char *bytes,
                           size_t *len) {
  if (x->client_left)
    return MHD_NO;
  if (*len > 0)
    return take_body(x, bytes, len);
  if (x->phase == HTTP_PHASE_NEW)
    begin(x, method, version);
  if (x->client_left)
    return MHD_NO;
  if (x->phase == HTTP_PHASE_HEAD)
    return after_head(x);
  if (x->phase == HTTP_PHASE_BODY)
    complete(x);
  return x->client_left ? MHD_NO : deliver(x);
}

/* ---- life ---- */

static char *copy_path(const char *target) {
  struct http_head head;
  http_head_begin(&head, text_of("GET"), text_of(target), 1);
  return strndup(head.path.at, head.path.len);
}

struct http_exchange *http_exchange_new(struct http_connection *link, struct MHD_Connection *connection,
                                        const char *target) {
  struct http_exchange *x = calloc(1, sizeof *x);
  char *target_copy = strdup(target), *path = copy_path(target);
  if (!x || !target_copy || !path) {
    free(x);
    free(target_copy);
    free(path);
    return NULL;
  }
  struct http *http = link->http;
  x->public = (struct exchange){.ops = &http_exchange_ops,
                                .api = http->api,
                                .method = "",
                                .path = path,
                                .peer_address = link->address,
                                .body = &x->body};
  x->http = http;
  x->link = link;
  x->connection = connection;
  x->started = loop_now(http->loop);
  x->target = target_copy;
  x->path = path;
  x->file = -1;
  buf_init(&x->body, SIZE_MAX, 0); /* the route's body_max is checked before every append */
  buf_init(&x->headers, HEADERS_MAX, 0);
  buf_init(&x->answer, SIZE_MAX, 0);
  buf_init(&x->piece, EXCHANGE_PIECE_MAX, 0);
  link->exchange = x;
  http->n_exchanges++;
  return x;
}

void http_exchange_end(struct http_exchange *x) {
  struct http *http = x->http;
  http_expect_nothing(x->link);
  x->link->exchange = NULL;
  http->n_exchanges--;
  http_look_if_finished(http);
  if (x->public.gone)
    x->public.gone(&x->public);
  if (http->observer && x->phase != HTTP_PHASE_NEW)
    http->observer(http->observer_arg, x->route, x->status, clock_monotonic() - x->started);
  if (x->response)
    MHD_destroy_response(x->response);
  while (x->decoded) {
    struct http_decoded *next = x->decoded->next;
    free(x->decoded);
    x->decoded = next;
  }
  buf_free(&x->body);
  buf_free(&x->headers);
  buf_free(&x->answer);
  buf_free(&x->piece);
  free(x->target);
  free(x->path);
  free(x);
}
