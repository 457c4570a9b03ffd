#include "sandkeeper/base/fdutil.h"

#include "run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_open(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

START_TEST(test_cleanup_and_steal) {
  int seen = -1, kept = -1;
  {
    cleanup_close int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    cleanup_close int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    cleanup_close int empty = -1;
    cleanup_free char *text = strdup("freed at the end of the scope");
    cleanup_free char *nothing = NULL;
    ck_assert_int_ge(fd, 0);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_null(nothing);
    ck_assert_int_eq(empty, -1);
    seen = fd;
    kept = fd_steal(&other);
    ck_assert_int_eq(other, -1);
    free(steal_pointer(&text));
    ck_assert_ptr_null(text);
    errno = 77;
  }
  ck_assert_int_eq(errno, 77);
  ck_assert(!is_open(seen));
  ck_assert(is_open(kept));
  fd_close(&kept);
  ck_assert_int_eq(kept, -1);
  errno = 78;
  fd_close(&kept);
  ck_assert_int_eq(errno, 78);
}
END_TEST

START_TEST(test_nonblock) {
  int pair[2];
  ck_assert_int_eq(pipe2(pair, O_CLOEXEC), 0);
  ck_assert_int_eq(fd_set_nonblock(pair[0]), 0);
  ck_assert_int_eq(fd_set_nonblock(pair[0]), 0);
  char byte;
  ck_assert_int_eq(read(pair[0], &byte, 1), -1);
  ck_assert_int_eq(errno, EAGAIN);
  fd_close(&pair[0]);
  ck_assert_int_eq(fd_set_nonblock(pair[0]), -1);
  ck_assert_int_eq(errno, EBADF);
  fd_close(&pair[1]);
}
END_TEST

#define MUCH 1000000 /* more than a pipe holds, so that both sides see short calls */

static void *writer(void *argument) {
  int *fd = argument;
  static char bytes[MUCH];
  for (size_t i = 0; i < sizeof bytes; i++)
    bytes[i] = (char)(i * 31 >> 3);
  int result = fd_write_all(*fd, bytes, sizeof bytes);
  fd_close(fd);
  return result == 0 ? bytes : NULL;
}

START_TEST(test_write_all_and_read_all) {
  int pair[2];
  ck_assert_int_eq(pipe2(pair, O_CLOEXEC), 0);
  pthread_t thread;
  ck_assert_int_eq(pthread_create(&thread, NULL, writer, &pair[1]), 0);
  static char got[MUCH + 10];
  ck_assert_int_eq(fd_read_all(pair[0], got, sizeof got), MUCH);
  void *sent = NULL;
  pthread_join(thread, &sent);
  ck_assert_ptr_nonnull(sent);
  ck_assert_mem_eq(got, sent, MUCH);
  ck_assert_int_eq(fd_read_all(pair[0], got, 10), 0);
  ck_assert_int_eq(fd_write_all(pair[0], "x", 1), -1);
  ck_assert_int_eq(errno, EBADF);
  ck_assert_int_eq(fd_write_all(pair[0], "x", 0), 0);
  fd_close(&pair[0]);
}
END_TEST

START_TEST(test_read_file) {
  char path[] = "/tmp/test_fdutil.XXXXXX";
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(fd_write_all(fd, "12345\n", 6), 0);
  fd_close(&fd);
  char out[32];
  memset(out, 'x', sizeof out);
  ck_assert_int_eq(fd_read_file(path, out, sizeof out), 6);
  ck_assert_str_eq(out, "12345\n");
  ck_assert_int_eq(fd_read_file(path, out, 7), 6); /* just fits with its NUL */
  ck_assert_str_eq(out, "12345\n");
  ck_assert_int_eq(fd_read_file(path, out, 6), -1);
  ck_assert_int_eq(errno, EFBIG);
  ck_assert_str_eq(out, "");
  ck_assert_int_eq(fd_read_file(path, out, 0), -1);
  ck_assert_int_eq(errno, EFBIG);
  unlink(path);
  ck_assert_int_eq(fd_read_file(path, out, sizeof out), -1);
  ck_assert_int_eq(errno, ENOENT);
  ck_assert_int_eq(fd_read_file("/tmp", out, sizeof out), -1);
  ck_assert_int_eq(errno, EISDIR);

  char big[4096];
  ck_assert_int_gt(fd_read_file("/proc/self/stat", big, sizeof big), 10); /* its size is said to be 0 */
  ck_assert_uint_eq(strtoul(big, NULL, 10), (unsigned long)getpid());
}
END_TEST

START_TEST(test_cloexec_from) {
  int low = open("/dev/null", O_RDONLY);
  ck_assert_int_ge(low, 0);
  int high = fcntl(low, F_DUPFD, 200);
  ck_assert_int_ge(high, 200);
  fd_cloexec_from(100);
  ck_assert_int_eq(fcntl(low, F_GETFD), 0);
  ck_assert_int_eq(fcntl(high, F_GETFD), FD_CLOEXEC);
  ck_assert(is_open(STDERR_FILENO));
  fd_close(&low);
  fd_close(&high);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("fdutil");
  TCase *tcase = tcase_create("fdutil");
  tcase_set_timeout(tcase, 30);
  tcase_add_test(tcase, test_cleanup_and_steal);
  tcase_add_test(tcase, test_nonblock);
  tcase_add_test(tcase, test_write_all_and_read_all);
  tcase_add_test(tcase, test_read_file);
  tcase_add_test(tcase, test_cloexec_from);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
