#include "sandkeeper/core/oom.h"

#include "sandkeeper/base/fdutil.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int counter_fd = -1;

/* The agent's cgroup below a controller's mount; "" is v2. In a container with its own cgroup namespace it is "/". */
static int open_counter(const char *controller, const char *mount, const char *file) {
  char cgroups[8192], path[4096];
  if (fd_read_file("/proc/self/cgroup", cgroups, sizeof cgroups) < 0)
    return -1;
  char *rest = cgroups, *line;
  while ((line = strsep(&rest, "\n"))) {
    /* hierarchy-ID:controller-list:cgroup-path, cgroups(7) */
    strsep(&line, ":");
    char *controllers = strsep(&line, ":");
    if (!line || strcmp(controllers, controller) != 0)
      continue;
    int n = snprintf(path, sizeof path, "%s%s/%s", mount, strcmp(line, "/") == 0 ? "" : line, file);
    int fd = n < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0)
      return fd;
    snprintf(path, sizeof path, "%s/%s", mount, file); /* the path is the host's, the mount the container's */
    return open(path, O_RDONLY | O_CLOEXEC);
  }
  return -1;
}

void oom_init(void) {
  if (counter_fd >= 0)
    return;
  counter_fd = open_counter("", "/sys/fs/cgroup", "memory.events");
  if (counter_fd < 0)
    counter_fd = open_counter("memory", "/sys/fs/cgroup/memory", "memory.oom_control");
}

int64_t oom_count(void) {
  char text[1024];
  if (counter_fd < 0)
    return -1;
  ssize_t n = pread(counter_fd, text, sizeof text - 1, 0);
  if (n <= 0)
    return -1;
  text[n] = '\0';
  /* "oom_kill 3" on a line of its own; "oom_kill_disable" is another. */
  for (const char *at = text; (at = strstr(at, "oom_kill ")); at++)
    if (at == text || at[-1] == '\n')
      return strtoll(at + strlen("oom_kill "), NULL, 10);
  return -1;
}
