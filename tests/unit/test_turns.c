#include "sandkeeper/api/turns.h"

#include "run.h"

#include <check.h>
#include <stdlib.h>

static struct turns turns;
static struct turn all[4];
static unsigned granted; /* one bit each */

static void on_granted(void *arg) {
  const struct turn *turn = arg;
  granted |= 1u << (turn - all);
}

static bool take(int i, size_t bytes) {
  return turns_take(&turns, &all[i], bytes, on_granted, &all[i]);
}

static void set_up(void) {
  turns_init(&turns, 100);
  for (int i = 0; i < 4; i++)
    turn_init(&all[i]);
  granted = 0;
}

START_TEST(test_in_order) {
  ck_assert(take(0, 60));
  ck_assert(!take(1, 50));
  ck_assert(!take(2, 10)); /* it would fit, but is not the first */
  turns_give(&turns, &all[0]);
  ck_assert_uint_eq(granted, 1u << 1 | 1u << 2);
  ck_assert_uint_eq(turns.used, 60);
  turns_give(&turns, &all[1]);
  turns_give(&turns, &all[2]);
  turns_give(&turns, &all[2]); /* it has none */
  ck_assert_uint_eq(turns.used, 0);
}
END_TEST

START_TEST(test_more_than_all) {
  ck_assert(take(0, 500)); /* alone */
  ck_assert(!take(1, 1));
  ck_assert(!take(2, 500));
  turns_give(&turns, &all[0]);
  ck_assert_uint_eq(granted, 1u << 1);
  turns_give(&turns, &all[1]);
  ck_assert_uint_eq(granted, 1u << 1 | 1u << 2);
  turns_give(&turns, &all[2]);
  ck_assert_uint_eq(turns.used, 0);
}
END_TEST

START_TEST(test_one_that_waits_leaves) {
  ck_assert(take(0, 90));
  ck_assert(!take(1, 50));
  ck_assert(!take(2, 10));
  turns_give(&turns, &all[1]);
  ck_assert_uint_eq(granted, 1u << 2);
  ck_assert_uint_eq(turns.used, 100);
}
END_TEST

START_TEST(test_end) {
  ck_assert(take(0, 90));
  ck_assert(!take(1, 50));
  turns_end(&turns);
  turns_give(&turns, &all[0]);
  turns_give(&turns, &all[1]);
  ck_assert_uint_eq(granted, 0);
  ck_assert_uint_eq(turns.used, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("turns");
  TCase *tcase = tcase_create("turns");
  tcase_add_checked_fixture(tcase, set_up, NULL);
  tcase_add_test(tcase, test_in_order);
  tcase_add_test(tcase, test_more_than_all);
  tcase_add_test(tcase, test_one_that_waits_leaves);
  tcase_add_test(tcase, test_end);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
