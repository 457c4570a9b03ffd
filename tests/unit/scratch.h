/* scratch.h - what the tests of files share: a directory of their own, and small file systems that vanish with the
 * test. check runs every test in a process of its own, so a mount namespace made there ends with it. */
#ifndef TESTS_UNIT_SCRATCH_H
#define TESTS_UNIT_SCRATCH_H

#include "run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

static char scratch[PATH_MAX / 4];

__attribute__((unused)) static void scratch_begin(void) {
  const char *base = getenv("TMPDIR");
  snprintf(scratch, sizeof scratch, "%s/sandkeeper-test-XXXXXX", base ? base : "/tmp");
  REQUIRE(mkdtemp(scratch));
  signal(SIGPIPE, SIG_IGN);
  umask(022);
}

static int scratch_remove(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)st, (void)type, (void)ftw;
  return remove(path);
}

__attribute__((unused)) static void scratch_end(void) {
  nftw(scratch, scratch_remove, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* A path below the directory, in one of a few buffers of this thread's that are used in turn. */
__attribute__((unused, format(printf, 1, 2))) static const char *at(const char *format, ...) {
  static _Thread_local char paths[16][PATH_MAX];
  static _Thread_local unsigned turn;
  char *path = paths[turn++ % 16];
  int len = snprintf(path, PATH_MAX, "%s/", scratch);
  va_list args;
  va_start(args, format);
  vsnprintf(path + len, (size_t)(PATH_MAX - len), format, args);
  va_end(args);
  return path;
}

__attribute__((unused)) static void put_bytes(const char *path, const void *bytes, size_t len) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  REQUIRE(fd >= 0);
  REQUIRE(write(fd, bytes, len) == (ssize_t)len);
  close(fd);
}

__attribute__((unused)) static void put(const char *path, const char *text) {
  put_bytes(path, text, strlen(text));
}

/* The content of a file, ended by NUL; *len may be NULL. */
__attribute__((unused)) static char *get(const char *path, size_t *len) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    ck_abort_msg("%s: %s", path, strerror(errno));
  struct stat st;
  REQUIRE(fstat(fd, &st) == 0);
  char *bytes = malloc((size_t)st.st_size + 1);
  REQUIRE(bytes);
  REQUIRE(read(fd, bytes, (size_t)st.st_size) == st.st_size);
  bytes[st.st_size] = '\0';
  if (len)
    *len = (size_t)st.st_size;
  close(fd);
  return bytes;
}

__attribute__((unused)) static void require_content(const char *path, const char *text) {
  char *bytes = get(path, NULL);
  ck_assert_str_eq(bytes, text);
  free(bytes);
}

static int scratch_entries;
static int scratch_count(const char *path, const struct stat *st, int type, struct FTW *ftw) {
  (void)path, (void)st, (void)type;
  if (ftw->level > 0)
    scratch_entries++;
  return 0;
}

/* How many names there are in a directory and below. */
__attribute__((unused)) static int count_entries(const char *path) {
  scratch_entries = 0;
  REQUIRE(nftw(path, scratch_count, 16, FTW_PHYS) == 0);
  return scratch_entries;
}

/* A mount namespace of this test's own; an ordinary user gets one together with a user namespace. */
__attribute__((unused)) static void isolate(void) {
  if (geteuid() != 0)
    REQUIRE(unshare(CLONE_NEWUSER) == 0);
  REQUIRE(unshare(CLONE_NEWNS) == 0);
  REQUIRE(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
}

__attribute__((unused)) static void mount_tmpfs(const char *path, const char *options) {
  REQUIRE(mkdir(path, 0755) == 0 || errno == EEXIST);
  REQUIRE(mount("tmpfs", path, "tmpfs", 0, options) == 0);
}

/* A container without /proc: then a file without a name cannot be given one. */
__attribute__((unused)) static void hide_proc(void) {
  REQUIRE(mount("tmpfs", "/proc", "tmpfs", MS_RDONLY, NULL) == 0);
}

/* Before the test ends: the leak check reads /proc. */
__attribute__((unused)) static void show_proc(void) {
  REQUIRE(umount2("/proc", MNT_DETACH) == 0);
}

/* Runs the rest of the test as a user who may nothing. Needs root. */
__attribute__((unused)) static void become_nobody(void) {
  ck_assert_msg(geteuid() == 0, "this test needs root");
  REQUIRE(chown(scratch, 65534, 65534) == 0);
  REQUIRE(setresgid(65534, 65534, 65534) == 0);
  REQUIRE(setresuid(65534, 65534, 65534) == 0);
}

#endif
