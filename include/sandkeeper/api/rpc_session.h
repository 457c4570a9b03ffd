/* rpc_session.h - what rpc.c and call.c share of a session. Nobody else includes it. */
#ifndef SANDKEEPER_API_RPC_SESSION_H
#define SANDKEEPER_API_RPC_SESSION_H

#include "sandkeeper/api/call.h"
#include "sandkeeper/api/peer.h"
#include "sandkeeper/api/turns.h"

struct parse_job;

struct rpc_session {
  struct api *api;
  struct peer *peer;
  struct list calls;
  uint32_t n_calls;
  struct list ready;     /* calls that may have something to send, in turn */
  struct loop_task more; /* they are asked again */
  struct job_queue *files;
  struct parse_job *parse; /* outstanding */
  size_t unsent;           /* bytes of complete answers that were not pulled yet */
  size_t batched;          /* bytes of answers that wait for the rest of their batch */
  size_t kept;             /* bytes of requests that are not done */
  struct turns ahead;      /* bytes of files that are read ahead of what the client takes */
  bool held;
};

/* Tells the peer whether it may send. */
void rpc_session_flow(struct rpc_session *session);

/* `id` is taken over; NULL with a notification. NULL: no memory. */
struct call *call_new(struct rpc_session *session, char *id, struct batch *batch);
void call_end(struct call *call);

/* An error response made by hand. */
struct json_out call_error_begin(struct call *call);
void call_error_end(struct call *call, struct json_out *out);

/* Moves the response of an answered call, or, if it was the last of its batch, the whole batch, into *out; ends the
 * call. False: there is nothing to send (yet). */
bool call_take_response(struct call *call, struct buf *out);

/* The answers of one batch. The maker's hold keeps it until all its calls are made; then batch_release(). */
struct batch *batch_new(struct rpc_session *session, size_t calls);

/* What each call of a batch may answer in any case: the shortest error, with an id of the longest kind. */
#define BATCH_ANSWER_LEAST 400
bool batch_fits(size_t max_message, size_t calls);

/* A call that could not be made: there will be no answer for it. */
void batch_skip(struct batch *batch);
void batch_release(struct batch *batch);

#endif
