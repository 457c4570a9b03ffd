/* config.h - what the command line and the environment say, checked and in plain units.
 *
 * Only main.c includes it; it copies each part's fields over. Every flag --name has the environment variable
 * SANDKEEPER_NAME (upper case, dashes as underscores); the flag wins. A variable that is empty counts as not set,
 * except SANDKEEPER_TOKEN, where that would open the agent to everyone.
 *
 * Defaults, ranges and the text of --help stand in the table of config.c; docs/sandkeeper.1 explains each option.
 */
#ifndef SANDKEEPER_CONFIG_H
#define SANDKEEPER_CONFIG_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum config_action { CONFIG_RUN, CONFIG_HELP, CONFIG_VERSION };

/* One address to listen on. */
struct config_listen {
  struct sockaddr_storage address; /* AF_INET, AF_INET6 or AF_UNIX */
  socklen_t length;
  bool optional; /* a default one: a machine without IPv6 may do without it */
  char *text;    /* as given, for the log */
};

#define CONFIG_LISTEN_MAX 16
#define CONFIG_ORIGIN_MAX 64
#define CONFIG_TOKEN_MAX 1024

/* Strings are owned by the struct; NULL where it says so. Times are nanoseconds, sizes bytes. */
struct config {
  enum config_action action;

  /* Network */
  struct config_listen listen[CONFIG_LISTEN_MAX]; /* without --listen: 0.0.0.0 and [::] at `port` */
  size_t n_listen;
  uint16_t port; /* 0: the kernel picks one, the same for all default addresses */
  char *token;   /* NULL: none. Visible ASCII. config_free() wipes it. */
  char *allow_origin[CONFIG_ORIGIN_MAX];
  size_t n_allow_origin;
  uint64_t max_message;
  uint64_t max_buffered; /* at least max_message */

  /* Commands */
  char *workdir; /* NULL: the directory the agent was started in */
  char *shell;   /* NULL: /bin/bash, else /bin/sh */
  char *user;    /* name or uid; NULL: the agent's own */
  int umask;     /* -1: inherited */
  uint32_t max_commands;
  uint32_t keep_finished;
  uint64_t log_memory;
  int64_t stall_timeout;
  int64_t file_timeout;
  int64_t grace;

  /* Prompts */
  char *prompt_handler;   /* a command, or "echo" (built in), or "none" */
  int64_t prompt_timeout; /* 0: none */
  uint32_t prompt_concurrency;
  char *prompt_text_type; /* the `type` of text events: "text" or "text_chunk" */

  /* Sandbox */
  char *sandbox_id;   /* never NULL: --sandbox-id, SANDBOX_ID, the host name, or "sandbox" */
  int64_t ttl;        /* 0: no end */
  char *preview_url;  /* NULL: from the request's Host header */
  char *preview_host; /* NULL: none */

  /* Agent */
  enum log_format log_format;
  enum log_level log_level;
  bool keep_alive;
  bool restart_command;
  char *const *command; /* what stands behind "--", NULL-terminated, in the caller's argv; NULL: none */
};

/* Reads argv[1..] and the environment. On an error the message is one line that names the flag or variable, the value
 * and what it takes; main prints it and exits with 2. SANDKEEPER_TOKEN is wiped from the process's memory (so that
 * /proc/PID/environ does not show it) and unset, whatever else happens; call this before any thread starts.
 * Returns 0 or -1; config_free() is needed after both. */
int config_parse(struct config *config, int argc, char **argv, struct error *err);
void config_free(struct config *config);

/* The text of --help, and of --version. They end with a newline. */
const char *config_help(void);
const char *config_version(void);

#endif
