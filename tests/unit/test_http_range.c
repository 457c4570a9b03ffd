/* Ranges, tags and dates of HTTP: RFC 9110. */
#include "sandkeeper/api/http_range.h"

#include "run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *text;
  uint64_t size;
  enum http_range result;
  uint64_t start, length;
} ranges[] = {
    {NULL, 10, HTTP_RANGE_NONE, 0, 0},
    {"", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=0-0", 10, HTTP_RANGE_PART, 0, 1},
    {"bytes=0-", 10, HTTP_RANGE_PART, 0, 10},
    {"bytes=3-5", 10, HTTP_RANGE_PART, 3, 3},
    {"bytes=9-", 10, HTTP_RANGE_PART, 9, 1},
    {"bytes=9-100", 10, HTTP_RANGE_PART, 9, 1},
    {"bytes=10-", 10, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=10-20", 10, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=-3", 10, HTTP_RANGE_PART, 7, 3},
    {"bytes=-30", 10, HTTP_RANGE_PART, 0, 10},
    {"bytes=-0", 10, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=0-", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=-1", 0, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=5-4", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=-", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=1", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=a-1", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=1-a", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=+1-2", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes=1-2,4-5", 10, HTTP_RANGE_NONE, 0, 0},
    {"bytes 1-2", 10, HTTP_RANGE_NONE, 0, 0},
    {"items=1-2", 10, HTTP_RANGE_NONE, 0, 0},
    {"Bytes=1-2", 10, HTTP_RANGE_PART, 1, 2},
    {"bytes= 1-2 ", 10, HTTP_RANGE_PART, 1, 2},
    {"bytes=18446744073709551615-", 10, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=0-18446744073709551615", 10, HTTP_RANGE_PART, 0, 10},
    {"bytes=0-99999999999999999999999999999999", 10, HTTP_RANGE_PART, 0, 10},
    {"bytes=99999999999999999999999999999999-", 10, HTTP_RANGE_UNSATISFIABLE, 0, 0},
    {"bytes=-99999999999999999999999999999999", 10, HTTP_RANGE_PART, 0, 10},
    {"bytes=0-", UINT64_MAX, HTTP_RANGE_PART, 0, UINT64_MAX},
    {"bytes=18446744073709551614-", UINT64_MAX, HTTP_RANGE_PART, UINT64_MAX - 1, 1},
};

START_TEST(test_range) {
  uint64_t start = 0, length = 0;
  ck_assert_int_eq(http_range_parse(ranges[_i].text, ranges[_i].size, &start, &length), ranges[_i].result);
  if (ranges[_i].result == HTTP_RANGE_PART) {
    ck_assert_uint_eq(start, ranges[_i].start);
    ck_assert_uint_eq(length, ranges[_i].length);
  }
}
END_TEST

static const struct {
  const char *list;
  bool matches;
} tags[] = {
    {"\"a\"", true},
    {"W/\"a\"", true},
    {"*", true},
    {" * ", true},
    {"\"b\", \"a\"", true},
    {"\"b\",\"a\",\"c\"", true},
    {" \"b\" , W/\"a\"", true},
    {",\"a\"", true},
    {"\"b\"", false},
    {"\"aa\"", false},
    {"\"a", false},
    {"a", false},
    {"", false},
    {"*, \"b\"", false},
    {"\"b\" \"a\"", false},
    {"rubbish, \"a\"", false},
};

START_TEST(test_etag) {
  ck_assert_int_eq(http_etag_matches(tags[_i].list, "\"a\""), tags[_i].matches);
}
END_TEST

START_TEST(test_date) {
  char text[HTTP_DATE_SIZE];
  time_t seconds;
  ck_assert_str_eq(http_date(784111777, text), "Sun, 06 Nov 1994 08:49:37 GMT");
  for (time_t at = -1000000000; at < 5000000000; at += 86400 * 3 + 12347) {
    ck_assert(http_date_parse(http_date(at, text), &seconds));
    ck_assert_int_eq(seconds, at);
  }
  /* A file's time may be anything. */
  http_date(INT64_MAX, text);
  http_date(INT64_MIN, text);
  http_date(253402300800, text);
  static const char *const wrong[] = {
      "",
      "yesterday",
      "1994-11-06",
      "Sunday, 06-Nov-94 08:49:37 GMT",
      "Sun Nov  6 08:49:37 1994",
      "Sun, 06 Nov 1994 08:49:37",
      "Sun, 06 Nov 1994 08:49:37 CET",
      "Sun, 06 Foo 1994 08:49:37 GMT",
      "Sun, 06 Nov 1994 08:49:37 GMT, and more",
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    ck_assert_msg(!http_date_parse(wrong[i], &seconds), "%s", wrong[i]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("http_range");
  TCase *tests = tcase_create("all");
  tcase_add_loop_test(tests, test_range, 0, (int)(sizeof ranges / sizeof *ranges));
  tcase_add_loop_test(tests, test_etag, 0, (int)(sizeof tags / sizeof *tags));
  tcase_add_test(tests, test_date);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
