/* api.h - what every method and route works on. One for the program; owner: main().
 *
 * A method's file reads its parameters with params.h, calls the core, and answers through its call (call.h); a route's
 * file answers through its exchange (exchange.h). */
#ifndef SANDKEEPER_API_API_H
#define SANDKEEPER_API_API_H

#include "sandkeeper/api/body.h"
#include "sandkeeper/api/exchange.h"
#include "sandkeeper/api/metrics.h"
#include "sandkeeper/api/prompt.h"
#include "sandkeeper/api/sandbox_api.h"
#include "sandkeeper/core/sandbox.h"

#include <stddef.h>

/* Strings live as long as the api. */
struct api_options {
  const char *version;
  size_t max_message; /* bytes of the body of POST /rpc */
};

struct api {
  struct sandbox *sandbox;
  struct api_options options;
  struct sandbox_api control;
  struct bodies bodies;
  struct prompts prompts;
  struct metrics metrics;
};

/* The routes of the HTTP server, in the order they are tried. */
extern const struct route api_routes[];
extern const size_t api_n_routes;

#endif
