/* options.h - what the network floor is told by main. Strings and arrays stay the caller's and outlive the floor. */
#ifndef SANDKEEPER_NET_OPTIONS_H
#define SANDKEEPER_NET_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct net_options {
  const char *sandbox_id;     /* the {id} in paths */
  const char *token;          /* NULL: none is asked for; never empty */
  char *const *allow_origins; /* as a browser sends them, "https://host:port", or "*" */
  size_t n_allow_origins;

  size_t max_message;  /* bytes of a client's message; also the default for what is sent to a client */
  size_t max_buffered; /* bytes of half-received messages, all sessions together */

  int64_t ping_after; /* ns without a sign of life, then a ping; 0: the default, 20 s */
  int64_t drop_after; /* ns after that ping; 0: the default, 20 s */

  bool binary; /* for the Autobahn suite's echo: binary messages are taken, and the answer is of the kind that came last
                */
};

#endif
