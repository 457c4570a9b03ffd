#include "sandkeeper/net/access.h"

#include "run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *origins[] = {"https://app.example", "http://localhost:3000"};
static const struct net_options open_options = {.sandbox_id = "box 1", .max_message = 64 << 20};
static const struct net_options token_options = {.sandbox_id = "box 1", .token = "s3cret", .max_message = 64 << 20};

static struct http_head head;
static struct refusal refusal;
static struct upgrade upgrade;

static void read_head(const char *target, const char *fields) {
  static char bytes[HTTP_HEAD_MAX];
  int len = snprintf(bytes, sizeof bytes, "GET %s HTTP/1.1\r\nHost: box.example:4001\r\n%s\r\n", target, fields);
  ck_assert_int_eq(http_head_parse(&head, bytes, (size_t)len), HTTP_HEAD_WHOLE);
  refusal = (struct refusal){0};
}

/* The token, in each of its places and wrong in each of them. */
START_TEST(test_token) {
  static const struct {
    const char *fields;
    bool right;
  } rows[] = {
      {"Authorization: Bearer s3cret\r\n", true},
      {"Authorization: bearer   s3cret\r\n", true},
      {"X-Access-Token: s3cret\r\n", true},
      {"X-API-Key: s3cret\r\n", true},
      {"Sec-WebSocket-Protocol: bearer.s3cret\r\n", true},
      {"Sec-WebSocket-Protocol: chat, bearer.s3cret, more\r\n", true},
      {"Sec-WebSocket-Protocol: chat\r\nSec-WebSocket-Protocol: bearer.s3cret\r\n", true},
      {"Authorization: Bearer wrong\r\nX-API-Key: s3cret\r\n", true},
      {"", false},
      {"Authorization: Bearer \r\n", false},
      {"Authorization: Bearer\r\n", false},
      {"Authorization: s3cret\r\n", false},
      {"Authorization: Basic s3cret\r\n", false},
      {"Authorization: Bearer s3cre\r\n", false},
      {"Authorization: Bearer s3crets\r\n", false},
      {"Authorization: Bearer S3CRET\r\n", false},
      {"X-Access-Token:\r\n", false},
      {"X-Access-Token: s\r\n", false},
      {"X-API-Key: s3cre\r\n", false},
      {"X-API-Key: Bearer s3cret\r\n", false},
      {"Sec-WebSocket-Protocol: s3cret\r\n", false},
      {"Sec-WebSocket-Protocol: bearer.\r\n", false},
      {"Sec-WebSocket-Protocol: bearer.s3cret.more\r\n", false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    read_head("/rpc", rows[i].fields);
    if (access_allowed(&token_options, &head, &refusal) != rows[i].right)
      ck_abort_msg("%s", rows[i].fields);
    ck_assert_uint_eq(refusal.status, rows[i].right ? 0 : 401);
    ck_assert_ptr_null(strstr(refusal.message, "s3cret"));
  }
}
END_TEST

START_TEST(test_origin) {
  static const struct {
    const char *fields;
    bool open, listed, cross; /* allowed without a list, with one; seen as another origin that is listed */
  } rows[] = {
      {"", true, true, false},
      {"Origin: http://box.example:4001\r\n", true, true, false},
      {"Origin: https://BOX.example:4001\r\n", true, true, false},
      {"Origin: http://box.example\r\n", false, false, false},
      {"Origin: http://box.example:4002\r\n", false, false, false},
      {"Origin: http://evil.example:4001\r\n", false, false, false},
      {"Origin: http://box.example.evil:4001\r\n", false, false, false},
      {"Origin: null\r\n", false, false, false},
      {"Origin:\r\n", false, false, false},
      {"Origin: https://app.example\r\n", false, true, true},
      {"Origin: http://app.example\r\n", false, false, false},
      {"Origin: http://localhost:3000\r\n", false, true, true},
  };
  struct net_options listed = open_options;
  listed.allow_origins = origins;
  listed.n_allow_origins = 2;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    read_head("/rpc", rows[i].fields);
    if (access_allowed(&open_options, &head, &refusal) != rows[i].open)
      ck_abort_msg("%s without a list", rows[i].fields);
    ck_assert_uint_eq(refusal.status, rows[i].open ? 0 : 403);
    if (access_allowed(&listed, &head, &refusal) != rows[i].listed)
      ck_abort_msg("%s with a list", rows[i].fields);
    if (access_cross_origin(&listed, &head) != rows[i].cross)
      ck_abort_msg("%s across", rows[i].fields);
  }
}
END_TEST

/* A Host without a port has the one that belongs to the Origin's scheme: a proxy that ends TLS sends it so. */
START_TEST(test_origin_behind_a_proxy) {
  static const char *const own[] = {"https://box.example", "http://box.example", "https://box.example:443",
                                    "http://box.example:80"};
  char bytes[256];
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    int len = snprintf(bytes, sizeof bytes, "GET / HTTP/1.1\r\nHost: box.example\r\nOrigin: %s\r\n\r\n", own[i]);
    ck_assert_int_eq(http_head_parse(&head, bytes, (size_t)len), HTTP_HEAD_WHOLE);
    if (!access_allowed(&open_options, &head, &refusal))
      ck_abort_msg("%s", own[i]);
  }
  int len = snprintf(bytes, sizeof bytes, "GET / HTTP/1.1\r\nHost: [::1]:4001\r\nOrigin: http://[::1]:4001\r\n\r\n");
  ck_assert_int_eq(http_head_parse(&head, bytes, (size_t)len), HTTP_HEAD_WHOLE);
  ck_assert(access_allowed(&open_options, &head, &refusal));
}
END_TEST

/* With a token, who has it may come from anywhere. */
START_TEST(test_origin_with_a_token) {
  read_head("/rpc", "Origin: http://evil.example\r\nAuthorization: Bearer s3cret\r\n");
  ck_assert(access_allowed(&token_options, &head, &refusal));
}
END_TEST

START_TEST(test_any_origin) {
  static char *any[] = {"*"};
  struct net_options options = open_options;
  options.allow_origins = any;
  options.n_allow_origins = 1;
  read_head("/rpc", "Origin: http://evil.example\r\n");
  ck_assert(access_allowed(&options, &head, &refusal));
  ck_assert(access_cross_origin(&options, &head));
}
END_TEST

#define HANDSHAKE                                                              \
  "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n" \
  "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

START_TEST(test_upgrade) {
  read_head("/ws", HANDSHAKE);
  ck_assert(access_upgrade(&open_options, &head, &upgrade, &refusal));
  ck_assert_str_eq(upgrade.key, "dGhlIHNhbXBsZSBub25jZQ==");
  ck_assert_uint_eq(upgrade.max_message, 64 << 20);
  ck_assert_ptr_null(upgrade.protocol.at);
}
END_TEST

START_TEST(test_upgrade_paths) {
  static const struct {
    const char *target;
    bool websocket, right;
  } rows[] = {
      {"/ws", true, true},
      {"/api/v1/sandboxes/box%201/connect", true, true},
      {"/api/v1/sandbox/box%201/connect", true, true},
      {"/api/v1/sandbox/%62%6f%78%20%31/connect", true, true},
      {"/api/v1/sandbox/box+1/connect", true, false},
      {"/api/v1/sandbox/other/connect", true, false},
      {"/api/v1/sandbox/box%2/connect", true, false},
      {"/api/v1/sandbox/box%201%00/connect", true, false},
      {"/api/v1/sandbox//connect", false, false},
      {"/api/v1/sandbox/a/b/connect", false, false},
      {"/api/v1/sandbox/connect", false, false},
      {"/api/v1/sandbox/box%201/connect/", false, false},
      {"/ws/", false, false},
      {"/WS", false, false},
      {"/", false, false},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    read_head(rows[i].target, HANDSHAKE);
    if (access_is_websocket_path(head.path) != rows[i].websocket)
      ck_abort_msg("%s: wrong kind of path", rows[i].target);
    if (access_upgrade(&open_options, &head, &upgrade, &refusal) != rows[i].right)
      ck_abort_msg("%s: %s", rows[i].target, refusal.message);
    ck_assert_uint_eq(refusal.status, rows[i].right ? 0 : 404);
  }
}
END_TEST

START_TEST(test_upgrade_handshakes) {
  static const struct {
    const char *fields;
    unsigned status;
  } rows[] = {
      {"", 426},
      {"Upgrade: websocket\r\n", 426},
      {"Connection: Upgrade\r\n", 426},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\n", 426},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n", 426},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13, 8\r\n", 426},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n", 400},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n", 400},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25j\"Q==\r\n",
       400},
      {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
       "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQAA\r\n",
       400},
      {HANDSHAKE "Content-Length: 1\r\n", 400},
      {HANDSHAKE "Transfer-Encoding: chunked\r\n", 400},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    read_head("/ws", rows[i].fields);
    if (access_upgrade(&open_options, &head, &upgrade, &refusal))
      ck_abort_msg("taken: %s", rows[i].fields);
    if (refusal.status != rows[i].status)
      ck_abort_msg("%s: %u %s", rows[i].fields, refusal.status, refusal.message);
  }
  read_head("/ws", HANDSHAKE "Content-Length: 0\r\n");
  ck_assert(access_upgrade(&open_options, &head, &upgrade, &refusal));
}
END_TEST

START_TEST(test_upgrade_needs_http_1_1) {
  static const char bytes[] = "GET /ws HTTP/1.0\r\n" HANDSHAKE "\r\n";
  ck_assert_int_eq(http_head_parse(&head, bytes, sizeof bytes - 1), HTTP_HEAD_WHOLE);
  ck_assert(!access_upgrade(&open_options, &head, &upgrade, &refusal));
  ck_assert_uint_eq(refusal.status, 426);
}
END_TEST

START_TEST(test_upgrade_needs_get) {
  static const char bytes[] = "POST /ws HTTP/1.1\r\nHost: h\r\n" HANDSHAKE "\r\n";
  ck_assert_int_eq(http_head_parse(&head, bytes, sizeof bytes - 1), HTTP_HEAD_WHOLE);
  ck_assert(!access_upgrade(&open_options, &head, &upgrade, &refusal));
  ck_assert_uint_eq(refusal.status, 405);
}
END_TEST

START_TEST(test_upgrade_needs_the_token) {
  read_head("/ws", HANDSHAKE);
  ck_assert(!access_upgrade(&token_options, &head, &upgrade, &refusal));
  ck_assert_uint_eq(refusal.status, 401);
}
END_TEST

START_TEST(test_max_message) {
  static const struct {
    const char *target, *fields;
    size_t expected; /* 0: 400 */
  } rows[] = {
      {"/ws", "", 64 << 20},
      {"/ws", "User-Agent: Python/3.11 websockets/15.0.1\r\n", 1 << 20},
      {"/ws", "User-Agent: Python/3.11 aiohttp/3\r\n", 64 << 20},
      {"/ws?max_message=8388608", "User-Agent: Python/3.11 websockets/15.0.1\r\n", 8 << 20},
      {"/ws?max_message=1024", "", 1024},
      {"/ws?x=1&max_message=2048&y", "", 2048},
      {"/ws?max_message=99999999999999999999999999999", "", 64 << 20},
      {"/ws?max_message=1023", "", 0},
      {"/ws?max_message=0", "", 0},
      {"/ws?max_message=-1", "", 0},
      {"/ws?max_message=", "", 0},
      {"/ws?max_message", "", 0},
      {"/ws?max_message=1e6", "", 0},
      {"/ws?max_message=4096%20", "", 0},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char fields[512];
    snprintf(fields, sizeof fields, "%s%s", HANDSHAKE, rows[i].fields);
    read_head(rows[i].target, fields);
    bool taken = access_upgrade(&open_options, &head, &upgrade, &refusal);
    if (taken != (rows[i].expected > 0))
      ck_abort_msg("%s: %s", rows[i].target, refusal.message);
    if (taken && upgrade.max_message != rows[i].expected)
      ck_abort_msg("%s: %zu", rows[i].target, upgrade.max_message);
    if (!taken) {
      ck_assert_uint_eq(refusal.status, 400);
      ck_assert_ptr_nonnull(strstr(refusal.message, "max_message"));
    }
  }
}
END_TEST

/* Which subprotocol is in the answer. */
START_TEST(test_protocol) {
  static const struct {
    const struct net_options *options;
    const char *fields, *expected;
  } rows[] = {
      {&open_options, "Sec-WebSocket-Protocol: bearer.any\r\n", "bearer.any"},
      {&open_options, "Sec-WebSocket-Protocol: chat, bearer.any, bearer.other\r\n", "bearer.any"},
      {&open_options, "Sec-WebSocket-Protocol: chat\r\n", NULL},
      {&open_options, "Sec-WebSocket-Protocol: bearer.a b\r\n", NULL},
      {&open_options, "Sec-WebSocket-Protocol: bearer.\xff\r\n", NULL},
      {&token_options, "Sec-WebSocket-Protocol: bearer.wrong, bearer.s3cret\r\n", "bearer.s3cret"},
      {&token_options, "Authorization: Bearer s3cret\r\nSec-WebSocket-Protocol: bearer.x\r\n", "bearer.x"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char fields[512];
    snprintf(fields, sizeof fields, "%s%s", HANDSHAKE, rows[i].fields);
    read_head("/ws", fields);
    if (!access_upgrade(rows[i].options, &head, &upgrade, &refusal))
      ck_abort_msg("%s: %s", rows[i].fields, refusal.message);
    if (rows[i].expected ? !text_is(upgrade.protocol, rows[i].expected) : upgrade.protocol.at != NULL)
      ck_abort_msg("%s: %.*s", rows[i].fields, (int)upgrade.protocol.len, upgrade.protocol.at);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("access");
  TCase *tcase = tcase_create("access");
  tcase_add_test(tcase, test_token);
  tcase_add_test(tcase, test_origin);
  tcase_add_test(tcase, test_origin_behind_a_proxy);
  tcase_add_test(tcase, test_origin_with_a_token);
  tcase_add_test(tcase, test_any_origin);
  tcase_add_test(tcase, test_upgrade);
  tcase_add_test(tcase, test_upgrade_paths);
  tcase_add_test(tcase, test_upgrade_handshakes);
  tcase_add_test(tcase, test_upgrade_needs_http_1_1);
  tcase_add_test(tcase, test_upgrade_needs_get);
  tcase_add_test(tcase, test_upgrade_needs_the_token);
  tcase_add_test(tcase, test_max_message);
  tcase_add_test(tcase, test_protocol);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
