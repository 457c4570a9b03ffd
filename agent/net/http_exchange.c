#include "sandkeeper/net/http_exchange.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/net/access.h"
#include "sandkeeper/net/route.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

/* How much of a body is read and dropped after an early answer, so that a client that sends before it reads gets to it.
 */
#define DROP_MAX (64 * 1024 * 1024)

#define HEADERS_MAX (16 * 1024)
#define PIECE_KEPT 4096
#define FILE_CHECK (1 * CLOCK_SECOND)

enum phase {
  PHASE_NEW,      /* the head is not whole */
  PHASE_HEAD,     /* the head has been judged; the body is not asked for yet */
  PHASE_BODY,     /* the body comes in; without one this phase is passed at once */
  PHASE_COMPLETE, /* the request is whole; the answer is awaited or under way */
};

/* A query value, decoded. */
struct decoded {
  struct decoded *next;
  size_t len;
  char text[];
};

struct http_exchange {
  struct exchange public; /* must be first: routes hand it back */
  struct http *http;
  struct http_connection *link;
  struct MHD_Connection *connection;
  int64_t started;

  char *target, *path; /* the request's, as sent; and its path alone */
  struct http_head head;
  const struct route *route;
  struct decoded *decoded;
  enum phase phase;

  struct buf body;   /* of a buffered route */
  uint64_t received; /* bytes of body taken */
  uint64_t dropped;  /* bytes of it that came after an early answer */
  bool held;         /* the route does not want the body yet */
  bool dropping;     /* the rest of the body is of no interest */

  bool answered;
  bool close_early; /* answer at once, and let the library close the connection */
  unsigned status;
  struct MHD_Response *response; /* until it is queued */
  struct buf headers;            /* of the answer: name NUL value NUL ... */
  struct buf answer;             /* its whole body */

  int (*pull)(struct exchange *x, struct buf *out); /* its streamed body */
  struct buf piece;
  size_t piece_sent;
  bool ended;

  int file; /* its body is this file, owned by the response; -1 */
  uint64_t file_end;

  bool suspended;
  bool woken; /* resume() came while not suspended */
  bool client_left;
  struct loop_watch hangup;
};

static struct http_exchange *own(struct exchange *x) {
  return (struct http_exchange *)(void *)x;
}

/* ---- suspending ---- */

static void resume(struct http_exchange *x) {
  if (!x->suspended) {
    x->woken = true;
    return;
  }
  x->suspended = false;
  if (x->phase == PHASE_BODY)
    http_expect_body(x->link);
  MHD_resume_connection(x->connection);
  http_run_soon(x->http);
}

static void on_hangup(struct loop_watch *watch, uint32_t events) {
  struct http_exchange *x = watch->arg;
  (void)events;
  loop_watch_stop(x->http->loop, &x->hangup);
  x->client_left = true;
  if (x->suspended)
    resume(x);
}

/* Only from inside a call of the library. */
static void suspend(struct http_exchange *x) {
  http_expect_nothing(x->link);
  x->suspended = true;
  MHD_suspend_connection(x->connection);
  if (x->hangup.fd < 0 &&
      loop_watch_start(x->http->loop, &x->hangup, x->link->fd, EPOLLRDHUP | EPOLLET, on_hangup, x) < 0)
    LOG(LOG_WARN, "http", "client not watched", LOG_S("address", x->link->address));
}

/* ---- the answer ---- */

static void add_header(struct exchange *public, const char *name, const char *value) {
  struct http_exchange *x = own(public);
  if (strpbrk(value, "\r\n"))
    return;
  buf_append(&x->headers, name, strlen(name) + 1);
  buf_append(&x->headers, value, strlen(value) + 1);
}

static void add_headers(struct http_exchange *x, struct MHD_Response *response, const char *content_type) {
  const char *at = x->headers.data, *end = at + x->headers.len;
  while (at < end) {
    const char *value = at + strlen(at) + 1;
    MHD_add_response_header(response, at, value);
    at = value + strlen(value) + 1;
  }
  MHD_add_response_header(response, "Server", "sandkeeper");
  if (content_type)
    MHD_add_response_header(response, "Content-Type", content_type);
  if (access_cross_origin(x->http->options, &x->head)) {
    MHD_add_response_header(response, "Access-Control-Allow-Origin", x->head.origin.at);
    MHD_add_response_header(response, "Vary", "Origin");
  }
  if (x->close_early || x->http->stopping)
    MHD_add_response_header(response, "Connection", "close");
}

/* Without a response (no memory) the connection is closed instead. */
static void set_answer(struct http_exchange *x, unsigned status, const char *content_type,
                       struct MHD_Response *response) {
  x->answered = true;
  if (response && !x->headers.failed) {
    add_headers(x, response, content_type);
    x->status = status;
    x->response = response;
  } else {
    if (response)
      MHD_destroy_response(response);
    x->client_left = true;
  }
  if (x->suspended)
    resume(x);
}

static bool may_answer(struct http_exchange *x) {
  if (x->answered)
    LOG(LOG_ERROR, "http", "answered twice", LOG_S("path", x->path));
  return !x->answered;
}

static void reply(struct exchange *public, unsigned status, const char *content_type, struct buf *body) {
  struct http_exchange *x = own(public);
  if (!may_answer(x)) {
    if (body)
      buf_free(body);
    return;
  }
  if (body && body->failed) {
    buf_free(body);
    public->ops->fail(public, 500, "there is no memory for the answer");
    return;
  }
  if (body)
    buf_move(&x->answer, body);
  set_answer(x, status, content_type,
             MHD_create_response_from_buffer(x->answer.len, x->answer.data, MHD_RESPMEM_PERSISTENT));
}

static void write_error(struct buf *body, unsigned status, const char *message) {
  struct json_out out;
  json_out_begin(&out, body);
  json_out_object(&out);
  json_out_key(&out, "code");
  json_out_uint(&out, status);
  json_out_key(&out, "message");
  json_out_string(&out, message);
  json_out_key(&out, "error");
  json_out_object(&out);
  json_out_key(&out, "code");
  json_out_uint(&out, status);
  json_out_key(&out, "message");
  json_out_string(&out, message);
  json_out_object_end(&out);
  json_out_object_end(&out);
  json_out_end(&out);
}

__attribute__((format(printf, 3, 4))) static void fail(struct exchange *public, unsigned status, const char *format,
                                                       ...) {
  struct http_exchange *x = own(public);
  char message[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  if (!may_answer(x))
    return;
  buf_init(&x->answer, 16 * 1024, 0);
  write_error(&x->answer, status, message);
  set_answer(x, status, "application/json",
             x->answer.failed ? NULL
                              : MHD_create_response_from_buffer(x->answer.len, x->answer.data, MHD_RESPMEM_PERSISTENT));
}

/* ---- streams ---- */

/* Copies from the piece at hand, pulling further ones while there is room. */
static size_t fill(struct http_exchange *x, char *out, size_t room) {
  size_t filled = 0;
  while (filled < room) {
    size_t left = x->piece.len - x->piece_sent;
    if (left > 0) {
      size_t n = left < room - filled ? left : room - filled;
      memcpy(out + filled, x->piece.data + x->piece_sent, n);
      x->piece_sent += n;
      filled += n;
      continue;
    }
    buf_reset(&x->piece, PIECE_KEPT);
    x->piece_sent = 0;
    if (x->ended)
      break;
    x->woken = false;
    int state = x->pull(&x->public, &x->piece);
    if (x->piece.failed) {
      x->client_left = true;
      break;
    }
    x->ended = state == STREAM_END;
    if (state == STREAM_WAIT && !x->woken)
      break;
  }
  return filled;
}

static ssize_t on_read(void *arg, uint64_t position, char *out, size_t room) {
  struct http_exchange *x = arg;
  (void)position;
  if (x->client_left)
    return MHD_CONTENT_READER_END_WITH_ERROR;
  size_t filled = fill(x, out, room);
  if (filled > 0)
    return (ssize_t)filled;
  if (x->client_left)
    return MHD_CONTENT_READER_END_WITH_ERROR;
  if (x->ended)
    return MHD_CONTENT_READER_END_OF_STREAM;
  buf_free(&x->piece);
  suspend(x);
  return 0;
}

static void stream_sized(struct exchange *public, unsigned status, const char *content_type, uint64_t length,
                         int (*pull)(struct exchange *x, struct buf *out)) {
  struct http_exchange *x = own(public);
  if (!may_answer(x))
    return;
  x->pull = pull;
  set_answer(x, status, content_type, MHD_create_response_from_callback(length, PIECE_KEPT, on_read, x, NULL));
}

static void stream(struct exchange *public, unsigned status, const char *content_type,
                   int (*pull)(struct exchange *x, struct buf *out)) {
  stream_sized(public, status, content_type, MHD_SIZE_UNKNOWN, pull);
}

static void wake(struct exchange *public) {
  resume(own(public));
}

/* ---- files ---- */

/* sendfile(2) of a file that has become shorter sends nothing and is never called again; a client would wait for ever.
 */
static void on_file_check(struct loop_timer *timer) {
  struct http_connection *link = timer->arg;
  struct http_exchange *x = link->exchange;
  struct stat st;
  if (fstat(x->file, &st) == 0 && (uint64_t)st.st_size < x->file_end)
    http_cut(link, "the file became shorter while it was sent");
  else
    loop_timer_start(x->http->loop, timer, loop_now(x->http->loop) + FILE_CHECK, on_file_check, link);
}

static void send_file(struct exchange *public, unsigned status, const char *content_type, int fd, uint64_t offset,
                      uint64_t length) {
  struct http_exchange *x = own(public);
  struct MHD_Response *response = may_answer(x) ? MHD_create_response_from_fd_at_offset64(length, fd, offset) : NULL;
  if (response) {
    x->file = fd;
    x->file_end = offset + length;
  } else {
    fd_close(&fd);
  }
  if (!x->answered)
    set_answer(x, status, content_type, response);
}

/* ---- the request, for routes ---- */

static const char *header(struct exchange *public, const char *name) {
  return MHD_lookup_connection_value(own(public)->connection, MHD_HEADER_KIND, name);
}

static const char *query(struct exchange *public, const char *name, size_t *len) {
  struct http_exchange *x = own(public);
  struct text value;
  if (!http_query_find(x->head.query, name, &value))
    return NULL;
  struct decoded *decoded = malloc(sizeof *decoded + value.len + 1);
  if (!decoded)
    return NULL;
  ptrdiff_t n = http_percent_decode(decoded->text, value, true);
  decoded->len = n > 0 ? (size_t)n : 0; /* the percent signs were checked before */
  decoded->text[decoded->len] = '\0';
  decoded->next = x->decoded;
  x->decoded = decoded;
  if (len)
    *len = decoded->len;
  return decoded->text;
}

static int64_t body_length(struct exchange *public) {
  const struct http_head *head = &own(public)->head;
  if (head->chunked)
    return -1;
  return head->content_length > INT64_MAX ? INT64_MAX : (int64_t)head->content_length;
}

static void hold_body(struct exchange *public) {
  own(public)->held = true;
}

static void resume_body(struct exchange *public) {
  struct http_exchange *x = own(public);
  x->held = false;
  resume(x);
}

static const struct exchange_ops ops = {
    .header = header,
    .query = query,
    .body_length = body_length,
    .add_header = add_header,
    .reply = reply,
    .fail = fail,
    .stream = stream,
    .stream_sized = stream_sized,
    .wake = wake,
    .send_file = send_file,
    .hold_body = hold_body,
    .resume_body = resume_body,
};

/* ---- judging the head ---- */

static enum MHD_Result on_field(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct http_exchange *x = arg;
  (void)kind;
  http_head_field(&x->head, text_of(name), text_of(value ? value : ""));
  return MHD_YES;
}

static bool is_encoded_right(struct text text) {
  char scratch[HTTP_HEAD_MAX];
  while (text.len > 0) {
    /* In slices that do not cut an escape; what is longer than a slice comes only from a kept-alive connection. */
    size_t n = text.len < sizeof scratch ? text.len : sizeof scratch;
    while (n < text.len && n > 1 && (text.at[n - 1] == '%' || text.at[n - 2] == '%'))
      n--;
    if (http_percent_decode(scratch, (struct text){text.at, n}, true) < 0)
      return false;
    text.at += n;
    text.len -= n;
  }
  return true;
}

static void read_head(struct http_exchange *x, const char *method, const char *version) {
  int minor = strlen(version) == 8 ? version[7] - '0' : 1;
  http_head_begin(&x->head, text_of(method), text_of(x->target), minor);
  MHD_get_connection_values(x->connection, MHD_HEADER_KIND, on_field, x);
  http_head_end(&x->head);
  if (x->head.status == 0 && !(is_encoded_right(x->head.query) && is_encoded_right(x->head.path))) {
    x->head.status = 400;
    x->head.reason = "a percent sign in the request's target is not followed by two hex digits";
  }
  x->public.method = method;
}

static void refuse(struct http_exchange *x, const struct refusal *refusal) {
  struct exchange *public = &x->public;
  if (refusal->status == 401)
    add_header(public, "WWW-Authenticate", "Bearer");
  if (refusal->status == 405)
    add_header(public, "Allow", "GET");
  if (refusal->status == 426) {
    add_header(public, "Upgrade", "websocket");
    add_header(public, "Connection", "Upgrade");
    add_header(public, "Sec-WebSocket-Version", "13");
    x->close_early = true; /* so that the client tries again on a fresh connection, which the gate can hand over */
  }
  LOG(LOG_INFO, "http", "refused", LOG_I("status", refusal->status), LOG_S("reason", refusal->message),
      LOG_S("address", x->link->address));
  fail(public, refusal->status, "%s", refusal->message);
}

/* An upgrade that is sound comes here only on a connection that was kept alive. */
static void answer_websocket_path(struct http_exchange *x) {
  struct upgrade upgrade;
  struct refusal refusal = {0};
  if (access_upgrade(x->http->options, &x->head, &upgrade, &refusal)) {
    refusal.status = 426;
    snprintf(refusal.message, sizeof refusal.message, "a WebSocket session needs a connection of its own");
  }
  refuse(x, &refusal);
}

/* Access-Control-Allow-Headers takes what was asked for: who has the allowed Origin may send any header. */
static void answer_options(struct http_exchange *x, const struct route_match *match) {
  const char *asked = header(&x->public, "Access-Control-Request-Headers");
  add_header(&x->public, "Allow", match->allow);
  if (access_cross_origin(x->http->options, &x->head)) {
    add_header(&x->public, "Access-Control-Allow-Methods", match->allow);
    add_header(&x->public, "Access-Control-Max-Age", "600");
    if (asked)
      add_header(&x->public, "Access-Control-Allow-Headers", asked);
  }
  reply(&x->public, 204, NULL, NULL);
}

static bool is_preflight(struct http_exchange *x) {
  return text_is(x->head.method, "OPTIONS") && access_cross_origin(x->http->options, &x->head) &&
         header(&x->public, "Access-Control-Request-Method");
}

/* Answers everything that is no route's business. */
static void judge(struct http_exchange *x) {
  struct exchange *public = &x->public;
  struct refusal refusal = {0};
  struct route_match match = route_find(x->http->routes, x->http->n_routes, x->head.path, x->head.method);
  bool open = match.route && match.route->open;
  if (x->head.status) {
    x->close_early = true;
    fail(public, x->head.status, "%s", x->head.reason);
  } else if (x->http->stopping && !open) {
    fail(public, 503, "the agent is stopping");
  } else if (access_is_websocket_path(x->head.path)) {
    answer_websocket_path(x);
  } else if (!open && !is_preflight(x) && !access_allowed(x->http->options, &x->head, &refusal)) {
    refuse(x, &refusal);
  } else if (!match.known) {
    fail(public, 404, "there is nothing at %.200s", x->path);
  } else if (x->head.upgrade_websocket && x->head.connection_upgrade) {
    fail(public, 404, "%.200s is no WebSocket path; /ws is", x->path);
  } else if (text_is(x->head.method, "OPTIONS")) {
    answer_options(x, &match);
  } else if (!match.route) {
    add_header(public, "Allow", match.allow);
    fail(public, 405, "%.200s does not take %.20s", x->path, public->method);
  } else {
    x->route = match.route;
  }
}

static bool is_too_long(const struct http_exchange *x, uint64_t len) {
  return x->route->body_max > 0 && len > x->route->body_max;
}

static void fail_too_long(struct http_exchange *x) {
  fail(&x->public, 413, "the body is longer than the %zu bytes that %.200s takes", x->route->body_max, x->path);
}

static void begin(struct http_exchange *x, const char *method, const char *version) {
  http_expect_nothing(x->link);
  x->phase = PHASE_HEAD;
  read_head(x, method, version);
  judge(x);
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

/* ---- the library's calls ---- */

static int deliver(struct http_exchange *x) {
  if (!x->response) {
    suspend(x);
    return MHD_YES;
  }
  bool queued = MHD_queue_response(x->connection, x->status, x->response) == MHD_YES;
  MHD_destroy_response(x->response);
  x->response = NULL;
  if (queued && x->file >= 0)
    loop_timer_start(x->http->loop, &x->link->timer, loop_now(x->http->loop) + FILE_CHECK, on_file_check, x->link);
  return queued ? MHD_YES : MHD_NO;
}

static int after_head(struct http_exchange *x) {
  bool has_body = http_head_has_body(&x->head);
  if (x->answered && (x->close_early || (has_body && x->head.expect_continue) ||
                      (!x->head.chunked && x->head.content_length > DROP_MAX)))
    return deliver(x);
  if (x->held && !x->answered) {
    suspend(x);
    return MHD_YES;
  }
  x->phase = PHASE_BODY;
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
    suspend(x);
    if (x->woken)
      resume(x);
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
    fail(&x->public, 503, "there is no memory for the body");
  x->received += *len;
  *len = 0;
  return MHD_YES;
}

static void complete(struct http_exchange *x) {
  http_expect_nothing(x->link);
  x->phase = PHASE_COMPLETE;
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
  if (x->phase == PHASE_NEW)
    begin(x, method, version);
  if (x->client_left)
    return MHD_NO;
  if (x->phase == PHASE_HEAD)
    return after_head(x);
  if (x->phase == PHASE_BODY)
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
  x->public = (struct exchange){
      .ops = &ops, .api = http->api, .method = "", .path = path, .peer_address = link->address, .body = &x->body};
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
  loop_watch_init(&x->hangup);
  link->exchange = x;
  http->n_exchanges++;
  return x;
}

void http_exchange_abandon(struct http_exchange *x) {
  x->client_left = true;
  if (x->suspended)
    resume(x);
}

void http_exchange_end(struct http_exchange *x) {
  struct http *http = x->http;
  loop_watch_stop(http->loop, &x->hangup);
  http_expect_nothing(x->link);
  x->link->exchange = NULL;
  http->n_exchanges--;
  if (x->public.gone)
    x->public.gone(&x->public);
  if (http->observer && x->phase != PHASE_NEW)
    http->observer(http->observer_arg, x->route, x->status, clock_monotonic() - x->started);
  if (x->response)
    MHD_destroy_response(x->response);
  while (x->decoded) {
    struct decoded *next = x->decoded->next;
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
