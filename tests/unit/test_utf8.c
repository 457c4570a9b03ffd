#include "sandkeeper/base/utf8.h"

#include "run.h"
#include "utf8_reference.h"

#include <check.h>
#include <stdlib.h>

#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

/* Every sequence of one, two and three bytes, and every four bytes that begin with a first byte of four. */
static void compare_next(const uint8_t *bytes, size_t len) {
  size_t n, expected_n;
  enum utf8_kind kind = utf8_next(bytes, len, &n);
  enum utf8_kind expected = reference_next(bytes, len, &expected_n);
  if (kind != expected || n != expected_n)
    ck_abort_msg("%02x %02x %02x %02x, %zu bytes: %d %zu instead of %d %zu", bytes[0], bytes[1], bytes[2], bytes[3],
                 len, (int)kind, n, (int)expected, expected_n);
}

START_TEST(test_next_for_all_short_sequences) {
  uint8_t bytes[4] = {0};
  for (uint32_t value = 0; value < 1u << 24; value++) {
    bytes[0] = (uint8_t)(value >> 16);
    bytes[1] = (uint8_t)(value >> 8);
    bytes[2] = (uint8_t)value;
    compare_next(bytes, 3);
    if (bytes[2] == 0)
      compare_next(bytes, 2);
    if (bytes[1] == 0 && bytes[2] == 0)
      compare_next(bytes, 1);
    if (bytes[0] >= 0xef) {
      static const uint8_t last[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
      for (size_t i = 0; i < sizeof last; i++) {
        bytes[3] = last[i];
        compare_next(bytes, 4);
      }
      bytes[3] = 0;
    }
  }
}
END_TEST

/* Unicode 15, table 3-8: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64 has six errors, of 3, 2, 1, 1, 1 and 1 bytes. */
START_TEST(test_maximal_subparts_of_table_3_8) {
  static const uint8_t bytes[] = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
  static const size_t expected[] = {1, 3, 2, 1, 1, 1, 1, 1, 1, 1};
  size_t at = 0;
  for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
    size_t n;
    enum utf8_kind kind = utf8_next(bytes + at, sizeof bytes - 1 - at, &n);
    ck_assert_uint_eq(n, expected[i]);
    ck_assert_int_eq(kind, bytes[at] < 0x80 ? UTF8_CHARACTER : UTF8_INVALID);
    at += n;
  }
  ck_assert_uint_eq(at, sizeof bytes - 1);
}
END_TEST

static size_t reference_valid_prefix(const uint8_t *bytes, size_t len) {
  size_t at = 0, n;
  while (at < len && reference_next(bytes + at, len - at, &n) == UTF8_CHARACTER)
    at += n;
  return at;
}

START_TEST(test_valid_prefix_and_tail) {
  uint64_t seed = 11;
  for (int round = 0; round < 20000; round++) {
    uint8_t bytes[100];
    size_t len = reference_random(&seed, sizeof bytes + 1);
    reference_text(&seed, bytes, len);
    size_t start = 0;
    /* From every place that follows an error, so that long texts are seen to their end. */
    while (start < len) {
      size_t valid = utf8_valid_prefix(bytes + start, len - start);
      REQUIRE(valid == reference_valid_prefix(bytes + start, len - start));
      start += valid + 1;
    }

    size_t at = 0, n = 0;
    enum utf8_kind kind = UTF8_CHARACTER;
    for (; at < len; at += n)
      kind = reference_next(bytes + at, len - at, &n);
    REQUIRE(utf8_incomplete_tail(bytes, len) == (len > 0 && kind == UTF8_INCOMPLETE ? n : 0));
  }
}
END_TEST

START_TEST(test_borders) {
  ck_assert_uint_eq(utf8_valid_prefix(NULL, 0), 0);
  ck_assert_uint_eq(utf8_incomplete_tail(NULL, 0), 0);
  ck_assert_uint_eq(utf8_leading_rest(NULL, 0), 0);
  ck_assert_uint_eq(utf8_leading_rest((const uint8_t *)"a\x80", 2), 0);
  ck_assert_uint_eq(utf8_leading_rest((const uint8_t *)"\x98\x95", 2), 2);
  ck_assert_uint_eq(utf8_leading_rest((const uint8_t *)"\x98\x95z", 3), 2);
  ck_assert_uint_eq(utf8_leading_rest((const uint8_t *)"\x80\x80\x80\x80", 4), 3);
  ck_assert_uint_eq(utf8_leading_rest((const uint8_t *)"\xe2\x98\x95", 3), 0);
  ck_assert_uint_eq(utf8_incomplete_tail((const uint8_t *)"x\xe2\x98", 3), 2);
  ck_assert_uint_eq(utf8_incomplete_tail((const uint8_t *)"\xed\xa0", 2), 0);
  ck_assert_uint_eq(utf8_incomplete_tail((const uint8_t *)"\xf0\x9f\x98", 3), 3);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("utf8");
  TCase *tcase = tcase_create("utf8");
  tcase_set_timeout(tcase, 60);
  tcase_add_test(tcase, test_next_for_all_short_sequences);
  tcase_add_test(tcase, test_maximal_subparts_of_table_3_8);
  tcase_add_test(tcase, test_valid_prefix_and_tail);
  tcase_add_test(tcase, test_borders);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
