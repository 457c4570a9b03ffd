#include "sandkeeper/api/body.h"

void body_init(struct body *body, struct bodies *bodies, size_t max) {
  body->bodies = bodies;
  buf_init(&body->bytes, max, 0);
}

static bool is_too_long(const struct body *body, struct exchange *x, size_t len) {
  int64_t announced = x->ops->body_length(x); /* -1: in chunks */
  size_t max = body->bytes.max;
  return (announced > 0 && (uint64_t)announced > max) || len > max - body->bytes.len;
}

static bool does_not_fit(const struct bodies *bodies, size_t len) {
  return len > bodies->max || bodies->held > bodies->max - len;
}

bool body_take(struct body *body, struct exchange *x, const char *bytes, size_t len) {
  if (is_too_long(body, x, len)) {
    x->ops->fail(x, 413, "the body is longer than the %zu bytes that it may have", body->bytes.max);
  } else if (does_not_fit(body->bodies, len)) {
    x->ops->add_header(x, "Retry-After", "1");
    x->ops->fail(x, 429, "all bodies that are on their way hold %zu bytes, which is the limit (--max-buffered)",
                 body->bodies->held);
  } else if (buf_append(&body->bytes, bytes, len) < 0) {
    x->ops->fail(x, 503, "there is no memory for the body");
  } else {
    body->bodies->held += len;
    return true;
  }
  body_free(body);
  return false;
}

void body_move(struct body *body, struct buf *to) {
  body->bodies->held -= body->bytes.len;
  buf_move(to, &body->bytes);
}

void body_free(struct body *body) {
  body->bodies->held -= body->bytes.len;
  buf_free(&body->bytes);
}
