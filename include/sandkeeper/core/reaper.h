/* reaper.h - collects dead children: the leaders of commands, and orphans that came to us as PID 1 or as subreaper.
 *
 * waitid(P_ALL, WNOWAIT) first looks, then the owner acts while the zombie still pins its pid and its group, and only
 * then is it reaped: so no signal sent meanwhile can hit a recycled number. SIGCHLD coalesces: one pass takes all there
 * are.
 */
#ifndef SANDKEEPER_CORE_REAPER_H
#define SANDKEEPER_CORE_REAPER_H

#include "sandkeeper/core/commands.h"

/* Become the one who inherits orphans when not PID 1 (PR_SET_CHILD_SUBREAPER, Linux 3.4). */
void reaper_become_subreaper(void);

void reaper_pass(struct commands *commands);

#endif
