/* payloads.h - the calls that come with create, update and configure: [{"api","body","envs"}, ...], carried out one
 * after the other against the agent's own routes. The first failure stops.
 *
 *   /api/v1/env            sets variables for later commands: `envs`, else the object in `body`
 *   /rpc                   `body` is one JSON-RPC request, or several
 *   /files?path=...        `body`, a string, becomes the file's content; the query is that of PUT
 *   /prompt                `body` as there
 *
 * A failure is an HTTP status of 400 or more, a JSON-RPC error, a result with an exit_code other than 0, and an event
 * {"type":"error"}: a payload prepares the sandbox, as a RUN line prepares an image.
 */
#ifndef SANDKEEPER_API_PAYLOADS_H
#define SANDKEEPER_API_PAYLOADS_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/loop.h"

#include <json-c/json_object.h>
#include <json-c/json_tokener.h>
#include <stdbool.h>
#include <stddef.h>

struct api;
struct inner_exchange;

#define PAYLOADS_MAX 64

/* The array `payloads` of a body, checked whole: an unknown api or a body that its api does not take is ERROR_INVALID
 * and nothing is carried out. *payloads is borrowed, NULL when absent. */
int payloads_parse(json_object *body, json_object **payloads, struct error *err);

struct payload_run {
  struct api *api;
  json_object *payloads; /* a reference */
  size_t index;
  struct loop_task task;
  struct inner_exchange *inner;
  json_tokener *tokener; /* reads the answer as it comes, value by value; NULL: no more of it is looked at */
  bool in_value;         /* the tokener has a part of one */
  json_object *last;     /* its last value */
  bool has_reason;
  struct error reason;  /* why the payload has failed, as its answer says */
  struct error failure; /* when done: ERROR_NONE, or which payload failed and why */
  void (*done)(struct payload_run *run, void *arg);
  void *arg;
};

/* Carries them out; done() is called once, later. `payloads`: an array, of which a reference is taken. */
void payload_run_start(struct payload_run *run, struct api *api, json_object *payloads,
                       void (*done)(struct payload_run *run, void *arg), void *arg);
/* Lets go of everything; a payload under way is left alone by its client. Fine on a zeroed struct. */
void payload_run_free(struct payload_run *run);

#endif
