/* sandbox.h - the core's parts in one place, and the ordered end of them.
 *
 * Owner: main(). For the loop's thread. */
#ifndef SANDKEEPER_CORE_SANDBOX_H
#define SANDKEEPER_CORE_SANDBOX_H

#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/idle.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/core/sandbox_life.h"
#include "sandkeeper/core/signals.h"
#include "sandkeeper/core/terminator.h"
#include "sandkeeper/core/worker.h"

#include <stdbool.h>
#include <stdint.h>

struct sandbox_options {
  const char *id;       /* SANDBOX_ID or the host name */
  int64_t file_timeout; /* ns, --file-timeout */
  int64_t grace;        /* ns, --grace */
  int64_t ttl;          /* ns, --ttl; 0: none */
  struct commands_options commands;
};

struct init_command;
struct sandbox {
  struct loop *loop;
  struct workers *workers;
  struct signals *signals;
  struct commands commands;
  struct idle idle;
  struct sandbox_options options;
  int64_t started;      /* monotonic ns */
  int64_t started_wall; /* ns since 1970 */

  struct sandbox_life life; /* core/sandbox_life.h */

  struct init_command *image_command; /* gets the agent's signals too; NULL: there is none */

  /* core/shutdown.c */
  bool stopping;
  struct terminator terminator; /* everything that this agent ever started */
  struct loop_timer shutdown_timer;
  void (*on_stopping)(void *arg); /* the end begins: stop taking connections, close sessions */
  void (*on_stopped)(void *arg);  /* nothing is left: leave */
  void *arg;
};

/* The strings in options must live as long as the sandbox. 0 or -1. */
int sandbox_init(struct sandbox *sandbox, const struct sandbox_options *options, char **environment, struct error *err);
void sandbox_free(struct sandbox *sandbox);

#endif
