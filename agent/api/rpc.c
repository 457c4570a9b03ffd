/* Sessions: messages in, calls, messages out. A call's own side is call.c. */
#include "sandkeeper/api/rpc.h"

#include "sandkeeper/api/call.h"
#include "sandkeeper/api/rpc_error.h"
#include "sandkeeper/api/rpc_parse.h"
#include "sandkeeper/api/rpc_session.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/json_check.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* An id comes back with every message of its call. */
#define ID_MAX 256
#define BATCH_MAX 1000
/* Calls of one client that are not answered yet. */
#define CALLS_MAX 4096
/* Answers that wait for a client that does not read: above this it is not listened to. */
#define UNSENT_MAX (4u * 1024u * 1024u)
/* What a client has sent to be written, and a slow disk has not taken: the same. One more message may come on top. */
#define KEPT_MAX (64u * 1024u * 1024u)
/* What its file streams may hold: a hundred of the chunks that they have without being asked, or a few large ones. */
#define AHEAD_MAX (32u * 1024u * 1024u)
/* One pull may take so long without a message. */
#define PULL_TIME (2 * CLOCK_MS)

static const struct method *const tables[] = {exec_methods, file_methods, stream_methods};

struct rpc_session *rpc_session_open(struct api *api, struct peer *peer, struct error *err) {
  struct rpc_session *session = calloc(1, sizeof *session);
  if (session)
    session->files = job_queue_new();
  if (!session || !session->files) {
    free(session);
    error_set_errno(err, ENOMEM, "a new session");
    return NULL;
  }
  session->api = api;
  session->peer = peer;
  list_init(&session->calls);
  list_init(&session->ready);
  loop_task_init(&session->more);
  turns_init(&session->ahead, AHEAD_MAX);
  return session;
}

static void let_go_of_parse(struct rpc_session *session);

void rpc_session_close(struct rpc_session *session) {
  let_go_of_parse(session);
  loop_task_cancel(&session->more);
  turns_end(&session->ahead);
  while (!list_is_empty(&session->calls))
    call_end(LIST_FIRST(&session->calls, struct call, node));
  idle_jobs(&session->api->sandbox->idle, 1); /* what thousands of sessions have used goes back to the system */
  job_queue_abandon(session->files);
  free(session);
}

bool rpc_session_has_more(const struct rpc_session *session) {
  return !list_is_empty(&session->ready);
}

bool rpc_session_idle(const struct rpc_session *session) {
  return list_is_empty(&session->calls) && !session->parse;
}

/* ---- what the peer may send ---- */

/* Held while a long message is parsed, while too much of what it asked for waits to be sent, and while too much of what
 * it has sent waits to be written. */
void rpc_session_flow(struct rpc_session *session) {
  bool hold = session->parse || session->unsent > UNSENT_MAX || session->kept > KEPT_MAX;
  if (hold == session->held)
    return;
  session->held = hold;
  session->peer->ops->hold(session->peer, hold);
}

/* ---- requests ---- */

static const struct method *find_method(const char *name) {
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
    for (const struct method *method = tables[t]; method->name; method++)
      if (strcmp(method->name, name) == 0)
        return method;
  return NULL;
}

static void refuse(struct call *call, enum rpc_code code, const char *message) {
  /* What is no request is no notification either: it is answered (JSON-RPC 2.0, section 7, the last examples). */
  if (code == RPC_INVALID_REQUEST && !call->id)
    call->id = strdup("null");
  struct json_out out = call_error_begin(call);
  rpc_error_write_code(&out, code, message);
  call_error_end(call, &out);
}

/* The id as JSON text, in json-c's memory, or NULL and what is wrong with it. json-c takes more than JSON for a number
 * (NaN, 1e999, "1."), and a whole one that does not fit into 64 bits it makes the nearest that does, which is another
 * id. That one cannot be told from a sent one, so both ends are refused with all that is beyond them. */
static const char *id_text(json_object *value, const char **wrong) {
  json_type type = json_object_get_type(value);
  bool whole = type == json_type_int, real = type == json_type_double && isfinite(json_object_get_double(value));
  const char *text = NULL;
  if (!whole && !real && type != json_type_string && type != json_type_null)
    *wrong = "id: it takes a number or a string";
  else if (whole && (json_object_get_int64(value) == INT64_MIN || json_object_get_uint64(value) == UINT64_MAX))
    *wrong = "id: a whole number must fit into 64 bits";
  else if (type == json_type_string && json_object_get_string_len(value) > ID_MAX)
    *wrong = "id: it takes at most 256 bytes"; /* before all of it is made JSON text */
  else if (!(text = json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE)))
    *wrong = "no memory for the id";
  else if (strlen(text) > ID_MAX)
    *wrong = "id: it takes at most 256 bytes";
  else if (!real || json_is_number(text, strlen(text)))
    return text;
  else
    *wrong = "id: it takes a number or a string";
  return NULL;
}

/* The id as JSON text, also of a broken request as far as it has a good one. NULL in *id and true: there is none. */
static bool read_id(json_object *request, char **id, const char **wrong) {
  json_object *value = NULL;
  *id = NULL;
  if (!json_object_object_get_ex(request, "id", &value))
    return true;
  const char *text = id_text(value, wrong);
  if (!text)
    return false;
  *id = strdup(text);
  if (!*id)
    *wrong = "no memory for the id";
  return *id != NULL;
}

/* What keeps an object from being a request, or NULL. */
static const char *why_invalid(json_object *request) {
  json_object *version = json_object_object_get(request, "jsonrpc");
  if (!json_object_is_type(version, json_type_string) || strcmp(json_object_get_string(version), "2.0") != 0)
    return "jsonrpc: it must be \"2.0\"";
  if (!json_object_is_type(json_object_object_get(request, "method"), json_type_string))
    return "method: it takes a string";
  return NULL;
}

/* Calls the method, or answers why not. */
static void start_call(struct call *call, json_object *request) {
  json_object *name = json_object_object_get(request, "method");
  bool plain = strlen(json_object_get_string(name)) == (size_t)json_object_get_string_len(name);
  const struct method *method = plain ? find_method(json_object_get_string(name)) : NULL;
  if (!method) {
    struct error error = ERROR_INIT;
    error_set(&error, ERROR_INVALID, 0, "method \"%.100s\": there is no such method", json_object_get_string(name));
    refuse(call, RPC_METHOD_NOT_FOUND, error.message);
    return;
  }
  call->method = method->name;
  json_object *params = json_object_object_get(request, "params");
  if (params && !json_object_is_type(params, json_type_object)) {
    refuse(call, RPC_INVALID_PARAMS, "params: it takes an object");
    return;
  }
  json_object *none = params ? NULL : json_object_new_object();
  if (params || none)
    method->start(call, params ? params : none);
  else
    refuse(call, RPC_INTERNAL_ERROR, "no memory for the request");
  json_object_put(none);
}

/* One request, alone or out of a batch. */
static void receive_request(struct rpc_session *session, json_object *request, struct batch *batch) {
  char *id = NULL;
  const char *wrong = "a request is an object";
  if (json_object_is_type(request, json_type_object) && read_id(request, &id, &wrong))
    wrong = why_invalid(request);
  /* A broken request is no notification: without an id that can be read it is answered with null (JSON-RPC 2.0,
   * section 5). */
  if (wrong && !id)
    id = strdup("null");
  struct call *call = call_new(session, id, batch);
  if (!call) { /* no memory even for saying so */
    if (batch)
      batch_skip(batch);
    return;
  }
  if (wrong)
    refuse(call, RPC_INVALID_REQUEST, wrong);
  else if (session->n_calls > CALLS_MAX) {
    struct error busy = ERROR_INIT;
    error_set(&busy, ERROR_BUSY, 0, "%d requests of this connection wait for their answer already", CALLS_MAX);
    busy.limit = CALLS_MAX;
    call_fail(call, &busy);
  } else {
    start_call(call, request);
  }
}

static void refuse_message(struct rpc_session *session, enum rpc_code code, const char *message) {
  struct call *call = call_new(session, strdup("null"), NULL);
  if (call)
    refuse(call, code, message);
}

/* Valid JSON, but what stands for the name is cut. */
static void refuse_nul_in_name(struct rpc_session *session, json_object *value) {
  static const char message[] = "a member name holds a NUL character";
  char *id = NULL;
  const char *wrong;
  if (!json_object_is_type(value, json_type_object)) {
    refuse_message(session, RPC_INVALID_REQUEST, message);
    return;
  }
  if (!read_id(value, &id, &wrong) || !id)
    id = strdup("null");
  struct call *call = call_new(session, id, NULL);
  if (call)
    refuse(call, RPC_INVALID_PARAMS, message);
}

static void receive_batch(struct rpc_session *session, json_object *requests) {
  size_t n = json_object_array_length(requests);
  if (n == 0) {
    refuse_message(session, RPC_INVALID_REQUEST, "a batch holds at least one request");
    return;
  }
  if (n > BATCH_MAX) {
    refuse_message(session, RPC_INVALID_REQUEST, "a batch holds at most 1000 requests");
    return;
  }
  if (!batch_fits(session->peer->max_message, n)) {
    struct error error = ERROR_INIT;
    error_set(&error, ERROR_INVALID, 0,
              "a batch of %zu requests: its answers do not fit into the %zu bytes that this client takes", n,
              session->peer->max_message);
    refuse_message(session, RPC_INVALID_REQUEST, error.message);
    return;
  }
  struct batch *batch = batch_new(session, n);
  if (!batch) {
    refuse_message(session, RPC_INTERNAL_ERROR, "no memory for the batch");
    return;
  }
  for (size_t i = 0; i < n; i++)
    receive_request(session, json_object_array_get_idx(requests, i), batch);
  batch_release(batch);
}

static void receive_value(struct rpc_session *session, int status, json_object *value, bool nul_in_name,
                          const struct error *error) {
  if (status < 0)
    refuse_message(session, error->kind == ERROR_INTERNAL ? RPC_INTERNAL_ERROR : RPC_PARSE_ERROR, error->message);
  else if (nul_in_name)
    refuse_nul_in_name(session, value);
  else if (json_object_is_type(value, json_type_array))
    receive_batch(session, value);
  else
    receive_request(session, value, NULL);
}

void rpc_session_receive(struct rpc_session *session, const char *message, size_t len) {
  if (len > RPC_PARSE_INLINE_MAX) {
    struct buf copy;
    buf_init(&copy, len, 0);
    if (buf_append(&copy, message, len) < 0)
      refuse_message(session, RPC_INTERNAL_ERROR, "no memory for the message");
    else
      rpc_session_take(session, &copy);
    buf_free(&copy);
    return;
  }
  json_object *value;
  bool nul_in_name;
  struct error error = ERROR_INIT;
  int status = rpc_parse_request(message, len, &value, &nul_in_name, &error);
  receive_value(session, status, value, nul_in_name, &error);
  json_object_put(value);
}

/* ---- long messages, on a worker ---- */

struct parse_job {
  struct job job;
  struct rpc_session *session; /* NULL: its client has gone */
  struct buf message;
  int status;
  json_object *value;
  bool nul_in_name;
  struct error error;
};

static void parse_work(struct job *job) {
  struct parse_job *parse = (struct parse_job *)job;
  parse->status =
      rpc_parse_request(parse->message.data, parse->message.len, &parse->value, &parse->nul_in_name, &parse->error);
  buf_free(&parse->message);
}

static void parse_free(struct job *job) {
  struct parse_job *parse = (struct parse_job *)job;
  buf_free(&parse->message);
  json_object_put(parse->value);
  free(parse);
}

static void parse_done(struct job *job, enum job_end end) {
  struct parse_job *parse = (struct parse_job *)job;
  struct rpc_session *session = parse->session;
  parse->session = NULL;
  if (session) {
    session->parse = NULL;
    if (end == JOB_DONE)
      receive_value(session, parse->status, parse->value, parse->nul_in_name, &parse->error);
    else
      refuse_message(session, RPC_INTERNAL_ERROR, "the message could not be read in time");
    rpc_session_flow(session);
  }
  if (end == JOB_DONE)
    parse_free(job);
}

static void let_go_of_parse(struct rpc_session *session) {
  if (session->parse)
    session->parse->session = NULL;
  session->parse = NULL;
}

void rpc_session_take(struct rpc_session *session, struct buf *message) {
  if (message->len <= RPC_PARSE_INLINE_MAX) {
    rpc_session_receive(session, message->data ? message->data : "", message->len);
    buf_free(message);
    return;
  }
  struct parse_job *parse = calloc(1, sizeof *parse);
  struct error error = ERROR_INIT;
  if (!parse) {
    buf_free(message);
    refuse_message(session, RPC_INTERNAL_ERROR, "no memory for the message");
    return;
  }
  parse->job = (struct job){.class = JOB_FILE, .work = parse_work, .done = parse_done, .abandon = parse_free};
  buf_init(&parse->message, message->max, message->headroom);
  buf_move(&parse->message, message);
  if (workers_submit(session->api->sandbox->workers, &parse->job, NULL, false, &error) < 0) {
    parse_free(&parse->job);
    refuse_message(session, RPC_INTERNAL_ERROR, error.message);
    return;
  }
  parse->session = session;
  session->parse = parse;
  rpc_session_flow(session);
}

/* ---- out ---- */

static void on_more(struct loop_task *task) {
  struct rpc_session *session = task->arg;
  session->peer->ops->wake(session->peer);
}

/* The calls of a batch are answered before there is anything to send: so as not to hold up everybody else, the rest of
 * them has to wait for another turn of the loop. */
static bool puts_off(struct rpc_session *session, int64_t began) {
  if (list_is_empty(&session->ready) || clock_monotonic() - began < PULL_TIME)
    return false;
  loop_defer(session->api->sandbox->loop, &session->more, on_more, session);
  return true;
}

bool rpc_session_pull(struct rpc_session *session, struct buf *out) {
  int64_t began = clock_monotonic();
  loop_task_cancel(&session->more); /* this is that turn, if one was due */
  while (!list_is_empty(&session->ready) && !puts_off(session, began)) {
    struct call *call = LIST_FIRST(&session->ready, struct call, ready_node);
    list_remove(&call->ready_node);
    if (call->answered) {
      if (call_take_response(call, out))
        return true;
      continue;
    }
    buf_reset(out, SIZE_MAX);
    if (call->next(call, out)) {
      list_remove(&call->ready_node);                  /* it may have woken itself */
      list_append(&session->ready, &call->ready_node); /* behind the others: each has its turn */
      return true;
    }
  }
  return false;
}
