/* The log writes into a pipe that the test reads. json-c is the judge of what is JSON. */
#include "sandkeeper/base/log.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include "run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int pipe_fds[2];
static char lines[1 << 18];

static void setup(void) {
  ck_assert_int_eq(pipe2(pipe_fds, O_CLOEXEC), 0);
  ck_assert_int_eq(fd_set_nonblock(pipe_fds[0]), 0);
}

static void teardown(void) {
  fd_close(&pipe_fds[0]);
  fd_close(&pipe_fds[1]);
}

/* All that is in the pipe; the lines in it are counted. */
static int read_lines(void) {
  size_t len = 0;
  ssize_t n;
  while (len < sizeof lines - 1 && (n = read(pipe_fds[0], lines + len, sizeof lines - 1 - len)) > 0)
    len += (size_t)n;
  lines[len] = '\0';
  int count = 0;
  for (size_t i = 0; i < len; i++)
    count += lines[i] == '\n';
  ck_assert(len == 0 || lines[len - 1] == '\n');
  return count;
}

static struct json_object *parse(const char *line) {
  struct json_tokener *tokener = json_tokener_new();
  json_tokener_set_flags(tokener, JSON_TOKENER_VALIDATE_UTF8);
  struct json_object *object = json_tokener_parse_ex(tokener, line, (int)strcspn(line, "\n"));
  enum json_tokener_error error = json_tokener_get_error(tokener);
  json_tokener_free(tokener);
  if (error != json_tokener_success)
    ck_abort_msg("%s: %s", json_tokener_error_desc(error), line);
  return object;
}

static const char *string_of(struct json_object *object, const char *key) {
  struct json_object *value = NULL;
  if (!json_object_object_get_ex(object, key, &value))
    ck_abort_msg("no \"%s\" in %s", key, lines);
  return json_object_get_string(value);
}

START_TEST(test_json_line) {
  log_setup(pipe_fds[1], LOG_FORMAT_AUTO, LOG_INFO); /* a pipe is no terminal */
  errno = 33;
  LOG(LOG_WARN, "gate", "accept failed", LOG_S("address", "[::1]:\"4001\"\n\xff"), LOG_I("port", -5),
      LOG_S("none", NULL), LOG_I("big", INT64_MIN));
  ck_assert_int_eq(errno, 33);
  LOG(LOG_DEBUG, "gate", "not written");
  LOG(LOG_ERROR, "gate", "bare");
  ck_assert_int_eq(read_lines(), 2);
  struct json_object *object = parse(lines);
  ck_assert_str_eq(string_of(object, "level"), "warn");
  ck_assert_str_eq(string_of(object, "part"), "gate");
  ck_assert_str_eq(string_of(object, "event"), "accept failed");
  ck_assert_str_eq(string_of(object, "address"), "[::1]:\"4001\"\n\xef\xbf\xbd");
  ck_assert_str_eq(string_of(object, "port"), "-5");
  ck_assert_str_eq(string_of(object, "none"), "");
  ck_assert_str_eq(string_of(object, "big"), "-9223372036854775808");
  ck_assert_uint_eq(strlen(string_of(object, "time")), strlen("2026-11-29T20:00:00.123Z"));
  json_object_put(object);
  object = parse(strchr(lines, '\n') + 1);
  ck_assert_int_eq(json_object_object_length(object), 4);
  json_object_put(object);
}
END_TEST

START_TEST(test_text_line) {
  log_setup(pipe_fds[1], LOG_FORMAT_TEXT, LOG_DEBUG);
  LOG(LOG_INFO, "gate", "listening", LOG_S("address", "0.0.0.0:4001"), LOG_S("why", "two words\n"), LOG_I("n", 3),
      LOG_S("none", ""));
  LOG(LOG_DEBUG, "loop", "turn");
  ck_assert_int_eq(read_lines(), 2);
  ck_assert_int_eq(lines[2], ':');
  ck_assert_int_eq(lines[8], '.');
  char *second = strchr(lines, '\n') + 1;
  second[-1] = '\0';
  ck_assert_str_eq(lines + 12, " info  gate: listening address=0.0.0.0:4001 why=\"two words\\n\" n=3 none=\"\"");
  ck_assert_str_eq(second + 12, " debug loop: turn\n");
}
END_TEST

/* 20 at once, others are not touched by it, and what was left out is said when there is room again. */
START_TEST(test_rate_limit) {
  log_setup(pipe_fds[1], LOG_FORMAT_JSON, LOG_INFO);
  int64_t start = clock_monotonic();
  for (int i = 0; i < 500; i++)
    LOG(LOG_INFO, "ws", "refused", LOG_I("i", i));
  int64_t took = clock_monotonic() - start;
  LOG(LOG_INFO, "ws", "opened");
  LOG(LOG_INFO, "http", "refused");
  int most = 22 + (int)(took / (CLOCK_SECOND / 2)); /* a slow machine earns lines meanwhile */
  int count = read_lines();
  ck_assert_int_ge(count, 22);
  ck_assert_int_le(count, most + 1);

  struct json_object *object = NULL, *suppressed = NULL;
  int tries = 0;
  for (; tries < 1000; tries++) {
    struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    nanosleep(&pause, NULL);
    LOG(LOG_INFO, "ws", "refused");
    if (read_lines() > 0)
      break;
  }
  object = parse(lines);
  ck_assert(json_object_object_get_ex(object, "suppressed", &suppressed));
  /* All that was asked for and not written: 500 less what came, and the tries since. */
  ck_assert_int_eq(json_object_get_int(suppressed), 500 - (count - 2) + tries);
  json_object_put(object);
}
END_TEST

/* More kinds of events than the table has places: each still gets its line. */
START_TEST(test_many_kinds) {
  log_setup(pipe_fds[1], LOG_FORMAT_JSON, LOG_INFO);
  static char names[300][16];
  for (int i = 0; i < 300; i++) {
    snprintf(names[i], sizeof names[i], "e%d", i);
    LOG(LOG_INFO, "part", names[i]);
  }
  ck_assert_int_eq(read_lines(), 300);
}
END_TEST

/* Nobody reads: the line is lost, not the agent's time. The next one that is written says so. */
START_TEST(test_full_pipe_does_not_block) {
  static char filler[1 << 20];
  ck_assert_int_eq(fd_set_nonblock(pipe_fds[1]), 0);
  while (write(pipe_fds[1], filler, sizeof filler) > 0)
    ;
  while (write(pipe_fds[1], filler, 1) > 0)
    ;
  ck_assert_int_eq(fcntl(pipe_fds[1], F_SETFL, 0), 0); /* as a container's stderr is: blocking */
  log_setup(pipe_fds[1], LOG_FORMAT_JSON, LOG_INFO);
  for (int i = 0; i < 3; i++)
    LOG(LOG_INFO, "part", "lost");
  while (read(pipe_fds[0], filler, sizeof filler) > 0)
    ;
  LOG(LOG_INFO, "part", "written");
  ck_assert_int_eq(read_lines(), 1);
  struct json_object *object = parse(lines);
  ck_assert_str_eq(string_of(object, "dropped"), "3");
  json_object_put(object);
  LOG(LOG_INFO, "part", "written");
  ck_assert_int_eq(read_lines(), 1);
  ck_assert_ptr_null(strstr(lines, "dropped"));
}
END_TEST

/* The line is bounded and still JSON, however long and wild the values are. */
START_TEST(test_long_values_are_cut) {
  log_setup(pipe_fds[1], _i == 0 ? LOG_FORMAT_JSON : LOG_FORMAT_TEXT, LOG_INFO);
  static char wild[100000];
  memset(wild, 0x01, sizeof wild - 1);
  LOG(LOG_INFO, "part", "wild", LOG_S("a", wild), LOG_S("b", wild), LOG_S("c", wild), LOG_I("d", 4));
  ck_assert_int_eq(read_lines(), 1);
  ck_assert_uint_le(strlen(lines), 4096);
  ck_assert_uint_ge(strlen(lines), 2000);
  if (_i == 0) {
    struct json_object *object = parse(lines);
    ck_assert_str_eq(string_of(object, "d"), "4");
    json_object_put(object);
  }
}
END_TEST

START_TEST(test_closed_descriptor_is_no_fault) {
  int closed = open("/dev/null", O_WRONLY | O_CLOEXEC);
  ck_assert_int_ge(closed, 0);
  close(closed);
  log_setup(closed, LOG_FORMAT_JSON, LOG_INFO);
  LOG(LOG_INFO, "part", "lost");
  log_setup(pipe_fds[1], LOG_FORMAT_JSON, LOG_INFO);
  LOG(LOG_INFO, "part", "written");
  ck_assert_int_eq(read_lines(), 1);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("log");
  TCase *tcase = tcase_create("log");
  tcase_set_timeout(tcase, 30);
  tcase_add_checked_fixture(tcase, setup, teardown);
  tcase_add_test(tcase, test_json_line);
  tcase_add_test(tcase, test_text_line);
  tcase_add_test(tcase, test_rate_limit);
  tcase_add_test(tcase, test_many_kinds);
  tcase_add_test(tcase, test_full_pipe_does_not_block);
  tcase_add_loop_test(tcase, test_long_values_are_cut, 0, 2);
  tcase_add_test(tcase, test_closed_descriptor_is_no_fault);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
