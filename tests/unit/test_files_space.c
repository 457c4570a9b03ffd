/* A full disk loses nothing (case 24), and a killed agent leaves nothing. */
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_leftovers.h"
#include "sandkeeper/core/files_temp.h"

#include "scratch.h"

#define LARGE (3u * 1024 * 1024)

static struct files_written written;
static struct error err;
static const struct files_write_how plain;
static char *large;

static void begin(void) {
  scratch_begin();
  isolate();
  mount_tmpfs(at("m"), "size=1m");
  large = malloc(LARGE);
  REQUIRE(large);
  memset(large, 'n', LARGE);
}

static void end(void) {
  free(large);
  files_leftovers_end();
  umount2(at("m"), MNT_DETACH);
  scratch_end();
}

static void require_no_space(int status) {
  ck_assert_int_eq(status, -1);
  ck_assert_msg(err.kind == ERROR_NO_SPACE, "%s: %s", error_kind_name(err.kind), err.message);
  ck_assert_msg(strstr(err.message, at("m/")) != NULL, "no path in: %s", err.message);
}

/* Case 24: the old content is there and no temporary file. */
START_TEST(test_case_24) {
  put(at("m/f"), "old bytes");
  require_no_space(files_write(at("m/f"), large, LARGE, &plain, &written, &err));
  require_content(at("m/f"), "old bytes");
  ck_assert_int_eq(count_entries(at("m")), 1);
  require_no_space(files_write(at("m/new"), large, LARGE, &plain, &written, &err));
  ck_assert_int_eq(count_entries(at("m")), 1);
  /* The space is free again. */
  REQUIRE(files_write(at("m/f"), large, 700000, &plain, &written, &err) == 0);
}
END_TEST

/* The same without an unnamed temporary file, and where the file is written in place. */
START_TEST(test_case_24_named) {
  put(at("m/f"), "old bytes");
  hide_proc();
  require_no_space(files_write(at("m/f"), large, LARGE, &plain, &written, &err));
  require_content(at("m/f"), "old bytes");
  ck_assert_int_eq(count_entries(at("m")), 1);
  show_proc();
}
END_TEST

START_TEST(test_case_24_in_place) {
  put(at("m/f"), "old bytes");
  REQUIRE(link(at("m/f"), at("m/twin")) == 0);
  require_no_space(files_write(at("m/f"), large, LARGE, &plain, &written, &err));
  require_content(at("m/twin"), "old bytes");
  struct files_write_how append = {.append = true};
  require_no_space(files_write(at("m/f"), large, LARGE, &append, &written, &err));
  require_content(at("m/twin"), "old bytes");
  struct files_write_how over = {.at_offset = true, .offset = 4};
  require_no_space(files_write(at("m/f"), large, LARGE, &over, &written, &err));
  require_content(at("m/twin"), "old bytes");
  struct stat st;
  REQUIRE(stat(at("m/f"), &st) == 0 && st.st_blocks <= 8);
  REQUIRE(files_write(at("m/f"), large, 700000, &plain, &written, &err) == 0 && !written.atomic);
}
END_TEST

START_TEST(test_case_24_upload) {
  put(at("m/f"), "old bytes");
  struct files_upload *upload = files_upload_begin(at("m/f"), &plain, &err);
  REQUIRE(upload);
  int status = 0;
  for (size_t done = 0; done < LARGE && status == 0; done += 65536)
    status = files_upload_bytes(upload, large, 65536, &err);
  require_no_space(status);
  files_upload_free(upload);
  require_content(at("m/f"), "old bytes");
  ck_assert_int_eq(count_entries(at("m")), 1);
}
END_TEST

/* A directory without inodes left. */
START_TEST(test_no_inodes) {
  mount_tmpfs(at("i"), "size=1m,nr_inodes=3");
  put(at("i/a"), "old");
  put(at("i/b"), "old");
  ck_assert_int_eq(files_write(at("i/a"), "new", 3, &plain, &written, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_NO_SPACE);
  require_content(at("i/a"), "old");
  umount2(at("i"), MNT_DETACH);
}
END_TEST

/* Starts an upload in a process of its own and kills it in the middle. */
static void kill_uploader(const char *path) {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    struct files_upload *upload = files_upload_begin(path, &plain, NULL);
    if (upload && files_upload_bytes(upload, "half", 4, NULL) == 0)
      (void)!write(ready[1], "x", 1);
    for (;;)
      pause();
  }
  char byte;
  close(ready[1]);
  REQUIRE(read(ready[0], &byte, 1) == 1);
  close(ready[0]);
  REQUIRE(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static const char *const *record_in(const char *path) {
  static const char *places[2];
  static char place[PATH_MAX];
  REQUIRE(mkdir(path, 0755) == 0);
  snprintf(place, sizeof place, "%s", path);
  places[0] = place;
  files_leftovers_use(places);
  return places;
}

START_TEST(test_killed) {
  put(at("m/f"), "old");
  record_in(at("record"));
  kill_uploader(at("m/f"));
  require_content(at("m/f"), "old");
  ck_assert_int_eq(count_entries(at("m")), 1);
  REQUIRE(!files_leftovers_exist());
}
END_TEST

START_TEST(test_killed_named) {
  put(at("m/f"), "old");
  record_in(at("record"));
  hide_proc();
  kill_uploader(at("m/f"));
  require_content(at("m/f"), "old");
  ck_assert_int_eq(count_entries(at("m")), 2);
  REQUIRE(files_leftovers_exist());
  ck_assert_int_eq(files_leftovers_clean(), 1);
  ck_assert_int_eq(count_entries(at("m")), 1);
  ck_assert_int_eq(files_leftovers_clean(), 0);
  show_proc();
}
END_TEST

/* A run that goes on keeps its files, and its record. */
START_TEST(test_live_run) {
  record_in(at("record"));
  hide_proc();
  struct files_upload *upload = files_upload_begin(at("m/f"), &plain, &err);
  REQUIRE(upload && files_upload_bytes(upload, "text", 4, &err) == 0);
  ck_assert_int_eq(files_leftovers_clean(), 0);
  REQUIRE(files_upload_commit(upload, &written, &err) == 0 && written.atomic);
  files_upload_free(upload);
  require_content(at("m/f"), "text");
  files_leftovers_end();
  ck_assert_int_eq(count_entries(at("record")), 0);
  show_proc();
}
END_TEST

/* Whoever forges a record cannot have other files removed. */
START_TEST(test_forged_record) {
  record_in(at("record"));
  int place = files_leftovers_note(at("m"), "precious");
  REQUIRE(place >= 0);
  put(at("m/precious"), "x");
  REQUIRE(mkdir(at("m/" FILES_TEMP_PREFIX "0123456789abcdef0123456789abcdef"), 0755) == 0);
  REQUIRE(files_leftovers_note(at("m"), FILES_TEMP_PREFIX "0123456789abcdef0123456789abcdef") >= 0);
  files_leftovers_end(); /* notes something: the record stays */
  ck_assert_int_eq(count_entries(at("record")), 2);
  ck_assert_int_eq(files_leftovers_clean(), 0);
  ck_assert_int_eq(count_entries(at("m")), 2);

  /* A directory that others may write is not believed. */
  put(at("m/" FILES_TEMP_PREFIX "ffffffffffffffffffffffffffffffff"), "x");
  REQUIRE(files_leftovers_note(at("m"), FILES_TEMP_PREFIX "ffffffffffffffffffffffffffffffff") >= 0);
  files_leftovers_end();
  char directory[64];
  snprintf(directory, sizeof directory, "record/sandkeeper-%lu", (unsigned long)geteuid());
  REQUIRE(chmod(at("%s", directory), 0777) == 0);
  ck_assert_int_eq(files_leftovers_clean(), 0);
  REQUIRE(chmod(at("%s", directory), 0700) == 0);
  ck_assert_int_eq(files_leftovers_clean(), 1);
}
END_TEST

/* More names at once than the record has room for. */
START_TEST(test_record_full) {
  record_in(at("record"));
  int places = 0;
  while (files_leftovers_note(at("m"), "name") >= 0)
    places++;
  ck_assert_int_eq(places, 1024);
  files_leftovers_forget(77);
  ck_assert_int_eq(files_leftovers_note(at("m"), "name"), 77);
  for (int i = 0; i < places; i++)
    files_leftovers_forget(i);
  files_leftovers_forget(-1);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("files_space");
  TCase *tests = tcase_create("all");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, begin, end);
  tcase_add_test(tests, test_case_24);
  tcase_add_test(tests, test_case_24_named);
  tcase_add_test(tests, test_case_24_in_place);
  tcase_add_test(tests, test_case_24_upload);
  tcase_add_test(tests, test_no_inodes);
  tcase_add_test(tests, test_killed);
  tcase_add_test(tests, test_killed_named);
  tcase_add_test(tests, test_live_run);
  tcase_add_test(tests, test_forged_record);
  tcase_add_test(tests, test_record_full);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
