/* Calls of routes from inside: every way in which a route may take its body and answer. */
#include "sandkeeper/api/inner_exchange.h"

#include "sandkeeper/api/api.h"

#include "scratch.h"

#undef fail /* a macro of check */

/* What a test's caller has heard. */
static struct {
  struct buf taken;
  unsigned status;
  int ended;
} heard;

/* What its route has seen. */
static struct {
  struct exchange *x;
  struct buf body;
  int handled, ends, gone, pulls;
} seen;

static struct loop *loop;
static struct sandbox sandbox;
static struct api api;

static void on_take(void *arg, const char *bytes, size_t len) {
  ck_assert_ptr_eq(arg, &heard);
  ck_assert_int_eq(heard.ended, 0);
  ck_assert(len > 0);
  buf_append(&heard.taken, bytes, len);
}

static void on_ended(void *arg, unsigned status) {
  ck_assert_ptr_eq(arg, &heard);
  heard.status = status;
  heard.ended++;
}

static const struct inner_ops inner_ops = {.take = on_take, .ended = on_ended};

static void on_gone(struct exchange *x) {
  ck_assert_ptr_eq(x, seen.x);
  seen.gone++;
}

static void note(struct exchange *x) {
  seen.x = x;
  seen.handled++;
  x->gone = on_gone;
}

/* ---- routes ---- */

static void echo(struct exchange *x) {
  struct buf body;
  note(x);
  buf_init(&body, 1 << 20, 0);
  buf_append(&body, x->body->data, x->body->len);
  x->ops->add_header(x, "X-Some", "thing");
  x->ops->reply(x, 201, "text/plain", &body);
}

static void empty(struct exchange *x) {
  note(x);
  x->ops->reply(x, 204, NULL, NULL);
}

static void later(struct exchange *x) {
  note(x);
}

static void failing(struct exchange *x) {
  note(x);
  x->ops->fail(x, 404, "no %s", "\"such\"");
  x->ops->reply(x, 200, NULL, NULL); /* the first answer counts */
}

static void broken(struct exchange *x) {
  struct buf body;
  note(x);
  buf_init(&body, 4, 0);
  buf_append(&body, "too long", 8);
  x->ops->reply(x, 200, NULL, &body);
}

static void show(struct exchange *x) {
  struct buf body;
  size_t len = 99;
  note(x);
  buf_init(&body, 1 << 20, 0);
  const char *const names[] = {"a", "b", "c", "missing", "nul"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const char *value = x->ops->query(x, names[i], &len);
    buf_printf(&body, "%s=%s/%zu|", names[i], value ? value : "-", value ? len : 0);
  }
  buf_printf(&body, "%s|%s|%lld", x->path, x->ops->header(x, "content-TYPE"), (long long)x->ops->body_length(x));
  ck_assert_ptr_null(x->ops->header(x, "Accept"));
  x->ops->reply(x, 200, NULL, &body);
}

static int pull(struct exchange *x, struct buf *out) {
  switch (seen.pulls++) {
  case 0:
    buf_append(out, "one,", 4);
    return STREAM_MORE;
  case 1:
    return STREAM_MORE;
  case 2:
    return STREAM_WAIT; /* the test wakes it */
  case 3:
    x->ops->wake(x);
    buf_append(out, "two,", 4);
    return STREAM_WAIT; /* it has woken itself */
  default:
    buf_append(out, "three", 5);
    return STREAM_END;
  }
}

static void streaming(struct exchange *x) {
  note(x);
  x->ops->stream(x, 200, "text/plain", pull);
}

static int pull_too_much(struct exchange *x, struct buf *out) {
  static const char zeros[1024];
  (void)x;
  for (size_t i = 0; i <= EXCHANGE_PIECE_MAX; i += sizeof zeros)
    buf_append(out, zeros, sizeof zeros);
  return STREAM_END;
}

static void streaming_too_much(struct exchange *x) {
  note(x);
  x->ops->stream_sized(x, 200, "text/plain", 5, pull_too_much);
}

static void sink(struct exchange *x) {
  note(x);
}

/* Takes up to 1000 bytes at a time, and then wants to be asked again. */
static size_t sink_body(struct exchange *x, const char *bytes, size_t len, bool last) {
  ck_assert_int_eq(seen.ends, 0);
  if (last) {
    ck_assert_uint_eq(len, 0);
    seen.ends++;
    x->ops->reply(x, 200, NULL, NULL);
    return 0;
  }
  size_t taken = len < 1000 ? len : 1000;
  buf_append(&seen.body, bytes, taken);
  return taken;
}

static void held_sink(struct exchange *x) {
  note(x);
  x->ops->hold_body(x);
}

static size_t refusing_body(struct exchange *x, const char *bytes, size_t len, bool last) {
  (void)bytes;
  ck_assert(!last);
  x->ops->fail(x, 400, "no");
  return len;
}

static const struct route routes[] = {
    {.methods = "GET", .path = "/echo", .handle = failing},
    {.methods = "GET POST", .path = "/other", .handle = failing},
    {.methods = "PUT POST", .path = "/echo", .body_max = 100, .handle = echo},
    {.methods = "POST", .path = "/empty", .handle = empty},
    {.methods = "POST", .path = "/later", .handle = later},
    {.methods = "POST", .path = "/failing", .handle = failing},
    {.methods = "POST", .path = "/broken", .handle = broken},
    {.methods = "POST", .path = "/show", .handle = show},
    {.methods = "POST", .path = "/streaming", .handle = streaming},
    {.methods = "POST", .path = "/too-much", .handle = streaming_too_much},
    {.methods = "POST", .path = "/sink", .handle = sink, .body = sink_body},
    {.methods = "POST", .path = "/held", .handle = held_sink, .body = sink_body},
    {.methods = "POST", .path = "/refusing", .handle = sink, .body = refusing_body},
};

/* ---- */

static void setup(void) {
  struct error err = ERROR_INIT;
  loop = loop_new(NULL, &err);
  ck_assert_ptr_nonnull(loop);
  sandbox.loop = loop;
  api.sandbox = &sandbox;
  buf_init(&heard.taken, 1 << 22, 0);
  buf_init(&seen.body, 1 << 22, 0);
}

static void teardown(void) {
  buf_free(&heard.taken);
  buf_free(&seen.body);
  loop_free(loop);
}

static struct inner_exchange *start_bytes(const char *method, const char *target, const char *bytes, size_t len,
                                          struct error *err) {
  struct buf body;
  buf_init(&body, SIZE_MAX, 0);
  if (len > 0)
    buf_append(&body, bytes, len);
  struct inner_exchange *inner = inner_exchange_start(&api, routes, sizeof routes / sizeof *routes, method, target,
                                                      "text/x", &body, &inner_ops, &heard, err);
  ck_assert_int_eq(seen.handled, 0);
  return inner;
}

static struct inner_exchange *start(const char *method, const char *target, const char *body) {
  struct error err = ERROR_INIT;
  struct inner_exchange *inner = start_bytes(method, target, body, strlen(body), &err);
  ck_assert_msg(inner, "%s", err.message);
  return inner;
}

static void run_turns(int turns) {
  while (turns-- > 0)
    loop_run_once(loop, 0);
}

static void finish(struct inner_exchange *inner, unsigned status, const char *text) {
  while (heard.ended == 0)
    loop_run_once(loop, 1000);
  run_turns(5);
  ck_assert_int_eq(heard.ended, 1);
  ck_assert_uint_eq(heard.status, status);
  ck_assert_uint_eq(heard.taken.len, strlen(text));
  ck_assert_mem_eq(heard.taken.len ? heard.taken.data : "", text, strlen(text));
  ck_assert_int_eq(seen.gone, 0);
  inner_exchange_free(inner);
  ck_assert_int_eq(seen.gone, 1);
  ck_assert_int_eq(seen.handled, 1);
}

START_TEST(test_whole_answers) {
  static const struct {
    const char *method, *target, *body;
    unsigned status;
    const char *answer;
  } rows[] = {
      {"PUT", "/echo", "hello", 201, "hello"}, {"POST", "/echo", "", 201, ""},
      {"POST", "/empty", "x", 204, ""},        {"POST", "/failing", "", 404, "{\"message\":\"no \\\"such\\\"\"}"},
      {"POST", "/broken", "", 500, ""},
  };
  finish(start(rows[_i].method, rows[_i].target, rows[_i].body), rows[_i].status, rows[_i].answer);
}
END_TEST

START_TEST(test_query) {
  finish(start("POST", "/show?a=1&b=x%20y+z%26&a=2&c&nul=p%00q&d=5", "body"), 200,
         "a=1/1|b=x y z&/6|c=/0|missing=-/0|nul=p/3|/show|text/x|4");
}
END_TEST

START_TEST(test_stream) {
  struct inner_exchange *inner = start("POST", "/streaming", "");
  while (seen.pulls < 3)
    loop_run_once(loop, 1000);
  run_turns(5);
  ck_assert_int_eq(seen.pulls, 3); /* it waits */
  seen.x->ops->wake(seen.x);
  seen.x->ops->wake(seen.x);
  finish(inner, 200, "one,two,three");
}
END_TEST

START_TEST(test_a_stream_that_breaks) {
  finish(start("POST", "/too-much", ""), 0, "");
}
END_TEST

START_TEST(test_an_answer_that_comes_later) {
  struct inner_exchange *inner = start("POST", "/later", "");
  run_turns(5);
  ck_assert_int_eq(seen.handled, 1);
  ck_assert_int_eq(heard.ended, 0);
  seen.x->ops->reply(seen.x, 200, NULL, NULL);
  ck_assert_int_eq(heard.ended, 0); /* never inside the call */
  finish(inner, 200, "");
}
END_TEST

START_TEST(test_sink) {
  static char bytes[INNER_PIECE_MAX * 2 + 77];
  struct error err = ERROR_INIT;
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (char)(i * 7 % 251);
  struct inner_exchange *inner = start_bytes("POST", _i ? "/held" : "/sink", bytes, sizeof bytes, &err);
  while (seen.ends == 0) {
    run_turns(3);
    if (seen.body.len < sizeof bytes)
      seen.x->ops->resume_body(seen.x);
  }
  ck_assert_uint_eq(seen.body.len, sizeof bytes);
  ck_assert_mem_eq(seen.body.data, bytes, sizeof bytes);
  finish(inner, 200, "");
}
END_TEST

START_TEST(test_a_sink_that_is_not_asked_to_go_on_waits) {
  struct inner_exchange *inner = start("POST", "/held", "some");
  run_turns(10);
  ck_assert_int_eq(seen.handled, 1);
  ck_assert_uint_eq(seen.body.len, 0);
  inner_exchange_free(inner);
  ck_assert_int_eq(seen.gone, 1);
  run_turns(5);
  ck_assert_int_eq(heard.ended, 0);
}
END_TEST

START_TEST(test_a_sink_that_answers_early) {
  finish(start("POST", "/refusing", "some"), 400, "{\"message\":\"no\"}");
}
END_TEST

START_TEST(test_empty_body_of_a_sink) {
  finish(start("POST", "/sink", ""), 200, "");
  ck_assert_int_eq(seen.ends, 1);
}
END_TEST

START_TEST(test_leaving) {
  inner_exchange_free(NULL);
  struct inner_exchange *inner = start("POST", "/streaming", "");
  if (_i > 0)
    run_turns(_i);
  inner_exchange_free(inner);
  ck_assert_int_eq(seen.gone, seen.handled);
  run_turns(5);
  ck_assert_int_eq(heard.ended, 0);
}
END_TEST

START_TEST(test_refused) {
  static char long_query[8192] = "/echo?";
  memset(long_query + 6, 'x', sizeof long_query - 7);
  const struct {
    const char *method, *target;
    size_t len;
    enum error_kind kind;
  } rows[] = {
      {"POST", "/nowhere", 0, ERROR_NOT_FOUND}, {"DELETE", "/echo", 0, ERROR_NOT_FOUND},
      {"P", "/echo", 0, ERROR_NOT_FOUND},       {"POST", "/echo/", 0, ERROR_NOT_FOUND},
      {"POST", "", 0, ERROR_NOT_FOUND},         {"POST", "/echo", 101, ERROR_TOO_LARGE},
      {"POST", "/echo?a=%", 0, ERROR_INVALID},  {"POST", "/echo?a=%4x", 0, ERROR_INVALID},
      {"POST", long_query, 0, ERROR_INVALID},
  };
  static const char zeros[200];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct error err = ERROR_INIT;
    ck_assert_ptr_null(start_bytes(rows[i].method, rows[i].target, zeros, rows[i].len, &err));
    ck_assert_msg(err.kind == rows[i].kind, "%s: %s", rows[i].target, err.message);
  }
  run_turns(3);
  ck_assert_int_eq(seen.handled + heard.ended, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("inner_exchange");
  TCase *tcase = tcase_create("inner_exchange");
  tcase_add_checked_fixture(tcase, setup, teardown);
  tcase_add_loop_test(tcase, test_whole_answers, 0, 5);
  tcase_add_test(tcase, test_query);
  tcase_add_test(tcase, test_stream);
  tcase_add_test(tcase, test_a_stream_that_breaks);
  tcase_add_test(tcase, test_an_answer_that_comes_later);
  tcase_add_loop_test(tcase, test_sink, 0, 2);
  tcase_add_test(tcase, test_a_sink_that_is_not_asked_to_go_on_waits);
  tcase_add_test(tcase, test_a_sink_that_answers_early);
  tcase_add_test(tcase, test_empty_body_of_a_sink);
  tcase_add_loop_test(tcase, test_leaving, 0, 4);
  tcase_add_test(tcase, test_refused);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
