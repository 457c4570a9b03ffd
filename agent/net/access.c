#include "sandkeeper/net/access.h"

#include "sandkeeper/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* What Python's websockets takes without being told otherwise: its default max_size. */
#define PYTHON_MAX_MESSAGE (1024u * 1024u)
#define LEAST_MAX_MESSAGE 1024u

/* Always returns false, so that a check can `return refuse(...)`. */
__attribute__((format(printf, 3, 4))) static bool refuse(struct refusal *refusal, unsigned status, const char *format,
                                                         ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(refusal->message, sizeof refusal->message, format, args);
  va_end(args);
  refusal->status = status;
  return false;
}

/* ---- token ---- */

/* Reads as many bytes as the secret has, whatever is given. */
static bool same_secret(const char *secret, struct text given) {
  size_t len = strlen(secret);
  volatile unsigned char difference = given.len != len;
  for (size_t i = 0; i < len; i++)
    difference |= (unsigned char)(secret[i] ^ (i < given.len ? given.at[i] : 0));
  return difference == 0;
}

/* The T of "Bearer T"; the scheme's case does not count (RFC 9110, 11.1). */
static struct text bearer_of(struct text authorization) {
  static const char scheme[] = "Bearer ";
  size_t len = sizeof scheme - 1;
  if (!authorization.at || authorization.len < len || strncasecmp(authorization.at, scheme, len) != 0)
    return text_of(NULL);
  struct text token = {authorization.at + len, authorization.len - len};
  while (token.len > 0 && *token.at == ' ') {
    token.at++;
    token.len--;
  }
  return token;
}

/* The subprotocol that carries a token: bearer.T, of characters that may stand in a header. */
static bool is_bearer_protocol(struct text protocol, struct text *token) {
  static const char prefix[] = "bearer.";
  size_t len = sizeof prefix - 1;
  if (protocol.len <= len || memcmp(protocol.at, prefix, len) != 0)
    return false;
  *token = (struct text){protocol.at + len, protocol.len - len};
  return true;
}

/* Finds the subprotocol bearer.SECRET; with secret NULL the first bearer.*. */
static bool find_bearer_protocol(const struct http_head *head, const char *secret, struct text *protocol) {
  bool found = false;
  for (unsigned i = 0; i < head->n_protocols; i++) {
    struct text list = head->protocols[i], element, token;
    while (!found && text_list_next(&list, &element)) {
      if (is_bearer_protocol(element, &token) && (!secret || same_secret(secret, token))) {
        *protocol = element;
        found = true;
      }
    }
  }
  return found;
}

static bool has_token(const struct net_options *options, const struct http_head *head) {
  struct text ignored;
  const char *secret = options->token;
  /* All places are looked at, so that the time does not tell which one was right. */
  bool right = same_secret(secret, bearer_of(head->authorization));
  right |= same_secret(secret, head->access_token);
  right |= same_secret(secret, head->api_key);
  right |= find_bearer_protocol(head, secret, &ignored);
  return right;
}

/* ---- Origin ---- */

/* Splits host and port; a missing port is `fallback`. */
static struct text split_port(struct text authority, struct text *port, const char *fallback) {
  *port = text_of(fallback);
  for (size_t i = authority.len; i > 0; i--) {
    char c = authority.at[i - 1];
    if (c == ']')
      break;
    if (c == ':') {
      if (i < authority.len)
        *port = (struct text){authority.at + i, authority.len - i};
      authority.len = i - 1;
      break;
    }
  }
  return authority;
}

static bool same_text_nocase(struct text a, struct text b) {
  return a.len == b.len && (a.len == 0 || strncasecmp(a.at, b.at, a.len) == 0);
}

/* An Origin is scheme://host[:port] (RFC 6454, 6.2); "null" and anything else is foreign. */
static bool is_own_origin(struct text origin, struct text host) {
  const char *authority = memmem(origin.at, origin.len, "://", 3);
  if (!authority || !host.at)
    return false;
  struct text scheme = {origin.at, (size_t)(authority - origin.at)};
  authority += 3;
  const char *fallback = text_is_nocase(scheme, "https") ? "443" : "80";
  struct text origin_port, host_port;
  struct text origin_host = {authority, origin.len - (size_t)(authority - origin.at)};
  origin_host = split_port(origin_host, &origin_port, fallback);
  host = split_port(host, &host_port, fallback);
  return same_text_nocase(origin_host, host) && same_text_nocase(origin_port, host_port);
}

static bool is_listed_origin(const struct net_options *options, struct text origin) {
  for (size_t i = 0; i < options->n_allow_origins; i++)
    if (strcmp(options->allow_origins[i], "*") == 0 || text_is_nocase(origin, options->allow_origins[i]))
      return true;
  return false;
}

bool access_cross_origin(const struct net_options *options, const struct http_head *head) {
  return head->origin.at && !is_own_origin(head->origin, head->host) && is_listed_origin(options, head->origin);
}

static int shown(struct text text) {
  return text.len < 80 ? (int)text.len : 80;
}

bool access_allowed(const struct net_options *options, const struct http_head *head, struct refusal *refusal) {
  if (options->token) {
    if (!has_token(options, head))
      return refuse(refusal, 401, "the token is missing or wrong: send it as Authorization: Bearer TOKEN");
    return true;
  }
  if (head->origin.at && !is_own_origin(head->origin, head->host) && !is_listed_origin(options, head->origin))
    return refuse(refusal, 403, "the Origin %.*s may not use this agent; --allow-origin would allow it",
                  shown(head->origin), head->origin.at);
  return true;
}

void access_note_client(const struct http_head *head, const char *address) {
  char project[81], service[81];
  if (!head->project_id.at && !head->service_id.at)
    return;
  snprintf(project, sizeof project, "%.*s", shown(head->project_id), head->project_id.at ? head->project_id.at : "");
  snprintf(service, sizeof service, "%.*s", shown(head->service_id), head->service_id.at ? head->service_id.at : "");
  LOG(LOG_INFO, "net", "client", LOG_S("address", address), LOG_S("project_id", project), LOG_S("service_id", service));
}

/* ---- WebSocket ---- */

/* The {id} between one of the prefixes and "/connect". */
static bool find_id(struct text path, struct text *id) {
  static const char *const prefixes[] = {"/api/v1/sandboxes/", "/api/v1/sandbox/"};
  static const char suffix[] = "/connect";
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
    size_t before = strlen(prefixes[i]), behind = sizeof suffix - 1;
    if (path.len <= before + behind || memcmp(path.at, prefixes[i], before) != 0 ||
        memcmp(path.at + path.len - behind, suffix, behind) != 0)
      continue;
    *id = (struct text){path.at + before, path.len - before - behind};
    return memchr(id->at, '/', id->len) == NULL;
  }
  return false;
}

bool access_is_websocket_path(struct text path) {
  struct text id;
  return text_is(path, "/ws") || find_id(path, &id);
}

static bool check_path(const struct net_options *options, struct text path, struct refusal *refusal) {
  struct text id;
  char decoded[HTTP_HEAD_MAX];
  if (text_is(path, "/ws"))
    return true;
  if (!find_id(path, &id))
    return refuse(refusal, 404, "%.*s is no WebSocket path; /ws is", shown(path), path.at);
  ptrdiff_t len = id.len <= sizeof decoded ? http_percent_decode(decoded, id, false) : -1;
  if (len < 0 || !text_is((struct text){decoded, (size_t)len}, options->sandbox_id))
    return refuse(refusal, 404, "there is no sandbox %.*s here", shown(id), id.at);
  return true;
}

/* 16 bytes in base64: 22 characters of its alphabet and two signs. What the last one's unused bits are does not count.
 */
static bool is_key(struct text key) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (key.len != 24 || key.at[22] != '=' || key.at[23] != '=')
    return false;
  for (size_t i = 0; i < 22; i++)
    if (key.at[i] == 0 || !strchr(alphabet, key.at[i]))
      return false;
  return true;
}

static bool check_max_message(const struct net_options *options, const struct http_head *head, size_t *max,
                              struct refusal *refusal) {
  struct text value;
  *max = options->max_message;
  if (!http_query_find(head->query, "max_message", &value)) {
    if (text_contains(head->user_agent, "websockets/") && text_contains(head->user_agent, "Python/") &&
        *max > PYTHON_MAX_MESSAGE)
      *max = PYTHON_MAX_MESSAGE;
    return true;
  }
  uint64_t asked = 0;
  bool number = value.len > 0;
  for (size_t i = 0; i < value.len && number; i++) {
    number = value.at[i] >= '0' && value.at[i] <= '9';
    if (number && asked < UINT64_MAX / 100) /* a longer one stays that large */
      asked = asked * 10 + (uint64_t)(value.at[i] - '0');
  }
  if (!number || asked < LEAST_MAX_MESSAGE)
    return refuse(refusal, 400, "max_message takes a number of bytes, at least %u", LEAST_MAX_MESSAGE);
  if (asked < *max)
    *max = (size_t)asked;
  return true;
}

static bool check_handshake(const struct http_head *head, struct refusal *refusal) {
  if (!text_is(head->method, "GET"))
    return refuse(refusal, 405, "a WebSocket session starts with GET");
  if (head->minor < 1 || !head->upgrade_websocket || !head->connection_upgrade)
    return refuse(refusal, 426, "this path speaks WebSocket only: send Upgrade: websocket and Connection: Upgrade");
  if (!text_is(head->websocket_version, "13"))
    return refuse(refusal, 426, "Sec-WebSocket-Version must be 13");
  if (!is_key(head->websocket_key))
    return refuse(refusal, 400, "Sec-WebSocket-Key must be 16 bytes in base64");
  if (http_head_has_body(head))
    return refuse(refusal, 400, "a request for a WebSocket session has no body");
  return true;
}

/* Subprotocols go into the answer's head: only characters of a token may. */
static bool is_echoable(struct text protocol) {
  for (size_t i = 0; i < protocol.len; i++) {
    unsigned char c = (unsigned char)protocol.at[i];
    if (c <= ' ' || c >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", c))
      return false;
  }
  return true;
}

bool access_upgrade(const struct net_options *options, const struct http_head *head, struct upgrade *upgrade,
                    struct refusal *refusal) {
  *upgrade = (struct upgrade){0};
  if (!access_allowed(options, head, refusal) || !check_path(options, head->path, refusal) ||
      !check_handshake(head, refusal) || !check_max_message(options, head, &upgrade->max_message, refusal))
    return false;
  memcpy(upgrade->key, head->websocket_key.at, 24);
  if (options->token && find_bearer_protocol(head, options->token, &upgrade->protocol))
    return true;
  if (find_bearer_protocol(head, NULL, &upgrade->protocol) && !is_echoable(upgrade->protocol))
    upgrade->protocol = text_of(NULL);
  return true;
}
