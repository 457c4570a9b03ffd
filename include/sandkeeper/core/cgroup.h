/* cgroup.h - limits for all that runs in the agent's own cgroup, the agent included: cgroup v2, cpu.max and memory.max.
 * https://docs.kernel.org/admin-guide/cgroup-v2.html
 *
 * In an ordinary container those files are read-only, or the whole tree is: then nothing is changed and the error says
 * why. */
#ifndef SANDKEEPER_CORE_CGROUP_H
#define SANDKEEPER_CORE_CGROUP_H

#include "sandkeeper/base/error.h"

#include <stdint.h>

#define CGROUP_PERIOD 100000 /* us, the kernel's default */
#define CGROUP_CPU_LEAST 10  /* thousandths: the kernel takes no quota under 1 ms */

struct cgroup_limits {
  int64_t cpu;    /* thousandths of one; 0: leave it */
  int64_t memory; /* bytes; 0: leave it */
};

/* Finds the agent's cgroup and writes both limits, or none. Blocking (lowering memory.max reclaims): on a worker. -1:
 * ERROR_PERMISSION (not writable), ERROR_NOT_FOUND (no such controller here), ERROR_INVALID (less memory than is in
 * use, which would kill what runs), or what the kernel says. */
int cgroup_apply(const struct cgroup_limits *limits, struct error *err);

/* The same with other places than /proc/self/cgroup and /sys/fs/cgroup, for tests. */
int cgroup_apply_at(const char *self, const char *mount, const struct cgroup_limits *limits, struct error *err);

#endif
