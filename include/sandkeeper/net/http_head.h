/* http_head.h - the head of an HTTP/1.x request: is it whole, is it sound, what does it want? Pure: memory only,
 * nothing is copied or allocated.
 *
 * Two callers. The gate (net/gate.c) peeks at the first bytes of a connection and asks http_head_parse(). The HTTP
 * server (net/http.c) has its head parsed by libmicrohttpd and feeds the fields in one by one, so that both judge a
 * request by the same rules (net/access.c).
 *
 * The rules are those of RFC 9112, on its strict side: what could be read in two ways (a bare LF, a folded line, a
 * space before the colon, two lengths) is refused.
 */
#ifndef SANDKEEPER_NET_HTTP_HEAD_H
#define SANDKEEPER_NET_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest head of a connection's first request, its empty line included. docs/protocol.md, section 1. */
#define HTTP_HEAD_MAX 4096

/* A piece of the head; not ended by a NUL. `at` is NULL when the field is absent. */
struct text {
  const char *at;
  size_t len;
};

/* How many subprotocols' header lines are looked at; more are ignored. */
#define HTTP_HEAD_PROTOCOL_LINES 4

struct http_head {
  size_t length; /* bytes of the whole head; set by http_head_parse() */
  int minor;     /* HTTP/1.minor */

  struct text method;
  struct text target; /* as sent */
  struct text path;   /* of the target: without scheme, authority and query; still percent-encoded */
  struct text query;  /* behind the question mark; absent without one */

  struct text host, origin, user_agent;
  struct text authorization, access_token, api_key;
  struct text project_id, service_id;
  struct text websocket_key, websocket_version;
  struct text protocols[HTTP_HEAD_PROTOCOL_LINES];
  unsigned n_protocols;

  bool connection_upgrade;  /* Connection names upgrade */
  bool upgrade_websocket;   /* Upgrade names websocket */
  bool expect_continue;     /* Expect: 100-continue */
  bool has_length, chunked; /* how the body is framed; neither: there is none */
  uint64_t content_length;

  /* A head that is refused: the HTTP status, and a sentence for the client. 0: sound so far. */
  unsigned status;
  const char *reason;

  /* Seen twice is an error for some fields. */
  unsigned hosts, lengths;
};

enum http_head_state {
  HTTP_HEAD_MORE, /* sound so far, not whole: wait for more bytes */
  HTTP_HEAD_BAD,  /* head->status and head->reason say why; it will not get better */
  HTTP_HEAD_WHOLE,
};

/* Looks at the first `len` bytes of a connection. The result depends on the bytes only, never on where they were cut:
 * for every prefix of a sound head it says MORE. With len >= HTTP_HEAD_MAX and no end in sight it is BAD with 431. */
enum http_head_state http_head_parse(struct http_head *head, const char *bytes, size_t len);

/* The same in steps. The slices point into what the caller hands in. */
void http_head_begin(struct http_head *head, struct text method, struct text target, int minor);
void http_head_field(struct http_head *head, struct text name, struct text value);
void http_head_end(struct http_head *head); /* the checks that need all fields; sets status */

/* True for a request that may have a body (RFC 9112, 6.3). */
static inline bool http_head_has_body(const struct http_head *head) {
  return head->chunked || (head->has_length && head->content_length > 0);
}

/* text helpers, for those who read heads */
bool text_is(struct text text, const char *string);        /* exactly */
bool text_is_nocase(struct text text, const char *string); /* ASCII letters without case */
bool text_contains(struct text text, const char *string);
struct text text_of(const char *string); /* NULL: absent */

/* Takes the next element of a comma-separated list (RFC 9110, 5.6.1), without the spaces around it. False at the end.
 */
bool text_list_next(struct text *list, struct text *element);

/* Finds `name` in a query string; *value still percent-encoded (empty when there is no "="). */
bool http_query_find(struct text query, const char *name, struct text *value);

/* Decodes %XX, in a query also + as a space, into out, which has room for text.len bytes. Returns the bytes written, or
 * -1 when a percent sign is not followed by two hex digits. */
ptrdiff_t http_percent_decode(char *out, struct text text, bool plus_is_space);

#endif
