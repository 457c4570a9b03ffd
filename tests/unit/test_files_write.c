/* files_write and files_upload: a write loses nothing, and keeps what the old file had. */
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/files_cancel.h"
#include "sandkeeper/core/files_leftovers.h"

#include "scratch.h"

#include <linux/capability.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#define NOSYMFOLLOW 256 /* MS_NOSYMFOLLOW, linux/mount.h; musl does not have it */

static void drop_capability(unsigned number) {
  struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
  struct __user_cap_data_struct data[2];
  REQUIRE(syscall(SYS_capget, &head, data) == 0);
  data[number / 32].effective &= ~(UINT32_C(1) << number % 32);
  data[number / 32].permitted &= ~(UINT32_C(1) << number % 32);
  REQUIRE(syscall(SYS_capset, &head, data) == 0);
}

static struct files_written written;
static struct error err;
static const struct files_write_how plain;

static int try_write(const char *path, const char *text, const struct files_write_how *how) {
  err = (struct error)ERROR_INIT;
  return files_write(path, text, strlen(text), how, &written, &err);
}

static void write_it(const char *path, const char *text, const struct files_write_how *how) {
  if (try_write(path, text, how) < 0)
    ck_abort_msg("%s", err.message);
  ck_assert_uint_eq(written.bytes, strlen(text));
}

static void require_error(const char *path, enum error_kind kind) {
  ck_assert_int_eq(try_write(path, "new", &plain), -1);
  ck_assert_msg(err.kind == kind, "%s: %s", error_kind_name(err.kind), err.message);
  ck_assert_msg(strstr(err.message, path) != NULL, "no path in: %s", err.message);
}

static struct stat stat_of(const char *path) {
  struct stat st;
  if (lstat(path, &st) < 0)
    ck_abort_msg("%s: %s", path, strerror(errno));
  return st;
}

static mode_t mode_of(const char *path) {
  return stat_of(path).st_mode & 07777;
}

START_TEST(test_new_file) {
  write_it(at("a/b/c"), "text", &plain);
  REQUIRE(written.atomic && written.created);
  require_content(at("a/b/c"), "text");
  ck_assert_uint_eq(mode_of(at("a/b/c")), 0644);
  ck_assert_uint_eq(mode_of(at("a/b")), 0755);
  umask(077);
  write_it(at("p/f"), "text", &plain);
  ck_assert_uint_eq(mode_of(at("p/f")), 0600);
  ck_assert_uint_eq(mode_of(at("p")), 0700);
  struct files_write_how how = {.has_mode = true, .mode = 06755, .sync = true};
  write_it(at("x"), "", &how);
  ck_assert_uint_eq(mode_of(at("x")), 06755);
  ck_assert_int_eq(count_entries(scratch), 6);
}
END_TEST

/* Case 28: no old tail; mode and owner stay; the link stays and its target is written. */
START_TEST(test_case_28) {
  char old[100];
  memset(old, 'o', sizeof old);
  put_bytes(at("f"), old, sizeof old);
  REQUIRE(chown(at("f"), 12, 34) == 0 && chmod(at("f"), 02751) == 0);
  ino_t inode = stat_of(at("f")).st_ino;
  write_it(at("f"), "0123456789", &plain);
  REQUIRE(written.atomic && !written.created);
  require_content(at("f"), "0123456789");
  struct stat st = stat_of(at("f"));
  REQUIRE(st.st_uid == 12 && st.st_gid == 34 && (st.st_mode & 07777) == 02751 && st.st_ino != inode);

  REQUIRE(mkdir(at("d"), 0755) == 0 && symlink("../f", at("d/link")) == 0 && symlink("d/link", at("link")) == 0);
  write_it(at("link"), "by a link", &plain);
  REQUIRE(written.atomic && S_ISLNK(stat_of(at("link")).st_mode) && S_ISLNK(stat_of(at("d/link")).st_mode));
  require_content(at("f"), "by a link");
  ck_assert_uint_eq(mode_of(at("f")), 02751);
  ck_assert_int_eq(count_entries(scratch), 4);

  struct files_write_how how = {.has_mode = true, .mode = 0600};
  write_it(at("f"), "x", &how);
  ck_assert_uint_eq(mode_of(at("f")), 0600);
}
END_TEST

START_TEST(test_links) {
  /* One that dangles: its target is made, parents too. */
  REQUIRE(symlink("far/away/target", at("dangling")) == 0);
  write_it(at("dangling"), "here", &plain);
  require_content(at("far/away/target"), "here");
  REQUIRE(S_ISLNK(stat_of(at("dangling")).st_mode));
  /* An absolute one, and one in a directory that is a link itself. */
  REQUIRE(mkdir(at("real"), 0755) == 0 && symlink(at("real"), at("alias")) == 0);
  REQUIRE(symlink("beside", at("real/link")) == 0);
  write_it(at("alias/link"), "there", &plain);
  require_content(at("real/beside"), "there");
  REQUIRE(symlink("loop", at("loop")) == 0);
  require_error(at("loop"), ERROR_IO);
  ck_assert_int_eq(err.number, ELOOP);
}
END_TEST

/* What the kernel refuses to follow is not followed by hand: else root would write where another user's link leads. */
START_TEST(test_refused_link) {
  isolate();
  REQUIRE(mkdir(at("m"), 0755) == 0 && mount("tmpfs", at("m"), "tmpfs", NOSYMFOLLOW, NULL) == 0);
  put(at("f"), "old");
  REQUIRE(symlink("../f", at("m/link")) == 0 && symlink("../none", at("m/dangling")) == 0);
  if (open(at("m/link"), O_PATH | O_CLOEXEC) >= 0)
    return; /* before Linux 5.10 */
  require_error(at("m/link"), ERROR_IO);
  require_error(at("m/dangling"), ERROR_IO);
  require_content(at("f"), "old");
  REQUIRE(access(at("none"), F_OK) == -1);
}
END_TEST

/* A rename would cut the other name off. */
START_TEST(test_hard_link) {
  put(at("f"), "old and long");
  REQUIRE(link(at("f"), at("twin")) == 0);
  write_it(at("f"), "new", &plain);
  REQUIRE(!written.atomic);
  require_content(at("twin"), "new");
  ck_assert_uint_eq(stat_of(at("f")).st_ino, stat_of(at("twin")).st_ino);
  struct files_write_how how = {.has_mode = true, .mode = 0640};
  write_it(at("f"), "newer and longer", &how);
  require_content(at("twin"), "newer and longer");
  ck_assert_uint_eq(mode_of(at("f")), 0640);
}
END_TEST

START_TEST(test_attributes) {
  isolate();
  mount_tmpfs(at("m"), "size=4m");
  put(at("m/f"), "old");
  if (setxattr(at("m/f"), "user.colour", "red", 3, 0) < 0)
    REQUIRE(errno == ENOTSUP); /* tmpfs has user attributes since Linux 6.6 */
  if (geteuid() == 0) {
    REQUIRE(setxattr(at("m/f"), "trusted.shape", "round", 5, 0) == 0);
    /* No privileges for a new content. */
    static const unsigned char capability[] = {1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    REQUIRE(setxattr(at("m/f"), "security.capability", capability, sizeof capability, 0) == 0);
  }
  write_it(at("m/f"), "new", &plain);
  REQUIRE(written.atomic);
  char value[16];
  if (geteuid() == 0) {
    ck_assert_int_eq(getxattr(at("m/f"), "trusted.shape", value, sizeof value), 5);
    REQUIRE(getxattr(at("m/f"), "security.capability", value, sizeof value) == -1 && errno == ENODATA);
  }
}
END_TEST

/* user::rw-, user:7:rwx, group::r--, mask::rwx, other::--- as the kernel stores it, acl(5). */
static const unsigned char acl[] = {2,    0, 0, 0,                          /* version */
                                    1,    0, 6, 0, 0xff, 0xff, 0xff, 0xff,  /* the owner */
                                    2,    0, 7, 0, 7,    0,    0,    0,     /* user 7 */
                                    4,    0, 4, 0, 0xff, 0xff, 0xff, 0xff,  /* the group */
                                    0x10, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,  /* the mask */
                                    0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}; /* others */

START_TEST(test_acl) {
  isolate();
  mount_tmpfs(at("m"), "size=4m");
  put(at("m/f"), "old");
  REQUIRE(setxattr(at("m/f"), "system.posix_acl_access", acl, sizeof acl, 0) == 0);
  mode_t mode = mode_of(at("m/f"));
  write_it(at("m/f"), "new", &plain);
  REQUIRE(written.atomic);
  unsigned char now[64];
  ck_assert_int_eq(getxattr(at("m/f"), "system.posix_acl_access", now, sizeof now), sizeof acl);
  ck_assert_mem_eq(now, acl, sizeof acl);
  ck_assert_uint_eq(mode_of(at("m/f")), mode);

  /* A directory's default gives new files one, but not a file that had none. */
  put(at("m/plain"), "old");
  REQUIRE(chmod(at("m/plain"), 0640) == 0);
  REQUIRE(setxattr(at("m"), "system.posix_acl_default", acl, sizeof acl, 0) == 0);
  write_it(at("m/plain"), "new", &plain);
  REQUIRE(written.atomic);
  REQUIRE(getxattr(at("m/plain"), "system.posix_acl_access", now, sizeof now) == -1 && errno == ENODATA);
  ck_assert_uint_eq(mode_of(at("m/plain")), 0640);
  write_it(at("m/fresh"), "new", &plain);
  REQUIRE(getxattr(at("m/fresh"), "system.posix_acl_access", now, sizeof now) > 0);
}
END_TEST

START_TEST(test_append_and_offset) {
  struct files_write_how append = {.append = true};
  write_it(at("f"), "one", &append);
  REQUIRE(written.created && written.atomic);
  write_it(at("f"), "two", &append);
  REQUIRE(!written.created && !written.atomic);
  require_content(at("f"), "onetwo");

  struct files_write_how over = {.at_offset = true, .offset = 2};
  write_it(at("f"), "XY", &over);
  require_content(at("f"), "onXYwo");
  over.offset = 5;
  write_it(at("f"), "long", &over);
  require_content(at("f"), "onXYwlong");
  over.offset = 12;
  write_it(at("f"), "!", &over);
  char *bytes = get(at("f"), NULL);
  ck_assert_mem_eq(bytes, "onXYwlong\0\0\0!", 13);
  free(bytes);
  over.offset = 3;
  write_it(at("new"), "tail", &over);
  REQUIRE(written.created);
  size_t len;
  bytes = get(at("new"), &len);
  REQUIRE(len == 7);
  ck_assert_mem_eq(bytes, "\0\0\0tail", 7);
  free(bytes);
  over.offset = UINT64_MAX;
  REQUIRE(try_write(at("f"), "x", &over) == -1 && err.number == EFBIG);
  over.offset = INT64_MAX;
  REQUIRE(try_write(at("f"), "x", &over) == -1 && err.number == EFBIG);
  REQUIRE(try_write(at("newer"), "x", &over) == -1 && err.number == EFBIG);
  ck_assert_int_eq(count_entries(scratch), 2);
}
END_TEST

START_TEST(test_errors) {
  put(at("file"), "x");
  require_error(scratch, ERROR_WRONG_TYPE);
  require_error(at("file/below"), ERROR_WRONG_TYPE);
  require_error(at("dir/"), ERROR_WRONG_TYPE);
  require_error(at("a/.."), ERROR_WRONG_TYPE);
  require_error("/", ERROR_WRONG_TYPE);
  char name[300];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  require_error(at("%s", name), ERROR_IO);
  ck_assert_int_eq(err.number, ENAMETOOLONG);
  isolate();
  mount_tmpfs(at("m"), "size=1m");
  put(at("m/f"), "old");
  REQUIRE(mount(NULL, at("m"), NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
  require_error(at("m/f"), ERROR_PERMISSION);
  require_error(at("m/new"), ERROR_PERMISSION);
  require_content(at("m/f"), "old");
}
END_TEST

/* A file that may not be written is not replaced, though its directory would allow it; and the other way round. */
START_TEST(test_permissions) {
  put(at("readonly"), "old");
  REQUIRE(chmod(at("readonly"), 0444) == 0);
  REQUIRE(mkdir(at("closed"), 0755) == 0);
  put(at("closed/open"), "old and long");
  REQUIRE(chmod(at("closed/open"), 0666) == 0);
  REQUIRE(mkdir(at("sticky"), 01777) == 0 && chmod(at("sticky"), 01777) == 0);
  put(at("sticky/open"), "old");
  REQUIRE(chmod(at("sticky/open"), 0666) == 0);
  put(at("foreign"), "old");
  REQUIRE(chown(at("foreign"), 12, 34) == 0 && chmod(at("foreign"), 06766) == 0);
  become_nobody();
  require_error(at("readonly"), ERROR_PERMISSION);
  require_error(at("closed/new"), ERROR_PERMISSION);
  require_error(at("closed/new/deeper"), ERROR_PERMISSION);
  write_it(at("closed/open"), "new", &plain);
  REQUIRE(!written.atomic);
  require_content(at("closed/open"), "new");
  write_it(at("sticky/open"), "new", &plain);
  REQUIRE(!written.atomic);
  require_content(at("sticky/open"), "new");
  ck_assert_int_eq(count_entries(at("sticky")), 1);
  /* Neither owner nor group can be kept: no set-ID bits for the new ones, nothing for the group that others lack. */
  write_it(at("foreign"), "new", &plain);
  REQUIRE(written.atomic);
  ck_assert_uint_eq(mode_of(at("foreign")), 0766);
}
END_TEST

/* What is written in place has the mode that was asked for, though each write takes the set-ID bits away. */
START_TEST(test_mode_in_place) {
  REQUIRE(chmod(scratch, 0777) == 0);
  become_nobody();
  struct files_write_how how = {.append = true, .has_mode = true, .mode = 06755};
  put(at("f"), "one ");
  write_it(at("f"), "two", &how);
  ck_assert_uint_eq(mode_of(at("f")), 06755);
  REQUIRE(link(at("f"), at("twin")) == 0);
  how.append = false;
  write_it(at("f"), "three", &how);
  REQUIRE(!written.atomic);
  ck_assert_uint_eq(mode_of(at("twin")), 06755);
}
END_TEST

/* In a container without CAP_FOWNER root may give a file away, and then no longer change its mode. */
START_TEST(test_kept_without_fowner) {
  put(at("f"), "old");
  REQUIRE(chown(at("f"), 12, 34) == 0 && chmod(at("f"), 0751) == 0);
  drop_capability(CAP_FOWNER);
  write_it(at("f"), "new", &plain);
  struct stat st = stat_of(at("f"));
  REQUIRE(written.atomic && st.st_uid == 12 && st.st_gid == 34 && (st.st_mode & 07777) == 0751);
}
END_TEST

/* A container runtime mounts /etc/hosts over a file. */
START_TEST(test_bind_mount) {
  put(at("host"), "old and long");
  put(at("hosts"), "");
  isolate();
  REQUIRE(mount(at("host"), at("hosts"), NULL, MS_BIND, NULL) == 0);
  write_it(at("hosts"), "new", &plain);
  REQUIRE(!written.atomic && !written.created);
  require_content(at("host"), "new");
  struct files_upload *upload = files_upload_begin(at("hosts"), &plain, &err);
  REQUIRE(upload);
  REQUIRE(files_upload_bytes(upload, "newer and longer", 16, &err) == 0);
  require_content(at("host"), "new");
  REQUIRE(files_upload_commit(upload, &written, &err) == 0 && !written.atomic);
  files_upload_free(upload);
  require_content(at("host"), "newer and longer");
  ck_assert_int_eq(count_entries(scratch), 2);
}
END_TEST

START_TEST(test_devices) {
  write_it("/dev/null", "gone", &plain);
  REQUIRE(!written.atomic && !written.created && S_ISCHR(stat_of("/dev/null").st_mode));
  require_error("/dev/full", ERROR_NO_SPACE);
  REQUIRE(mkfifo(at("fifo"), 0644) == 0);
  require_error(at("fifo"), ERROR_IO);
  ck_assert_int_eq(err.number, ENXIO);
  int reader = open(at("fifo"), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  write_it(at("fifo"), "through", &plain);
  REQUIRE(!written.atomic);
  char bytes[16];
  ck_assert_int_eq(read(reader, bytes, sizeof bytes), 7);
  close(reader);
}
END_TEST

/* /dev/stdout and the like: links whose text leads nowhere. */
START_TEST(test_magic_link) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", ends[1]);
  write_it(path, "into the pipe", &plain);
  char bytes[32];
  ck_assert_int_eq(read(ends[0], bytes, sizeof bytes), 13);
  close(ends[0]);
  close(ends[1]);
  put(at("f"), "old and long");
  int fd = open(at("f"), O_RDWR | O_CLOEXEC);
  REQUIRE(unlink(at("f")) == 0);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  write_it(path, "new", &plain);
  REQUIRE(!written.atomic);
  ck_assert_int_eq(pread(fd, bytes, sizeof bytes, 0), 3);
  close(fd);
  ck_assert_int_eq(count_entries(scratch), 0);
}
END_TEST

START_TEST(test_kernel_file) {
  char *old = NULL;
  FILE *file = fopen("/proc/self/comm", "r");
  size_t room = 0;
  REQUIRE(file && getline(&old, &room, file) > 0);
  fclose(file);
  write_it("/proc/self/comm", "sandkeeper", &plain);
  REQUIRE(!written.atomic);
  file = fopen("/proc/self/comm", "r");
  REQUIRE(file && getline(&old, &room, file) > 0);
  fclose(file);
  ck_assert_str_eq(old, "sandkeeper\n");
  free(old);
}
END_TEST

START_TEST(test_upload) {
  put(at("f"), "old");
  struct files_upload *upload = files_upload_begin(at("f"), &plain, &err);
  REQUIRE(upload);
  for (int i = 0; i < 100; i++)
    REQUIRE(files_upload_bytes(upload, "0123456789", 10, &err) == 0);
  require_content(at("f"), "old");
  ck_assert_int_eq(count_entries(scratch), 1); /* no name while it is written */
  REQUIRE(files_upload_commit(upload, &written, &err) == 0);
  files_upload_free(upload);
  REQUIRE(written.bytes == 1000 && written.atomic && !written.created);
  REQUIRE(stat_of(at("f")).st_size == 1000);

  upload = files_upload_begin(at("f"), &plain, &err);
  REQUIRE(upload && files_upload_bytes(upload, "x", 1, &err) == 0);
  files_upload_free(upload); /* cut short */
  REQUIRE(stat_of(at("f")).st_size == 1000);
  ck_assert_int_eq(count_entries(scratch), 1);

  struct files_write_how append = {.append = true};
  upload = files_upload_begin(at("f"), &append, &err);
  REQUIRE(upload && files_upload_bytes(upload, "tail", 4, &err) == 0);
  REQUIRE(stat_of(at("f")).st_size == 1000);
  REQUIRE(files_upload_commit(upload, &written, &err) == 0 && written.bytes == 4);
  files_upload_free(upload);
  REQUIRE(stat_of(at("f")).st_size == 1004);
  files_upload_free(NULL);
}
END_TEST

static struct files_upload *begin(const char *path, const struct files_write_how *how, const char *text) {
  struct files_upload *upload = files_upload_begin(path, how, &err);
  REQUIRE(upload && files_upload_bytes(upload, text, strlen(text), &err) == 0);
  return upload;
}

static void commit(struct files_upload *upload) {
  if (files_upload_commit(upload, &written, &err) < 0)
    ck_abort_msg("%s", err.message);
  files_upload_free(upload);
}

/* Two who extend a file that is not there yet: both find that it is missing, and none may lose the other's bytes. */
START_TEST(test_extended_by_two) {
  struct files_write_how append = {.append = true}, offset = {.at_offset = true, .offset = 5};
  struct files_upload *one = begin(at("f"), &append, "one "), *two = begin(at("f"), &append, "two");
  commit(one);
  REQUIRE(written.created && written.atomic);
  commit(two);
  REQUIRE(!written.created && !written.atomic);
  require_content(at("f"), "one two");

  struct files_upload *tail = begin(at("p"), &offset, "tail");
  write_it(at("p"), "head, and more", &plain);
  commit(tail);
  require_content(at("p"), "head,tail more");

  /* It is removed meanwhile, or a link has its name: that is followed, as always. */
  struct files_upload *rest = begin(at("p"), &append, "rest");
  REQUIRE(unlink(at("p")) == 0);
  commit(rest);
  REQUIRE(written.created);
  require_content(at("p"), "rest");
  rest = begin(at("p"), &append, "all");
  REQUIRE(unlink(at("p")) == 0 && symlink("f", at("p")) == 0);
  commit(rest);
  require_content(at("f"), "one twoall");
  struct files_upload *more = begin(at("l"), &append, "more");
  put(at("target"), "old ");
  REQUIRE(symlink("target", at("l")) == 0);
  commit(more);
  REQUIRE(S_ISLNK(stat_of(at("l")).st_mode));
  require_content(at("target"), "old more");
  ck_assert_int_eq(count_entries(scratch), 4);
}
END_TEST

/* The same where a temporary file has a name from the start: it goes, with its own directory and no other. */
START_TEST(test_extended_by_two_with_names) {
  struct files_write_how append = {.append = true};
  isolate();
  hide_proc();
  struct files_upload *one = begin(at("d/f"), &append, "one "), *two = begin(at("d/f"), &append, "two");
  ck_assert_int_eq(count_entries(at("d")), 2);
  commit(one);
  REQUIRE(written.created && written.atomic);
  commit(two);
  REQUIRE(!written.created && !written.atomic);
  require_content(at("d/f"), "one two");
  ck_assert_int_eq(count_entries(at("d")), 1);
  show_proc();
}
END_TEST

/* An upload may take minutes: what others do to the old file meanwhile counts. */
START_TEST(test_upload_over_a_changed_file) {
  put(at("f"), "old");
  struct files_upload *upload = begin(at("f"), &plain, "new");
  REQUIRE(chmod(at("f"), 0750) == 0);
  commit(upload);
  REQUIRE(written.atomic && mode_of(at("f")) == 0750);

  upload = begin(at("f"), &plain, "linked");
  REQUIRE(link(at("f"), at("twin")) == 0);
  commit(upload);
  REQUIRE(!written.atomic);
  require_content(at("twin"), "linked");

  upload = begin(at("new"), &plain, "new");
  put(at("new"), "old");
  REQUIRE(chmod(at("new"), 0700) == 0);
  commit(upload);
  REQUIRE(written.atomic && !written.created && mode_of(at("new")) == 0700);
  require_content(at("new"), "new");

  upload = begin(at("gone"), &plain, "back");
  commit(upload);
  upload = begin(at("gone"), &plain, "again");
  REQUIRE(chmod(at("gone"), 0604) == 0 && unlink(at("gone")) == 0);
  commit(upload);
  require_content(at("gone"), "again");
  ck_assert_uint_eq(mode_of(at("gone")), 0644);
  ck_assert_int_eq(count_entries(scratch), 4);
}
END_TEST

#define WRITERS 4
#define ROUNDS 100
#define LENGTH 50000

static void *write_many(void *letter) {
  static const struct files_write_how how;
  char *bytes = malloc(LENGTH);
  struct files_written result;
  bool fine = bytes != NULL;
  if (bytes)
    memset(bytes, *(char *)letter, LENGTH);
  for (int i = 0; i < ROUNDS && fine; i++)
    fine = files_write(at("f"), bytes, LENGTH, &how, &result, NULL) == 0;
  free(bytes);
  return (void *)(intptr_t)fine;
}

/* Several writers at once: one of the contents, never a mixture; both by rename and, with a hard link, in place. */
START_TEST(test_two_writers) {
  put(at("f"), "old");
  if (_i == 1)
    REQUIRE(link(at("f"), at("twin")) == 0);
  pthread_t threads[WRITERS];
  static char letters[] = "ABCD";
  for (int i = 0; i < WRITERS; i++)
    REQUIRE(pthread_create(&threads[i], NULL, write_many, &letters[i]) == 0);
  for (int i = 0; i < WRITERS; i++) {
    void *fine;
    REQUIRE(pthread_join(threads[i], &fine) == 0 && fine);
  }
  size_t len;
  char *bytes = get(at("f"), &len);
  ck_assert_uint_eq(len, LENGTH);
  for (size_t i = 1; i < len; i++)
    REQUIRE(bytes[i] == bytes[0]);
  free(bytes);
  ck_assert_int_eq(count_entries(scratch), _i == 1 ? 2 : 1);
}
END_TEST

/* The record of this process, in /var/tmp. */
static void end(void) {
  files_leftovers_end();
  scratch_end();
}

/* What was given up changes nothing. */
START_TEST(test_given_up) {
  atomic_bool given_up = false;
  put(at("f"), "old");
  put(at("linked"), "old");
  REQUIRE(link(at("linked"), at("twin")) == 0 && mkdir(at("d"), 0755) == 0);
  struct files_upload *upload = files_upload_begin(at("f"), &plain, &err);
  REQUIRE(upload && files_upload_bytes(upload, "new", 3, &err) == 0);
  files_cancel_watch(&given_up, NULL);
  write_it(at("f"), "newer", &plain);
  given_up = true;
  static const char *const paths[] = {"f", "linked", "new", "a/b/c"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    require_error(at("%s", paths[i]), ERROR_IO);
    ck_assert_int_eq(err.number, ECANCELED);
  }
  REQUIRE(files_upload_commit(upload, &written, &err) == -1 && err.number == ECANCELED);
  REQUIRE(files_mkdir(at("x/y"), NULL, &err) == -1 && err.number == ECANCELED);
  REQUIRE(files_remove(at("d"), true, &err) == -1 && err.number == ECANCELED);
  REQUIRE(files_move(at("f"), at("g"), true, &err) == -1 && err.number == ECANCELED);
  struct files_edited edited;
  REQUIRE(files_edit(at("f"), "newer", 5, "x", 1, false, &edited, &err) == -1 && err.number == ECANCELED);
  files_cancel_watch(NULL, NULL);
  files_upload_free(upload);
  require_content(at("f"), "newer");
  require_content(at("linked"), "old");
  ck_assert_int_eq(count_entries(scratch), 4);
  write_it(at("f"), "newest", &plain);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("files_write");
  TCase *tests = tcase_create("all");
  tcase_set_timeout(tests, 60);
  tcase_add_checked_fixture(tests, scratch_begin, end);
  tcase_add_test(tests, test_new_file);
  tcase_add_test(tests, test_case_28);
  tcase_add_test(tests, test_links);
  tcase_add_test(tests, test_refused_link);
  tcase_add_test(tests, test_hard_link);
  tcase_add_test(tests, test_attributes);
  tcase_add_test(tests, test_acl);
  tcase_add_test(tests, test_append_and_offset);
  tcase_add_test(tests, test_errors);
  tcase_add_test(tests, test_permissions);
  tcase_add_test(tests, test_mode_in_place);
  tcase_add_test(tests, test_kept_without_fowner);
  tcase_add_test(tests, test_bind_mount);
  tcase_add_test(tests, test_devices);
  tcase_add_test(tests, test_magic_link);
  tcase_add_test(tests, test_kernel_file);
  tcase_add_test(tests, test_upload);
  tcase_add_test(tests, test_extended_by_two);
  tcase_add_test(tests, test_extended_by_two_with_names);
  tcase_add_test(tests, test_upload_over_a_changed_file);
  tcase_add_loop_test(tests, test_two_writers, 0, 2);
  tcase_add_test(tests, test_given_up);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
