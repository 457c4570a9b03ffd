#include "sandkeeper/api/inner_exchange.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/base/percent.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct inner_decoded {
  struct inner_decoded *next;
  size_t len;
  char text[];
};

static struct inner_exchange *own(struct exchange *x) {
  return (struct inner_exchange *)(void *)x;
}

static void turn(struct loop_task *task);

static void turn_later(struct inner_exchange *inner) {
  loop_defer(inner->loop, &inner->task, turn, inner);
}

/* ---- the request, for routes ---- */

static const char *header(struct exchange *x, const char *name) {
  return strcasecmp(name, "Content-Type") == 0 ? own(x)->content_type : NULL;
}

/* The value of `name` in the query, still encoded. */
static const char *find_query(const char *query, const char *name, size_t *len) {
  size_t name_len = strlen(name);
  while (query && *query) {
    size_t field = strcspn(query, "&");
    size_t key = strcspn(query, "=&");
    if (key == name_len && memcmp(query, name, key) == 0) {
      size_t skip = key < field ? key + 1 : key;
      *len = field - skip;
      return query + skip;
    }
    query += field;
    query += *query == '&';
  }
  return NULL;
}

static const char *query(struct exchange *x, const char *name, size_t *len) {
  struct inner_exchange *inner = own(x);
  size_t encoded_len = 0;
  const char *encoded = find_query(inner->query, name, &encoded_len);
  struct inner_decoded *decoded = encoded ? malloc(sizeof *decoded + encoded_len + 1) : NULL;
  if (!decoded)
    return NULL;
  ptrdiff_t n = percent_decode(decoded->text, encoded, encoded_len, true);
  decoded->len = n > 0 ? (size_t)n : 0; /* the percent signs were checked at the start */
  decoded->text[decoded->len] = '\0';
  decoded->next = inner->decoded;
  inner->decoded = decoded;
  if (len)
    *len = decoded->len;
  return decoded->text;
}

static int64_t body_length(struct exchange *x) {
  return (int64_t)own(x)->body.len;
}

static void hold_body(struct exchange *x) {
  own(x)->held = true;
}

static void resume_body(struct exchange *x) {
  own(x)->held = false;
  turn_later(own(x));
}

/* ---- the answer ---- */

static void add_header(struct exchange *x, const char *name, const char *value) {
  (void)x, (void)name, (void)value; /* a payload's maker sees no headers */
}

static bool answer_begins(struct inner_exchange *inner, unsigned status) {
  if (inner->answered)
    return false;
  inner->answered = true;
  inner->status = status;
  turn_later(inner);
  return true;
}

static void reply(struct exchange *x, unsigned status, const char *content_type, struct buf *body) {
  struct inner_exchange *inner = own(x);
  (void)content_type;
  bool failed = body && body->failed;
  if (answer_begins(inner, failed ? 500 : status) && body && !failed)
    buf_move(&inner->answer, body);
  else if (body)
    buf_free(body);
}

__attribute__((format(printf, 3, 4))) static void fail(struct exchange *x, unsigned status, const char *format, ...) {
  struct inner_exchange *inner = own(x);
  struct json_out out;
  char message[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  if (!answer_begins(inner, status))
    return;
  buf_init(&inner->answer, 16 * 1024, 0);
  json_out_begin(&out, &inner->answer);
  json_out_object(&out);
  json_out_key(&out, "message");
  json_out_string(&out, message);
  json_out_object_end(&out);
}

static void stream(struct exchange *x, unsigned status, const char *content_type,
                   int (*pull)(struct exchange *x, struct buf *out)) {
  (void)content_type;
  if (answer_begins(own(x), status))
    own(x)->pull = pull;
}

static void stream_sized(struct exchange *x, unsigned status, const char *content_type, uint64_t length,
                         int (*pull)(struct exchange *x, struct buf *out)) {
  (void)length;
  stream(x, status, content_type, pull);
}

static void wake(struct exchange *x) {
  turn_later(own(x));
}

/* Nobody reads a file through a payload. */
static void send_file(struct exchange *x, unsigned status, const char *content_type, int fd, uint64_t offset,
                      uint64_t length) {
  (void)content_type, (void)offset, (void)length;
  fd_close(&fd);
  answer_begins(own(x), status);
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

/* ---- turns ---- */

static void feed(struct inner_exchange *inner) {
  struct exchange *x = &inner->public;
  size_t left = inner->body.len - inner->fed;
  size_t piece = left < INNER_PIECE_MAX ? left : INNER_PIECE_MAX;
  size_t taken = inner->route->body(x, inner->body.data + inner->fed, piece, false);
  inner->fed += taken;
  if (taken < piece)
    inner->held = true; /* until it says to go on */
  else
    turn_later(inner);
}

static void feed_end(struct inner_exchange *inner) {
  inner->body_ended = true;
  inner->route->body(&inner->public, "", 0, true);
}

static void end(struct inner_exchange *inner, unsigned status) {
  inner->ended = true;
  inner->inner_ops->ended(inner->arg, status);
}

static void take_whole(struct inner_exchange *inner) {
  size_t left = inner->answer.len - inner->taken;
  size_t piece = left < INNER_PIECE_MAX ? left : INNER_PIECE_MAX;
  if (piece == 0) {
    end(inner, inner->status);
    return;
  }
  inner->inner_ops->take(inner->arg, inner->answer.data + inner->taken, piece);
  inner->taken += piece;
  turn_later(inner);
}

static void take_stream(struct inner_exchange *inner) {
  struct buf piece;
  buf_init(&piece, EXCHANGE_PIECE_MAX, 0);
  int state = inner->pull(&inner->public, &piece);
  bool failed = piece.failed;
  if (piece.len > 0 && !failed)
    inner->inner_ops->take(inner->arg, piece.data, piece.len);
  buf_free(&piece);
  if (failed || state == STREAM_END)
    end(inner, failed ? 0 : inner->status);
  else if (state == STREAM_MORE)
    turn_later(inner);
}

static void turn(struct loop_task *task) {
  struct inner_exchange *inner = task->arg;
  if (inner->ended)
    return;
  if (inner->answered) {
    inner->pull ? take_stream(inner) : take_whole(inner);
  } else if (inner->route->body && !inner->held && !inner->body_ended) {
    inner->fed < inner->body.len ? feed(inner) : feed_end(inner);
  }
}

static void begin(struct loop_task *task) {
  struct inner_exchange *inner = task->arg;
  inner->route->handle(&inner->public);
  if (inner->route->body)
    turn_later(inner);
}

/* ---- life ---- */

static bool has_word(const char *words, const char *word) {
  size_t len = strlen(word);
  for (const char *at = words; *at; at += strspn(at, " ")) {
    size_t this = strcspn(at, " ");
    if (this == len && memcmp(at, word, len) == 0)
      return true;
    at += this;
  }
  return false;
}

static const struct route *find_route(const struct route *routes, size_t n_routes, const char *method,
                                      const char *path) {
  for (size_t i = 0; i < n_routes; i++)
    if (strcmp(routes[i].path, path) == 0 && has_word(routes[i].methods, method))
      return &routes[i];
  return NULL;
}

static int set_target(struct inner_exchange *inner, const char *target, struct error *err) {
  char scratch[ERROR_MESSAGE_MAX];
  inner->path = strdup(target);
  if (!inner->path)
    return error_set_errno(err, ENOMEM, "a call of %.100s", target);
  char *mark = strchr(inner->path, '?');
  if (!mark)
    return 0;
  *mark = '\0';
  inner->query = mark + 1;
  if (strlen(inner->query) > sizeof scratch)
    return error_set(err, ERROR_INVALID, 0, "%.100s: its query has more than %zu bytes", inner->path, sizeof scratch);
  if (percent_decode(scratch, inner->query, strlen(inner->query), true) < 0)
    return error_set(err, ERROR_INVALID, 0, "%.100s: a percent sign is not followed by two hex digits", target);
  return 0;
}

static int prepare(struct inner_exchange *inner, const struct route *routes, size_t n_routes, const char *target,
                   struct error *err) {
  const char *method = inner->public.method;
  if (set_target(inner, target, err) < 0)
    return -1;
  inner->public.path = inner->path;
  inner->route = find_route(routes, n_routes, method, inner->path);
  if (!inner->route)
    return error_set(err, ERROR_NOT_FOUND, 0, "there is nothing at %.200s that takes %s", inner->path, method);
  if (inner->route->body_max > 0 && inner->body.len > inner->route->body_max)
    return error_set(err, ERROR_TOO_LARGE, 0, "%.200s takes at most %zu bytes", inner->path, inner->route->body_max);
  return 0;
}

struct inner_exchange *inner_exchange_start(struct api *api, const struct route *routes, size_t n_routes,
                                            const char *method, const char *target, const char *content_type,
                                            struct buf *body, const struct inner_ops *inner_ops, void *arg,
                                            struct error *err) {
  struct inner_exchange *inner = calloc(1, sizeof *inner);
  if (!inner) {
    buf_free(body);
    error_set_errno(err, ENOMEM, "a call of %.100s", target);
    return NULL;
  }
  inner->loop = api->sandbox->loop;
  inner->inner_ops = inner_ops;
  inner->arg = arg;
  inner->content_type = content_type;
  inner->public =
      (struct exchange){.ops = &ops, .api = api, .method = method, .peer_address = "payload", .body = &inner->body};
  loop_task_init(&inner->task);
  buf_init(&inner->answer, SIZE_MAX, 0);
  buf_init(&inner->body, SIZE_MAX, 0);
  buf_move(&inner->body, body);
  if (prepare(inner, routes, n_routes, target, err) < 0) {
    inner_exchange_free(inner);
    return NULL;
  }
  loop_defer(inner->loop, &inner->task, begin, inner);
  return inner;
}

void inner_exchange_free(struct inner_exchange *inner) {
  if (!inner)
    return;
  loop_task_cancel(&inner->task);
  if (inner->public.gone)
    inner->public.gone(&inner->public);
  while (inner->decoded) {
    struct inner_decoded *next = inner->decoded->next;
    free(inner->decoded);
    inner->decoded = next;
  }
  buf_free(&inner->answer);
  buf_free(&inner->body);
  free(inner->path);
  free(inner);
}
