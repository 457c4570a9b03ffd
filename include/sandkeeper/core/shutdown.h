/* shutdown.h - the ordered end: no new work, TERM and CONT to every group and every descendant at once, leave as soon
 * as nothing is left, KILL after the grace (5 s, under Docker's 10). A second signal: KILL now. */
#ifndef SANDKEEPER_CORE_SHUTDOWN_H
#define SANDKEEPER_CORE_SHUTDOWN_H

#include "sandkeeper/core/sandbox.h"

/* Begins, or, called again, hurries. on_stopping() is called inside the first call; on_stopped() once, later. */
void shutdown_begin(struct sandbox *sandbox, const char *why);

#endif
