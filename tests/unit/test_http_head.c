#include "sandkeeper/net/http_head.h"

#include "run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define START "GET /ws?a=1 HTTP/1.1\r\nHost: h:1\r\n"

static struct http_head head;

/* Copied into a block of its exact size, so that the sanitizer sees a byte too far. */
static enum http_head_state parse_bytes(const char *bytes, size_t len) {
  static char *copy;
  free(copy);
  copy = malloc(len + 1);
  ck_assert_ptr_nonnull(copy);
  char *exact = copy + 1;
  memcpy(exact, bytes, len);
  return http_head_parse(&head, exact, len);
}

static enum http_head_state parse(const char *bytes) {
  return parse_bytes(bytes, strlen(bytes));
}

static void assert_whole(const char *bytes) {
  if (parse(bytes) != HTTP_HEAD_WHOLE)
    ck_abort_msg("%s: %s", bytes, head.reason ? head.reason : "more is wanted");
}

static void assert_bad(const char *bytes, unsigned status, const char *reason) {
  if (parse(bytes) != HTTP_HEAD_BAD)
    ck_abort_msg("%s: taken", bytes);
  if (head.status != status || strcmp(head.reason, reason) != 0)
    ck_abort_msg("%s: %u %s", bytes, head.status, head.reason);
}

static void assert_text(struct text text, const char *expected) {
  if (!text_is(text, expected))
    ck_abort_msg("'%.*s' instead of '%s'", (int)text.len, text.at ? text.at : "", expected);
}

static const char upgrade[] = "GET /api/v1/sandboxes/a%2Fb/connect?max_message=4096&x HTTP/1.1\r\n"
                              "Host: localhost:4001\r\n"
                              "UPGRADE:WebSocket\r\n"
                              "connection: keep-alive, Upgrade\r\n"
                              "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
                              "Sec-WebSocket-Version:\t13 \r\n"
                              "sec-websocket-protocol: chat, bearer.abc\r\n"
                              "Sec-WebSocket-Protocol: other\r\n"
                              "Authorization: Bearer secret\r\n"
                              "X-Access-Token: one\r\nX-API-Key: two\r\n"
                              "Origin: http://localhost:3000\r\n"
                              "User-Agent: Python/3.11 websockets/15.0.1\r\n"
                              "X-Project-ID: p\r\nX-Service-ID: s\r\n\r\n";

START_TEST(test_every_field_is_found) {
  ck_assert_int_eq(parse(upgrade), HTTP_HEAD_WHOLE);
  ck_assert_uint_eq(head.length, sizeof upgrade - 1);
  ck_assert_int_eq(head.minor, 1);
  assert_text(head.method, "GET");
  assert_text(head.path, "/api/v1/sandboxes/a%2Fb/connect");
  assert_text(head.query, "max_message=4096&x");
  assert_text(head.host, "localhost:4001");
  assert_text(head.origin, "http://localhost:3000");
  assert_text(head.user_agent, "Python/3.11 websockets/15.0.1");
  assert_text(head.authorization, "Bearer secret");
  assert_text(head.access_token, "one");
  assert_text(head.api_key, "two");
  assert_text(head.project_id, "p");
  assert_text(head.service_id, "s");
  assert_text(head.websocket_key, "dGhlIHNhbXBsZSBub25jZQ==");
  assert_text(head.websocket_version, "13");
  ck_assert_uint_eq(head.n_protocols, 2);
  assert_text(head.protocols[0], "chat, bearer.abc");
  assert_text(head.protocols[1], "other");
  ck_assert(head.upgrade_websocket && head.connection_upgrade);
  ck_assert(!http_head_has_body(&head));
}
END_TEST

/* Case 32: half a head, cut anywhere, is neither taken nor refused. */
START_TEST(test_every_cut_wants_more) {
  for (size_t len = 0; len < sizeof upgrade - 1; len++)
    if (parse_bytes(upgrade, len) != HTTP_HEAD_MORE)
      ck_abort_msg("cut at %zu: %s", len, head.reason ? head.reason : "whole");
}
END_TEST

START_TEST(test_bytes_behind_the_head_are_left) {
  ck_assert_int_eq(parse(START "\r\n\x81\x85"
                               "abcd"),
                   HTTP_HEAD_WHOLE);
  ck_assert_uint_eq(head.length, strlen(START "\r\n"));
  assert_text(head.query, "a=1");
}
END_TEST

START_TEST(test_empty_lines_before_the_request_are_skipped) {
  ck_assert_int_eq(parse("\r\n\r\n" START "\r\n"), HTTP_HEAD_WHOLE);
  ck_assert_uint_eq(head.length, strlen("\r\n\r\n" START "\r\n"));
}
END_TEST

/* A head of exactly the limit is taken, one byte more is not, however much of it is there. */
START_TEST(test_the_longest_head) {
  static char bytes[2 * HTTP_HEAD_MAX];
  size_t start = (size_t)sprintf(bytes, "%sX-Long: ", START);
  memset(bytes + start, 'a', sizeof bytes - start);
  memcpy(bytes + HTTP_HEAD_MAX - 4, "\r\n\r\n", 4);
  ck_assert_int_eq(parse_bytes(bytes, HTTP_HEAD_MAX), HTTP_HEAD_WHOLE);
  ck_assert_int_eq(parse_bytes(bytes, sizeof bytes), HTTP_HEAD_WHOLE);
  memcpy(bytes + HTTP_HEAD_MAX - 4, "a\r\n\r\n", 5);
  ck_assert_int_eq(parse_bytes(bytes, HTTP_HEAD_MAX - 1), HTTP_HEAD_MORE);
  ck_assert_int_eq(parse_bytes(bytes, HTTP_HEAD_MAX), HTTP_HEAD_BAD);
  ck_assert_uint_eq(head.status, 431);
  ck_assert_int_eq(parse_bytes(bytes, sizeof bytes), HTTP_HEAD_BAD);
  ck_assert_uint_eq(head.status, 431);
}
END_TEST

START_TEST(test_lines_end_with_cr_lf) {
  assert_bad("GET / HTTP/1.1\nHost: h\n\n", 400, "the request has an LF without CR");
  assert_bad("GET / HTTP/1.1\r\nHost: h\n\r\n", 400, "the request has an LF without CR");
  assert_bad("GET / HTTP/1.1\rHost: h\r\n\r\n", 400, "the request has a CR without LF");
  assert_bad("\n", 400, "the request has an LF without CR");
  ck_assert_int_eq(parse("GET / HTTP/1.1\r"), HTTP_HEAD_MORE);
}
END_TEST

START_TEST(test_control_characters) {
  static const char nul[] = "GET / HTTP/1.1\r\nA: b\0c\r\n\r\n";
  ck_assert_int_eq(parse_bytes(nul, sizeof nul - 1), HTTP_HEAD_BAD);
  ck_assert_uint_eq(head.status, 400);
  assert_bad("\x16\x03\x01\x02", 400, "the request has a control character"); /* TLS to the wrong port */
  assert_bad("GET / HTTP/1.1\r\nA: \x7f\r\n\r\n", 400, "the request has a control character");
  assert_whole(START "X: \xc3\xa4\xff\ttab\r\n\r\n");
}
END_TEST

START_TEST(test_header_lines) {
  assert_bad(START " folded: x\r\n\r\n", 400, "a header line is folded");
  assert_bad(START "A: b\r\n\tc\r\n\r\n", 400, "a header line is folded");
  assert_bad(START "A : b\r\n\r\n", 400, "a header line is malformed");
  assert_bad(START ": b\r\n\r\n", 400, "a header line is malformed");
  assert_bad(START "no colon\r\n\r\n", 400, "a header line is malformed");
  assert_bad(START "A(b): c\r\n\r\n", 400, "a header line is malformed");
  assert_whole(START "Empty:\r\n\r\n");
}
END_TEST

START_TEST(test_request_lines) {
  assert_bad("GET /\r\n", 400, "the request line is malformed");
  assert_bad("GET\r\n", 400, "the request line is malformed");
  assert_bad("GET /a b HTTP/1.1\r\n", 400, "the request's target is malformed");
  assert_bad("GET  HTTP/1.1\r\n", 400, "the request's target is malformed");
  assert_bad("G@T / HTTP/1.1\r\n", 400, "the request's method is malformed");
  assert_bad(" / HTTP/1.1\r\n", 400, "the request's method is malformed");
  assert_bad("GET / HTTP/2.0\r\n", 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  assert_bad("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  assert_bad("GET / http/1.1\r\n", 400, "the request line is malformed");
  assert_bad("GET / HTTP/1.x\r\n", 400, "the request line is malformed");
  assert_bad("GET / HTTP/11\r\n", 400, "the request line is malformed");
}
END_TEST

START_TEST(test_targets) {
  assert_whole("GET http://host:80/a/b?c=d HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_text(head.path, "/a/b");
  assert_text(head.query, "c=d");
  assert_whole("GET http://host HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_text(head.path, "/");
  ck_assert_ptr_null(head.query.at);
  assert_whole("GET http://host?q HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_text(head.path, "/");
  assert_text(head.query, "q");
  assert_whole("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_text(head.path, "*");
  assert_whole("GET /? HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_text(head.query, "");
  assert_whole("GET /\xc3\xa4?p=://x HTTP/1.1\r\nHost: h\r\n\r\n");
  assert_text(head.path, "/\xc3\xa4");
}
END_TEST

START_TEST(test_host) {
  assert_bad("GET / HTTP/1.1\r\n\r\n", 400, "Host is missing");
  assert_whole("GET / HTTP/1.0\r\n\r\n");
  ck_assert_int_eq(head.minor, 0);
  assert_bad(START "Host: h:1\r\n\r\n", 400, "Host was sent twice");
}
END_TEST

START_TEST(test_lengths) {
  assert_whole(START "Content-Length: 9223372036854775807\r\n\r\n");
  ck_assert_uint_eq(head.content_length, INT64_MAX);
  ck_assert(http_head_has_body(&head));
  assert_whole(START "Content-Length: 0\r\n\r\n");
  ck_assert(head.has_length && !http_head_has_body(&head));
}
END_TEST

START_TEST(test_wrong_lengths) {
  assert_bad(START "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400, "Content-Length was sent twice");
  assert_bad(START "Content-Length: 5\r\ncontent-length: 6\r\n\r\n", 400, "Content-Length was sent twice");
  assert_bad(START "Content-Length: 5, 5\r\n\r\n", 400, "Content-Length is no number");
  assert_bad(START "Content-Length: -1\r\n\r\n", 400, "Content-Length is no number");
  assert_bad(START "Content-Length: +1\r\n\r\n", 400, "Content-Length is no number");
  assert_bad(START "Content-Length:\r\n\r\n", 400, "Content-Length is no number");
  assert_bad(START "Content-Length: 0x10\r\n\r\n", 400, "Content-Length is no number");
  assert_bad(START "Content-Length: 18446744073709551616\r\n\r\n", 400, "Content-Length is no number");
}
END_TEST

START_TEST(test_transfer_encodings) {
  static const char both[] = "Content-Length and Transfer-Encoding may not come together";
  assert_whole(START "Transfer-Encoding: Chunked\r\n\r\n");
  ck_assert(head.chunked && http_head_has_body(&head));
  assert_bad(START "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400, both);
  assert_bad(START "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n", 400, both);
  assert_bad(START "Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "Transfer-Encoding may only be chunked");
  assert_bad(START "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400,
             "Transfer-Encoding was sent twice");
  assert_bad("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "Transfer-Encoding needs HTTP/1.1");
}
END_TEST

START_TEST(test_upgrade_tokens) {
  static const struct {
    const char *fields;
    bool upgrade, connection;
  } rows[] = {
      {"Upgrade: websocket\r\nConnection: Upgrade\r\n", true, true},
      {"upgrade: WEBSOCKET\r\nCONNECTION: UPGRADE\r\n", true, true},
      {"Upgrade: h2c, websocket\r\nConnection: close , upgrade\r\n", true, true},
      {"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: a\r\nConnection: upgrade\r\n", true, true},
      {"Upgrade: websockets\r\nConnection: upgraded\r\n", false, false},
      {"Upgrade: web socket\r\nConnection: up,grade\r\n", false, false},
      {"Upgrade:,,\r\nConnection:,\r\n", false, false},
      {"", false, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char bytes[512];
    snprintf(bytes, sizeof bytes, START "%s\r\n", rows[i].fields);
    assert_whole(bytes);
    if (head.upgrade_websocket != rows[i].upgrade || head.connection_upgrade != rows[i].connection)
      ck_abort_msg("%s", rows[i].fields);
  }
}
END_TEST

START_TEST(test_query) {
  struct text query = text_of("a=1&bb=&c&a=2&=x"), value;
  ck_assert(http_query_find(query, "a", &value));
  assert_text(value, "1");
  ck_assert(http_query_find(query, "bb", &value));
  assert_text(value, "");
  ck_assert(http_query_find(query, "c", &value));
  assert_text(value, "");
  ck_assert(!http_query_find(query, "b", &value));
  ck_assert(!http_query_find(text_of(NULL), "a", &value));
}
END_TEST

static void assert_decoded(const char *encoded, bool plus, const char *expected, ptrdiff_t len) {
  char out[64];
  ptrdiff_t n = http_percent_decode(out, text_of(encoded), plus);
  if (n != len || (n > 0 && memcmp(out, expected, (size_t)n) != 0))
    ck_abort_msg("%s: %td", encoded, n);
}

START_TEST(test_percent_signs) {
  assert_decoded("a%2Fb%c3%A4", false, "a/b\xc3\xa4", 5);
  assert_decoded("a+b%2B", true, "a b+", 4);
  assert_decoded("a+b", false, "a+b", 3);
  assert_decoded("%00x", false, "\0x", 2);
  assert_decoded("", false, "", 0);
  assert_decoded("%", false, "", -1);
  assert_decoded("%4", false, "", -1);
  assert_decoded("%4g", false, "", -1);
  assert_decoded("%%20", false, "", -1);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("http_head");
  TCase *tcase = tcase_create("http_head");
  tcase_add_test(tcase, test_every_field_is_found);
  tcase_add_test(tcase, test_every_cut_wants_more);
  tcase_add_test(tcase, test_bytes_behind_the_head_are_left);
  tcase_add_test(tcase, test_empty_lines_before_the_request_are_skipped);
  tcase_add_test(tcase, test_the_longest_head);
  tcase_add_test(tcase, test_lines_end_with_cr_lf);
  tcase_add_test(tcase, test_control_characters);
  tcase_add_test(tcase, test_header_lines);
  tcase_add_test(tcase, test_request_lines);
  tcase_add_test(tcase, test_targets);
  tcase_add_test(tcase, test_host);
  tcase_add_test(tcase, test_lengths);
  tcase_add_test(tcase, test_wrong_lengths);
  tcase_add_test(tcase, test_transfer_encodings);
  tcase_add_test(tcase, test_upgrade_tokens);
  tcase_add_test(tcase, test_query);
  tcase_add_test(tcase, test_percent_signs);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
