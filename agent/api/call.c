#include "sandkeeper/api/call.h"

#include "sandkeeper/api/rpc_error.h"
#include "sandkeeper/api/rpc_session.h"

#include <stdlib.h>
#include <string.h>

/* The answers of one batch are put together before they are sent, also for a client without a limit. The bound counts
 * for those of all batches of one client that are not whole. */
#define BATCH_BYTES_MAX (64u * 1024u * 1024u)
/* Of an error that does not fit: enough to know which it is. */
#define CUT_MESSAGE 120

struct batch {
  struct rpc_session *session;
  struct buf answers; /* counted in the session's `batched` */
  size_t max_message;
  size_t holds; /* calls that are not answered, and the maker */
  size_t calls; /* not answered yet */
};

/* ---- batches ---- */

bool batch_fits(size_t max_message, size_t calls) {
  return calls <= (max_message - 2) / BATCH_ANSWER_LEAST;
}

struct batch *batch_new(struct rpc_session *session, size_t calls) {
  struct batch *batch = calloc(1, sizeof *batch);
  size_t max_message = session->peer->max_message;
  if (!batch)
    return NULL;
  batch->session = session;
  if (max_message > BATCH_BYTES_MAX)
    max_message = BATCH_BYTES_MAX;
  buf_init(&batch->answers, max_message, BUF_HEADROOM);
  batch->max_message = max_message;
  batch->holds = 1;
  batch->calls = calls;
  return batch;
}

void batch_skip(struct batch *batch) {
  batch->calls--;
}

void batch_release(struct batch *batch) {
  if (--batch->holds > 0)
    return;
  batch->session->batched -= batch->answers.len;
  buf_free(&batch->answers);
  free(batch);
}

/* Adds one answer; true when it was the last one and *out is the whole batch. */
static bool batch_answer(struct batch *batch, struct buf *response, struct buf *out) {
  size_t before = batch->answers.len;
  batch->calls--;
  if (response) {
    buf_append(&batch->answers, batch->answers.len ? "," : "[", 1);
    buf_append(&batch->answers, response->data, response->len);
    batch->answers.failed |= response->failed;
  }
  batch->session->batched += batch->answers.len - before;
  if (batch->calls > 0 || batch->answers.len == 0)
    return false;
  batch->session->batched -= batch->answers.len;
  buf_append(&batch->answers, "]", 1);
  buf_move(out, &batch->answers);
  return true;
}

/* ---- calls ---- */

struct call *call_new(struct rpc_session *session, char *id, struct batch *batch) {
  struct call *call = calloc(1, sizeof *call);
  if (!call) {
    free(id);
    return NULL;
  }
  call->api = session->api;
  call->session = session;
  call->id = id;
  call->method = "";
  call->batch = batch;
  if (batch)
    batch->holds++;
  list_init(&call->ready_node);
  list_append(&session->calls, &call->node);
  session->n_calls++;
  buf_init(&call->response, call_budget(call), BUF_HEADROOM);
  return call;
}

void call_end(struct call *call) {
  struct rpc_session *session = call->session;
  if (call->ended)
    call->ended(call);
  list_remove(&call->node);
  list_remove(&call->ready_node);
  session->n_calls--;
  if (call->answered)
    session->unsent -= call->response.len;
  buf_free(&call->response);
  if (call->batch)
    batch_release(call->batch);
  free(call->id);
  free(call);
}

size_t call_budget(const struct call *call) {
  const struct batch *batch = call->batch;
  if (!batch)
    return call->session->peer->max_message;
  /* An equal share of what is left, and a comma or bracket before each. One that needs less than its share makes those
   * of the others larger and never smaller, so what was promised to one under way still holds when it is done, unless
   * other batches have taken the room. */
  size_t left = batch->max_message - 1 - batch->answers.len, calls = batch->calls ? batch->calls : 1;
  size_t share = left / calls - 1;
  /* All batches that wait for their last answer together, or one that never comes would let memory grow. */
  size_t batched = call->session->batched, most = batched < BATCH_BYTES_MAX ? (BATCH_BYTES_MAX - batched) / calls : 0;
  if (most < BATCH_ANSWER_LEAST)
    most = BATCH_ANSWER_LEAST;
  return share < most ? share : most;
}

size_t call_message_max(const struct call *call) {
  return call->session->peer->max_message;
}

bool call_streams(const struct call *call) {
  return call->id && !call->session->peer->answers_only;
}

void call_wake(struct call *call) {
  if (!list_is_linked(&call->ready_node))
    list_append(&call->session->ready, &call->ready_node);
  call->session->peer->ops->wake(call->session->peer);
}

void call_keeps(struct call *call, ssize_t bytes) {
  call->session->kept += (size_t)bytes;
  rpc_session_flow(call->session);
}

struct turns *call_ahead(struct call *call) {
  return &call->session->ahead;
}

struct job_queue *call_file_queue(struct call *call) {
  return call->session->files;
}

/* ---- responses ---- */

static struct json_out response_into(const struct call *call, const char *member, struct buf *response) {
  struct json_out out;
  buf_init(response, call_budget(call), BUF_HEADROOM);
  json_out_begin(&out, response);
  json_out_object(&out);
  json_out_key(&out, "jsonrpc");
  json_out_string(&out, "2.0");
  json_out_key(&out, "id");
  const char *id = call->id ? call->id : "null";
  json_out_raw(&out, id, strlen(id));
  json_out_key(&out, member);
  return out;
}

static struct json_out response_begin(struct call *call, const char *member) {
  buf_free(&call->response);
  return response_into(call, member, &call->response);
}

static void answered(struct call *call) {
  call->answered = true;
  call->session->unsent += call->response.len;
  rpc_session_flow(call->session);
  call_wake(call);
}

struct json_out call_error_begin(struct call *call) {
  return response_begin(call, "error");
}

/* When even this does not fit there is no memory: the buffer has failed, and whoever pulls it sees that. */
static void answer_shortest(struct call *call) {
  static const char text[] = "{\"code\":-32603,\"message\":\"no memory\",\"data\":{\"kind\":\"internal_error\"}}";
  struct json_out shortest = response_begin(call, "error");
  json_out_raw(&shortest, text, sizeof text - 1);
  json_out_object_end(&shortest);
}

static bool error_fits(struct json_out *out) {
  json_out_object_end(out);
  return json_out_end(out) == 0;
}

void call_error_end(struct call *call, struct json_out *out) {
  if (!error_fits(out))
    answer_shortest(call);
  answered(call);
}

/* The same error without its data, and with the start of its sentence. */
static bool answer_cut(struct call *call, const struct error *error) {
  struct error cut = *error;
  size_t len = strnlen(cut.message, CUT_MESSAGE);
  cut.message[len - utf8_incomplete_tail((const uint8_t *)cut.message, len)] = '\0';
  struct json_out out = call_error_begin(call);
  rpc_error_write(&out, &cut, NULL, NULL);
  return error_fits(&out);
}

void call_fail_with(struct call *call, const struct error *error, void (*data)(struct json_out *out, void *arg),
                    void *arg) {
  struct json_out out = call_error_begin(call);
  rpc_error_write(&out, error, data, arg);
  if (!error_fits(&out) && !answer_cut(call, error))
    answer_shortest(call);
  answered(call);
}

void call_fail(struct call *call, const struct error *error) {
  call_fail_with(call, error, NULL, NULL);
}

struct json_out call_result(struct call *call) {
  return response_begin(call, "result");
}

struct json_out call_result_into(const struct call *call, struct buf *response) {
  return response_into(call, "result", response);
}

void call_result_take(struct call *call, struct buf *response, struct json_out *out, const char *hint) {
  buf_move(&call->response, response);
  out->buf = &call->response;
  /* In a batch others may have taken room meanwhile. */
  if (call->response.len > call_budget(call))
    call->response.failed = true;
  call_result_end(call, out, hint);
}

void call_result_end(struct call *call, struct json_out *out, const char *hint) {
  json_out_object_end(out);
  if (json_out_end(out) == 0) {
    answered(call);
    return;
  }
  struct error error = ERROR_INIT;
  size_t budget = call_budget(call);
  error_set(&error, ERROR_TOO_LARGE, 0, "%s: the answer does not fit into the %zu bytes that this client takes%s%s",
            call->method, budget, hint ? "; " : "", hint ? hint : "");
  error.limit = budget;
  call_fail(call, &error);
}

void call_result_empty(struct call *call) {
  struct json_out out = call_result(call);
  json_out_object(&out);
  json_out_object_end(&out);
  call_result_end(call, &out, NULL);
}

bool call_take_response(struct call *call, struct buf *out) {
  struct rpc_session *session = call->session;
  bool sends = call->id != NULL, ready = sends;
  if (call->batch) {
    ready = batch_answer(call->batch, sends ? &call->response : NULL, out);
  } else if (sends) {
    session->unsent -= call->response.len;
    buf_move(out, &call->response);
  }
  call_end(call);
  rpc_session_flow(session);
  return ready;
}

/* ---- notifications ---- */

struct json_out call_notification(const struct call *call, const char *method, struct buf *out) {
  struct json_out json;
  out->max = call->session->peer->max_message;
  json_out_begin(&json, out);
  json_out_object(&json);
  json_out_key(&json, "jsonrpc");
  json_out_string(&json, "2.0");
  json_out_key(&json, "method");
  json_out_string(&json, method);
  json_out_key(&json, "params");
  json_out_object(&json);
  json_out_key(&json, "id");
  json_out_raw(&json, call->id, strlen(call->id));
  return json;
}

void call_notification_end(struct json_out *out) {
  json_out_object_end(out);
  json_out_object_end(out);
}
