#include "sandkeeper/base/percent.h"

#include "scratch.h"

static const struct {
  const char *text;
  bool plus;
  const char *out;
  ptrdiff_t len;
} rows[] = {
    {"", false, "", 0},
    {"abc", false, "abc", 3},
    {"a%20b", false, "a b", 3},
    {"a+b", false, "a+b", 3},
    {"a+b", true, "a b", 3},
    {"%2b+", true, "+ ", 2},
    {"%41%4a%4A", false, "AJJ", 3},
    {"%00x", false, "\0x", 2},
    {"%c3%A9", false, "\xc3\xa9", 2},
    {"%25%32", false, "%2", 2},
    {"%", false, NULL, -1},
    {"%4", false, NULL, -1},
    {"%4g", false, NULL, -1},
    {"%g4", false, NULL, -1},
    {"abc%", false, NULL, -1},
    {"%%41", false, NULL, -1},
    {"% 41", false, NULL, -1},
};

START_TEST(test_rows) {
  char out[32];
  size_t len = strlen(rows[_i].text);
  ck_assert_int_eq(percent_decode(out, rows[_i].text, len, rows[_i].plus), rows[_i].len);
  if (rows[_i].len >= 0)
    ck_assert_mem_eq(out, rows[_i].out, (size_t)rows[_i].len);
}
END_TEST

/* Only `len` bytes count, whatever stands behind them. */
START_TEST(test_ends_at_len) {
  char out[8];
  ck_assert_int_eq(percent_decode(out, "a%41", 3, false), -1);
  ck_assert_int_eq(percent_decode(out, "a%41", 2, false), -1);
  ck_assert_int_eq(percent_decode(out, "a%41", 1, false), 1);
}
END_TEST

START_TEST(test_in_place) {
  char text[] = "%61b%63d";
  ck_assert_int_eq(percent_decode(text, text, strlen(text), false), 4);
  ck_assert_mem_eq(text, "abcd", 4);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("percent");
  TCase *tcase = tcase_create("percent");
  tcase_add_loop_test(tcase, test_rows, 0, (int)(sizeof rows / sizeof *rows));
  tcase_add_test(tcase, test_ends_at_len);
  tcase_add_test(tcase, test_in_place);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
