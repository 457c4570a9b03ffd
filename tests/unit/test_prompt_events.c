/* What a handler prints, in pieces of every size, against the events that must come out. */
#include "sandkeeper/api/prompt_events.h"

#include "run.h"

#include <check.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUT_MAX (256u * 1024u * 1024u)

static struct prompt_events events;
static struct buf out;

static void setup(void) {
  prompt_events_init(&events, "text");
  buf_init(&out, OUT_MAX, 0);
}

static void teardown(void) {
  prompt_events_free(&events);
  buf_free(&out);
}

static void feed(const char *bytes, size_t len, size_t step) {
  for (size_t at = 0; at < len; at += step)
    prompt_events_feed(&events, bytes + at, len - at < step ? len - at : step, &out);
}

static void expect(const char *input, size_t len, const char *output) {
  for (size_t step = 1; step <= len; step++) {
    buf_reset(&out, SIZE_MAX);
    prompt_events_free(&events);
    prompt_events_init(&events, events.text_type);
    feed(input, len, step);
    prompt_events_finish(&events, &out);
    ck_assert(!out.failed);
    ck_assert_str_eq(buf_string(&out), output);
  }
}

#define EXPECT(input, output) expect(input, sizeof(input) - 1, output)

START_TEST(test_events_pass) {
  EXPECT("{\"type\":\"text\",\"text\":\"hi\"}\n", "{\"type\":\"text\",\"text\":\"hi\"}\n");
  EXPECT("{\"type\":\"tool_start\",\"id\":\"1\",\"name\":\"sh\",\"arguments\":{\"a\":[1]}}\n{\"type\":\"x\"}\n",
         "{\"type\":\"tool_start\",\"id\":\"1\",\"name\":\"sh\",\"arguments\":{\"a\":[1]}}\n{\"type\":\"x\"}\n");
  EXPECT("  {\"type\": \"x\"}\t\n", "  {\"type\": \"x\"}\t\n");
  EXPECT("{\"type\":\"x\"}\r\n", "{\"type\":\"x\"}\n");
  EXPECT("{\"type\":\"x\"}", "{\"type\":\"x\"}\n"); /* the last newline is missing */
}
END_TEST

START_TEST(test_other_lines_become_text) {
  EXPECT("hello\n", "{\"type\":\"text\",\"text\":\"hello\\n\"}\n");
  EXPECT("hello\r\n", "{\"type\":\"text\",\"text\":\"hello\\r\\n\"}\n");
  EXPECT("hello", "{\"type\":\"text\",\"text\":\"hello\"}\n");
  EXPECT("\n", "{\"type\":\"text\",\"text\":\"\\n\"}\n");
  EXPECT("{\"type\":5}\n", "{\"type\":\"text\",\"text\":\"{\\\"type\\\":5}\\n\"}\n");
  EXPECT("{\"type\":null}\n", "{\"type\":\"text\",\"text\":\"{\\\"type\\\":null}\\n\"}\n");
  EXPECT("{\"a\":{\"type\":\"text\"}}\n",
         "{\"type\":\"text\",\"text\":\"{\\\"a\\\":{\\\"type\\\":\\\"text\\\"}}\\n\"}\n");
  EXPECT("{\"type\":\"te\n", "{\"type\":\"text\",\"text\":\"{\\\"type\\\":\\\"te\\n\"}\n");
  EXPECT("{\"type\":\"te", "{\"type\":\"text\",\"text\":\"{\\\"type\\\":\\\"te\"}\n");
  EXPECT("[{\"type\":\"text\"}]\n", "{\"type\":\"text\",\"text\":\"[{\\\"type\\\":\\\"text\\\"}]\\n\"}\n");
  EXPECT("{\"type\":\"x\"} {\"type\":\"y\"}\n",
         "{\"type\":\"text\",\"text\":\"{\\\"type\\\":\\\"x\\\"} {\\\"type\\\":\\\"y\\\"}\\n\"}\n");
}
END_TEST

START_TEST(test_bytes_that_are_no_text) {
  EXPECT("a\xff"
         "b\n",
         "{\"type\":\"text\",\"text\":\"a\xef\xbf\xbd"
         "b\\n\"}\n");
  EXPECT("a\0b\n", "{\"type\":\"text\",\"text\":\"a\\u0000b\\n\"}\n");
  EXPECT("\0", "{\"type\":\"text\",\"text\":\"\\u0000\"}\n");
  EXPECT("\xe2\x98\x95\n", "{\"type\":\"text\",\"text\":\"\xe2\x98\x95\\n\"}\n");
  EXPECT("\xe2\x98", "{\"type\":\"text\",\"text\":\"\xef\xbf\xbd\"}\n");
  EXPECT("{\"type\":\"x\",\"a\":\"\xff\"}\n",
         "{\"type\":\"text\",\"text\":\"{\\\"type\\\":\\\"x\\\",\\\"a\\\":\\\"\xef\xbf\xbd\\\"}\\n\"}\n");
}
END_TEST

START_TEST(test_nothing_is_no_event) {
  prompt_events_finish(&events, &out);
  ck_assert_uint_eq(out.len, 0);
  prompt_events_text(&events, "", 0, &out);
  ck_assert_uint_eq(out.len, 0);
}
END_TEST

START_TEST(test_done_is_noticed) {
  EXPECT("{\"type\":\"text\"}\n{\"type\":\"d\\u006fn\"}\n{\"type\":\"undone\"}\ndone\n",
         "{\"type\":\"text\"}\n{\"type\":\"d\\u006fn\"}\n{\"type\":\"undone\"}\n{\"type\":\"text\",\"text\":"
         "\"done\\n\"}\n");
  ck_assert(!events.done);
  EXPECT("{\"type\":\"d\\u006fne\"}\nbehind\n",
         "{\"type\":\"d\\u006fne\"}\n{\"type\":\"text\",\"text\":\"behind\\n\"}\n");
  ck_assert(events.done);
}
END_TEST

START_TEST(test_text_type) {
  events.text_type = "text_chunk";
  EXPECT("{ \"text\" : \"a\" , \"type\" : \"text\" }\n", "{ \"text\" : \"a\" , \"type\" : \"text_chunk\" }\n");
  EXPECT("{\"type\":\"t\\u0065xt\"}\n{\"type\":\"texts\"}\n", "{\"type\":\"text_chunk\"}\n{\"type\":\"texts\"}\n");
  EXPECT("plain\n", "{\"type\":\"text_chunk\",\"text\":\"plain\\n\"}\n");
}
END_TEST

/* Puts the text of all text events together; everything must be JSON. Returns the number of events, and the number of
 * those of another type. */
static size_t read_back(struct buf *text, size_t *others) {
  size_t n = 0;
  char *at = out.data, *end = out.data + out.len;
  buf_init(text, OUT_MAX, 0);
  *others = 0;
  while (at < end) {
    char *newline = memchr(at, '\n', (size_t)(end - at));
    ck_assert_ptr_nonnull(newline);
    *newline = '\0';
    json_object *event = json_tokener_parse(at);
    ck_assert_msg(event != NULL, "%.200s", at);
    if (strcmp(json_object_get_string(json_object_object_get(event, "type")), "text") == 0) {
      json_object *value = json_object_object_get(event, "text");
      size_t len = (size_t)json_object_get_string_len(value);
      ck_assert_uint_le(len, PROMPT_TEXT_MAX);
      buf_append(text, json_object_get_string(value), len);
    } else {
      *others += 1;
    }
    json_object_put(event);
    at = newline + 1;
    n++;
  }
  return n;
}

/* One line of `len` bytes of a three-byte character, so that no border of a piece fits. */
static char *long_line(size_t len) {
  char *line = malloc(len);
  for (size_t i = 0; i < len; i++)
    line[i] = "\xe2\x98\x95"[i % 3];
  return line;
}

START_TEST(test_long_line_goes_out_in_pieces) {
  size_t len = 3 * 100000, others;
  char *line = long_line(len);
  struct buf text;
  feed(line, len, 65536);
  ck_assert_uint_gt(out.len, len / 2); /* it is not held back */
  ck_assert_uint_le(events.line.capacity, PROMPT_TEXT_MAX + 1);
  feed("\nshort\n", 7, 7);
  prompt_events_finish(&events, &out);
  ck_assert_uint_gt(read_back(&text, &others), 4);
  ck_assert_uint_eq(others, 0);
  ck_assert_uint_eq(text.len, len + 7);
  ck_assert_int_eq(memcmp(text.data, line, len), 0);
  ck_assert_int_eq(memcmp(text.data + len, "\nshort\n", 7), 0);
  buf_free(&text);
  free(line);
}
END_TEST

START_TEST(test_borders_of_the_text_piece) {
  for (size_t len = PROMPT_TEXT_MAX - 4; len <= PROMPT_TEXT_MAX + 4; len++) {
    char *line = long_line(len);
    struct buf text;
    size_t others;
    buf_reset(&out, SIZE_MAX);
    feed(line, len / 3 * 3, 50000);
    feed("\n", 1, 1);
    size_t n = read_back(&text, &others);
    ck_assert_uint_ge(n, 1);
    ck_assert_uint_le(n, 3);
    ck_assert_uint_eq(text.len, len / 3 * 3 + 1);
    buf_free(&text);
    free(line);
  }
}
END_TEST

static char *long_event(size_t len) {
  static const char head[] = "{\"type\":\"tool_done\",\"result\":\"", tail[] = "\"}\n";
  char *line = malloc(len);
  memset(line, 'x', len);
  memcpy(line, head, sizeof head - 1);
  memcpy(line + len - (sizeof tail - 1), tail, sizeof tail - 1);
  return line;
}

START_TEST(test_long_event_passes_whole) {
  size_t len = PROMPT_LINE_MAX + 1; /* with its newline */
  char *line = long_event(len);
  feed(line, len, 100000);
  ck_assert_uint_eq(out.len, len);
  ck_assert_int_eq(memcmp(out.data, line, len), 0);
  ck_assert_uint_le(events.line.capacity, PROMPT_TEXT_MAX);
  free(line);
}
END_TEST

START_TEST(test_too_long_event_is_left_out) {
  size_t len = PROMPT_LINE_MAX + 2;
  char *line = long_event(len);
  feed(line, len, 100000);
  feed("{\"type\":\"next\"}\n", 16, 16);
  ck_assert_str_eq(buf_string(&out),
                   "{\"type\":\"error\",\"message\":\"the handler printed a line of more than 4194304 "
                   "bytes that begins like an event; it was left out\"}\n{\"type\":\"next\"}\n");
  free(line);
}
END_TEST

START_TEST(test_hundred_megabytes_without_a_newline) {
  static char piece[65536];
  static const char starts[] = {'x', '{', ' '};
  char start = starts[_i];
  memset(piece, start, sizeof piece);
  size_t total = 0, most = 0, errors = 0;
  for (int i = 0; i < 1600; i++) {
    buf_reset(&out, SIZE_MAX);
    prompt_events_feed(&events, piece, sizeof piece, &out);
    total += out.len;
    most = out.len > most ? out.len : most;
    if (out.len > 0 && strstr(buf_string(&out), "\"error\""))
      errors++;
    ck_assert_uint_le(events.line.capacity, PROMPT_LINE_MAX);
  }
  if (start == 'x') {
    ck_assert_uint_gt(total, 1600 * sizeof piece);
    ck_assert_uint_le(most, 3 * sizeof piece);
  } else {
    ck_assert_uint_eq(errors, 1);
    ck_assert_uint_le(total, 1024);
  }
}
END_TEST

START_TEST(test_own_events) {
  prompt_events_error("a \"b\"\xff", 6, &out);
  prompt_events_text(&events, "x\ny", 3, &out);
  prompt_events_done(&events, &out);
  ck_assert_str_eq(buf_string(&out), "{\"type\":\"error\",\"message\":\"a \\\"b\\\"\xef\xbf\xbd\"}\n"
                                     "{\"type\":\"text\",\"text\":\"x\\ny\"}\n{\"type\":\"done\"}\n");
  ck_assert(events.done);
}
END_TEST

START_TEST(test_full_buffer_is_no_endless_loop) {
  char *line = long_line(300000);
  buf_init(&out, 1000, 0);
  feed(line, 300000, 300000);
  feed("\nx\n", 3, 3);
  prompt_events_finish(&events, &out);
  ck_assert(out.failed);
  ck_assert_uint_le(out.len, 1000);
  free(line);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("prompt_events");
  TCase *cases = tcase_create("all");
  tcase_add_checked_fixture(cases, setup, teardown);
  tcase_set_timeout(cases, 60);
  tcase_add_test(cases, test_events_pass);
  tcase_add_test(cases, test_other_lines_become_text);
  tcase_add_test(cases, test_bytes_that_are_no_text);
  tcase_add_test(cases, test_nothing_is_no_event);
  tcase_add_test(cases, test_done_is_noticed);
  tcase_add_test(cases, test_text_type);
  tcase_add_test(cases, test_long_line_goes_out_in_pieces);
  tcase_add_test(cases, test_borders_of_the_text_piece);
  tcase_add_test(cases, test_long_event_passes_whole);
  tcase_add_test(cases, test_too_long_event_is_left_out);
  tcase_add_loop_test(cases, test_hundred_megabytes_without_a_newline, 0, 3);
  tcase_add_test(cases, test_own_events);
  tcase_add_test(cases, test_full_buffer_is_no_endless_loop);
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
