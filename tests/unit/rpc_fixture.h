/* rpc_fixture.h - a client for unit tests of api/: a peer that keeps what it is sent. Every message that it pulls is
 * checked: JSON by the strict checker, valid UTF-8, no longer than the client takes. */
#ifndef TESTS_UNIT_RPC_FIXTURE_H
#define TESTS_UNIT_RPC_FIXTURE_H

#include "core_fixture.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/peer.h"
#include "sandkeeper/api/rpc.h"
#include "sandkeeper/base/json_check.h"

#include <json-c/json.h>
#include <stdarg.h>

static struct api api;

struct client {
  struct peer peer; /* must be first */
  struct rpc_session *session;
  bool held;
  int wakes, holds;
  struct buf out;
};

static void client_wake(struct peer *peer) {
  ((struct client *)peer)->wakes++;
}

static void client_hold(struct peer *peer, bool held) {
  struct client *client = (struct client *)peer;
  REQUIRE(client->held != held); /* only changes are told */
  client->held = held;
  client->holds += held;
}

static const struct peer_ops client_ops = {.wake = client_wake, .hold = client_hold};

MAYBE_UNUSED static void client_open(struct client *client, size_t max_message) {
  struct error err = ERROR_INIT;
  api.sandbox = &sandbox;
  *client = (struct client){.peer = {.ops = &client_ops, .max_message = max_message}};
  buf_init(&client->out, SIZE_MAX, BUF_HEADROOM);
  client->session = rpc_session_open(&api, &client->peer, &err);
  ck_assert_ptr_nonnull(client->session);
}

MAYBE_UNUSED static void client_close(struct client *client) {
  if (client->session)
    rpc_session_close(client->session);
  client->session = NULL;
  buf_free(&client->out);
}

/* As a transport does it: nothing is delivered while it is held. */
MAYBE_UNUSED static void client_send_bytes(struct client *client, const char *message, size_t len) {
  RUN_UNTIL(!client->held);
  rpc_session_receive(client->session, message, len);
}

__attribute__((format(printf, 2, 3))) MAYBE_UNUSED static void client_send(struct client *client, const char *format,
                                                                           ...) {
  char *message;
  va_list args;
  va_start(args, format);
  int len = vasprintf(&message, format, args);
  va_end(args);
  ck_assert_int_ge(len, 0);
  client_send_bytes(client, message, (size_t)len);
  free(message);
}

static void check_message(const struct client *client) {
  const struct buf *out = &client->out;
  REQUIRE(!out->failed);
  REQUIRE(out->len > 0);
  REQUIRE(out->headroom >= BUF_HEADROOM);
  if (out->len > client->peer.max_message)
    ck_abort_msg("a message of %zu bytes", out->len);
  if (out->data[0] == '{') {
    struct json_member member = {.name = "jsonrpc"};
    if (!json_check_object(out->data, out->len, &member))
      ck_abort_msg("no JSON: %.*s", (int)out->len, out->data);
    REQUIRE(member.len == 5 && memcmp(member.at, "\"2.0\"", 5) == 0);
    return;
  }
  struct buf wrapped;
  struct json_member none = {.name = "none"};
  buf_init(&wrapped, SIZE_MAX, 0);
  buf_append_string(&wrapped, "{\"batch\":");
  buf_append(&wrapped, out->data, out->len);
  buf_append_string(&wrapped, "}");
  REQUIRE(out->data[0] == '[' && json_check_object(wrapped.data, wrapped.len, &none));
  buf_free(&wrapped);
}

/* The next message, a new reference; NULL when there is none now. */
MAYBE_UNUSED static json_object *client_pull(struct client *client) {
  if (!rpc_session_pull(client->session, &client->out))
    return NULL;
  check_message(client);
  json_tokener *tokener = json_tokener_new_ex(100);
  json_object *message = json_tokener_parse_ex(tokener, client->out.data, (int)client->out.len);
  REQUIRE(json_tokener_get_error(tokener) == json_tokener_success);
  json_tokener_free(tokener);
  return message;
}

MAYBE_UNUSED static json_object *client_wait(struct client *client) {
  json_object *message;
  RUN_UNTIL((message = client_pull(client)) != NULL);
  return message;
}

/* ---- looking at messages; what is borrowed lives as long as the message ---- */

MAYBE_UNUSED static json_object *member(json_object *object, const char *path) {
  char copy_of_path[200];
  snprintf(copy_of_path, sizeof copy_of_path, "%s", path);
  for (char *rest = copy_of_path, *name; (name = strsep(&rest, "."));)
    object = json_object_object_get(object, name);
  return object;
}

MAYBE_UNUSED static const char *text_of(json_object *object, const char *path) {
  json_object *value = member(object, path);
  if (!json_object_is_type(value, json_type_string))
    ck_abort_msg("no string %s in %s", path, json_object_to_json_string(object));
  return json_object_get_string(value);
}

MAYBE_UNUSED static int64_t number_of(json_object *object, const char *path) {
  json_object *value = member(object, path);
  if (!json_object_is_type(value, json_type_int))
    ck_abort_msg("no number %s in %s", path, json_object_to_json_string(object));
  return json_object_get_int64(value);
}

MAYBE_UNUSED static bool truth_of(json_object *object, const char *path) {
  json_object *value = member(object, path);
  if (!json_object_is_type(value, json_type_boolean))
    ck_abort_msg("no boolean %s in %s", path, json_object_to_json_string(object));
  return json_object_get_boolean(value);
}

MAYBE_UNUSED static bool is_notification(json_object *message, const char *method) {
  json_object *name = member(message, "method");
  return name && (!method || strcmp(json_object_get_string(name), method) == 0);
}

/* The next response; the notifications before it are dropped. */
MAYBE_UNUSED static json_object *client_response(struct client *client) {
  for (;;) {
    json_object *message = client_wait(client);
    if (!is_notification(message, NULL))
      return message;
    json_object_put(message);
  }
}

/* One request and its response. */
__attribute__((format(printf, 2, 3))) MAYBE_UNUSED static json_object *client_call(struct client *client,
                                                                                   const char *format, ...) {
  char *request;
  va_list args;
  va_start(args, format);
  ck_assert_int_ge(vasprintf(&request, format, args), 0);
  va_end(args);
  client_send(client, "{\"jsonrpc\":\"2.0\",\"id\":1,%s}", request);
  free(request);
  return client_response(client);
}

MAYBE_UNUSED static void expect_error_in(json_object *message, int code, const char *kind, const char *text) {
  if (!member(message, "error") || number_of(message, "error.code") != code ||
      strcmp(text_of(message, "error.data.kind"), kind) != 0 || !strstr(text_of(message, "error.message"), text))
    ck_abort_msg("not %d %s \"%s\": %s", code, kind, text, json_object_to_json_string(message));
}

#endif
