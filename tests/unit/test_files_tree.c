/* files_list, files_stat, files_mkdir, files_remove, files_move. */
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_leftovers.h"

#include "scratch.h"

#include <time.h>

static struct files_list list;
static struct files_info info;
static struct error err;

static void require_kind(int status, enum error_kind kind, const char *path) {
  ck_assert_int_eq(status, -1);
  ck_assert_msg(err.kind == kind, "%s: %s", error_kind_name(err.kind), err.message);
  ck_assert_msg(strstr(err.message, path) != NULL, "no path in: %s", err.message);
}

static void list_it(const char *path, const char *after, size_t limit) {
  if (files_list(path, after, limit, &list, &err) < 0)
    ck_abort_msg("%s", err.message);
}

/* Case 26: any name. */
START_TEST(test_case_26) {
  char long_name[256];
  memset(long_name, 'l', 255);
  long_name[255] = '\0';
  const char *names[] = {" ", "\n", "\"", "\\", "\xf0\x9f\x98\x80", "\xff\x01", "-rf", ".hidden", "a b\tc", long_name};
  size_t n = sizeof names / sizeof *names;
  struct files_written written;
  static const struct files_write_how plain;
  for (size_t i = 0; i < n; i++)
    REQUIRE(files_write(at("%s", names[i]), names[i], strlen(names[i]), &plain, &written, &err) == 0);
  list_it(scratch, NULL, SIZE_MAX);
  ck_assert_uint_eq(list.n, n);
  REQUIRE(!list.more);
  for (size_t i = 0; i < list.n; i++) {
    REQUIRE(i == 0 || strcmp(list.entries[i - 1].name, list.entries[i].name) < 0);
    ck_assert_uint_eq(list.entries[i].size, strlen(list.entries[i].name));
    require_content(at("%s", list.entries[i].name), list.entries[i].name);
    REQUIRE(files_stat(at("%s", list.entries[i].name), &info, &err) == 0 && info.exists);
    REQUIRE(files_remove(at("%s", list.entries[i].name), false, &err) == 0);
  }
  files_list_free(&list);
  ck_assert_int_eq(count_entries(scratch), 0);
}
END_TEST

START_TEST(test_list) {
  REQUIRE(mkdir(at("d"), 0700) == 0 && symlink("d", at("to_d")) == 0 && symlink("nowhere", at("dangling")) == 0);
  put(at("f"), "12345");
  REQUIRE(symlink("f", at("to_f")) == 0);
  struct timespec times[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1000000000, .tv_nsec = 123456789}};
  REQUIRE(utimensat(AT_FDCWD, at("f"), times, 0) == 0);
  list_it(scratch, NULL, SIZE_MAX);
  ck_assert_uint_eq(list.n, 5);
  const struct files_entry *entry = list.entries;
  REQUIRE(strcmp(entry[0].name, "d") == 0 && entry[0].is_dir && !entry[0].is_symlink &&
          (entry[0].mode & 07777) == 0700);
  REQUIRE(strcmp(entry[1].name, "dangling") == 0 && entry[1].is_symlink && !entry[1].is_dir && entry[1].size == 7);
  REQUIRE(strcmp(entry[2].name, "f") == 0 && entry[2].size == 5 && !entry[2].is_dir);
  ck_assert_int_eq(entry[2].modified, INT64_C(1000000000123456789));
  REQUIRE(strcmp(entry[3].name, "to_d") == 0 && entry[3].is_dir && entry[3].is_symlink);
  REQUIRE(strcmp(entry[4].name, "to_f") == 0 && entry[4].is_symlink && entry[4].size == 5);
  files_list_free(&list);
  list_it(at("d"), NULL, SIZE_MAX);
  REQUIRE(list.n == 0 && !list.more);
  files_list_free(&list);
  require_kind(files_list(at("f"), NULL, SIZE_MAX, &list, &err), ERROR_WRONG_TYPE, at("f"));
  require_kind(files_list(at("none"), NULL, SIZE_MAX, &list, &err), ERROR_NOT_FOUND, at("none"));
  REQUIRE(chmod(at("d"), 0) == 0);
  become_nobody();
  require_kind(files_list(at("d"), NULL, SIZE_MAX, &list, &err), ERROR_PERMISSION, at("d"));
}
END_TEST

START_TEST(test_pages) {
  for (int i = 0; i < 100; i++)
    put(at("%d", i), "");
  char after[256] = "";
  size_t seen = 0;
  bool more = true;
  while (more) {
    list_it(scratch, *after ? after : NULL, 7);
    for (size_t i = 0; i < list.n; i++) {
      REQUIRE(strcmp(after, list.entries[i].name) < 0);
      strcpy(after, list.entries[i].name);
      seen++;
    }
    more = list.more;
    REQUIRE(list.n == 7 || !more);
    files_list_free(&list);
  }
  ck_assert_uint_eq(seen, 100);
  list_it(scratch, NULL, 100);
  REQUIRE(list.n == 100 && !list.more);
  files_list_free(&list);
  list_it(scratch, NULL, 0);
  REQUIRE(list.n == 0 && list.more);
  files_list_free(&list);
}
END_TEST

START_TEST(test_stat) {
  put(at("f"), "text\n");
  REQUIRE(chmod(at("f"), 0640) == 0 && symlink("f", at("link")) == 0 && symlink("nowhere", at("dangling")) == 0);
  REQUIRE(files_stat(at("f"), &info, &err) == 0);
  REQUIRE(info.exists && !info.is_symlink && S_ISREG(info.st.st_mode) && info.st.st_size == 5);
  ck_assert_str_eq(info.mime, "text/plain");
  REQUIRE(files_stat(at("link"), &info, &err) == 0);
  REQUIRE(info.exists && info.is_symlink && (info.st.st_mode & 07777) == 0640);
  REQUIRE(files_stat(at("dangling"), &info, &err) == 0 && !info.exists && info.is_symlink);
  REQUIRE(files_stat(at("missing"), &info, &err) == 0 && !info.exists && !info.is_symlink);
  REQUIRE(files_stat(at("f/below"), &info, &err) == 0 && !info.exists);
  REQUIRE(files_stat(scratch, &info, &err) == 0 && info.exists && S_ISDIR(info.st.st_mode));
  ck_assert_str_eq(info.mime, "inode/directory");
  REQUIRE(files_stat("/dev/null", &info, &err) == 0 && info.exists);
  ck_assert_str_eq(info.mime, "inode/chardevice");
  REQUIRE(mkfifo(at("fifo"), 0644) == 0 && files_stat(at("fifo"), &info, &err) == 0);
  ck_assert_str_eq(info.mime, "inode/fifo");
  REQUIRE(symlink("loop", at("loop")) == 0);
  require_kind(files_stat(at("loop"), &info, &err), ERROR_IO, at("loop"));
  REQUIRE(mkdir(at("closed"), 0700) == 0);
  put(at("closed/f"), "x");
  put(at("secret"), "x");
  REQUIRE(chmod(at("secret"), 0600) == 0);
  become_nobody();
  require_kind(files_stat(at("closed/f"), &info, &err), ERROR_PERMISSION, at("closed/f"));
  REQUIRE(files_stat(at("secret"), &info, &err) == 0 && info.exists && info.st.st_size == 1);
  ck_assert_str_eq(info.mime, "");
}
END_TEST

static mode_t mode_of(const char *path) {
  struct stat st;
  REQUIRE(stat(path, &st) == 0);
  return st.st_mode & 07777;
}

START_TEST(test_mkdir) {
  mode_t mode = 01770;
  REQUIRE(files_mkdir(at("a/b//c/"), NULL, &err) == 0);
  ck_assert_uint_eq(mode_of(at("a/b/c")), 0755);
  REQUIRE(files_mkdir(at("a/b/c"), &mode, &err) == 0);
  ck_assert_uint_eq(mode_of(at("a/b/c")), 0755);
  REQUIRE(files_mkdir(at("x/y"), &mode, &err) == 0);
  ck_assert_uint_eq(mode_of(at("x/y")), 01770);
  ck_assert_uint_eq(mode_of(at("x")), 0755);
  REQUIRE(files_mkdir("/", NULL, &err) == 0);
  REQUIRE(symlink("a", at("link")) == 0 && files_mkdir(at("link"), NULL, &err) == 0);
  REQUIRE(files_mkdir(at("link/new/deep"), NULL, &err) == 0);
  ck_assert_uint_eq(mode_of(at("a/new/deep")), 0755);
  put(at("f"), "x");
  require_kind(files_mkdir(at("f"), NULL, &err), ERROR_EXISTS, at("f"));
  require_kind(files_mkdir(at("f/g/h"), NULL, &err), ERROR_WRONG_TYPE, at("f/g/h"));
  REQUIRE(symlink("nowhere", at("dangling")) == 0);
  require_kind(files_mkdir(at("dangling"), NULL, &err), ERROR_EXISTS, at("dangling"));
  require_kind(files_mkdir(at("dangling/below"), NULL, &err), ERROR_NOT_FOUND, at("dangling/below"));
  require_kind(files_mkdir("/proc/new/dir", NULL, &err), ERROR_NOT_FOUND, "/proc/new/dir");
  char deep[PATH_MAX / 2];
  size_t len = 0;
  for (int i = 0; i < 500; i++)
    len += (size_t)sprintf(deep + len, "d/");
  REQUIRE(files_mkdir(at("%s", deep), NULL, &err) == 0);
}
END_TEST

START_TEST(test_remove) {
  put(at("f"), "x");
  REQUIRE(mkdir(at("d"), 0755) == 0 && symlink("d", at("link")) == 0 && symlink("no", at("dangling")) == 0);
  put(at("d/inside"), "x");
  REQUIRE(files_remove(at("f"), false, &err) == 0);
  REQUIRE(files_remove(at("dangling"), false, &err) == 0);
  REQUIRE(files_remove(at("link"), true, &err) == 0);
  ck_assert_int_eq(count_entries(scratch), 2);
  require_kind(files_remove(at("f"), false, &err), ERROR_NOT_FOUND, at("f"));
  require_kind(files_remove(at("d/inside/x"), true, &err), ERROR_WRONG_TYPE, at("d/inside/x"));
  require_kind(files_remove(at("d"), false, &err), ERROR_WRONG_TYPE, at("d"));
  REQUIRE(strstr(err.message, "recursive"));
  require_kind(files_remove(at("d/."), true, &err), ERROR_INVALID, at("d/."));
  require_kind(files_remove(at("d/.."), true, &err), ERROR_INVALID, at("d/.."));
  require_kind(files_remove("/", true, &err), ERROR_INVALID, "root");
  require_kind(files_remove("///", true, &err), ERROR_INVALID, "root");
  require_content(at("d/inside"), "x");
  REQUIRE(files_remove(at("d/"), true, &err) == 0);
  REQUIRE(mkdir(at("d"), 0755) == 0 && files_remove(at("d"), false, &err) == 0);
  ck_assert_int_eq(count_entries(scratch), 0);
}
END_TEST

/* Links in a tree are removed and not followed; any depth; many entries. */
START_TEST(test_remove_tree) {
  REQUIRE(mkdir(at("keep"), 0755) == 0 && mkdir(at("t"), 0755) == 0);
  put(at("keep/me"), "x");
  REQUIRE(symlink(at("keep"), at("t/link")) == 0 && symlink("../keep/me", at("t/file")) == 0);
  for (int i = 0; i < 1000; i++)
    put(at("t/%d", i), "");
  int dir = open(at("t"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  for (int i = 0; i < 300; i++) {
    REQUIRE(mkdirat(dir, "deep", 0755) == 0);
    int next = openat(dir, "deep", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    REQUIRE(next >= 0);
    close(openat(dir, "file beside", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
    close(dir);
    dir = next;
  }
  close(dir);
  ck_assert_msg(files_remove(at("t"), true, &err) == 0, "%s", err.message);
  require_content(at("keep/me"), "x");
  ck_assert_int_eq(count_entries(scratch), 2);
}
END_TEST

/* A directory of an image's layer cannot be moved to the top. */
START_TEST(test_remove_deep_tree_of_a_lower_layer) {
  isolate();
  mount_tmpfs(at("o"), "size=8m");
  for (const char *const *name = (const char *const[]){"lower", "upper", "work", "merged", NULL}; *name; name++)
    REQUIRE(mkdir(at("o/%s", *name), 0755) == 0);
  char options[PATH_MAX], deep[1024] = "lower/t";
  for (int i = 0; i < 100; i++)
    strcat(deep, "/deep");
  REQUIRE(files_mkdir(at("o/%s", deep), NULL, &err) == 0);
  put(at("o/%s/file", deep), "x");
  snprintf(options, sizeof options, "lowerdir=%s/o/lower,upperdir=%s/o/upper,workdir=%s/o/work", scratch, scratch,
           scratch);
  if (mount("overlay", at("o/merged"), "overlay", 0, options) < 0)
    return; /* not by everybody, and not on every kernel */
  ck_assert_msg(files_remove(at("o/merged/t"), true, &err) == 0, "%s", err.message);
  ck_assert_int_eq(count_entries(at("o/merged")), 0);
}
END_TEST

START_TEST(test_remove_refused) {
  REQUIRE(mkdir(at("t"), 0755) == 0 && mkdir(at("t/closed"), 0755) == 0);
  put(at("t/closed/f"), "x");
  become_nobody();
  require_kind(files_remove(at("t"), true, &err), ERROR_PERMISSION, at("t"));
  require_kind(files_remove(at("t/closed/f"), true, &err), ERROR_PERMISSION, at("t/closed/f"));
  require_content(at("t/closed/f"), "x");
}
END_TEST

START_TEST(test_move) {
  put(at("a"), "a");
  put(at("b"), "b");
  REQUIRE(files_move(at("a"), at("c"), false, &err) == 0);
  require_content(at("c"), "a");
  require_kind(files_move(at("c"), at("b"), false, &err), ERROR_EXISTS, at("b"));
  require_content(at("b"), "b");
  REQUIRE(files_move(at("c"), at("b"), true, &err) == 0);
  require_content(at("b"), "a");
  require_kind(files_move(at("c"), at("x"), false, &err), ERROR_NOT_FOUND, at("c"));
  require_kind(files_move(at("b"), at("no/x"), false, &err), ERROR_NOT_FOUND, at("b"));
  REQUIRE(mkdir(at("d"), 0755) == 0 && mkdir(at("e"), 0755) == 0);
  put(at("e/f"), "x");
  require_kind(files_move(at("b"), at("d"), false, &err), ERROR_EXISTS, at("d"));
  require_kind(files_move(at("b"), at("d"), true, &err), ERROR_WRONG_TYPE, at("d"));
  require_kind(files_move(at("d"), at("e"), true, &err), ERROR_EXISTS, at("e"));
  require_kind(files_move(at("d"), at("d/below"), false, &err), ERROR_IO, at("d"));
  REQUIRE(files_move(at("e"), at("d/e"), false, &err) == 0);
  require_content(at("d/e/f"), "x");
}
END_TEST

START_TEST(test_move_across) {
  isolate();
  mount_tmpfs(at("m"), "size=1m");
  put(at("f"), "content");
  REQUIRE(chmod(at("f"), 0751) == 0 && chown(at("f"), 12, 34) == 0);
  struct timespec times[2] = {{.tv_sec = 5, .tv_nsec = 0}, {.tv_sec = 7, .tv_nsec = 0}};
  REQUIRE(utimensat(AT_FDCWD, at("f"), times, 0) == 0);
  put(at("m/there"), "there");
  require_kind(files_move(at("f"), at("m/there"), false, &err), ERROR_EXISTS, at("m/there"));
  REQUIRE(files_move(at("f"), at("m/there"), true, &err) == 0);
  require_content(at("m/there"), "content");
  struct stat st;
  REQUIRE(stat(at("m/there"), &st) == 0 && (st.st_mode & 07777) == 0751 && st.st_uid == 12 && st.st_gid == 34);
  ck_assert_int_eq(st.st_mtim.tv_sec, 7);
  REQUIRE(access(at("f"), F_OK) == -1);

  REQUIRE(symlink("any/text", at("link")) == 0 && files_move(at("link"), at("m/link"), false, &err) == 0);
  char text[32];
  ck_assert_int_eq(readlink(at("m/link"), text, sizeof text), 8);
  /* Over a link: the link is replaced, not followed. */
  put(at("g"), "g");
  REQUIRE(files_move(at("g"), at("m/link"), true, &err) == 0);
  require_content(at("m/link"), "g");
  REQUIRE(mkdir(at("d"), 0755) == 0);
  require_kind(files_move(at("d"), at("m/d"), false, &err), ERROR_WRONG_TYPE, at("d"));
  /* A full disk: the source stays. */
  put(at("big"), "");
  REQUIRE(truncate(at("big"), 3 << 20) == 0);
  require_kind(files_move(at("big"), at("m/big"), false, &err), ERROR_NO_SPACE, at("m/big"));
  REQUIRE(access(at("big"), F_OK) == 0 && access(at("m/big"), F_OK) == -1);
}
END_TEST

/* What a rename does within a file system: the name gets another file. Nothing of the old one is kept or written. */
START_TEST(test_move_across_replaces) {
  isolate();
  mount_tmpfs(at("m"), "size=1m");
  put(at("f"), "new");
  put(at("m/f"), "old");
  REQUIRE(link(at("m/f"), at("m/twin")) == 0);
  REQUIRE(files_move(at("f"), at("m/f"), true, &err) == 0);
  require_content(at("m/f"), "new");
  require_content(at("m/twin"), "old");

  /* What cannot be moved leaves the old one. */
  REQUIRE(symlink("twin", at("m/link")) == 0 && mkfifo(at("fifo"), 0600) == 0);
  put(at("big"), "");
  REQUIRE(truncate(at("big"), 3 << 20) == 0);
  require_kind(files_move(at("big"), at("m/link"), true, &err), ERROR_NO_SPACE, at("m/link"));
  require_kind(files_move(at("fifo"), at("m/link"), true, &err), ERROR_WRONG_TYPE, at("fifo"));
  require_content(at("m/link"), "old");

  REQUIRE(symlink("f", at("link")) == 0 && lchown(at("link"), 12, 34) == 0);
  REQUIRE(files_move(at("link"), at("m/link"), true, &err) == 0);
  struct stat st;
  REQUIRE(lstat(at("m/link"), &st) == 0 && S_ISLNK(st.st_mode) && st.st_uid == 12 && st.st_gid == 34);
  require_content(at("m/link"), "new");
  REQUIRE(mkdir(at("m/d"), 0755) == 0);
  require_kind(files_move(at("big"), at("m/d"), true, &err), ERROR_NO_SPACE, at("m/d"));
  put(at("g"), "g");
  require_kind(files_move(at("g"), at("m/d"), true, &err), ERROR_WRONG_TYPE, at("m/d"));
  require_kind(files_move(at("g"), at("m/new/"), true, &err), ERROR_WRONG_TYPE, at("m/new/"));
  require_content(at("g"), "g");
  ck_assert_int_eq(count_entries(at("m")), 4);
}
END_TEST

/* One file under both names: the source goes, and never the last one. */
START_TEST(test_move_to_itself) {
  isolate();
  put(at("f"), "f");
  REQUIRE(link(at("f"), at("twin")) == 0);
  require_kind(files_move(at("f"), at("twin"), false, &err), ERROR_EXISTS, at("twin"));
  REQUIRE(files_move(at("f"), at("twin"), true, &err) == 0);
  REQUIRE(access(at("f"), F_OK) == -1);
  require_content(at("twin"), "f");
  REQUIRE(files_move(at("twin"), at("twin"), true, &err) == 0);
  require_content(at("twin"), "f");

  REQUIRE(mkdir(at("d"), 0755) == 0 && mkdir(at("again"), 0755) == 0);
  put(at("d/f"), "x");
  REQUIRE(files_move(at("d/f"), at("d/../d/f"), true, &err) == 0);
  REQUIRE(mount(at("d"), at("again"), NULL, MS_BIND, NULL) == 0);
  REQUIRE(files_move(at("d/f"), at("again/f"), true, &err) == 0);
  require_content(at("d/f"), "x");
  REQUIRE(link(at("d/f"), at("d/g")) == 0);
  REQUIRE(files_move(at("d/f"), at("again/g"), true, &err) == 0);
  REQUIRE(access(at("d/f"), F_OK) == -1);
  require_content(at("d/g"), "x");
  put(at("over"), "over");
  REQUIRE(mount(at("d/g"), at("over"), NULL, MS_BIND, NULL) == 0);
  require_kind(files_move(at("d/g"), at("over"), true, &err), ERROR_IO, at("over"));
  require_content(at("d/g"), "x");
}
END_TEST

/* The record of this process, in /var/tmp. */
static void end(void) {
  files_leftovers_end();
  scratch_end();
}

int main(void) {
  Suite *suite = suite_create("files_tree");
  TCase *tests = tcase_create("all");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, scratch_begin, end);
  tcase_add_test(tests, test_case_26);
  tcase_add_test(tests, test_list);
  tcase_add_test(tests, test_pages);
  tcase_add_test(tests, test_stat);
  tcase_add_test(tests, test_mkdir);
  tcase_add_test(tests, test_remove);
  tcase_add_test(tests, test_remove_tree);
  tcase_add_test(tests, test_remove_deep_tree_of_a_lower_layer);
  tcase_add_test(tests, test_remove_refused);
  tcase_add_test(tests, test_move);
  tcase_add_test(tests, test_move_across);
  tcase_add_test(tests, test_move_across_replaces);
  tcase_add_test(tests, test_move_to_itself);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
