#include "sandkeeper/base/error.h"
#include "sandkeeper/base/utf8.h"

#include "run.h"

#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

START_TEST(test_set_and_wrap) {
  struct error err = ERROR_INIT;
  ck_assert_int_eq(error_set(&err, ERROR_INVALID, 0, "timeout takes a number, not %s", "\"x\""), -1);
  ck_assert_int_eq(err.kind, ERROR_INVALID);
  ck_assert_int_eq(err.number, 0);
  ck_assert_str_eq(err.message, "timeout takes a number, not \"x\"");
  ck_assert_int_eq(error_wrap(&err, "request %d", 7), -1);
  ck_assert_str_eq(err.message, "request 7: timeout takes a number, not \"x\"");
  ck_assert_int_eq(err.kind, ERROR_INVALID);
}
END_TEST

START_TEST(test_errno) {
  static const struct {
    int number;
    enum error_kind kind;
  } known[] = {
      {ENOENT, ERROR_NOT_FOUND},  {EACCES, ERROR_PERMISSION},
      {EPERM, ERROR_PERMISSION},  {EROFS, ERROR_PERMISSION},
      {EISDIR, ERROR_WRONG_TYPE}, {ENOTDIR, ERROR_WRONG_TYPE},
      {ENOSPC, ERROR_NO_SPACE},   {EDQUOT, ERROR_NO_SPACE},
      {EEXIST, ERROR_EXISTS},     {ENOMEM, ERROR_INTERNAL},
      {ENAMETOOLONG, ERROR_IO},   {ELOOP, ERROR_IO},
      {EFBIG, ERROR_IO},          {EIO, ERROR_IO},
      {123456, ERROR_IO},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    struct error err = ERROR_INIT;
    ck_assert_int_eq(error_set_errno(&err, known[i].number, "%s", "/x"), -1);
    ck_assert_int_eq(err.kind, known[i].kind);
    ck_assert_int_eq(err.number, known[i].number);
    ck_assert_int_eq(strncmp(err.message, "/x: ", 4), 0);
    ck_assert_uint_gt(strlen(err.message), 6);
  }
  struct error err = ERROR_INIT;
  error_set_errno(&err, ENOENT, "/x");
  ck_assert_str_eq(err.message, "/x: No such file or directory");
}
END_TEST

START_TEST(test_null_is_allowed) {
  ck_assert_int_eq(error_set(NULL, ERROR_IO, 0, "x"), -1);
  ck_assert_int_eq(error_set_errno(NULL, EIO, "x"), -1);
  ck_assert_int_eq(error_wrap(NULL, "x"), -1);
}
END_TEST

static void check_cut(const struct error *err) {
  size_t len = strlen(err->message);
  ck_assert_uint_lt(len, ERROR_MESSAGE_MAX);
  ck_assert_uint_ge(len, ERROR_MESSAGE_MAX - 4);
  ck_assert_uint_eq(utf8_valid_prefix((const uint8_t *)err->message, len), len);
}

/* Three bytes a character, at each of three offsets: the cut is at a border in all. */
START_TEST(test_long_messages_are_cut_at_a_character) {
  char text[3 * ERROR_MESSAGE_MAX + 1];
  for (size_t i = 0; i < ERROR_MESSAGE_MAX; i++)
    memcpy(text + 3 * i, "\xe2\x98\x95", 3);
  text[sizeof text - 1] = '\0';
  for (int offset = 0; offset < 3; offset++) {
    struct error err = ERROR_INIT;
    error_set(&err, ERROR_IO, 0, "%.*s%s", offset, "xxx", text);
    check_cut(&err);
    error_set_errno(&err, EIO, "%.*s%s", offset, "xxx", text);
    check_cut(&err);
    error_wrap(&err, "%s", "more");
    check_cut(&err);
    error_wrap(&err, "%s", text);
    check_cut(&err);
  }
}
END_TEST

START_TEST(test_every_kind_has_a_name) {
  for (int kind = ERROR_NONE; kind <= ERROR_INTERNAL; kind++) {
    const char *name = error_kind_name((enum error_kind)kind);
    ck_assert_ptr_nonnull(name);
    for (int other = ERROR_NONE; other < kind; other++)
      ck_assert_str_ne(name, error_kind_name((enum error_kind)other));
  }
  ck_assert_str_eq(error_kind_name(ERROR_EDIT_CONFLICT), "edit_conflict");
  ck_assert_str_eq(error_kind_name(ERROR_PERMISSION), "permission_denied");
  ck_assert_ptr_nonnull(error_kind_name((enum error_kind)77));
}
END_TEST

int main(void) {
  Suite *suite = suite_create("error");
  TCase *tcase = tcase_create("error");
  tcase_add_test(tcase, test_set_and_wrap);
  tcase_add_test(tcase, test_errno);
  tcase_add_test(tcase, test_null_is_allowed);
  tcase_add_test(tcase, test_long_messages_are_cut_at_a_character);
  tcase_add_test(tcase, test_every_kind_has_a_name);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
