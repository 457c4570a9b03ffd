#include "sandkeeper/core/files_leftovers.h"

#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files_temp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A record is a row of slots: a path ended by NUL, an empty one when free. Files are sparse, so a slot costs a page. */
#define SLOT_SIZE 4608 /* PATH_MAX, a name and the slash */
#define SLOTS_MAX 1024 /* uploads at once where every temporary file has a name; more are not noted */
#define RECORD_PREFIX "run-"
#define RECORD_NAME_SIZE (sizeof RECORD_PREFIX + 32)

static const char *const usual[] = {"/var/tmp", "/tmp", "/run", "/dev/shm", "/", NULL};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Under the lock. */
static const char *const *places = usual;
static int record_fd = -1;
static char record_path[PATH_MAX];
static bool gave_up; /* no directory can be written: do not try for every file */
static uint64_t used[SLOTS_MAX / 64];

static void directory_path(char *path, size_t size, const char *place) {
  snprintf(path, size, "%s/sandkeeper-%lu", strcmp(place, "/") == 0 ? "" : place, (unsigned long)geteuid());
}

/* Opens the directory in `place`, if it is ours alone. */
static int open_directory(const char *place, bool make) {
  char path[PATH_MAX];
  directory_path(path, sizeof path, place);
  if (make && mkdir(path, 0700) < 0 && errno != EEXIST)
    return -1;
  cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat st;
  if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 077) != 0)
    return -1;
  return fd_steal(&fd);
}

/* A new record, locked. Someone who cleans may have taken it for an old one before the lock was there: then again. */
static int make_record(int dir, char name[RECORD_NAME_SIZE]) {
  for (int attempt = 0; attempt < 8; attempt++) {
    char random[FILES_TEMP_NAME_SIZE];
    if (files_temp_name(random) < 0)
      return -1;
    snprintf(name, RECORD_NAME_SIZE, RECORD_PREFIX "%s", random + sizeof FILES_TEMP_PREFIX - 1);
    cleanup_close int fd = openat(dir, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    struct stat st;
    if (fd < 0)
      return -1;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0)
      return fd_steal(&fd);
  }
  return -1;
}

static bool open_record(void) {
  if (record_fd >= 0 || gave_up)
    return record_fd >= 0;
  for (size_t i = 0; places[i] && record_fd < 0; i++) {
    cleanup_close int dir = open_directory(places[i], true);
    char name[RECORD_NAME_SIZE];
    if (dir >= 0)
      record_fd = make_record(dir, name);
    if (record_fd < 0)
      continue;
    char path[PATH_MAX - RECORD_NAME_SIZE];
    directory_path(path, sizeof path, places[i]);
    snprintf(record_path, sizeof record_path, "%s/%s", path, name);
  }
  gave_up = record_fd < 0;
  return record_fd >= 0;
}

static int free_slot(void) {
  for (int i = 0; i < SLOTS_MAX; i++)
    if (!(used[i / 64] >> (i % 64) & 1))
      return i;
  return -1;
}

int files_leftovers_note(const char *dir_path, const char *name) {
  char slot[SLOT_SIZE];
  int len = snprintf(slot, sizeof slot, "%s/%s", dir_path, name);
  if (len < 0 || (size_t)len >= sizeof slot)
    return -1;
  pthread_mutex_lock(&lock);
  int place = open_record() ? free_slot() : -1;
  if (place >= 0) {
    used[place / 64] |= UINT64_C(1) << (place % 64);
    if (pwrite(record_fd, slot, (size_t)len + 1, (off_t)place * SLOT_SIZE) != (ssize_t)len + 1) {
      used[place / 64] &= ~(UINT64_C(1) << (place % 64));
      place = -1;
    }
  }
  pthread_mutex_unlock(&lock);
  return place;
}

void files_leftovers_forget(int place) {
  if (place < 0)
    return;
  pthread_mutex_lock(&lock);
  if (record_fd >= 0)
    (void)!pwrite(record_fd, "", 1, (off_t)place * SLOT_SIZE);
  used[place / 64] &= ~(UINT64_C(1) << (place % 64));
  pthread_mutex_unlock(&lock);
}

void files_leftovers_end(void) {
  pthread_mutex_lock(&lock);
  bool empty = true;
  for (size_t i = 0; i < SLOTS_MAX / 64; i++)
    empty = empty && used[i] == 0;
  if (record_fd >= 0 && empty) {
    unlink(record_path);
    *strrchr(record_path, '/') = '\0';
    rmdir(record_path); /* other runs may have theirs there */
  }
  fd_close(&record_fd);
  memset(used, 0, sizeof used);
  gave_up = false;
  pthread_mutex_unlock(&lock);
}

void files_leftovers_use(const char *const *directories) {
  files_leftovers_end();
  pthread_mutex_lock(&lock);
  places = directories ? directories : usual;
  pthread_mutex_unlock(&lock);
}

/* ---- at the start ---- */

static bool is_ours(const char *name, const char *prefix) {
  size_t len = strlen(prefix);
  return strncmp(name, prefix, len) == 0 && strlen(name) == len + 32 && strspn(name + len, "0123456789abcdef") == 32;
}

static int remove_leftover(const char *path) {
  const char *slash = strrchr(path, '/');
  struct stat st;
  if (path[0] != '/' || !is_ours(slash + 1, FILES_TEMP_PREFIX) || lstat(path, &st) < 0 || !S_ISREG(st.st_mode))
    return 0;
  return unlink(path) == 0;
}

static int clean_record(int fd) {
  int removed = 0;
  char slot[SLOT_SIZE];
  for (int i = 0; i < SLOTS_MAX; i++) {
    ssize_t n = pread(fd, slot, sizeof slot - 1, (off_t)i * SLOT_SIZE);
    if (n <= 0)
      break;
    slot[n] = '\0';
    removed += remove_leftover(slot);
  }
  return removed;
}

static int clean_place(const char *place) {
  cleanup_close int dir = open_directory(place, false);
  if (dir < 0)
    return 0;
  int scanned = dup(dir);
  DIR *stream = scanned < 0 ? NULL : fdopendir(scanned);
  if (!stream) {
    fd_close(&scanned);
    return 0;
  }
  int removed = 0;
  struct dirent *entry;
  while ((entry = readdir(stream))) {
    if (!is_ours(entry->d_name, RECORD_PREFIX))
      continue;
    cleanup_close int fd = openat(dir, entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
      continue; /* a run that goes on */
    removed += clean_record(fd);
    unlinkat(dir, entry->d_name, 0);
  }
  closedir(stream);
  char path[PATH_MAX];
  directory_path(path, sizeof path, place);
  rmdir(path); /* stays while a run has its record there */
  return removed;
}

bool files_leftovers_exist(void) {
  for (size_t i = 0; places[i]; i++) {
    char path[PATH_MAX];
    struct stat st;
    directory_path(path, sizeof path, places[i]);
    if (lstat(path, &st) == 0)
      return true;
  }
  return false;
}

int files_leftovers_clean(void) {
  int removed = 0;
  for (size_t i = 0; places[i]; i++)
    removed += clean_place(places[i]);
  return removed;
}
