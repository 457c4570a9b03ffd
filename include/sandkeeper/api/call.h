/* call.h - one JSON-RPC request on its way to its response.
 *
 * rpc.c makes the call and hands it to its method's start(). The method then does one of these, at once or later:
 *   - call_result() ... call_result_end(): the response with a result
 *   - call_fail(): the response with an error
 *   - sets `next` and calls call_wake(): it has messages to send; next() is asked whenever the client can take one, and
 *     ends by giving the response itself
 * A call ends when its response was pulled, or when its client goes: `ended` is called exactly once, and must let go of
 * everything that might still call back. A request without an id (a notification) gets no messages: the method may not
 * stream, and its response is dropped.
 */
#ifndef SANDKEEPER_API_CALL_H
#define SANDKEEPER_API_CALL_H

#include "sandkeeper/api/api.h"
#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/error.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/core/worker.h"

#include <json-c/json_object.h>
#include <stdbool.h>
#include <sys/types.h>

struct batch;
struct rpc_session;
struct turns;

struct call {
  struct api *api;
  struct rpc_session *session;
  const char *method;
  char *id; /* as JSON text; NULL: a notification */
  struct batch *batch;
  struct list node;       /* in the session */
  struct list ready_node; /* something may be pulled */
  struct buf response;
  bool answered; /* the response is complete */

  /* The method's. */
  void *state;
  bool (*next)(struct call *call, struct buf *out); /* writes one message into *out and says true; false: nothing now,
                                                       or the response was given */
  void (*ended)(struct call *call);
};

/* The response with a result: writes what stands before it and returns a writer for exactly one value. */
struct json_out call_result(struct call *call);
/* Completes it. An answer that does not fit the client becomes ERROR_TOO_LARGE; `hint` (may be NULL) says what to do
 * instead. The bytes stay in the call until they are pulled. */
void call_result_end(struct call *call, struct json_out *out, const char *hint);

/* The same for a result that is written elsewhere, on a worker: puts what stands before it into *response, which gets
 * the call's bounds, and returns the writer for one value. call_result_take() completes it and takes the buffer; a call
 * that ends before needs nothing of it, and the buffer stays the caller's. */
struct json_out call_result_into(const struct call *call, struct buf *response);
void call_result_take(struct call *call, struct buf *response, struct json_out *out, const char *hint);

/* The response {} . */
void call_result_empty(struct call *call);

/* The response with an error; `data` (may be NULL) adds members to error.data. What was written of a result is dropped.
 */
void call_fail(struct call *call, const struct error *error);
void call_fail_with(struct call *call, const struct error *error, void (*data)(struct json_out *out, void *arg),
                    void *arg);

/* Bytes that a message of this call may have: the client's limit, shared among the calls of a batch. */
size_t call_budget(const struct call *call);

/* Bytes that one notification may have. */
size_t call_message_max(const struct call *call);

/* False: notifications of this call reach nobody. */
bool call_streams(const struct call *call);

/* Something may be pulled. */
void call_wake(struct call *call);

/* A notification's head into *out, up to the opening brace of params and its id: the caller adds members, then
 * call_notification_end(). */
struct json_out call_notification(const struct call *call, const char *method, struct buf *out);
void call_notification_end(struct json_out *out);

/* So many bytes of the request are kept until it is done (negative: are not any more). Above a bound for all requests
 * of a client together it is not listened to. */
void call_keeps(struct call *call, ssize_t bytes);

/* What all file streams of this client together may hold in memory. */
struct turns *call_ahead(struct call *call);

/* The queue that keeps the order of this client's file methods. */
struct job_queue *call_file_queue(struct call *call);

/* A table of methods; each file of methods exports one. */
struct method {
  const char *name;
  void (*start)(struct call *call, json_object *params); /* params: an object, never NULL; borrowed */
};
extern const struct method exec_methods[]; /* ended by a NULL name */
extern const struct method file_methods[];
extern const struct method stream_methods[];

#endif
