#include "sandkeeper/core/user.h"

#include "run.h"

#include <check.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Every system has root. */
START_TEST(test_root) {
  static const char *const names[] = {"root", "0"};
  for (size_t i = 0; i < 2; i++) {
    struct user user;
    struct error err = ERROR_INIT;
    ck_assert_int_eq(user_lookup(names[i], &user, &err), 0);
    ck_assert_uint_eq(user.uid, 0);
    ck_assert_str_eq(user.name, "root");
    ck_assert_str_eq(user.home, "/root");
    ck_assert_int_eq(user_read_groups(&user, &err), 0);
    ck_assert_uint_ge(user.n_groups, 1);
    ck_assert_uint_eq(user.groups[0], 0);
    user_free(&user);
  }
}
END_TEST

START_TEST(test_uid_without_entry) {
  struct user user;
  struct error err = ERROR_INIT;
  ck_assert_int_eq(user_lookup("3999999999", &user, &err), 0);
  ck_assert_uint_eq(user.uid, 3999999999u);
  ck_assert_uint_eq(user.gid, 3999999999u);
  ck_assert_str_eq(user.name, "3999999999");
  ck_assert_str_eq(user.home, "/");
  user_free(&user);
}
END_TEST

START_TEST(test_unknown) {
  static const char *const names[] = {"no-such-user", "", "-1", "4294967295", "99999999999999999999", "0x0", "0 "};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    struct user user;
    struct error err = ERROR_INIT;
    ck_assert_int_eq(user_lookup(names[i], &user, &err), -1);
    ck_assert_int_eq(err.kind, ERROR_NOT_FOUND);
  }
}
END_TEST

static void *look_up_often(void *arg) {
  (void)arg;
  for (int i = 0; i < 200; i++) {
    struct user user;
    if (user_lookup(i % 2 ? "root" : "12345678", &user, NULL) < 0 || user_read_groups(&user, NULL) < 0)
      return "failed";
    bool right = strcmp(user.name, i % 2 ? "root" : "12345678") == 0;
    user_free(&user);
    if (!right)
      return "mixed up";
  }
  return NULL;
}

/* Several workers start commands at once. */
START_TEST(test_many_threads) {
  pthread_t threads[8];
  for (int i = 0; i < 8; i++)
    ck_assert_int_eq(pthread_create(&threads[i], NULL, look_up_often, NULL), 0);
  for (int i = 0; i < 8; i++) {
    void *result;
    pthread_join(threads[i], &result);
    ck_assert_ptr_null(result);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("user");
  TCase *tcase = tcase_create("user");
  tcase_set_timeout(tcase, 60);
  tcase_add_test(tcase, test_root);
  tcase_add_test(tcase, test_uid_without_entry);
  tcase_add_test(tcase, test_unknown);
  tcase_add_test(tcase, test_many_threads);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
