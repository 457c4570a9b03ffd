/* signals.h - the agent's own signals. They are blocked from the first instruction of main() to the last, and read from
 * a signalfd by the loop; what each means is decided here.
 *
 *   TERM, INT, QUIT          the ordered end; a second one: KILL at once
 *   CHLD                     a reap pass
 *   HUP USR1 USR2 WINCH PWR, real-time ...    nothing
 *   PIPE                     not blocked, but ignored
 *   SEGV BUS FPE ILL TRAP SYS ABRT   not blocked: a fault of ours must be seen
 */
#ifndef SANDKEEPER_CORE_SIGNALS_H
#define SANDKEEPER_CORE_SIGNALS_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/loop.h"

/* Before anything else, and before any thread: SIGCHLD and SIGPIPE dispositions as we need them whatever the parent
 * left (an ignored SIGCHLD would lose exit statuses), then blocks all but the synchronous ones. */
void signals_block(void);

struct signals_handler {
  void (*child)(void *arg);             /* SIGCHLD came, perhaps for many */
  void (*stop)(void *arg, int signal);  /* TERM, INT or QUIT */
  void (*other)(void *arg, int signal); /* the rest, each one */
  void *arg;
};

struct signals;
struct signals *signals_new(struct loop *loop, const struct signals_handler *handler, struct error *err);
void signals_free(struct signals *signals);

/* "SIGTERM", "TERM" or "15", real-time as "RTMIN+n" or "RTMAX-n": the number, or -1. */
int signals_parse(const char *text);

/* "SIGTERM"; "SIG34" where there is no name. Valid until the next call with a number that has no name. */
const char *signals_name(int number);

#endif
