#include "sandkeeper/config.h"

#include <check.h>
#include <stdlib.h>

START_TEST(test_version) {
  ck_assert_str_eq(CONFIG_VERSION, "0.1.0");
}
END_TEST

int main(void) {
  Suite *suite = suite_create("config");
  TCase *tcase = tcase_create("config");
  tcase_add_test(tcase, test_version);
  suite_add_tcase(suite, tcase);
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_NORMAL);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
