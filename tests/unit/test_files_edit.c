/* files_edit: one place, every other byte as it was (case 23). */
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_leftovers.h"

#include "scratch.h"

#include <pthread.h>

static struct files_edited edited;
static struct error err;

static int edit(const char *path, const char *old_text, const char *new_text, bool all) {
  err = (struct error)ERROR_INIT;
  return files_edit(path, old_text, strlen(old_text), new_text, strlen(new_text), all, &edited, &err);
}

static const struct {
  const char *before, *old_text, *new_text, *after;
  uint64_t line;
} rows[] = {
    {"a\r\nb\nc\r\n", "b", "B", "a\r\nB\nc\r\n", 2},
    {"\xef\xbb\xbfone\ntwo", "two", "2", "\xef\xbb\xbfone\n2", 2},
    {"no newline", "newline", "end", "no end", 1},
    {"x\n\n\ny\n", "y", "", "x\n\n\n\n", 4},
    {"a\rb\rc", "b", "B", "a\rB\rc", 1},
    {"whole", "whole", "", "", 1},
    {"a\nb\nc\n", "b\nc", "b\nbb\nc", "a\nb\nbb\nc\n", 2},
    {"tail\xff\xfe", "\xff", "y", "taily\xfe", 1},
    {"same", "same", "same", "same", 1},
    {"\xe2\x98\x95 coffee", "\xe2\x98\x95", "tea", "tea coffee", 1},
};

START_TEST(test_case_23) {
  put(at("f"), rows[_i].before);
  REQUIRE(chmod(at("f"), 0751) == 0);
  ck_assert_msg(edit(at("f"), rows[_i].old_text, rows[_i].new_text, false) == 0, "%s", err.message);
  require_content(at("f"), rows[_i].after);
  REQUIRE(edited.count == 1 && edited.line == rows[_i].line && edited.atomic);
  struct stat st;
  REQUIRE(stat(at("f"), &st) == 0 && (st.st_mode & 07777) == 0751);
  ck_assert_int_eq(count_entries(scratch), 1);
}
END_TEST

START_TEST(test_case_23_conflicts) {
  put(at("f"), "one\ntwo\none\n\none one\n");
  ck_assert_int_eq(edit(at("f"), "one", "1", false), -1);
  ck_assert_int_eq(err.kind, ERROR_EDIT_CONFLICT);
  REQUIRE(err.count == 4 && err.n_lines == 4);
  REQUIRE(err.lines[0] == 1 && err.lines[1] == 3 && err.lines[2] == 5 && err.lines[3] == 5);
  REQUIRE(strstr(err.message, at("f")));
  ck_assert_int_eq(edit(at("f"), "three", "3", false), -1);
  REQUIRE(err.kind == ERROR_EDIT_CONFLICT && err.count == 0 && err.n_lines == 0);
  ck_assert_int_eq(edit(at("f"), "", "3", false), -1);
  ck_assert_int_eq(err.kind, ERROR_INVALID);
  require_content(at("f"), "one\ntwo\none\n\none one\n");

  ck_assert_int_eq(edit(at("f"), "one", "1", true), 0);
  REQUIRE(edited.count == 4 && edited.line == 1);
  require_content(at("f"), "1\ntwo\n1\n\n1 1\n");

  char many[2 * 50 + 1];
  for (int i = 0; i < 50; i++)
    memcpy(many + 2 * i, "m\n", 3);
  put(at("f"), many);
  ck_assert_int_eq(edit(at("f"), "m", "n", false), -1);
  REQUIRE(err.count == 50 && err.n_lines == ERROR_LINES_MAX && err.lines[19] == 20);
}
END_TEST

/* Which of two places that overlap is meant? */
START_TEST(test_overlap) {
  put(at("f"), "\naaa");
  ck_assert_int_eq(edit(at("f"), "aa", "b", false), -1);
  REQUIRE(err.kind == ERROR_EDIT_CONFLICT && err.count == 2 && err.lines[0] == 2 && err.lines[1] == 2);
  ck_assert_int_eq(edit(at("f"), "aa", "b", true), 0);
  require_content(at("f"), "\nba");
  put(at("f"), "a\na\na");
  ck_assert_int_eq(edit(at("f"), "a\na", "b", false), -1);
  REQUIRE(err.count == 2 && err.lines[0] == 1 && err.lines[1] == 2);
  put(at("f"), "aa");
  ck_assert_int_eq(edit(at("f"), "aa", "b", false), 0);
}
END_TEST

START_TEST(test_errors) {
  ck_assert_int_eq(edit(at("missing"), "a", "b", false), -1);
  ck_assert_int_eq(err.kind, ERROR_NOT_FOUND);
  REQUIRE(strstr(err.message, at("missing")));
  ck_assert_int_eq(edit(scratch, "a", "b", false), -1);
  ck_assert_int_eq(err.kind, ERROR_WRONG_TYPE);
  REQUIRE(mkfifo(at("fifo"), 0644) == 0);
  ck_assert_int_eq(edit(at("fifo"), "a", "b", false), -1);
  ck_assert_int_eq(err.kind, ERROR_WRONG_TYPE);
  put(at("large"), "a");
  REQUIRE(truncate(at("large"), (off_t)FILES_EDIT_MAX + 1) == 0);
  ck_assert_int_eq(edit(at("large"), "a", "b", false), -1);
  REQUIRE(err.kind == ERROR_TOO_LARGE && err.limit == FILES_EDIT_MAX);
  /* Small before, too large behind: a million places and a hundred bytes for each. */
  char *bytes = malloc(1000001);
  REQUIRE(bytes);
  memset(bytes, 'a', 1000000);
  bytes[1000000] = '\0';
  put(at("f"), bytes);
  char hundred[101];
  memset(hundred, 'b', 100);
  hundred[100] = '\0';
  ck_assert_int_eq(edit(at("f"), "a", hundred, true), -1);
  ck_assert_int_eq(err.kind, ERROR_TOO_LARGE);
  require_content(at("f"), bytes);
  free(bytes);
}
END_TEST

START_TEST(test_links) {
  put(at("f"), "old");
  REQUIRE(link(at("f"), at("twin")) == 0 && symlink("f", at("link")) == 0);
  ck_assert_int_eq(edit(at("link"), "old", "new", false), 0);
  REQUIRE(!edited.atomic);
  require_content(at("twin"), "new");
}
END_TEST

#define EDITORS 4
#define EDITS 50

static void *edit_many(void *letter) {
  bool fine = true;
  for (int i = 0; i < EDITS && fine; i++) {
    char old_text[16], new_text[16];
    snprintf(old_text, sizeof old_text, "%c%d\n", *(char *)letter, i);
    snprintf(new_text, sizeof new_text, "%c%d\n", *(char *)letter, i + 1);
    struct files_edited result;
    fine = files_edit(at("f"), old_text, strlen(old_text), new_text, strlen(new_text), false, &result, NULL) == 0;
  }
  return (void *)(intptr_t)fine;
}

/* Edits at once lose none; by rename, and in place. */
START_TEST(test_editors) {
  put(at("f"), "A0\nB0\nC0\nD0\n");
  if (_i == 1)
    REQUIRE(link(at("f"), at("twin")) == 0);
  pthread_t threads[EDITORS];
  static char letters[] = "ABCD";
  for (int i = 0; i < EDITORS; i++)
    REQUIRE(pthread_create(&threads[i], NULL, edit_many, &letters[i]) == 0);
  for (int i = 0; i < EDITORS; i++) {
    void *fine;
    REQUIRE(pthread_join(threads[i], &fine) == 0 && fine);
  }
  require_content(at("f"), "A50\nB50\nC50\nD50\n");
}
END_TEST

/* The record of this process, in /var/tmp. */
static void end(void) {
  files_leftovers_end();
  scratch_end();
}

int main(void) {
  Suite *suite = suite_create("files_edit");
  TCase *tests = tcase_create("all");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, scratch_begin, end);
  tcase_add_loop_test(tests, test_case_23, 0, (int)(sizeof rows / sizeof *rows));
  tcase_add_test(tests, test_case_23_conflicts);
  tcase_add_test(tests, test_overlap);
  tcase_add_test(tests, test_errors);
  tcase_add_test(tests, test_links);
  tcase_add_loop_test(tests, test_editors, 0, 2);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
