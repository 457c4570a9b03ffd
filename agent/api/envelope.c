#include "sandkeeper/api/envelope.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/rpc_parse.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Labels, payloads' names and the like come from a body of at most SANDBOX_API_BODY_MAX; escaped, a byte is six. */
#define BODY_MAX (8u * SANDBOX_API_BODY_MAX)
#define REQUEST_ID_MAX 128

/* The caller's own, so that it can find the call in its log, else one that is unique to this agent's run. */
static void write_request_id(struct json_out *out, struct exchange *x) {
  static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
  struct api *api = x->api;
  const char *given = x->ops->header(x, "X-Request-ID");
  char made[64];
  size_t len = given ? strlen(given) : 0;
  if (len == 0 || len > REQUEST_ID_MAX || strspn(given, plain) != len) {
    snprintf(made, sizeof made, "%s-%llu", api->sandbox->commands.run_id, (unsigned long long)++api->control.requests);
    given = made;
  }
  json_out_key(out, "request_id");
  json_out_string(out, given);
}

static void begin(struct envelope *envelope, struct exchange *x, unsigned code, const char *message) {
  envelope->x = x;
  buf_init(&envelope->body, BODY_MAX, 0);
  json_out_begin(&envelope->out, &envelope->body);
  json_out_object(&envelope->out);
  json_out_key(&envelope->out, "code");
  json_out_uint(&envelope->out, code);
  json_out_key(&envelope->out, "message");
  json_out_string(&envelope->out, message);
  json_out_key(&envelope->out, "data");
}

static void send(struct envelope *envelope, unsigned status) {
  struct exchange *x = envelope->x;
  write_request_id(&envelope->out, x);
  json_out_object_end(&envelope->out);
  json_out_end(&envelope->out);
  x->ops->add_header(x, "Cache-Control", "no-store");
  x->ops->reply(x, status, "application/json", &envelope->body);
}

void envelope_begin(struct envelope *envelope, struct exchange *x) {
  begin(envelope, x, 0, "ok");
}

void envelope_send(struct envelope *envelope) {
  send(envelope, 200);
}

void envelope_fail(struct exchange *x, unsigned status, const char *format, ...) {
  struct envelope envelope;
  char message[ERROR_MESSAGE_MAX];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof message, format, args);
  va_end(args);
  begin(&envelope, x, status, message);
  json_out_null(&envelope.out);
  send(&envelope, status);
}

/* "application/json; charset=utf-8" and the like. One who sends none is believed. A form's type is not taken: that is
 * what a foreign web page can send without asking. */
static bool is_json(const char *content_type) {
  if (!content_type)
    return true;
  size_t len = strcspn(content_type, "; \t");
  return (len == strlen("application/json") && strncasecmp(content_type, "application/json", len) == 0) ||
         (len > strlen("+json") && strncasecmp(content_type + len - strlen("+json"), "+json", strlen("+json")) == 0);
}

json_object *envelope_body(struct exchange *x) {
  const char *content_type = x->ops->header(x, "Content-Type");
  json_object *body = NULL;
  struct error err = ERROR_INIT;
  if (x->body->len > 0 && !is_json(content_type)) {
    envelope_fail(x, 415, "Content-Type: the body must be application/json, not %.100s", content_type);
    return NULL;
  }
  if (x->body->len > 0 && rpc_parse(x->body->data, x->body->len, &body, &err) < 0) {
    envelope_fail(x, 400, "body: %s", err.message);
    return NULL;
  }
  if (body && !json_object_is_type(body, json_type_object)) {
    json_object_put(body);
    envelope_fail(x, 400, "body: it takes a JSON object");
    return NULL;
  }
  if (!body && !(body = json_object_new_object()))
    envelope_fail(x, 500, "there is no memory for the request");
  return body;
}
