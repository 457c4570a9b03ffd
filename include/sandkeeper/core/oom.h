/* oom.h - how many processes the kernel's OOM killer ended in the agent's cgroup: v2 memory.events "oom_kill", v1
 * memory.oom_control "oom_kill" (Linux 4.13). */
#ifndef SANDKEEPER_CORE_OOM_H
#define SANDKEEPER_CORE_OOM_H

#include <stdint.h>

/* Finds the file once (reads /proc/self/cgroup); without one oom_count() is -1. A global: there is one cgroup. */
void oom_init(void);
int64_t oom_count(void);

#endif
