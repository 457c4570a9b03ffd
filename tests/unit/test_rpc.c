/* JSON-RPC through a fake peer: ids, batches, notifications, errors, limits, flow. Methods are used as far as they are
 * needed for that; exec's own behaviour is in test_exec. */
#include "rpc_fixture.h"
#include "run.h"

#include "sandkeeper/api/rpc_error.h"
#include "sandkeeper/api/rpc_parse.h"

#include <limits.h>

#define NO_LIMIT (64u << 20)

static struct client client;

static void begin(void) {
  core_begin();
  client_open(&client, NO_LIMIT);
}

static void end(void) {
  client_close(&client);
  core_end();
}

static void expect_silence(void) {
  for (int i = 0; i < 3; i++) {
    json_object *message = client_pull(&client);
    ck_assert_msg(!message, "%s", json_object_to_json_string(message));
    loop_run_once(sandbox.loop, 5);
  }
}

static void expect_answer(const char *id, int code, const char *kind, const char *text) {
  json_object *message = client_wait(&client);
  ck_assert_str_eq(
      json_object_to_json_string_ext(member(message, "id"), JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE),
      id);
  expect_error_in(message, code, kind, text);
  json_object_put(message);
  expect_silence();
  ck_assert(rpc_session_idle(client.session));
}

/* ---- broken messages ---- */

static const char *const no_json[] = {
    "",
    " ",
    "\n",
    "{",
    "[",
    "[1",
    "{\"a\"",
    "{\"a\":",
    "{\"a\":1",
    "}",
    "]",
    "tru",
    "nul",
    "\"abc",
    "\"\\u12\"",
    "{]",
    "[}",
    "{\"a\":1,}",
    "[1,]",
    "{} x",
    "{}{}",
    "\xff",
    "\"\xff\"",
    "\"\xe2\x98\"",
    "\"\xc0\x80\"",
    "\"\xed\xa0\x80\"",
    "{\"a\":1 \"b\":2}",
    "{a:1}",
    "/* */ {}",
    "\"a\\x\"",
    "--1",
    "+1",
    ".5",
    "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":1}\x01",
};

START_TEST(test_no_json) {
  for (size_t i = 0; i < sizeof no_json / sizeof *no_json; i++) {
    client_send_bytes(&client, no_json[i], strlen(no_json[i]));
    expect_answer("null", -32700, "parse_error", "parse error");
  }
}
END_TEST

/* json-c takes a NUL for the end of the text: what is behind it must not be overlooked. */
START_TEST(test_nul_bytes) {
  static const char behind[] = "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":1}\0{\"x\":1}";
  client_send_bytes(&client, behind, sizeof behind - 1);
  expect_answer("null", -32700, "parse_error", "NUL");
  client_send_bytes(&client, behind, sizeof behind - 8);
  expect_answer("null", -32700, "parse_error", "NUL");
  client_send_bytes(&client, "\0", 1);
  expect_answer("null", -32700, "parse_error", "");
  client_send_bytes(&client, NULL, 0);
  expect_answer("null", -32700, "parse_error", "empty");
  struct buf empty;
  buf_init(&empty, 100, 0);
  rpc_session_take(client.session, &empty);
  expect_answer("null", -32700, "parse_error", "empty");
}
END_TEST

/* It is JSON, so that who asked can be told. A long message is read on a worker. */
START_TEST(test_nul_in_a_name) {
  static const char exec[] =
      "\"jsonrpc\":\"2.0\",\"method\":\"exec\",\"params\":{\"command\":\"true\",\"env\":{\"A\\u0000B\":\"x\"}}";
  client_send(&client, "{%s,\"id\":7}", exec);
  expect_answer("7", -32602, "invalid_params", "NUL");
  client_send(&client, "{%s,\"id\":\"seven\"}%100000s", exec, "");
  expect_answer("\"seven\"", -32602, "invalid_params", "NUL");
  client_send(&client, "{%s,\"id\":[]}", exec);
  expect_answer("null", -32602, "invalid_params", "NUL");
  client_send(&client, "{\"a\\u0000b\":1}");
  expect_answer("null", -32602, "invalid_params", "NUL");
  client_send(&client, "[{%s,\"id\":7}]", exec);
  expect_answer("null", -32600, "invalid_request", "NUL");
  client_send(&client, "{%s,\"id\":7", exec);
  expect_answer("null", -32700, "parse_error", "");
}
END_TEST

START_TEST(test_nul_in_names) {
  json_object *value;
  struct error err = ERROR_INIT;
  static const struct {
    const char *text;
    bool good;
  } cases[] = {
      {"{\"a\\u0000\":1}", false},
      {"{\"a\\u0000\" \n:1}", false},
      {"{\"a\":\"\\u0000\"}", true},
      {"[\"\\u0000\"]", true},
      {"\"\\u0000\"", true},
      {"{\"a\\\\u0000\":1}", true}, /* an escaped backslash */
      {"{\"a\\\\\\u0000\":1}", false},
      {"{\"a\\\"\\u0000\":1}", false},
      {"{\"x\":\"\\u0000\",\"b\\u0000\":1}", false},
      {"{\"x\":\"\\u0000\\\":\"}", true},
      {"{'a\\u0000':1}", false}, /* json-c would take the quotes */
      {"{'a':1}", false},
      {"{\"a\":\"'\"}", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int status = rpc_parse(cases[i].text, strlen(cases[i].text), &value, &err);
    ck_assert_msg((status == 0) == cases[i].good, "%s", cases[i].text);
    if (status == 0)
      json_object_put(value);
  }
}
END_TEST

/* Many small values: json-c makes hundreds of bytes of each, and the loop frees them. */
START_TEST(test_many_values) {
  static const char *const units[] = {"0,", "{},", "[],", "\"a,[\","};
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    size_t unit = strlen(units[i]), values = i == 1 || i == 2 ? 2 : 1; /* a bracket and a comma */
    for (int over = 0; over < 2; over++) {
      size_t n = RPC_VALUES_MAX / values - 2 + 2 * (size_t)over;
      char *text = malloc(n * unit + 4);
      ck_assert_ptr_nonnull(text);
      text[0] = '[';
      for (size_t k = 0; k < n; k++)
        memcpy(text + 1 + k * unit, units[i], unit);
      memcpy(text + 1 + n * unit, "0]", 2);
      json_object *value;
      struct error err = ERROR_INIT;
      int status = rpc_parse(text, n * unit + 3, &value, &err);
      ck_assert_msg((status == 0) == !over, "%s: %s", units[i], err.message);
      ck_assert(!over || (err.kind == ERROR_INVALID && strstr(err.message, "131072 values")));
      json_object_put(value);
      free(text);
    }
  }
}
END_TEST

static char *nested(size_t levels, char open, char close, size_t *len) {
  static const char head[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec_list\",\"params\":{\"x\":";
  size_t unit = open == '[' ? 1 : 5, at = sizeof head - 1;
  char *text = malloc(at + levels * (unit + 1) + 10);
  ck_assert_ptr_nonnull(text);
  memcpy(text, head, at);
  for (size_t i = 0; i < levels; i++, at += unit)
    memcpy(text + at, open == '[' ? "[" : "{\"a\":", unit);
  text[at++] = '1';
  for (size_t i = 0; i < levels; i++)
    text[at++] = close;
  memcpy(text + at, "}}", 2);
  *len = at + 2;
  return text;
}

/* The request and its params are two of the 64 levels. */
START_TEST(test_depth) {
  static const size_t levels[] = {1, 60, 62, 63, 64, 100, 10000, 100000};
  for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
    for (int object = 0; object < 2; object++) {
      size_t len;
      char *text = nested(levels[i], object ? '{' : '[', object ? '}' : ']', &len);
      client_send_bytes(&client, text, len);
      json_object *answer = client_wait(&client);
      if (levels[i] <= 62)
        ck_assert_msg(member(answer, "result") != NULL, "%zu levels: %s", levels[i],
                      json_object_to_json_string(answer));
      else
        expect_error_in(answer, -32700, "parse_error", "64 levels");
      json_object_put(answer);
      free(text);
    }
  }
}
END_TEST

/* Every message cut at every place is answered, and the next request works. */
START_TEST(test_cut_messages) {
  static const char whole[] = "[{\"jsonrpc\":\"2.0\",\"id\":\"\\u00e9\",\"method\":\"kill\",\"params\":{\"cmd_id\":"
                              "\"x\",\"a\":[1.5e3,null,true]}}]";
  for (size_t len = 0; len < sizeof whole - 1; len++) {
    client_send_bytes(&client, whole, len);
    json_object *answer = client_wait(&client);
    expect_error_in(answer, -32700, "parse_error", "");
    json_object_put(answer);
  }
  client_send_bytes(&client, whole, sizeof whole - 1);
  json_object *answer = client_wait(&client);
  expect_error_in(json_object_array_get_idx(answer, 0), -32001, "not_found", "cmd_id x");
  json_object_put(answer);
}
END_TEST

/* ---- requests ---- */

START_TEST(test_invalid_requests) {
  static const char *const texts[] = {"1",
                                      "\"x\"",
                                      "null",
                                      "true",
                                      "1.5",
                                      "{}",
                                      "{\"id\":7}",
                                      "{\"jsonrpc\":\"1.0\",\"method\":\"exec_list\"}",
                                      "{\"jsonrpc\":2.0,\"method\":\"exec_list\"}",
                                      "{\"jsonrpc\":\"2.0\"}",
                                      "{\"jsonrpc\":\"2.0\",\"method\":5}",
                                      "{\"jsonrpc\":\"2.0\",\"method\":null}",
                                      "[]"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    client_send(&client, "%s", texts[i]);
    expect_answer(i == 6 ? "7" : "null", -32600, "invalid_request", "");
  }
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":5,\"id\":\"a\"}");
  expect_answer("\"a\"", -32600, "invalid_request", "method");
}
END_TEST

START_TEST(test_ids) {
  static const char *const good[] = {"0",
                                     "1",
                                     "-1",
                                     "1.5",
                                     "9007199254740993",
                                     "9223372036854775807",
                                     "-9223372036854775807",
                                     "18446744073709551614",
                                     "\"\"",
                                     "\"a\\\"b\"",
                                     "null",
                                     "\"\\u0000x\"",
                                     "\"\xc3\xa9\"",
                                     "\"a/b\"",
                                     "1e3"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"nope\",\"id\":%s}", good[i]);
    expect_answer(good[i], -32601, "method_not_found", "nope");
  }
  /* json-c gives numbers back as they were written, and whole ones of more than 64 bits as the nearest that fits. */
  static const char *const bad[] = {"true",
                                    "false",
                                    "[]",
                                    "{}",
                                    "[1]",
                                    "NaN",
                                    "Infinity",
                                    "-Infinity",
                                    "1e999",
                                    "1.",
                                    "-1.",
                                    "1.e5",
                                    "-.5",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "123456789012345678901234567890",
                                    "-9223372036854775808",
                                    "-9223372036854775809"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":%s}", bad[i]);
    json_object *answer = client_wait(&client);
    ck_assert(json_object_object_get_ex(answer, "id", NULL) && !member(answer, "id"));
    ck_assert_msg(number_of(answer, "error.code") == -32600 || number_of(answer, "error.code") == -32700, "%s", bad[i]);
    json_object_put(answer);
  }
  /* It comes back with every message: it may not be long. */
  char id[400];
  for (size_t len = 253; len < 258; len++) {
    memset(id, 'x', len);
    id[len] = '\0';
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"nope\",\"id\":\"%s\"}", id);
    json_object *answer = client_wait(&client);
    ck_assert_int_eq(number_of(answer, "error.code"), len + 2 <= 256 ? -32601 : -32600);
    ck_assert_int_eq(member(answer, "id") != NULL, len + 2 <= 256);
    json_object_put(answer);
  }
}
END_TEST

START_TEST(test_methods) {
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\\u0000x\",\"id\":1}");
  expect_answer("1", -32601, "method_not_found", "");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"\",\"id\":1}");
  expect_answer("1", -32601, "method_not_found", "");
  char name[3000];
  memset(name, 'm', sizeof name);
  name[sizeof name - 1] = '\0';
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"%s\",\"id\":1}", name);
  expect_answer("1", -32601, "method_not_found", "mmm");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":1,\"params\":[1]}");
  expect_answer("1", -32602, "invalid_params", "params");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":1,\"params\":\"x\"}");
  expect_answer("1", -32602, "invalid_params", "params");
  json_object *answer = client_call(&client, "\"method\":\"exec_list\",\"params\":null,\"unknown\":[]");
  ck_assert(json_object_is_type(member(answer, "result"), json_type_array));
  json_object_put(answer);
}
END_TEST

START_TEST(test_notifications) {
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\"}");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"nope\"}");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"kill\",\"params\":{\"cmd_id\":5}}");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec\",\"params\":{\"command\":\"echo x; touch ran\"}}");
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"method\":\"exec\",\"params\":{\"argv\":[\"/no/such\"]}}");
  expect_silence();
  int64_t give_up = clock_monotonic() + LONGEST;
  while (!file_exists("ran") || sandbox.commands.counts.running > 0) {
    REQUIRE(clock_monotonic() < give_up);
    expect_silence();
  }
  ck_assert(rpc_session_idle(client.session));
  ck_assert_uint_eq(sandbox.commands.counts.finished, 1);
}
END_TEST

/* ---- batches ---- */

static json_object *find_answer(json_object *batch, int id) {
  for (size_t i = 0; i < json_object_array_length(batch); i++) {
    json_object *answer = json_object_array_get_idx(batch, i);
    if (json_object_is_type(member(answer, "id"), json_type_int) && number_of(answer, "id") == id)
      return answer;
  }
  ck_abort_msg("no answer %d in %s", id, json_object_to_json_string(batch));
  return NULL;
}

START_TEST(test_batch) {
  client_send(&client,
              "[{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":1},"
              "{\"jsonrpc\":\"2.0\",\"method\":\"exec\",\"id\":2,\"params\":{\"command\":\"sleep 0.1; echo slow\"}},"
              "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\"},5,"
              "{\"jsonrpc\":\"2.0\",\"method\":\"nope\",\"id\":3}]");
  json_object *batch;
  while (is_notification(batch = client_wait(&client), NULL)) {
    ck_assert_int_eq(number_of(batch, "params.id"), 2);
    json_object_put(batch);
  }
  ck_assert_uint_eq(json_object_array_length(batch), 4);
  ck_assert(member(find_answer(batch, 1), "result") != NULL);
  ck_assert_str_eq(text_of(find_answer(batch, 2), "result.output"), "slow\n");
  expect_error_in(find_answer(batch, 3), -32601, "method_not_found", "nope");
  json_object_put(batch);
  expect_silence();
  ck_assert(rpc_session_idle(client.session));
}
END_TEST

START_TEST(test_batch_of_notifications) {
  client_send(&client, "[{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\"},{\"jsonrpc\":\"2.0\",\"method\":\"nope\"}]");
  expect_silence();
  ck_assert(rpc_session_idle(client.session));
}
END_TEST

/* The request's "%d" is its number in the batch. */
static void send_batch(struct client *to, int n, const char *request) {
  const char *number = strstr(request, "%d");
  ck_assert_ptr_nonnull(number);
  struct buf text;
  buf_init(&text, 64 << 20, 0);
  for (int i = 0; i < n; i++) {
    buf_append_string(&text, i ? "," : "[");
    buf_printf(&text, "%.*s%d%s", (int)(number - request), request, i, number + 2);
  }
  buf_append_string(&text, "]");
  ck_assert(!text.failed);
  client_send_bytes(to, text.data, text.len);
  buf_free(&text);
}

START_TEST(test_batch_limits) {
  send_batch(&client, 1001, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":%d}");
  expect_answer("null", -32600, "invalid_request", "1000");
  send_batch(&client, 1000, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":%d}");
  json_object *batch = client_wait(&client);
  ck_assert_uint_eq(json_object_array_length(batch), 1000);
  for (int i = 0; i < 1000; i += 111)
    ck_assert(member(find_answer(batch, i), "result") != NULL);
  json_object_put(batch);
}
END_TEST

/* Answers that together are longer than the client takes: each is cut or refused, the batch fits and names every id. */
START_TEST(test_batch_fits_the_client) {
  static const struct {
    size_t max;
    int n;
  } cases[] = {{1024, 2}, {4096, 10}, {65536, 100}, {1 << 20, 1000}, {1 << 20, 20}, {500000, 1000}};
  char long_id[260], request[1000];
  memset(long_id, '\1', 40);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct client small;
    client_open(&small, cases[i].max);
    /* An error whose sentence is long, with escapes, and an id that is long too. */
    snprintf(long_id, sizeof long_id, "%0200d", 0);
    snprintf(request, sizeof request,
             "{\"jsonrpc\":\"2.0\",\"method\":\"kill\",\"params\":{\"cmd_id\":\"\\u0001\\u0001\\u0001%s\\u0001%s\"},"
             "\"id\":\"%s%%d\"}",
             long_id, long_id, long_id);
    send_batch(&small, cases[i].n, request);
    json_object *batch = client_wait(&small);
    ck_assert_msg(json_object_is_type(batch, json_type_array), "%s", json_object_to_json_string(batch));
    ck_assert_uint_eq(json_object_array_length(batch), (size_t)cases[i].n);
    for (int k = 0; k < cases[i].n; k++) {
      json_object *answer = json_object_array_get_idx(batch, (size_t)k);
      ck_assert(number_of(answer, "error.code") == -32001 || number_of(answer, "error.code") == -32603);
    }
    json_object_put(batch);
    client_close(&small);
  }
  struct client small;
  client_open(&small, 1024);
  send_batch(&small, 3, "{\"jsonrpc\":\"2.0\",\"method\":\"exec_list\",\"id\":%d}");
  json_object *answer = client_wait(&small);
  expect_error_in(answer, -32600, "invalid_request", "1024 bytes");
  json_object_put(answer);
  client_close(&small);
}
END_TEST

START_TEST(test_batch_of_outputs_fits) {
  struct client small;
  client_open(&small, 30000);
  send_batch(
      &small, 5,
      "{\"jsonrpc\":\"2.0\",\"method\":\"exec\",\"id\":%d,\"params\":{\"command\":\"head -c 100000 /dev/zero\"}}");
  json_object *batch;
  while (is_notification(batch = client_wait(&small), NULL))
    json_object_put(batch);
  for (int i = 0; i < 5; i++) {
    json_object *answer = find_answer(batch, i);
    ck_assert(truth_of(answer, "result.truncated"));
    ck_assert_int_eq(number_of(answer, "result.stdout_bytes"), 100000);
    ck_assert_uint_gt(strlen(json_object_to_json_string(member(answer, "result.output"))), 100);
  }
  json_object_put(batch);
  client_close(&small);
}
END_TEST

/* ---- the table of errors ---- */

START_TEST(test_error_table) {
  static const struct {
    enum error_kind kind;
    int code;
    const char *name;
  } table[] = {
      {ERROR_INVALID, -32602, "invalid_params"},
      {ERROR_NOT_FOUND, -32001, "not_found"},
      {ERROR_TIMED_OUT, -32002, "timed_out"},
      {ERROR_PERMISSION, -32003, "permission_denied"},
      {ERROR_WRONG_TYPE, -32004, "wrong_type"},
      {ERROR_EDIT_CONFLICT, -32005, "edit_conflict"},
      {ERROR_TOO_LARGE, -32006, "too_large"},
      {ERROR_NO_SPACE, -32007, "no_space"},
      {ERROR_SPAWN_FAILED, -32008, "spawn_failed"},
      {ERROR_STOPPED, -32009, "stopped"},
      {ERROR_BUSY, -32010, "busy"},
      {ERROR_EXISTS, -32011, "exists"},
      {ERROR_IO, -32000, "io_error"},
      {ERROR_INTERNAL, -32603, "internal_error"},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    struct error error = ERROR_INIT;
    struct buf text;
    struct json_out out;
    error_set(&error, table[i].kind, i % 2 ? 5 : 0, "a \"sentence\" \xff");
    error.limit = i % 3 ? 77 : 0;
    error.count = 3;
    error.n_lines = 2;
    error.lines[0] = 1;
    error.lines[1] = UINT64_MAX;
    buf_init(&text, 1000, 0);
    json_out_begin(&out, &text);
    rpc_error_write(&out, &error, NULL, NULL);
    struct json_member none = {.name = "none"};
    ck_assert(json_check_object(text.data, text.len, &none));
    json_object *object = json_tokener_parse(buf_string(&text));
    ck_assert_int_eq(number_of(object, "code"), table[i].code);
    ck_assert_int_eq(rpc_error_code(table[i].kind), table[i].code);
    ck_assert_str_eq(text_of(object, "data.kind"), table[i].name);
    ck_assert_str_eq(text_of(object, "message"), "a \"sentence\" \xef\xbf\xbd");
    ck_assert_int_eq(member(object, "data.errno") != NULL, i % 2);
    ck_assert_int_eq(member(object, "data.limit") != NULL, i % 3 != 0);
    ck_assert_int_eq(member(object, "data.lines") != NULL, table[i].kind == ERROR_EDIT_CONFLICT);
    json_object_put(object);
    buf_free(&text);
  }
}
END_TEST

/* An error whose sentence is too long for the client keeps its code. */
START_TEST(test_long_error_is_cut) {
  struct client small;
  char path[4000];
  client_open(&small, 1024);
  memset(path, 'p', sizeof path);
  path[0] = '/';
  path[sizeof path - 1] = '\0';
  for (int i = 200; i < 3000; i += 200)
    path[i] = '/';
  json_object *answer =
      client_call(&small, "\"method\":\"exec\",\"params\":{\"command\":\"true\",\"working_dir\":\"%s\"}", path);
  expect_error_in(answer, -32001 /* or too long a name */, "not_found", "working_dir /ppp");
  json_object_put(answer);
  client_close(&small);
}
END_TEST

/* ---- long messages ---- */

static char *long_request(size_t len, const char *id, const char *method) {
  char *text = malloc(len + 1);
  ck_assert_ptr_nonnull(text);
  int n = snprintf(text, len, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"method\":\"%s\",\"params\":{\"pad\":\"", id, method);
  memset(text + n, 'x', len - (size_t)n);
  memcpy(text + len - 3, "\"}}", 4);
  return text;
}

START_TEST(test_long_messages_are_parsed_elsewhere) {
  size_t len = RPC_PARSE_INLINE_MAX + 1;
  char *text = long_request(len, "5", "exec_list");
  rpc_session_receive(client.session, text, len);
  ck_assert(client.held);
  ck_assert(!rpc_session_idle(client.session));
  ck_assert_ptr_null(client_pull(&client));
  json_object *answer = client_wait(&client);
  ck_assert(!client.held);
  ck_assert_int_eq(client.holds, 1);
  ck_assert_int_eq(number_of(answer, "id"), 5);
  json_object_put(answer);
  /* One byte less is not. */
  free(text);
  text = long_request(len - 1, "6", "exec_list");
  rpc_session_receive(client.session, text, len - 1);
  ck_assert_int_eq(client.holds, 1);
  json_object_put(client_wait(&client));
  /* Broken, too deep, no request, a batch. */
  struct buf message;
  buf_init(&message, 64 << 20, 0);
  buf_append(&message, text, len - 2);
  while (message.len <= RPC_PARSE_INLINE_MAX)
    buf_append_string(&message, " ");
  rpc_session_take(client.session, &message);
  ck_assert_uint_eq(message.len, 0);
  expect_answer("null", -32700, "parse_error", "in the middle");
  for (size_t i = 0; i < 100000; i++)
    buf_append_string(&message, "[");
  rpc_session_take(client.session, &message);
  expect_answer("null", -32700, "parse_error", "64 levels");
  for (size_t i = 0; i < 300000; i++)
    buf_append_string(&message, i ? " " : "7");
  rpc_session_take(client.session, &message);
  expect_answer("null", -32600, "invalid_request", "");
  for (size_t i = 0; i < 30000; i++)
    buf_append_string(&message, i ? ",1234567890" : "[1");
  buf_append_string(&message, "]");
  rpc_session_take(client.session, &message);
  expect_answer("null", -32600, "invalid_request", "1000");
  buf_free(&message);
  free(text);
}
END_TEST

START_TEST(test_close_while_a_message_is_parsed) {
  for (int i = 0; i < 20; i++) {
    struct client other;
    client_open(&other, NO_LIMIT);
    char *text = long_request(1 << 20, "5", "exec_list");
    rpc_session_receive(other.session, text, 1 << 20);
    free(text);
    if (i % 3 == 1)
      loop_run_once(sandbox.loop, 0);
    client_close(&other);
  }
  RUN_UNTIL(workers_stats(sandbox.workers).queued + workers_stats(sandbox.workers).busy == 0);
  loop_run_once(sandbox.loop, 10);
}
END_TEST

/* ---- limits ---- */

START_TEST(test_calls_max) {
  enum { MAX = 4096 };
  json_object *answer = client_call(
      &client, "\"method\":\"exec\",\"params\":{\"command\":\"sleep 774.300\",\"cmd_id\":\"s\",\"detached\":true}");
  json_object_put(answer);
  for (int i = 0; i < MAX; i++)
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"s\"}}", i);
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":\"more\",\"method\":\"exec_list\"}");
  answer = client_response(&client);
  ck_assert_str_eq(text_of(answer, "id"), "more");
  expect_error_in(answer, -32010, "busy", "4096");
  ck_assert_int_eq(number_of(answer, "error.data.limit"), MAX);
  json_object_put(answer);
  RUN_UNTIL((signal_processes("sleep 774.300", SIGKILL), sandbox.commands.counts.running == 0));
  for (int i = 0; i < MAX; i++)
    json_object_put(client_response(&client));
  json_object_put(client_call(&client, "\"method\":\"exec_list\""));
}
END_TEST

/* A client that asks and does not read: it is not listened to any more, until it has read. */
START_TEST(test_unsent_answers_hold_the_client) {
  json_object *answer = client_call(
      &client,
      "\"method\":\"exec\",\"params\":{\"command\":\"head -c 500000 /dev/zero\",\"cmd_id\":\"big\",\"stream\":false}");
  json_object_put(answer);
  int sent = 0;
  while (!client.held) {
    client_send(&client,
                "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"write\",\"params\":{\"path\":\"x\",\"content\":5}}",
                sent++);
    ck_assert_int_lt(sent, 1 << 20);
  }
  ck_assert_int_gt(sent, 1000);
  int got = 0;
  while (client.held) {
    json_object_put(client_wait(&client));
    got++;
  }
  ck_assert_int_ge(got, 1);
  ck_assert_int_lt(got, sent);
  while (!rpc_session_idle(client.session)) {
    json_object_put(client_wait(&client));
    got++;
  }
  ck_assert_int_eq(got, sent);
  /* Closed while it is held. */
  for (int i = 0; !client.held; i++)
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"nope\"}", i);
}
END_TEST

/* What is to be written and waits for a slow disk is memory too. */
START_TEST(test_waiting_writes_hold_the_client) {
  enum { SIZE = 30 << 20, N = 3 };
  char *content = malloc(SIZE + 1);
  ck_assert_ptr_nonnull(content);
  memset(content, 'x', SIZE);
  content[SIZE] = '\0';
  ck_assert_int_eq(mkfifo("slow", 0600), 0);
  int fifo = open("slow", O_RDWR | O_CLOEXEC);
  ck_assert_int_ge(fifo, 0);
  for (int i = 0; i < N; i++) { /* the third one is over the bound */
    client_send(
        &client,
        "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"write\",\"params\":{\"path\":\"%s/slow\",\"content\":\"%s\"}}", i,
        core_directory, content);
    if (i < N - 1)
      RUN_UNTIL(!client.held);
  }
  for (int i = 0; i < 15; i++) /* longer than it takes to parse it */
    loop_run_once(sandbox.loop, 20);
  ck_assert(client.held);
  close(fifo); /* nobody reads any more */
  RUN_UNTIL(!client.held);
  for (int i = 0; i < N; i++)
    json_object_put(client_wait(&client));
  free(content);
}
END_TEST

/* ---- turns ---- */

/* Two commands print at full speed: their messages come in turn, and a short answer does not wait behind them. */
START_TEST(test_turns) {
  for (int i = 0; i < 2; i++)
    client_send(
        &client,
        "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"exec\",\"params\":{\"command\":\"head -c 3000000 /dev/zero\"}}",
        i);
  RUN_UNTIL(LIST_FIRST(&sandbox.commands.live, struct command, node) == NULL ||
            (LIST_FIRST(&sandbox.commands.live, struct command, node)->log.head > 400000 &&
             LIST_OWNER(sandbox.commands.live.prev, struct command, node)->log.head > 400000));
  int64_t last = -1;
  int turns = 0;
  for (int i = 0; i < 8; i++) {
    json_object *message = client_pull(&client);
    ck_assert_ptr_nonnull(message);
    int64_t id = number_of(message, "params.id");
    turns += id != last;
    last = id;
    json_object_put(message);
  }
  ck_assert_int_eq(turns, 8);
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"nope\"}");
  bool answered = false;
  for (int i = 0; i < 4 && !answered; i++) {
    json_object *message = client_pull(&client);
    answered = message && !is_notification(message, NULL);
    json_object_put(message);
  }
  ck_assert(answered);
}
END_TEST

/* ---- params.c ---- */

struct wrong {
  const char *method, *params, *text;
};

static const struct wrong wrong[] = {
    {"exec", "{}", "command"},
    {"exec", "{\"command\":null}", "command"},
    {"exec", "{\"command\":5}", "command"},
    {"exec", "{\"command\":[\"ls\"]}", "command"},
    {"exec", "{\"command\":\"a\\u0000b\"}", "command"},
    {"exec", "{\"command\":\"true\",\"argv\":[\"true\"]}", "argv"},
    {"exec", "{\"argv\":\"true\"}", "argv"},
    {"exec", "{\"argv\":[]}", "argv"},
    {"exec", "{\"argv\":[\"a\",5]}", "argv"},
    {"exec", "{\"argv\":[\"a\",null]}", "argv"},
    {"exec", "{\"argv\":[\"a\\u0000\"]}", "argv"},
    {"exec", "{\"command\":\"true\",\"working_dir\":5}", "working_dir"},
    {"exec", "{\"command\":\"true\",\"working_dir\":\"/\\u0000\"}", "working_dir"},
    {"exec", "{\"command\":\"true\",\"env\":[]}", "env"},
    {"exec", "{\"command\":\"true\",\"env\":\"A=1\"}", "env"},
    {"exec", "{\"command\":\"true\",\"env\":{\"\":\"x\"}}", "env"},
    {"exec", "{\"command\":\"true\",\"env\":{\"A=B\":\"x\"}}", "env"},
    {"exec", "{\"command\":\"true\",\"env\":{\"A\":5}}", "env.A"},
    {"exec", "{\"command\":\"true\",\"env\":{\"A\":\"x\\u0000\"}}", "env.A"},
    {"exec", "{\"command\":\"true\",\"timeout\":-1}", "timeout"},
    {"exec", "{\"command\":\"true\",\"timeout\":-0.001}", "timeout"},
    {"exec", "{\"command\":\"true\",\"timeout\":\"5\"}", "timeout"},
    {"exec", "{\"command\":\"true\",\"timeout\":NaN}", "timeout"},
    {"exec", "{\"command\":\"true\",\"timeout\":true}", "timeout"},
    {"exec", "{\"command\":\"true\",\"idle_timeout\":[]}", "idle_timeout"},
    {"exec", "{\"command\":\"true\",\"sudo\":1}", "sudo"},
    {"exec", "{\"command\":\"true\",\"sudo\":true,\"user\":\"root\"}", "sudo"},
    {"exec", "{\"command\":\"true\",\"stdin_data\":5}", "stdin_data"},
    {"exec", "{\"command\":\"true\",\"detached\":\"yes\"}", "detached"},
    {"exec", "{\"command\":\"true\",\"cmd_id\":\"\"}", "cmd_id"},
    {"exec", "{\"command\":\"true\",\"cmd_id\":\"a b\"}", "cmd_id"},
    {"exec", "{\"command\":\"true\",\"cmd_id\":\"a\\u0000\"}", "cmd_id"},
    {"exec", "{\"command\":\"true\",\"cmd_id\":5}", "cmd_id"},
    {"exec", "{\"command\":\"true\",\"user\":\"\"}", "user"},
    {"exec", "{\"command\":\"true\",\"user\":0}", "user"},
    {"exec", "{\"command\":\"true\",\"stdin\":0}", "stdin"},
    {"exec", "{\"command\":\"true\",\"stream\":\"false\"}", "stream"},
    {"exec", "{\"command\":\"true\",\"encoding\":\"utf8\"}", "encoding"},
    {"exec", "{\"command\":\"true\",\"encoding\":8}", "encoding"},
    {"exec", "{\"command\":\"true\",\"output\":\"both\"}", "output"},
    {"exec_logs", "{}", "cmd_id"},
    {"exec_logs", "{\"cmd_id\":[]}", "cmd_id"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"since\":5}", "since"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"since\":{\"stdout\":-1}}", "since"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"since\":{\"stderr\":1.5}}", "stderr"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"since\":{\"stdout\":1000}}", "since.stdout"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"since\":{\"stdout\":9223372036854775807}}", "since.stdout"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"since\":{\"stdout\":99999999999999999999}}", "stdout"},
    {"exec_logs", "{\"cmd_id\":\"known\",\"follow\":1}", "follow"},
    {"kill", "{\"signal\":9}", "cmd_id"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":\"NOPE\"}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":0}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":65}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":-9}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":9.5}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":[]}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"signal\":\"KILL\\u0000\"}", "signal"},
    {"kill", "{\"cmd_id\":\"known\",\"scope\":\"all\"}", "scope"},
    {"exec_input", "{\"cmd_id\":5}", "cmd_id"},
    {"exec_input", "{\"cmd_id\":\"known\",\"data\":5}", "data"},
    {"exec_input", "{\"cmd_id\":\"known\",\"data\":\"a\",\"encoding\":\"x\"}", "encoding"},
    {"exec_input", "{\"cmd_id\":\"known\",\"data\":\"YQ=\",\"encoding\":\"base64\"}", "data"},
    {"exec_input", "{\"cmd_id\":\"known\",\"data\":\"a\",\"eof\":1}", "eof"},
    {"exec_remove", "{}", "cmd_id"},
};

START_TEST(test_wrong_parameters) {
  json_object *answer =
      client_call(&client, "\"method\":\"exec\",\"params\":{\"command\":\"echo x\",\"cmd_id\":\"known\"}");
  json_object_put(answer);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"%s\",\"params\":%s}", wrong[i].method,
                wrong[i].params);
    answer = client_response(&client);
    if (!member(answer, "error") || number_of(answer, "error.code") != -32602 ||
        strstr(text_of(answer, "error.message"), wrong[i].text) == NULL)
      ck_abort_msg("%s %s: %s", wrong[i].method, wrong[i].params, json_object_to_json_string(answer));
    json_object_put(answer);
  }
  ck_assert_uint_eq(sandbox.commands.counts.started, 1);
}
END_TEST

START_TEST(test_unknown_commands) {
  static const char *const methods[] = {"exec_logs", "kill", "exec_input", "exec_remove"};
  for (size_t i = 0; i < 4; i++) {
    json_object *answer = client_call(&client, "\"method\":\"%s\",\"params\":{\"cmd_id\":\"unknown\"}", methods[i]);
    expect_error_in(answer, -32001, "not_found", "unknown");
    json_object_put(answer);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("rpc");
  TCase *tcase = tcase_create("rpc");
  tcase_set_timeout(tcase, 60);
  tcase_add_checked_fixture(tcase, begin, end);
  tcase_add_test(tcase, test_no_json);
  tcase_add_test(tcase, test_nul_bytes);
  tcase_add_test(tcase, test_nul_in_a_name);
  tcase_add_test(tcase, test_nul_in_names);
  tcase_add_test(tcase, test_many_values);
  tcase_add_test(tcase, test_depth);
  tcase_add_test(tcase, test_cut_messages);
  tcase_add_test(tcase, test_invalid_requests);
  tcase_add_test(tcase, test_ids);
  tcase_add_test(tcase, test_methods);
  tcase_add_test(tcase, test_notifications);
  tcase_add_test(tcase, test_batch);
  tcase_add_test(tcase, test_batch_of_notifications);
  tcase_add_test(tcase, test_batch_limits);
  tcase_add_test(tcase, test_batch_fits_the_client);
  tcase_add_test(tcase, test_batch_of_outputs_fits);
  tcase_add_test(tcase, test_error_table);
  tcase_add_test(tcase, test_long_error_is_cut);
  tcase_add_test(tcase, test_long_messages_are_parsed_elsewhere);
  tcase_add_test(tcase, test_close_while_a_message_is_parsed);
  tcase_add_test(tcase, test_calls_max);
  tcase_add_test(tcase, test_unsent_answers_hold_the_client);
  tcase_add_test(tcase, test_waiting_writes_hold_the_client);
  tcase_add_test(tcase, test_turns);
  tcase_add_test(tcase, test_wrong_parameters);
  tcase_add_test(tcase, test_unknown_commands);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
