/* files_path, files_open and files_read: what one read gives, and what it refuses. */
#include "sandkeeper/core/files.h"

#include "scratch.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct files_content content;
static struct error err;

static int try_read(const char *path, uint64_t offset, size_t limit) {
  err = (struct error)ERROR_INIT;
  return files_read(path, offset, limit, UINT64_MAX, &content, &err);
}

static void read_it(const char *path, uint64_t offset, size_t limit) {
  if (try_read(path, offset, limit) < 0)
    ck_abort_msg("%s", err.message);
}

static void require_error(const char *path, enum error_kind kind) {
  ck_assert_int_eq(try_read(path, 0, FILES_TEXT_MAX), -1);
  ck_assert_msg(err.kind == kind, "%s: %s", error_kind_name(err.kind), err.message);
  ck_assert_msg(strstr(err.message, path) != NULL, "no path in: %s", err.message);
  REQUIRE(content.bytes == NULL);
}

START_TEST(test_paths) {
  char *path = files_path("/w", "a/b", 3, "path", &err);
  ck_assert_str_eq(path, "/w/a/b");
  free(path);
  path = files_path("/w", "/a", 2, "path", &err);
  ck_assert_str_eq(path, "/a");
  free(path);
  path = files_path("/w", "\xff\x01", 2, "path", &err);
  ck_assert_str_eq(path, "/w/\xff\x01");
  free(path);
  REQUIRE(!files_path("/w", "", 0, "path", &err) && err.kind == ERROR_INVALID);
  REQUIRE(!files_path("/w", "a\0b", 3, "source", &err) && err.kind == ERROR_INVALID);
  REQUIRE(strstr(err.message, "source") != NULL);
  char *large = malloc(1000000);
  REQUIRE(large);
  memset(large, 'a', 1000000);
  REQUIRE(!files_path("/w", large, 1000000, "path", &err) && err.kind == ERROR_IO && err.number == ENAMETOOLONG);
  large[0] = '/';
  path = files_path("/w", large, PATH_MAX - 1, "path", &err);
  REQUIRE(path && strlen(path) == PATH_MAX - 1);
  free(path);
  REQUIRE(!files_path("/w", large, PATH_MAX, "path", &err));
  free(large);
}
END_TEST

START_TEST(test_text) {
  put(at("t"), "hello \xe2\x98\x95\r\n");
  read_it(at("t"), 0, FILES_TEXT_MAX);
  ck_assert_uint_eq(content.len, 11);
  ck_assert_mem_eq(content.bytes, "hello \xe2\x98\x95\r\n", 11);
  ck_assert_uint_eq(content.size, 11);
  ck_assert_uint_eq(content.offset, 0);
  REQUIRE(!content.truncated && !content.lossy && !content.type.image);
  ck_assert_str_eq(content.type.mime, "text/plain");
  files_content_free(&content);

  put(at("t"), "");
  read_it(at("t"), 0, FILES_TEXT_MAX);
  REQUIRE(content.len == 0 && content.size == 0 && !content.truncated);
  files_content_free(&content);

  put(at("t"), "a\xff"
               "b");
  read_it(at("t"), 0, FILES_TEXT_MAX);
  REQUIRE(content.lossy && content.len == 3);
  files_content_free(&content);
}
END_TEST

/* The limit at every distance from the end of the file, and in every byte of a character. */
START_TEST(test_limit) {
  size_t room = FILES_TEXT_MAX + 64;
  char *bytes = malloc(room);
  REQUIRE(bytes);
  for (int shift = 0; shift < 3; shift++) {
    memset(bytes, 'x', (size_t)shift);
    for (size_t i = (size_t)shift; i + 3 <= room; i += 3)
      memcpy(bytes + i, "\xe2\x98\x95", 3);
    for (size_t len = FILES_TEXT_MAX - 3; len < FILES_TEXT_MAX + 8; len++) {
      put_bytes(at("t"), bytes, len);
      read_it(at("t"), 0, FILES_TEXT_MAX);
      ck_assert_uint_eq(content.size, len);
      REQUIRE(content.len <= FILES_TEXT_MAX);
      if (len <= FILES_TEXT_MAX) {
        REQUIRE(!content.truncated && content.len == len);
      } else {
        REQUIRE(content.truncated && content.len > FILES_TEXT_MAX - 3);
        REQUIRE(!content.lossy);
      }
      ck_assert_mem_eq(content.bytes, bytes, content.len);
      files_content_free(&content);
    }
  }
  free(bytes);
}
END_TEST

/* Pages of every small size put together give the file again; each stops at a character. */
START_TEST(test_pages) {
  const char text[] = "a\xc3\xa4\xe2\x98\x95\xf0\x9f\x98\x80z\xff\x80\x80\xe2\x98y";
  size_t len = sizeof text - 1;
  put_bytes(at("t"), text, len);
  for (size_t limit = 1; limit <= len + 1; limit++) {
    uint64_t offset = 0;
    do {
      read_it(at("t"), offset, limit);
      ck_assert_uint_eq(content.offset, offset);
      ck_assert_mem_eq(content.bytes, text + offset, content.len);
      REQUIRE(content.len > 0 && content.len < limit + 4);
      offset += content.len;
      REQUIRE(content.truncated == (offset < len));
      files_content_free(&content);
    } while (offset < len);
    ck_assert_uint_eq(offset, len);
  }
}
END_TEST

START_TEST(test_offsets) {
  put(at("t"), "ab\xe2\x98\x95"
               "cd");
  static const struct {
    uint64_t offset, at;
    const char *text;
  } rows[] = {{0, 0,
               "ab\xe2\x98\x95"
               "cd"},
              {1, 1,
               "b\xe2\x98\x95"
               "cd"},
              {2, 2,
               "\xe2\x98\x95"
               "cd"},
              {3, 5, "cd"},
              {4, 5, "cd"},
              {5, 5, "cd"},
              {6, 6, "d"},
              {7, 7, ""},
              {8, 8, ""},
              {1000, 1000, ""},
              {INT64_MAX, INT64_MAX, ""},
              {UINT64_MAX, UINT64_MAX, ""}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    read_it(at("t"), rows[i].offset, 100);
    ck_assert_uint_eq(content.offset, rows[i].at);
    ck_assert_uint_eq(content.len, strlen(rows[i].text));
    ck_assert_mem_eq(content.bytes, rows[i].text, content.len);
    ck_assert_uint_eq(content.size, 7);
    REQUIRE(!content.truncated && !content.lossy);
    files_content_free(&content);
  }
  /* Bytes that continue nothing are not skipped. */
  put(at("t"), "ab\x98\x95"
               "cd");
  read_it(at("t"), 2, 100);
  REQUIRE(content.offset == 2 && content.len == 4 && content.lossy);
  files_content_free(&content);
}
END_TEST

START_TEST(test_image) {
  char png[100] = "\x89PNG\r\n\x1a\n";
  put_bytes(at("image.txt"), png, sizeof png);
  read_it(at("image.txt"), 50, 10);
  REQUIRE(content.type.image && content.len == 100 && content.size == 100);
  ck_assert_mem_eq(content.bytes, png, 100);
  files_content_free(&content);

  REQUIRE(files_read(at("image.txt"), 0, 1, 99, &content, &err) == -1);
  REQUIRE(err.kind == ERROR_TOO_LARGE && err.limit == 99 && strstr(err.message, "read_stream"));
  REQUIRE(files_read(at("image.txt"), 0, 1, 100, &content, &err) == 0);
  files_content_free(&content);

  REQUIRE(truncate(at("image.txt"), FILES_IMAGE_MAX) == 0);
  read_it(at("image.txt"), 0, 1);
  ck_assert_uint_eq(content.len, FILES_IMAGE_MAX);
  files_content_free(&content);
  REQUIRE(truncate(at("image.txt"), FILES_IMAGE_MAX + 1) == 0);
  REQUIRE(try_read(at("image.txt"), 0, 1) == -1);
  REQUIRE(err.kind == ERROR_TOO_LARGE && err.limit == FILES_IMAGE_MAX);

  put(at("text.png"), "no image\n");
  read_it(at("text.png"), 0, 100);
  REQUIRE(!content.type.image);
  files_content_free(&content);
}
END_TEST

/* Case 27: what is no regular file is refused at once. */
START_TEST(test_case_27_types) {
  REQUIRE(mkfifo(at("fifo"), 0644) == 0);
  require_error(at("fifo"), ERROR_WRONG_TYPE);
  require_error("/dev/zero", ERROR_WRONG_TYPE);
  require_error("/dev/null", ERROR_WRONG_TYPE);
  require_error(scratch, ERROR_WRONG_TYPE);
  require_error("/proc/self/mem", ERROR_IO);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", at("socket"));
  REQUIRE(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
  require_error(at("socket"), ERROR_WRONG_TYPE);
  close(fd);
}
END_TEST

static void *write_fifo(void *path) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  ssize_t n = write(fd, "still here", 10);
  close(fd);
  return (void *)(intptr_t)n;
}

/* A refused FIFO has not been opened: its writer goes on waiting for a real reader. */
START_TEST(test_fifo_untouched) {
  REQUIRE(mkfifo(at("fifo"), 0644) == 0);
  pthread_t thread;
  char path[PATH_MAX];
  strcpy(path, at("fifo"));
  REQUIRE(pthread_create(&thread, NULL, write_fifo, path) == 0);
  for (int i = 0; i < 200; i++)
    require_error(at("fifo"), ERROR_WRONG_TYPE);
  int fd = open(at("fifo"), O_RDONLY | O_CLOEXEC);
  char bytes[16];
  ck_assert_int_eq(read(fd, bytes, sizeof bytes), 10);
  void *written;
  REQUIRE(pthread_join(thread, &written) == 0);
  ck_assert_int_eq((intptr_t)written, 10);
  close(fd);
}
END_TEST

START_TEST(test_errors) {
  require_error(at("missing"), ERROR_NOT_FOUND);
  put(at("file"), "x");
  require_error(at("file/below"), ERROR_WRONG_TYPE);
  REQUIRE(symlink("loop", at("loop")) == 0);
  require_error(at("loop"), ERROR_IO);
  ck_assert_int_eq(err.number, ELOOP);
  char name[300];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  require_error(at("%s", name), ERROR_IO);
  ck_assert_int_eq(err.number, ENAMETOOLONG);
  put(at("secret"), "x");
  REQUIRE(chmod(at("secret"), 0) == 0);
  become_nobody();
  require_error(at("secret"), ERROR_PERMISSION);
}
END_TEST

/* Files of /proc and /sys say 0 or 4096 and have something else. */
START_TEST(test_kernel_files) {
  read_it("/proc/self/status", 0, FILES_TEXT_MAX);
  REQUIRE(content.len > 100 && content.size == content.len && !content.truncated);
  files_content_free(&content);
  read_it("/proc/self/status", 0, 10);
  REQUIRE(content.len == 10 && content.truncated && memcmp(content.bytes, "Name:", 5) == 0);
  files_content_free(&content);
  read_it("/sys/kernel/mm/transparent_hugepage/enabled", 0, FILES_TEXT_MAX);
  REQUIRE(content.len > 5 && content.len < 100 && content.size == content.len && !content.truncated);
  files_content_free(&content);
}
END_TEST

START_TEST(test_without_proc) {
  put(at("t"), "text");
  isolate();
  hide_proc();
  read_it(at("t"), 0, 100);
  ck_assert_uint_eq(content.len, 4);
  files_content_free(&content);
  REQUIRE(mkfifo(at("fifo"), 0644) == 0);
  require_error(at("fifo"), ERROR_WRONG_TYPE);
  show_proc();
}
END_TEST

/* Case 27: a file that shrinks or grows between the look and the read. */
START_TEST(test_case_27_changing) {
  struct files_source source;
  char bytes[100];
  put(at("t"), "0123456789");
  REQUIRE(files_open(at("t"), &source, &err) == 0 && source.st.st_size == 10);
  REQUIRE(truncate(at("t"), 4) == 0);
  ck_assert_int_eq(files_read_at(&source, at("t"), 0, bytes, 10, &err), 4);
  ck_assert_int_eq(files_read_at(&source, at("t"), 6, bytes, 4, &err), 0);
  put(at("t"), "0123456789abcdef");
  ck_assert_int_eq(files_read_at(&source, at("t"), 8, bytes, 100, &err), 8);
  REQUIRE(unlink(at("t")) == 0);
  ck_assert_int_eq(files_read_at(&source, at("t"), 0, bytes, 100, &err), 16);
  files_close(&source);
  ck_assert_int_eq(source.fd, -1);
}
END_TEST

START_TEST(test_local) {
  struct files_source source;
  isolate();
  mount_tmpfs(at("m"), "size=1m");
  put(at("m/t"), "x");
  REQUIRE(files_open(at("m/t"), &source, &err) == 0);
  REQUIRE(source.local);
  files_close(&source);
  REQUIRE(files_open("/proc/self/status", &source, &err) == 0);
  REQUIRE(!source.local);
  files_close(&source);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("files_read");
  TCase *tests = tcase_create("all");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, scratch_begin, scratch_end);
  tcase_add_test(tests, test_paths);
  tcase_add_test(tests, test_text);
  tcase_add_test(tests, test_limit);
  tcase_add_test(tests, test_pages);
  tcase_add_test(tests, test_offsets);
  tcase_add_test(tests, test_image);
  tcase_add_test(tests, test_case_27_types);
  tcase_add_test(tests, test_fifo_untouched);
  tcase_add_test(tests, test_errors);
  tcase_add_test(tests, test_kernel_files);
  tcase_add_test(tests, test_without_proc);
  tcase_add_test(tests, test_case_27_changing);
  tcase_add_test(tests, test_local);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
