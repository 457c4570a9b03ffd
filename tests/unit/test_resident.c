/* resident_trim gives pages of code back, and all still works after it. */
#include "sandkeeper/base/resident.h"

#include "sandkeeper/base/fdutil.h"

#include "run.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Pages of files that are mapped and present, in KB. */
static long file_kb(void) {
  char text[8192];
  ck_assert_int_gt(fd_read_file("/proc/self/status", text, sizeof text), 0);
  const char *line = strstr(text, "RssFile:");
  ck_assert_ptr_nonnull(line);
  return strtol(line + strlen("RssFile:"), NULL, 10);
}

static const char constant[] = "read-only data of the program";
static char written[64] = "data";

START_TEST(test_gives_back_and_goes_on) {
  char *heap = strdup("heap");
  ck_assert_ptr_nonnull(heap);
  strcpy(written, "written before");
  long before = file_kb();
  resident_trim();
  long after = file_kb();
  ck_assert_msg(after < before, "%ld KB of files before, %ld after", before, after);
  ck_assert_str_eq(constant, "read-only data of the program");
  ck_assert_str_eq(written, "written before");
  ck_assert_str_eq(heap, "heap");
  free(heap);
}
END_TEST

static atomic_bool stop;

/* Calls into the C library and writes to the heap and the stack, over and over. */
static void *work(void *arg) {
  unsigned long *rounds = arg;
  while (!stop) {
    char text[64];
    time_t now = (time_t)*rounds;
    struct tm parts;
    char *copy = strdup("some text");
    if (!copy || strcmp(copy, "some text") != 0 || !gmtime_r(&now, &parts) ||
        strftime(text, sizeof text, "%F %T", &parts) != 19)
      return (void *)(uintptr_t) "wrong";
    free(copy);
    ++*rounds;
  }
  return NULL;
}

START_TEST(test_beside_another_thread) {
  pthread_t thread;
  unsigned long rounds = 0;
  void *result;
  stop = false;
  ck_assert_int_eq(pthread_create(&thread, NULL, work, &rounds), 0);
  for (int i = 0; i < 200; i++)
    resident_trim();
  stop = true;
  ck_assert_int_eq(pthread_join(thread, &result), 0);
  ck_assert_ptr_null(result);
  ck_assert_uint_gt(rounds, 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("resident");
  TCase *tcase = tcase_create("resident");
  tcase_add_test(tcase, test_gives_back_and_goes_on);
  tcase_add_test(tcase, test_beside_another_thread);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
