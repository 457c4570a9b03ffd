/* api.h - what every method and route works on. One for the program; owner: main().
 *
 * A method's file reads its parameters with params.h, calls the core, and answers through its call (call.h). */
#ifndef SANDKEEPER_API_API_H
#define SANDKEEPER_API_API_H

#include "sandkeeper/api/sandbox_api.h"
#include "sandkeeper/core/sandbox.h"

struct api {
  struct sandbox *sandbox;
  struct sandbox_api control;
};

#endif
