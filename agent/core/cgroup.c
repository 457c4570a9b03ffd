#include "sandkeeper/core/cgroup.h"

#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What must stay free between what is in use and a new memory.max, so that the agent is not the next to be killed. */
#define MEMORY_MARGIN (4 * 1024 * 1024)

/* One limit's file while it is being changed. */
struct limit {
  const char *file;
  char text[64];   /* the new content; empty: leave it */
  char before[64]; /* to put it back */
  int fd;
};

/* The directory of the v2 cgroup ("0::/path" in cgroups(7)). With a cgroup namespace of its own the container's is the
 * mount itself; without one the path may be the host's, and then it is the mount too. */
static int open_directory(const char *self, const char *mount, struct error *err) {
  char cgroups[8192], path[PATH_MAX];
  if (fd_read_file(self, cgroups, sizeof cgroups) < 0)
    return error_set_errno(err, errno, "the agent's cgroup: %s", self);
  char *rest = cgroups, *line;
  while ((line = strsep(&rest, "\n"))) {
    if (strncmp(line, "0::", 3) != 0)
      continue;
    snprintf(path, sizeof path, "%s%s", mount, line + 3);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
      fd = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : error_set_errno(err, errno, "the agent's cgroup: %s", mount);
  }
  return error_set(err, ERROR_NOT_FOUND, 0, "the agent's cgroup: there is no cgroup v2 here");
}

static ssize_t read_at(int directory, const char *file, char *text, size_t max) {
  cleanup_close int fd = openat(directory, file, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? fd_read_all(fd, text, max - 1) : -1;
  if (n >= 0)
    text[n] = '\0';
  return n;
}

static int open_limit(int directory, struct limit *limit, struct error *err) {
  if (!limit->text[0])
    return 0;
  if (read_at(directory, limit->file, limit->before, sizeof limit->before) < 0)
    return errno == ENOENT ? error_set(err, ERROR_NOT_FOUND, 0,
                                       "%s: the agent's cgroup has no such file; its controller is not on", limit->file)
                           : error_set_errno(err, errno, "%s of the agent's cgroup", limit->file);
  limit->fd = openat(directory, limit->file, O_WRONLY | O_CLOEXEC);
  return limit->fd >= 0 ? 0 : error_set_errno(err, errno, "%s of the agent's cgroup cannot be written", limit->file);
}

static int write_limit(const struct limit *limit, const char *text) {
  size_t len = strlen(text);
  return limit->fd < 0 || pwrite(limit->fd, text, len, 0) == (ssize_t)len ? 0 : -1; /* the kernel wants it in one */
}

static int check_memory(int directory, int64_t memory, struct error *err) {
  char text[64];
  if (memory == 0 || read_at(directory, "memory.current", text, sizeof text) < 0)
    return 0;
  int64_t used = strtoll(text, NULL, 10);
  if (memory > used && memory - used >= MEMORY_MARGIN)
    return 0;
  return error_set(err, ERROR_INVALID, 0,
                   "memory: %lld bytes are in use and a limit of %lld leaves too little beside them", (long long)used,
                   (long long)memory);
}

static int change(struct limit *cpu, struct limit *memory, struct error *err) {
  if (write_limit(cpu, cpu->text) < 0)
    return error_set_errno(err, errno, "%s of the agent's cgroup: %s", cpu->file, cpu->text);
  if (write_limit(memory, memory->text) == 0)
    return 0;
  error_set_errno(err, errno, "%s of the agent's cgroup: %s", memory->file, memory->text);
  write_limit(cpu, cpu->before);
  return -1;
}

int cgroup_apply_at(const char *self, const char *mount, const struct cgroup_limits *limits, struct error *err) {
  struct limit cpu = {.file = "cpu.max", .fd = -1}, memory = {.file = "memory.max", .fd = -1};
  cleanup_close int directory = open_directory(self, mount, err);
  if (directory < 0)
    return -1;
  if (limits->cpu > 0)
    snprintf(cpu.text, sizeof cpu.text, "%lld %d", (long long)limits->cpu * (CGROUP_PERIOD / 1000), CGROUP_PERIOD);
  if (limits->memory > 0)
    snprintf(memory.text, sizeof memory.text, "%lld", (long long)limits->memory);
  int status = -1;
  if (open_limit(directory, &cpu, err) == 0 && open_limit(directory, &memory, err) == 0 &&
      check_memory(directory, limits->memory, err) == 0)
    status = change(&cpu, &memory, err);
  fd_close(&cpu.fd);
  fd_close(&memory.fd);
  return status;
}

int cgroup_apply(const struct cgroup_limits *limits, struct error *err) {
  return cgroup_apply_at("/proc/self/cgroup", "/sys/fs/cgroup", limits, err);
}
