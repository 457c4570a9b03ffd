/* exec, exec_logs, kill, exec_input through a fake peer: what comes, in which order, and that it fits the client. */
#include "rpc_fixture.h"
#include "run.h"

#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/utf8.h"

#define NO_LIMIT (64u << 20)

static struct client client;

static void begin(void) {
  struct sandbox_options options = core_options();
  options.commands.stall_timeout = 300 * CLOCK_MS;
  core_begin_with(&options);
  client_open(&client, NO_LIMIT);
}

static void end(void) {
  client_close(&client);
  core_end();
}

/* ---- a whole exec, as a client sees it ---- */

enum { START, OUTPUT, DONE, RESPONSE };

struct seen {
  struct client *from;
  bool base64;
  int phase;
  char cmd_id[200];
  int64_t pid;
  char *data[STREAMS]; /* what the notifications brought; decoded when it is base64 */
  size_t len[STREAMS];
  uint64_t next[STREAMS], dropped[STREAMS]; /* offsets */
  int n_output;
  json_object *done, *response;
};

static void seen_free(struct seen *seen) {
  for (int s = 0; s < STREAMS; s++)
    free(seen->data[s]);
  json_object_put(seen->done);
  json_object_put(seen->response);
}

static void take_output(struct seen *seen, json_object *message, enum stream stream) {
  json_object *data = member(message, "params.data");
  REQUIRE(json_object_is_type(data, json_type_string));
  size_t len = (size_t)json_object_get_string_len(data);
  uint64_t offset = (uint64_t)number_of(message, "params.offset");
  REQUIRE(len > 0 && len <= 65536);
  seen->data[stream] = realloc(seen->data[stream], seen->len[stream] + len + 1);
  char *at = seen->data[stream] + seen->len[stream];
  memcpy(at, json_object_get_string(data), len);
  if (seen->base64) {
    size_t bad;
    ssize_t n = base64_decode(at, at, len, &bad);
    REQUIRE(n > 0);
    len = (size_t)n;
    REQUIRE(offset == seen->next[stream]);
    seen->next[stream] += len;
  } else {
    REQUIRE(offset >= seen->next[stream]);
    seen->next[stream] = offset;
  }
  seen->len[stream] += len;
  at[len] = '\0';
  seen->n_output++;
}

static void take_gap(struct seen *seen, json_object *message) {
  enum stream stream = strcmp(text_of(message, "params.stream"), "stdout") == 0 ? STREAM_STDOUT : STREAM_STDERR;
  uint64_t offset = (uint64_t)number_of(message, "params.offset");
  uint64_t dropped = (uint64_t)number_of(message, "params.dropped_bytes");
  REQUIRE(offset >= seen->next[stream] && dropped > 0);
  seen->next[stream] = offset + dropped;
  seen->dropped[stream] += dropped;
}

/* Checks the order and takes the message. True with the response. */
static bool take_message(struct seen *seen, json_object *message) {
  if (!is_notification(message, NULL)) {
    seen->response = json_object_get(message);
    return true;
  }
  REQUIRE(number_of(message, "params.id") == 1);
  if (is_notification(message, "exec.start")) {
    REQUIRE(seen->phase == START);
    seen->phase = OUTPUT;
    snprintf(seen->cmd_id, sizeof seen->cmd_id, "%s", text_of(message, "params.cmd_id"));
    seen->pid = number_of(message, "params.pid");
    REQUIRE(seen->pid > 1 && strlen(text_of(message, "params.started_at")) == 24);
  } else if (is_notification(message, "exec.stdout")) {
    REQUIRE(seen->phase == OUTPUT);
    take_output(seen, message, STREAM_STDOUT);
  } else if (is_notification(message, "exec.stderr")) {
    REQUIRE(seen->phase == OUTPUT);
    take_output(seen, message, STREAM_STDERR);
  } else if (is_notification(message, "exec.gap")) {
    REQUIRE(seen->phase == OUTPUT);
    take_gap(seen, message);
  } else {
    REQUIRE(is_notification(message, "exec.done") && seen->phase == OUTPUT);
    REQUIRE(strcmp(text_of(message, "params.cmd_id"), seen->cmd_id) == 0);
    seen->phase = DONE;
    seen->done = json_object_get(message);
  }
  return false;
}

static struct seen follow(struct client *from, bool base64) {
  struct seen seen = {.from = from, .base64 = base64};
  for (bool over = false; !over;) {
    json_object *message = client_wait(from);
    over = take_message(&seen, message);
    json_object_put(message);
  }
  return seen;
}

/* Parameters as JSON text, without the braces. */
static struct seen exec(struct client *from, const char *params) {
  client_send(from, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{%s}}", params);
  return follow(from, strstr(params, "base64") != NULL);
}

static void expect_string(json_object *object, const char *path, const char *text) {
  ck_assert_str_eq(text_of(object, path), text);
}

/* ---- the plain case ---- */

START_TEST(test_whole_exec) {
  struct seen seen = exec(&client, "\"command\":\"echo out; echo err >&2; exit 3\"");
  ck_assert_int_eq(seen.phase, DONE);
  ck_assert_str_eq(seen.data[0], "out\n");
  ck_assert_str_eq(seen.data[1], "err\n");
  ck_assert_int_eq(number_of(seen.done, "params.exit_code"), 3);
  expect_string(seen.done, "params.reason", "exited");
  json_object *result = member(seen.response, "result");
  expect_string(result, "cmd_id", seen.cmd_id);
  ck_assert_int_eq(number_of(result, "pid"), seen.pid);
  ck_assert_int_eq(number_of(result, "exit_code"), 3);
  ck_assert_uint_eq(strlen(text_of(result, "output")), 8);
  expect_string(seen.done, "params.output", text_of(result, "output"));
  expect_string(result, "reason", "exited");
  ck_assert_ptr_null(member(result, "signal"));
  ck_assert(!truth_of(result, "oom_killed"));
  ck_assert(!truth_of(result, "truncated"));
  ck_assert_int_eq(number_of(result, "stdout_bytes"), 4);
  ck_assert_int_eq(number_of(result, "stderr_bytes"), 4);
  ck_assert_int_eq(number_of(result, "survivors"), 0);
  ck_assert_int_ge(number_of(result, "duration_ms"), 0);
  ck_assert_str_le(text_of(result, "started_at"), text_of(result, "finished_at"));
  ck_assert_ptr_null(member(result, "existing"));
  seen_free(&seen);
}
END_TEST

START_TEST(test_kinds_of_ends) {
  struct seen seen = exec(&client, "\"command\":\"kill -TERM $$\"");
  expect_string(seen.response, "result.signal", "SIGTERM");
  expect_string(seen.response, "result.reason", "signaled");
  ck_assert_int_eq(number_of(seen.response, "result.exit_code"), 143);
  seen_free(&seen);

  seen = exec(&client, "\"command\":\"echo before; sleep 774.400\",\"timeout\":0.2");
  expect_error_in(seen.response, -32002, "timed_out", "0.2 s");
  json_object *data = member(seen.response, "error.data");
  expect_string(data, "output", "before\n");
  expect_string(data, "cmd_id", seen.cmd_id);
  expect_string(data, "reason", "timed_out");
  ck_assert(!member(data, "survivors") || number_of(data, "survivors") == 0);
  ck_assert_int_eq(number_of(data, "exit_code"), 143);
  expect_string(seen.done, "params.reason", "timed_out");
  /* Its log is no error. */
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"%s\"}}",
              seen.cmd_id);
  struct seen logs = follow(&client, false);
  expect_string(logs.response, "result.reason", "timed_out");
  expect_string(logs.response, "result.output", "before\n");
  ck_assert_str_eq(logs.data[0], "before\n");
  seen_free(&logs);
  seen_free(&seen);

  seen = exec(&client, "\"command\":\"sleep 774.401\",\"idle_timeout\":0.1,\"stream\":false");
  expect_error_in(seen.response, -32002, "timed_out", "idle_timeout");
  ck_assert_int_eq(seen.phase, START);
  seen_free(&seen);
}
END_TEST

START_TEST(test_failed_starts) {
  static const struct {
    const char *params;
    int code;
    const char *kind, *text;
  } cases[] = {
      {"\"argv\":[\"/no/such\",\"x\"]", -32008, "spawn_failed", "/no/such"},
      {"\"argv\":[\"/etc/passwd\"]", -32008, "spawn_failed", "/etc/passwd"},
      {"\"argv\":[\"/\"]", -32008, "spawn_failed", "/"},
      {"\"argv\":[\"\"]", -32008, "spawn_failed", ""},
      {"\"command\":\"true\",\"working_dir\":\"/no/such\"", -32001, "not_found", "working_dir /no/such"},
      {"\"command\":\"true\",\"working_dir\":\"/etc/passwd\"", -32004, "wrong_type", "working_dir /etc/passwd"},
      {"\"command\":\"true\",\"user\":\"no-such-user\"", -32001, "not_found", "no-such-user"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int detached = 0; detached < 2; detached++) {
      char params[300];
      snprintf(params, sizeof params, "%s,\"detached\":%s", cases[i].params, detached ? "true" : "false");
      struct seen seen = exec(&client, params);
      ck_assert_int_eq(seen.phase, START);
      expect_error_in(seen.response, cases[i].code, cases[i].kind, cases[i].text);
      if (cases[i].code == -32008) {
        ck_assert_int_gt(number_of(seen.response, "error.data.errno"), 0);
        ck_assert_ptr_nonnull(strstr(text_of(seen.response, "error.data.program"), cases[i].text));
      }
      seen_free(&seen);
    }
  json_object *list = client_call(&client, "\"method\":\"exec_list\"");
  ck_assert_uint_eq(json_object_array_length(member(list, "result")), 0);
  json_object_put(list);
}
END_TEST

/* ---- views ---- */

START_TEST(test_views) {
  static const char text[] = "\"command\":\"printf 'a\\\\377\\\\000b'; printf E >&2\"";
  char params[300];
  snprintf(params, sizeof params, "%s,\"encoding\":\"base64\"", text);
  struct seen seen = exec(&client, params);
  ck_assert_uint_eq(seen.len[0], 4);
  ck_assert_int_eq(memcmp(seen.data[0], "a\xff\0b", 4), 0);
  char output[20];
  size_t bad;
  ck_assert_int_eq(base64_decode(output, text_of(seen.response, "result.output"), 8, &bad), 5);
  seen_free(&seen);

  snprintf(params, sizeof params, "%s,\"encoding\":\"base64\",\"output\":\"split\"", text);
  seen = exec(&client, params);
  expect_string(seen.response, "result.stdout", "Yf8AYg==");
  expect_string(seen.response, "result.stderr", "RQ==");
  expect_string(seen.done, "params.stdout", "Yf8AYg==");
  ck_assert_ptr_null(member(seen.response, "result.output"));
  seen_free(&seen);

  snprintf(params, sizeof params, "%s,\"output\":\"split\",\"stream\":false", text);
  seen = exec(&client, params);
  ck_assert_int_eq(seen.phase, START);
  json_object *out = member(seen.response, "result.stdout");
  ck_assert_int_eq(json_object_get_string_len(out), 6);
  ck_assert_int_eq(memcmp(json_object_get_string(out), "a\xef\xbf\xbd\0b", 6), 0);
  expect_string(seen.response, "result.stderr", "E");
  seen_free(&seen);

  snprintf(params, sizeof params, "%s,\"output\":\"none\"", text);
  seen = exec(&client, params);
  ck_assert_int_eq(seen.n_output > 0, 1);
  json_object *result = member(seen.response, "result");
  ck_assert(!json_object_object_get_ex(result, "output", NULL) && !json_object_object_get_ex(result, "stdout", NULL));
  ck_assert(!truth_of(result, "truncated"));
  seen_free(&seen);
}
END_TEST

static void touch(const char *path) {
  close(open(path, O_CREAT | O_CLOEXEC, 0600));
}

/* [16] A character that comes in two reads, and one that never ends. */
START_TEST(test_character_in_two_reads) {
  struct seen seen = {.from = &client};
  client_send(
      &client,
      "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"printf 'a\\\\342'; touch one; "
      "while [ ! -e two ] && kill -0 $PPID; do sleep 0.01; done; printf '\\\\230\\\\225\\\\360\\\\237'\"}}");
  bool touched = false;
  for (bool over = false; !over;) {
    json_object *message = client_pull(&client);
    if (message) {
      over = take_message(&seen, message);
      json_object_put(message);
    }
    loop_run_once(sandbox.loop, 10);
    if (!touched && seen.n_output > 0 && file_exists("one")) {
      ck_assert_str_eq(seen.data[0], "a"); /* the rest is not sent yet */
      touch("two");
      touched = true;
    }
  }
  ck_assert_str_eq(seen.data[0], "a\xe2\x98\x95\xef\xbf\xbd");
  expect_string(seen.response, "result.output", "a\xe2\x98\x95\xef\xbf\xbd");
  seen_free(&seen);
}
END_TEST

/* ---- everything fits the client ---- */

struct pattern {
  const char *name, *bytes;
  size_t len;
};

static const struct pattern patterns[] = {
    {"NUL", "\0", 1},
    {"not UTF-8", "\xff", 1},
    {"escapes", "\033[31m\"\\", 7},
    {"ASCII", "x", 1},
    {"two bytes", "\xc3\xa9", 2},
    {"three bytes", "\xe2\x98\x95", 3},
    {"four bytes", "\xf0\x9f\x98\x80", 4},
    {"mixed", "a\xe2\x98\x95\n\0\xf0\x9f\x98\x80\xff\xe2\x98", 13},
    {"control", "\x7f\x1f", 2},
};
static const size_t limits[] = {1024, 1500, 4096, 65536, 300000, 1 << 20, NO_LIMIT};

/* Writes `size` bytes of the pattern, beginning anywhere in it. */
static void write_pattern(const struct pattern *pattern, size_t size, size_t from) {
  char *bytes = malloc(size);
  ck_assert_ptr_nonnull(bytes);
  for (size_t i = 0; i < size; i++)
    bytes[i] = pattern->bytes[(i + from) % pattern->len];
  int fd = open("pattern", O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  ck_assert_int_eq(fd_write_all(fd, bytes, size), 0);
  close(fd);
  free(bytes);
}

/* The repaired text of bytes, by another way than the code that is tested: one character at a time. */
static char *repaired(const char *bytes, size_t len, size_t *out_len) {
  char *out = malloc(3 * len + 4);
  size_t at = 0, have = 0;
  ck_assert_ptr_nonnull(out);
  while (at < len) {
    size_t n;
    if (utf8_next((const uint8_t *)bytes + at, len - at, &n) == UTF8_CHARACTER) {
      memcpy(out + have, bytes + at, n);
      have += n;
    } else {
      memcpy(out + have, UTF8_REPLACEMENT, 3);
      have += 3;
    }
    at += n;
  }
  *out_len = have;
  return out;
}

static void expect_end_of(json_object *value, const char *whole, size_t len, const char *what) {
  REQUIRE(json_object_is_type(value, json_type_string));
  size_t n = (size_t)json_object_get_string_len(value);
  if (n > len || memcmp(whole + len - n, json_object_get_string(value), n) != 0)
    ck_abort_msg("%s: not the end of the output", what);
}

static size_t pattern_size(size_t limit) {
  return limit < 65536 ? 30000 : 700001;
}

START_TEST(test_text_fits) {
  const struct pattern *pattern = &patterns[_i];
  for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
    size_t size = pattern_size(limits[l]), whole_len, have;
    struct client small;
    client_open(&small, limits[l]);
    write_pattern(pattern, size, l);
    /* Both streams hold it; the result has what is left of 512 KiB of both. */
    struct seen seen = exec(&small, "\"command\":\"cat pattern; cat pattern >&2\"");
    char *bytes = malloc(size);
    int fd = open("pattern", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(fd_read_all(fd, bytes, size), (ssize_t)size);
    close(fd);
    char *whole = repaired(bytes, size, &whole_len);
    for (int s = 0; s < STREAMS; s++) {
      ck_assert_uint_eq(seen.len[s], whole_len);
      ck_assert_int_eq(memcmp(seen.data[s], whole, whole_len), 0);
    }
    json_object *result = member(seen.response, "result"), *output = member(result, "output");
    ck_assert_int_eq(number_of(result, "stdout_bytes"), (int64_t)size);
    have = (size_t)json_object_get_string_len(output);
    bool truncated = truth_of(result, "truncated");
    ck_assert_int_eq(truncated, have < 2 * whole_len);
    if (have < whole_len)
      expect_end_of(output, whole, whole_len, pattern->name);
    ck_assert_int_eq(truth_of(seen.done, "params.truncated"), have < 2 * whole_len);
    /* It is cut because it must be: more than half of the message is output. */
    if (truncated && limits[l] >= 4096 && limits[l] < NO_LIMIT)
      ck_assert_uint_gt(strlen(json_object_to_json_string_ext(output, JSON_C_TO_STRING_PLAIN)) + 1000 + 4096,
                        limits[l] / 2 < 524288 / pattern->len ? limits[l] / 2 : 0);
    free(bytes);
    free(whole);
    seen_free(&seen);
    client_close(&small);
  }
}
END_TEST

START_TEST(test_base64_fits) {
  const struct pattern *pattern = &patterns[7];
  for (size_t l = 0; l < sizeof limits / sizeof *limits; l++) {
    size_t size = pattern_size(limits[l]), bad;
    struct client small;
    client_open(&small, limits[l]);
    write_pattern(pattern, size, 0);
    struct seen seen = exec(
        &small, l % 2 ? "\"command\":\"cat pattern\",\"encoding\":\"base64\""
                      : "\"command\":\"cat pattern; cat pattern >&2\",\"encoding\":\"base64\",\"output\":\"split\"");
    ck_assert_uint_eq(seen.len[0], size);
    for (size_t i = 0; i < size; i++)
      REQUIRE(seen.data[0][i] == pattern->bytes[i % pattern->len]);
    json_object *output = member(seen.response, l % 2 ? "result.output" : "result.stderr");
    size_t len = (size_t)json_object_get_string_len(output);
    char *bytes = malloc(len + 1);
    ssize_t n = base64_decode(bytes, json_object_get_string(output), len, &bad);
    ck_assert_int_ge(n, limits[l] >= 4096 ? 500 : 0);
    for (ssize_t i = 0; i < n; i++)
      REQUIRE(bytes[n - 1 - i] == seen.data[0][size - 1 - (size_t)i]);
    free(bytes);
    seen_free(&seen);
    client_close(&small);
  }
}
END_TEST

/* The parts of a split result share the room: what one does not need the other gets. */
START_TEST(test_split_shares) {
  struct client small;
  client_open(&small, 10000);
  struct seen seen =
      exec(&small, "\"command\":\"head -c 50000 /dev/zero | tr '\\\\0' o; echo e >&2\",\"output\":\"split\"");
  expect_string(seen.response, "result.stderr", "e\n");
  ck_assert_int_gt(json_object_get_string_len(member(seen.response, "result.stdout")), 8000);
  ck_assert(truth_of(seen.response, "result.truncated"));
  seen_free(&seen);
  seen = exec(&small, "\"command\":\"head -c 50000 /dev/zero | tr '\\\\0' o; head -c 50000 /dev/zero | tr '\\\\0' e "
                      ">&2\",\"output\":\"split\"");
  ck_assert_int_gt(json_object_get_string_len(member(seen.response, "result.stdout")), 4000);
  ck_assert_int_gt(json_object_get_string_len(member(seen.response, "result.stderr")), 4000);
  seen_free(&seen);
  client_close(&small);
}
END_TEST

/* The log's start cuts a character, at each place it can be cut, also across the end of the ring. */
START_TEST(test_cut_characters_at_the_start) {
  for (int extra = 0; extra < 8; extra++) {
    char params[200];
    /* 512 KiB are kept of 4-byte characters behind some single bytes. */
    snprintf(params, sizeof params, "\"command\":\"printf '%%0%dd' 0; cat pattern\",\"stream\":false", extra + 1);
    write_pattern(&patterns[6], 600000, 0);
    struct seen seen = exec(&client, params);
    json_object *output = member(seen.response, "result.output");
    int len = json_object_get_string_len(output);
    ck_assert_int_eq(len % 4, 0);
    ck_assert_int_gt(len, 524288 - 4);
    ck_assert_int_eq(memcmp(json_object_get_string(output), "\xf0\x9f\x98\x80", 4), 0);
    client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"%s\"}}",
                text_of(seen.response, "result.cmd_id"));
    struct seen logs = follow(&client, false);
    ck_assert_int_eq((int)logs.len[0], len);
    ck_assert_int_eq(memcmp(logs.data[0], "\xf0\x9f\x98\x80", 4), 0);
    seen_free(&logs);
    seen_free(&seen);
  }
}
END_TEST

/* ---- detached, existing, logs ---- */

START_TEST(test_detached) {
  struct seen seen = exec(&client, "\"command\":\"while [ ! -e go ] && kill -0 $PPID; do sleep 0.01; done; echo "
                                   "done\",\"detached\":true,\"cmd_id\":\"d\"");
  ck_assert_int_eq(seen.phase, START);
  expect_string(seen.response, "result.cmd_id", "d");
  ck_assert_int_gt(number_of(seen.response, "result.pid"), 1);
  ck_assert_int_eq(json_object_object_length(member(seen.response, "result")), 3);
  seen_free(&seen);
  seen = exec(&client, "\"command\":\"something else\",\"detached\":true,\"cmd_id\":\"d\"");
  ck_assert(truth_of(seen.response, "result.existing"));
  seen_free(&seen);
  ck_assert_uint_eq(sandbox.commands.counts.started, 1);
  /* A repeated start that is not detached follows it. */
  client_send(&client,
              "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"x\",\"cmd_id\":\"d\"}}");
  for (int i = 0; i < 3; i++)
    loop_run_once(sandbox.loop, 5);
  touch("go");
  seen = follow(&client, false);
  ck_assert(truth_of(seen.response, "result.existing"));
  ck_assert_str_eq(seen.data[0], "done\n");
  expect_string(seen.response, "result.output", "done\n");
  seen_free(&seen);
}
END_TEST

static struct seen logs_of(const char *cmd_id, const char *more) {
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"%s\"%s}}",
              cmd_id, more);
  return follow(&client, strstr(more, "base64") != NULL);
}

START_TEST(test_logs) {
  struct seen seen = exec(&client, "\"command\":\"echo 0123456789; echo abcdefghij >&2\",\"cmd_id\":\"l\"");
  seen_free(&seen);
  seen = logs_of("l", "");
  ck_assert_str_eq(seen.data[0], "0123456789\n");
  ck_assert_str_eq(seen.data[1], "abcdefghij\n");
  ck_assert_int_eq(seen.phase, DONE);
  expect_string(seen.response, "result.reason", "exited");
  seen_free(&seen);
  seen = logs_of("l", ",\"since\":{\"stdout\":5,\"stderr\":11}");
  ck_assert_str_eq(seen.data[0], "56789\n");
  ck_assert_ptr_null(seen.data[1]);
  ck_assert_uint_eq(seen.next[0], 5);
  seen_free(&seen);
  seen = logs_of("l", ",\"since\":{\"stderr\":4}");
  ck_assert_str_eq(seen.data[0], "0123456789\n");
  ck_assert_str_eq(seen.data[1], "efghij\n");
  seen_free(&seen);
  seen = logs_of("l", ",\"since\":null,\"follow\":false,\"stream\":false,\"output\":\"split\"");
  ck_assert_int_eq(seen.phase, START);
  expect_string(seen.response, "result.stdout", "0123456789\n");
  seen_free(&seen);
  json_object_put(client_call(&client, "\"method\":\"exec_remove\",\"params\":{\"cmd_id\":\"l\"}"));
  json_object *answer = client_call(&client, "\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"l\"}");
  expect_error_in(answer, -32001, "not_found", "l");
  json_object_put(answer);
}
END_TEST

START_TEST(test_logs_without_follow) {
  struct seen seen = exec(&client, "\"command\":\"echo now; sleep 774.402\",\"cmd_id\":\"f\",\"detached\":true");
  seen_free(&seen);
  RUN_UNTIL(commands_find(&sandbox.commands, "f", NULL)->log.head == 4);
  seen = logs_of("f", ",\"follow\":false");
  ck_assert_int_eq(seen.phase, OUTPUT); /* it has no end to tell of */
  ck_assert_str_eq(seen.data[0], "now\n");
  expect_string(seen.response, "result.output", "now\n");
  ck_assert_ptr_null(member(seen.response, "result.exit_code"));
  ck_assert_ptr_null(member(seen.response, "result.reason"));
  seen_free(&seen);
  json_object *answer = client_call(&client, "\"method\":\"exec_remove\",\"params\":{\"cmd_id\":\"f\"}");
  expect_error_in(answer, -32010, "busy", "f");
  json_object_put(answer);
  answer = client_call(&client, "\"method\":\"exec_list\"");
  json_object *entry = json_object_array_get_idx(member(answer, "result"), 0);
  expect_string(entry, "cmd_id", "f");
  expect_string(entry, "state", "running");
  expect_string(entry, "command", "echo now; sleep 774.402");
  ck_assert_ptr_null(member(entry, "exit_code"));
  json_object_put(answer);
  RUN_UNTIL((signal_processes("sleep 774.402", SIGKILL), sandbox.commands.counts.running == 0));
}
END_TEST

/* A client that does not read: the command goes on after the stall, and the client learns what it lost. */
START_TEST(test_gap) {
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"yes "
                       "0123456789abcde | head -c 3000000; echo end >&2\"}}");
  RUN_UNTIL(sandbox.commands.counts.finished == 1);
  struct seen seen = follow(&client, false);
  ck_assert_uint_gt(seen.dropped[0], 2000000);
  ck_assert_uint_eq(seen.dropped[0] + seen.len[0], 3000000);
  ck_assert_str_eq(seen.data[1], "end\n");
  ck_assert(truth_of(seen.response, "result.truncated"));
  ck_assert_int_eq(number_of(seen.response, "result.stdout_bytes"), 3000000);
  seen_free(&seen);
}
END_TEST

/* The same, when the client has the bytes up to the middle of a character: its start is lost as well. */
START_TEST(test_gap_in_a_character) {
  struct seen seen = {.from = &client};
  client_send(&client,
              "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"printf 'ab\\\\342\\\\230'; "
              "while [ ! -e two ] && kill -0 $PPID; do sleep 0.01; done; yes 0123456789abcde | head -c 3000000\"}}");
  while (seen.len[0] == 0) {
    json_object *message = client_wait(&client);
    take_message(&seen, message);
    json_object_put(message);
  }
  ck_assert_str_eq(seen.data[0], "ab");
  seen.next[0] = 2;
  touch("two");
  RUN_UNTIL(sandbox.commands.counts.finished == 1);
  json_object *message = client_wait(&client);
  ck_assert(is_notification(message, "exec.gap"));
  ck_assert_int_eq(number_of(message, "params.offset"), 2);
  for (bool over = false; !over; message = over ? NULL : client_wait(&client)) {
    over = take_message(&seen, message);
    json_object_put(message);
  }
  ck_assert_uint_eq(seen.dropped[0] + seen.len[0], 3000004);
  seen_free(&seen);
}
END_TEST

/* ---- input and kill ---- */

START_TEST(test_input) {
  client_send(&client, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"cat\",\"stdin\":"
                       "true,\"stdin_data\":\"a\",\"cmd_id\":\"i\"}}");
  struct client other;
  client_open(&other, NO_LIMIT);
  json_object *answer =
      client_call(&other, "\"method\":\"exec_input\",\"params\":{\"cmd_id\":\"i\",\"data\":\"b\\u0000c\"}");
  ck_assert_int_eq(number_of(answer, "result.bytes_written"), 3);
  json_object_put(answer);
  answer = client_call(
      &other,
      "\"method\":\"exec_input\",\"params\":{\"cmd_id\":\"i\",\"data\":\"ZGU=\",\"encoding\":\"base64\",\"eof\":true}");
  ck_assert_int_eq(number_of(answer, "result.bytes_written"), 2);
  json_object_put(answer);
  struct seen seen = follow(&client, false);
  json_object *output = member(seen.response, "result.output");
  ck_assert_int_eq(json_object_get_string_len(output), 6);
  ck_assert_int_eq(memcmp(json_object_get_string(output), "ab\0cde", 6), 0);
  seen_free(&seen);
  answer = client_call(&other, "\"method\":\"exec_input\",\"params\":{\"cmd_id\":\"i\",\"data\":\"x\"}");
  expect_error_in(answer, -32004, "wrong_type", "stdin");
  json_object_put(answer);
  client_close(&other);
}
END_TEST

/* Input waits for a program that does not read; its client leaves, and another one's call is answered at the end. */
START_TEST(test_input_that_waits) {
  struct client other;
  struct seen seen = exec(&client, "\"command\":\"sleep 774.403\",\"stdin\":true,\"cmd_id\":\"w\",\"detached\":true");
  seen_free(&seen);
  client_open(&other, NO_LIMIT);
  size_t len = 200000;
  char *data = malloc(len + 1);
  memset(data, 'x', len);
  data[len] = '\0';
  for (int i = 0; i < 3; i++)
    client_send(
        &other,
        "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"exec_input\",\"params\":{\"cmd_id\":\"w\",\"data\":\"%s\"}}", i,
        data);
  client_send(&client,
              "{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"exec_input\",\"params\":{\"cmd_id\":\"w\",\"data\":\"%s\"}}",
              data);
  free(data);
  ck_assert_ptr_null(client_pull(&other));
  client_close(&other);
  /* One that is just in execve(2) shows no environment and is not found. */
  RUN_UNTIL((signal_processes("sleep 774.403", SIGKILL), sandbox.commands.counts.running == 0));
  json_object *answer = client_response(&client);
  ck_assert_int_eq(number_of(answer, "id"), 9);
  expect_error_in(answer, -32004, "wrong_type", "stdin");
  json_object_put(answer);
}
END_TEST

START_TEST(test_kill) {
  static const char *const signals[] = {"\"TERM\"", "\"SIGTERM\"", "15", "null", "\"15\""};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    char params[200];
    snprintf(params, sizeof params, "\"command\":\"sleep 774.404\",\"cmd_id\":\"k%zu\",\"detached\":true", i);
    struct seen seen = exec(&client, params);
    seen_free(&seen);
    json_object *answer =
        client_call(&client, "\"method\":\"kill\",\"params\":{\"cmd_id\":\"k%zu\",\"signal\":%s}", i, signals[i]);
    ck_assert(truth_of(answer, "result.signaled"));
    ck_assert_int_eq(json_object_object_length(member(answer, "result")), 1);
    json_object_put(answer);
    snprintf(params, sizeof params, "k%zu", i);
    seen = logs_of(params, "");
    expect_string(seen.response, "result.signal", "SIGTERM");
    seen_free(&seen);
    answer = client_call(
        &client, "\"method\":\"kill\",\"params\":{\"cmd_id\":\"k%zu\",\"signal\":\"KILL\",\"scope\":\"tree\"}", i);
    ck_assert(!truth_of(answer, "result.signaled"));
    json_object_put(answer);
  }
}
END_TEST

START_TEST(test_kill_tree) {
  struct seen seen =
      exec(&client, "\"command\":\"setsid sleep 774.405 & echo x; sleep 774.405\",\"cmd_id\":\"t\",\"detached\":true");
  seen_free(&seen);
  RUN_UNTIL(count_processes("sleep 774.405") >= 2);
  json_object *answer =
      client_call(&client, "\"method\":\"kill\",\"params\":{\"cmd_id\":\"t\",\"signal\":\"KILL\",\"scope\":\"tree\"}");
  ck_assert(truth_of(answer, "result.signaled"));
  ck_assert(!member(answer, "result.survivors") || number_of(answer, "result.survivors") == 0);
  json_object_put(answer);
  RUN_UNTIL(count_processes("sleep 774.405") == 0);
}
END_TEST

/* ---- many at once ---- */

/* The answers of a batch are made in one pull; those of many long logs take seconds, and others want their turn. */
START_TEST(test_a_batch_of_long_answers_is_made_in_many_turns) {
  enum { N = 200 };
  char text[N * 128] = "[";
  struct seen seen = exec(&client, "\"command\":\"yes | head -c 524288\",\"cmd_id\":\"long\",\"stream\":false");
  seen_free(&seen);
  for (int i = 0; i < N; i++)
    snprintf(
        text + strlen(text), sizeof text - strlen(text),
        "%s{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"long\",\"stream\":false}}",
        i ? "," : "", i);
  client_send(&client, "%s]", text);
  ck_assert_ptr_null(client_pull(&client));
  ck_assert(rpc_session_has_more(client.session));
  int wakes = client.wakes;
  json_object *answers = client_wait(&client);
  ck_assert_int_gt(client.wakes, wakes);
  ck_assert_uint_eq(json_object_array_length(answers), N);
  json_object_put(answers);
  /* The client leaves in the middle of it. */
  client_send(&client, "%s]", text);
  ck_assert_ptr_null(client_pull(&client));
  rpc_session_close(steal_pointer(&client.session));
  loop_run_once(sandbox.loop, 0);
}
END_TEST

/* ---- the client leaves ---- */

static const char *const requests[] = {
    "exec\",\"params\":{\"command\":\"echo x; sleep 774.410\"}",
    "exec\",\"params\":{\"command\":\"yes | head -c 5000000\"}",
    "exec\",\"params\":{\"command\":\"echo x\",\"detached\":true}",
    "exec\",\"params\":{\"command\":\"sleep 774.410\",\"timeout\":0.05}",
    "exec\",\"params\":{\"argv\":[\"/no/such\"]}",
    "exec_logs\",\"params\":{\"cmd_id\":\"held\"}",
    "exec_input\",\"params\":{\"cmd_id\":\"held\",\"data\":\"x\"}",
    "kill\",\"params\":{\"cmd_id\":\"held\",\"signal\":\"USR1\",\"scope\":\"tree\"}",
    "exec_list\",\"params\":{}",
};
enum { N_REQUESTS = sizeof requests / sizeof *requests };

/* In every phase: after so many turns of the loop and so many messages. The sanitizers see what is touched later. */
START_TEST(test_leave_in_every_phase) {
  struct seen seen = exec(&client, "\"command\":\"trap '' USR1; cat >/dev/null; sleep "
                                   "774.410\",\"cmd_id\":\"held\",\"stdin\":true,\"detached\":true");
  seen_free(&seen);
  for (int pulls = 0; pulls < 4; pulls++)
    for (int turns = 0; turns < 5; turns++) {
      struct client leaver;
      client_open(&leaver, pulls % 2 ? 4096 : NO_LIMIT);
      for (int i = 0; i < N_REQUESTS; i++)
        client_send(&leaver, "%s{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"%s}%s", _i ? "[" : "", i, requests[i],
                    _i ? "]" : "");
      for (int i = 0; i < turns; i++)
        loop_run_once(sandbox.loop, turns);
      for (int i = 0; i < pulls * N_REQUESTS; i++)
        json_object_put(client_pull(&leaver));
      client_close(&leaver);
      loop_run_once(sandbox.loop, 0);
    }
  RUN_UNTIL(signal_processes("sleep 774.410", SIGKILL) == 0 && sandbox.commands.counts.running == 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("exec");
  TCase *tcase = tcase_create("exec");
  tcase_set_timeout(tcase, 90);
  tcase_add_checked_fixture(tcase, begin, end);
  tcase_add_test(tcase, test_whole_exec);
  tcase_add_test(tcase, test_kinds_of_ends);
  tcase_add_test(tcase, test_failed_starts);
  tcase_add_test(tcase, test_views);
  tcase_add_test(tcase, test_character_in_two_reads);
  tcase_add_loop_test(tcase, test_text_fits, 0, (int)(sizeof patterns / sizeof *patterns));
  tcase_add_test(tcase, test_base64_fits);
  tcase_add_test(tcase, test_split_shares);
  tcase_add_test(tcase, test_cut_characters_at_the_start);
  tcase_add_test(tcase, test_detached);
  tcase_add_test(tcase, test_logs);
  tcase_add_test(tcase, test_logs_without_follow);
  tcase_add_test(tcase, test_gap);
  tcase_add_test(tcase, test_gap_in_a_character);
  tcase_add_test(tcase, test_input);
  tcase_add_test(tcase, test_input_that_waits);
  tcase_add_test(tcase, test_kill);
  tcase_add_test(tcase, test_kill_tree);
  tcase_add_test(tcase, test_a_batch_of_long_answers_is_made_in_many_turns);
  tcase_add_loop_test(tcase, test_leave_in_every_phase, 0, 2);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
