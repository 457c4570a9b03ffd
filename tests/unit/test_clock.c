#include "sandkeeper/base/clock.h"

#include "run.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

START_TEST(test_known_times) {
  static const struct {
    int64_t ns;
    const char *text;
  } known[] = {
      {0, "1970-01-01T00:00:00.000Z"},
      {999999, "1970-01-01T00:00:00.000Z"},
      {1000000, "1970-01-01T00:00:00.001Z"},
      {-1, "1969-12-31T23:59:59.999Z"},
      {INT64_C(951782400) * CLOCK_SECOND, "2000-02-29T00:00:00.000Z"},
      {INT64_C(1796068800) * CLOCK_SECOND + 123 * CLOCK_MS, "2026-11-30T20:00:00.123Z"},
      {INT64_C(4107542399) * CLOCK_SECOND + 999999999, "2100-02-28T23:59:59.999Z"},
      {INT64_C(4107542400) * CLOCK_SECOND, "2100-03-01T00:00:00.000Z"},
      {INT64_MAX, "2262-04-11T23:47:16.854Z"},
      {INT64_MIN, "1677-09-21T00:12:43.145Z"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    char text[CLOCK_RFC3339_SIZE];
    ck_assert_ptr_eq(clock_rfc3339(known[i].ns, text), text);
    ck_assert_str_eq(text, known[i].text);
  }
}
END_TEST

/* The C library counts days in another way. */
START_TEST(test_agrees_with_gmtime) {
  for (int64_t second = INT64_C(-9000000000); second < INT64_C(9000000000); second += 86400 * 13 + 3607) {
    time_t time = (time_t)second;
    struct tm parts;
    ck_assert_ptr_nonnull(gmtime_r(&time, &parts));
    char expected[64], text[CLOCK_RFC3339_SIZE];
    strftime(expected, sizeof expected, "%Y-%m-%dT%H:%M:%S.000Z", &parts);
    clock_rfc3339(second * CLOCK_SECOND, text);
    if (strcmp(text, expected) != 0)
      ck_abort_msg("%s instead of %s", text, expected);
  }
}
END_TEST

START_TEST(test_clocks) {
  int64_t first = clock_monotonic();
  ck_assert_int_gt(first, 0);
  ck_assert_int_ge(clock_monotonic(), first);
  ck_assert_int_lt(clock_monotonic() - first, 100 * CLOCK_SECOND);
  time_t now = time(NULL);
  ck_assert_int_ge(clock_wall() / CLOCK_SECOND, (int64_t)now - 100);
  ck_assert_int_le(clock_wall() / CLOCK_SECOND, (int64_t)now + 100);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("clock");
  TCase *tcase = tcase_create("clock");
  tcase_add_test(tcase, test_known_times);
  tcase_add_test(tcase, test_agrees_with_gmtime);
  tcase_add_test(tcase, test_clocks);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
