#include "sandkeeper/core/proc.h"

#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STAT_SIZE 1024
/* In field 9 of stat: a thread of the kernel, without an environment. */
#define KERNEL_THREAD 0x00200000u

/* Opens a file of /proc/PID. -1, and *fd is -1 too: only because we lack something; 0: it is there, or *fd is -1 and it
 * is gone or not for us to see. */
static int open_file(pid_t pid, const char *name, int *fd) {
  char path[32];
  snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  *fd = open(path, O_RDONLY | O_CLOEXEC);
  return *fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM) ? -1 : 0;
}

/* Reads /proc/PID/stat; *behind_name is what follows the name, or NULL: gone. 0, or -1 with errno: it cannot be told.
 */
static int read_stat_text(pid_t pid, char text[static STAT_SIZE], const char **behind_name) {
  int fd;
  *behind_name = NULL;
  if (open_file(pid, "stat", &fd) < 0)
    return -1;
  ssize_t n = fd < 0 ? 0 : read(fd, text, STAT_SIZE - 1);
  fd_close(&fd);
  if (n <= 0)
    return 0;
  text[n] = '\0';
  /* The name in parentheses may hold anything, also ") R 1": the last one ends it. */
  const char *end_of_name = strrchr(text, ')');
  *behind_name = end_of_name ? end_of_name + 1 : NULL;
  return 0;
}

int proc_read(pid_t pid, struct proc_stat *found) {
  char text[STAT_SIZE];
  const char *behind_name;
  char state;
  int parent, group, session;
  unsigned long long start;
  *found = (struct proc_stat){.parent = 0};
  if (read_stat_text(pid, text, &behind_name) < 0)
    return -1;
  if (!behind_name ||
      sscanf(behind_name, " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
             &parent, &group, &session, &start) != 5)
    return 0;
  *found = (struct proc_stat){.id = {.pid = pid, .start = start, .group = group}, .parent = parent, .session = session};
  return state != 'Z' && state != 'X';
}

uint64_t proc_start_of(pid_t pid) {
  struct proc_stat found;
  return proc_read(pid, &found) > 0 ? found.id.start : 0;
}

bool proc_is_in_exec(pid_t pid) {
  char text[STAT_SIZE], state;
  const char *behind_name;
  unsigned flags;
  unsigned long long begin, end;
  if (read_stat_text(pid, text, &behind_name) < 0 || !behind_name ||
      sscanf(
          behind_name,
          " %c %*d %*d %*d %*d %*d %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
          "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu %llu",
          &state, &flags, &begin, &end) != 4)
    return false;
  return state != 'Z' && state != 'X' && !(flags & KERNEL_THREAD) && (end == 0 || begin != end);
}

int proc_has_variable(pid_t pid, const char *variable, bool is_prefix, bool *empty) {
  char text[8192]; /* a piece at a time: an environment may have megabytes */
  cleanup_close int fd = -1;
  *empty = false;
  if (open_file(pid, "environ", &fd) < 0)
    return -1;
  if (fd < 0) {
    *empty = errno != EACCES && errno != EPERM;
    return 0;
  }
  size_t want = strlen(variable) + (is_prefix ? 0 : 1); /* with its NUL, unless only the start counts */
  text[0] = '\0';                                       /* a variable starts behind a NUL */
  size_t have = 1;
  for (*empty = true;; *empty = false) {
    ssize_t n = read(fd, text + have, sizeof text - have);
    if (n <= 0)
      return 0;
    have += (size_t)n;
    for (char *at = text; (at = memchr(at, '\0', have - (size_t)(at - text))) != NULL; at++)
      if ((size_t)(text + have - at) > want && memcmp(at + 1, variable, want) == 0)
        return 1;
    /* Keep what may be the first part of it. */
    size_t keep = have < want + 1 ? have : want + 1;
    memmove(text, text + have - keep, keep);
    have = keep;
  }
}
