#include "sandkeeper/net/http_exchange.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/net/access.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE_KEPT 4096
#define FILE_CHECK (1 * CLOCK_SECOND)

/* ---- the answer ---- */

static void add_header(struct exchange *public, const char *name, const char *value) {
  struct http_exchange *x = http_exchange_of(public);
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
    http_exchange_resume(x);
}

static bool may_answer(struct http_exchange *x) {
  if (x->answered)
    LOG(LOG_ERROR, "http", "answered twice", LOG_S("path", x->path));
  return !x->answered;
}

static void reply(struct exchange *public, unsigned status, const char *content_type, struct buf *body) {
  struct http_exchange *x = http_exchange_of(public);
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
  struct http_exchange *x = http_exchange_of(public);
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
  http_exchange_suspend(x);
  return 0;
}

static void stream_sized(struct exchange *public, unsigned status, const char *content_type, uint64_t length,
                         int (*pull)(struct exchange *x, struct buf *out)) {
  struct http_exchange *x = http_exchange_of(public);
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
  http_exchange_resume(http_exchange_of(public));
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
    http_answer_watch_file(x);
}

void http_answer_watch_file(struct http_exchange *x) {
  struct loop *loop = x->http->loop;
  loop_timer_start(loop, &x->link->timer, loop_now(loop) + FILE_CHECK, on_file_check, x->link);
}

static void send_file(struct exchange *public, unsigned status, const char *content_type, int fd, uint64_t offset,
                      uint64_t length) {
  struct http_exchange *x = http_exchange_of(public);
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
  return MHD_lookup_connection_value(http_exchange_of(public)->connection, MHD_HEADER_KIND, name);
}

static const char *query(struct exchange *public, const char *name, size_t *len) {
  struct http_exchange *x = http_exchange_of(public);
  struct text value;
  if (!http_query_find(x->head.query, name, &value))
    return NULL;
  struct http_decoded *decoded = malloc(sizeof *decoded + value.len + 1);
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
  const struct http_head *head = &http_exchange_of(public)->head;
  if (head->chunked)
    return -1;
  return head->content_length > INT64_MAX ? INT64_MAX : (int64_t)head->content_length;
}

static void hold_body(struct exchange *public) {
  http_exchange_of(public)->held = true;
}

static void resume_body(struct exchange *public) {
  struct http_exchange *x = http_exchange_of(public);
  x->held = false;
  http_exchange_resume(x);
}

const struct exchange_ops http_exchange_ops = {
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
