#include "sandkeeper/base/buf.h"

#include "run.h"

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The linker sends the library's realloc here (-Wl,--wrap=realloc), so that memory can run out. */
void *__real_realloc(void *old, size_t size);
void *__wrap_realloc(void *old, size_t size);
static bool no_memory;

void *__wrap_realloc(void *old, size_t size) {
  return no_memory ? NULL : __real_realloc(old, size);
}

START_TEST(test_append_and_string) {
  struct buf buf;
  buf_init(&buf, 100, 0);
  ck_assert_ptr_null(buf.data);
  ck_assert_str_eq(buf_string(&buf), "");
  ck_assert_int_eq(buf_append(&buf, NULL, 0), 0);
  ck_assert_ptr_null(buf.data);
  ck_assert_int_eq(buf_append(&buf, "ab\0c", 4), 0);
  ck_assert_int_eq(buf_append_string(&buf, "de"), 0);
  ck_assert_int_eq(buf_printf(&buf, "%d %s", 42, "x"), 0);
  ck_assert_uint_eq(buf.len, 10);
  ck_assert_mem_eq(buf_string(&buf), "ab\0cde42 x", 11);
  buf_free(&buf);
  ck_assert_ptr_null(buf.data);
  ck_assert_uint_eq(buf.max, 100);
  buf_free(&buf);
}
END_TEST

START_TEST(test_printf_longer_than_its_first_try) {
  char text[1000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  struct buf buf;
  buf_init(&buf, 1001, 4);
  ck_assert_int_eq(buf_printf(&buf, "<%s>", text), 0);
  ck_assert_uint_eq(buf.len, 1001);
  ck_assert_uint_eq(strlen(buf_string(&buf)), 1001);
  ck_assert_int_eq(buf.data[0], '<');
  ck_assert_int_eq(buf.data[1000], '>');
  ck_assert_int_eq(buf_printf(&buf, "y"), -1);
  ck_assert(buf.failed);
  buf_free(&buf);
}
END_TEST

/* Up to the last byte, not one more; and a failure stays until the reset. */
START_TEST(test_maximum_is_exact_and_sticky) {
  for (size_t max = 0; max < 600; max += 7) {
    struct buf buf;
    buf_init(&buf, max, 3);
    for (size_t i = 0; i < max; i++)
      if (buf_append(&buf, "x", 1) != 0)
        ck_abort_msg("failed at %zu of %zu", i, max);
    ck_assert_uint_eq(strlen(buf_string(&buf)), max);
    ck_assert_int_eq(buf_append(&buf, "xy", 2), -1);
    ck_assert_int_eq(buf_append(&buf, "", 0), -1);
    ck_assert_int_eq(buf_printf(&buf, "%s", ""), -1);
    ck_assert_ptr_null(buf_reserve(&buf, 0));
    ck_assert_ptr_null(buf_string(&buf));
    ck_assert_uint_eq(buf.len, max);
    ck_assert_uint_le(buf.capacity, max);
    buf_reset(&buf, 1000);
    ck_assert(!buf.failed);
    ck_assert_uint_eq(buf.len, 0);
    buf_free(&buf);
  }
}
END_TEST

START_TEST(test_sizes_that_overflow) {
  struct buf buf;
  buf_init(&buf, SIZE_MAX, BUF_HEADROOM);
  ck_assert_int_eq(buf_append(&buf, "abc", 3), 0);
  ck_assert_ptr_null(buf_reserve(&buf, SIZE_MAX - 2));
  ck_assert(buf.failed);
  buf_reset(&buf, SIZE_MAX);
  ck_assert_ptr_null(buf_reserve(&buf, SIZE_MAX));
  ck_assert(buf.failed);
  buf_free(&buf);
}
END_TEST

START_TEST(test_no_memory) {
  struct buf buf;
  buf_init(&buf, 100000, 8);
  no_memory = true;
  int first = buf_append(&buf, "abc", 3);
  no_memory = false;
  ck_assert_int_eq(first, -1);
  ck_assert(buf.failed);
  buf_reset(&buf, 0);
  ck_assert_int_eq(buf_append(&buf, "abc", 3), 0);
  no_memory = true;
  char *place = buf_reserve(&buf, 5000);
  no_memory = false;
  ck_assert_ptr_null(place);
  ck_assert_mem_eq(buf.data, "abc", 3); /* what was there is still there */
  ck_assert_uint_eq(buf.len, 3);
  buf_free(&buf);
}
END_TEST

START_TEST(test_headroom_survives_growth) {
  struct buf buf;
  buf_init(&buf, 1 << 20, BUF_HEADROOM);
  for (int i = 0; i < 100000; i++)
    if (buf_append(&buf, "0123456789", 10) != 0)
      ck_abort_msg("failed");
  memset(buf.data - BUF_HEADROOM, 0xee, BUF_HEADROOM); /* the address sanitizer knows if this is ours */
  ck_assert_uint_eq(buf.len, 1000000);
  ck_assert_mem_eq(buf.data + 999990, "0123456789", 10);
  buf_free(&buf);
}
END_TEST

START_TEST(test_reset_keeps_small_memory) {
  struct buf buf;
  buf_init(&buf, 1 << 20, 0);
  buf_append(&buf, "abc", 3);
  char *data = buf.data;
  buf_reset(&buf, 4096);
  ck_assert_ptr_eq(buf.data, data);
  ck_assert_ptr_nonnull(buf_reserve(&buf, 5000));
  buf_reset(&buf, 4096);
  ck_assert_ptr_null(buf.data);
  ck_assert_uint_eq(buf.capacity, 0);
  buf_free(&buf);
}
END_TEST

START_TEST(test_move) {
  struct buf from, to;
  buf_init(&from, 50, 8);
  buf_init(&to, 20, 0);
  buf_append_string(&from, "the contents are longer than 20");
  buf_append_string(&to, "old");
  buf_move(&to, &from);
  ck_assert_str_eq(buf_string(&to), "the contents are longer than 20");
  ck_assert_uint_eq(to.headroom, 8);
  ck_assert_uint_eq(to.max, 50);
  ck_assert_ptr_null(from.data);
  ck_assert_uint_eq(from.len, 0);
  ck_assert_int_eq(buf_append_string(&from, "usable"), 0);
  buf_move(&from, &from);
  ck_assert_str_eq(buf_string(&from), "usable");
  buf_free(&from);
  buf_free(&to);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("buf");
  TCase *tcase = tcase_create("buf");
  tcase_add_test(tcase, test_append_and_string);
  tcase_add_test(tcase, test_printf_longer_than_its_first_try);
  tcase_add_test(tcase, test_maximum_is_exact_and_sticky);
  tcase_add_test(tcase, test_sizes_that_overflow);
  tcase_add_test(tcase, test_no_memory);
  tcase_add_test(tcase, test_headroom_survives_growth);
  tcase_add_test(tcase, test_reset_keeps_small_memory);
  tcase_add_test(tcase, test_move);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
