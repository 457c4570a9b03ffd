/* Kubernetes' quantities: every suffix, the rounding, and what is none. */
#include "sandkeeper/core/quantity.h"

#include "scratch.h"

static const struct {
  const char *text;
  uint32_t scale;
  int64_t value;
} right[] = {
    {"2", 1000, 2000},
    {"500m", 1000, 500},
    {"0.5", 1000, 500},
    {".5", 1000, 500},
    {"1.", 1, 1},
    {"+3", 1, 3},
    {"1.0000000000000000000000", 1000, 1000},
    {"0.001", 1000, 1},
    {"250000u", 1000, 250},
    {"250000000n", 1000, 250},
    {"1", 1, 1},
    {"512M", 1, 512000000},
    {"768Mi", 1, INT64_C(768) << 20},
    {"4Gi", 1, INT64_C(4) << 30},
    {"1.5Gi", 1, INT64_C(3) << 29},
    {"64Ki", 1, 65536},
    {"64k", 1, 64000},
    {"1G", 1, 1000000000},
    {"2T", 1, INT64_C(2000000000000)},
    {"2Ti", 1, INT64_C(2) << 40},
    {"3P", 1, INT64_C(3000000000000000)},
    {"3Pi", 1, INT64_C(3) << 50},
    {"5E", 1, INT64_C(5000000000000000000)},
    {"7Ei", 1, INT64_C(7) << 60},
    {"12e6", 1, 12000000},
    {"12E6", 1, 12000000},
    {"12e+6", 1, 12000000},
    {"1500e-3", 1000, 1500},
    {"0.0000000000000001e18", 1, 100},
    {"9223372036854775807", 1, INT64_MAX},
    /* rounded up */
    {"1n", 1000, 1},
    {"1.0001", 1000, 1001},
    {"0.1Ki", 1, 103},
    {"1e-18", 1, 1},
};

START_TEST(test_right) {
  struct error err = ERROR_INIT;
  int64_t value = -1;
  int status = quantity_parse("field", right[_i].text, right[_i].scale, &value, &err);
  ck_assert_msg(status == 0, "%s: %s", right[_i].text, err.message);
  ck_assert_msg(value == right[_i].value, "%s is %lld", right[_i].text, (long long)value);
}
END_TEST

static const char *const wrong[] = {"",
                                    ".",
                                    "+",
                                    "-1",
                                    "--1",
                                    "++1",
                                    "1 ",
                                    " 1",
                                    "m",
                                    "Gi",
                                    "1gi",
                                    "1GI",
                                    "1MiB",
                                    "1mi",
                                    "1K",
                                    "1.2.3",
                                    "1e",
                                    "1e+",
                                    "1e-",
                                    "1ex",
                                    "1e1.5",
                                    "1e99",
                                    "0x10",
                                    "1,5",
                                    "inf",
                                    "nan",
                                    "1Gi ",
                                    "1\n",
                                    "0",
                                    "0Gi",
                                    "0.000",
                                    "8Ei",
                                    "10E",
                                    "1e19",
                                    "1_000",
                                    "9223372036854775808",
                                    "12345678901234567890123",
                                    "1i",
                                    "1e 3",
                                    "\xc2\xb2"};

START_TEST(test_wrong) {
  struct error err = ERROR_INIT;
  int64_t value;
  ck_assert_msg(quantity_parse("spec.cpu", wrong[_i], 1, &value, &err) == -1, "\"%s\" was taken", wrong[_i]);
  ck_assert_int_eq(err.kind, ERROR_INVALID);
  ck_assert_msg(strncmp(err.message, "spec.cpu: ", 10) == 0, "%s", err.message);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("quantity");
  TCase *tcase = tcase_create("quantity");
  tcase_add_loop_test(tcase, test_right, 0, (int)(sizeof right / sizeof *right));
  tcase_add_loop_test(tcase, test_wrong, 0, (int)(sizeof wrong / sizeof *wrong));
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
