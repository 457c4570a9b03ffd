#include "sandkeeper/net/http_head.h"

#include "sandkeeper/base/percent.h"

#include <string.h>
#include <strings.h>

/* ---- text ---- */

bool text_is(struct text text, const char *string) {
  return text.at && text.len == strlen(string) && memcmp(text.at, string, text.len) == 0;
}

bool text_is_nocase(struct text text, const char *string) {
  return text.at && text.len == strlen(string) && strncasecmp(text.at, string, text.len) == 0;
}

bool text_contains(struct text text, const char *string) {
  return text.at && memmem(text.at, text.len, string, strlen(string)) != NULL;
}

struct text text_of(const char *string) {
  return (struct text){string, string ? strlen(string) : 0};
}

static bool is_space(char c) {
  return c == ' ' || c == '\t';
}

static struct text trimmed(struct text text) {
  while (text.len > 0 && is_space(text.at[0])) {
    text.at++;
    text.len--;
  }
  while (text.len > 0 && is_space(text.at[text.len - 1]))
    text.len--;
  return text;
}

bool text_list_next(struct text *list, struct text *element) {
  while (list->at && list->len > 0) {
    const char *comma = memchr(list->at, ',', list->len);
    size_t len = comma ? (size_t)(comma - list->at) : list->len;
    size_t taken = comma ? len + 1 : len;
    *element = trimmed((struct text){list->at, len});
    list->at += taken;
    list->len -= taken;
    if (element->len > 0)
      return true;
  }
  return false;
}

/* ---- queries and percent signs ---- */

bool http_query_find(struct text query, const char *name, struct text *value) {
  size_t name_len = strlen(name);
  while (query.at && query.len > 0) {
    const char *end = memchr(query.at, '&', query.len);
    size_t len = end ? (size_t)(end - query.at) : query.len;
    if (len >= name_len && memcmp(query.at, name, name_len) == 0 && (len == name_len || query.at[name_len] == '=')) {
      size_t skip = len == name_len ? len : name_len + 1;
      *value = (struct text){query.at + skip, len - skip};
      return true;
    }
    size_t taken = end ? len + 1 : len;
    query.at += taken;
    query.len -= taken;
  }
  return false;
}

ptrdiff_t http_percent_decode(char *out, struct text text, bool plus_is_space) {
  return percent_decode(out, text.at, text.len, plus_is_space);
}

/* ---- the request line ---- */

static void refuse(struct http_head *head, unsigned status, const char *reason) {
  if (head->status == 0) {
    head->status = status;
    head->reason = reason;
  }
}

/* tchar of RFC 9110, 5.6.2. */
static bool is_token_char(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
    return true;
  return c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

static bool is_token(struct text text) {
  for (size_t i = 0; i < text.len; i++)
    if (!is_token_char(text.at[i]))
      return false;
  return text.len > 0;
}

/* Controls and spaces are out. Bytes from 0x80 up are let through: clients send paths in UTF-8 without encoding them.
 */
static bool is_target(struct text text) {
  for (size_t i = 0; i < text.len; i++)
    if ((unsigned char)text.at[i] <= ' ' || text.at[i] == 0x7f)
      return false;
  return text.len > 0;
}

/* Takes scheme and authority off an absolute-form target ("http://host/path", RFC 9112, 3.2.2). */
static struct text without_authority(struct text target) {
  const char *start = memmem(target.at, target.len, "://", 3);
  if (target.len == 0 || target.at[0] == '/' || !start)
    return target;
  start += 3;
  size_t rest = target.len - (size_t)(start - target.at);
  for (size_t i = 0; i < rest; i++)
    if (start[i] == '/' || start[i] == '?')
      return (struct text){start + i, rest - i};
  return (struct text){start + rest, 0};
}

static void split_target(struct http_head *head) {
  struct text path = without_authority(head->target);
  const char *question = path.len > 0 ? memchr(path.at, '?', path.len) : NULL;
  if (question) {
    head->query.at = question + 1;
    head->query.len = path.len - (size_t)(question + 1 - path.at);
    path.len = (size_t)(question - path.at);
  }
  head->path = path.len > 0 ? path : text_of("/");
}

void http_head_begin(struct http_head *head, struct text method, struct text target, int minor) {
  *head = (struct http_head){.method = method, .target = target, .minor = minor};
  if (!is_token(method))
    refuse(head, 400, "the request's method is malformed");
  else if (!is_target(target))
    refuse(head, 400, "the request's target is malformed");
  split_target(head);
}

/* ---- fields ---- */

static bool list_has(struct text list, const char *token) {
  struct text element;
  while (text_list_next(&list, &element))
    if (text_is_nocase(element, token))
      return true;
  return false;
}

static void take_length(struct http_head *head, struct text value) {
  head->has_length = true;
  if (++head->lengths > 1) {
    refuse(head, 400, "Content-Length was sent twice");
    return;
  }
  uint64_t length = 0;
  for (size_t i = 0; i < value.len; i++) {
    char c = value.at[i];
    if (c < '0' || c > '9' || length > (UINT64_MAX - 9) / 10) {
      refuse(head, 400, "Content-Length is no number");
      return;
    }
    length = length * 10 + (uint64_t)(c - '0');
  }
  if (value.len == 0)
    refuse(head, 400, "Content-Length is no number");
  head->content_length = length;
}

static void take_encoding(struct http_head *head, struct text value) {
  if (head->chunked)
    refuse(head, 400, "Transfer-Encoding was sent twice");
  else if (!text_is_nocase(value, "chunked"))
    refuse(head, 501, "Transfer-Encoding may only be chunked");
  head->chunked = true;
}

static void take_once(struct text *slot, struct text value) {
  if (!slot->at)
    *slot = value;
}

static void take_protocols(struct http_head *head, struct text value) {
  if (head->n_protocols < HTTP_HEAD_PROTOCOL_LINES)
    head->protocols[head->n_protocols++] = value;
}

/* Fields of which the first one counts. */
static struct text *slot_of(struct http_head *head, struct text name) {
  const struct {
    const char *name;
    struct text *slot;
  } slots[] = {
      {"Origin", &head->origin},
      {"User-Agent", &head->user_agent},
      {"Authorization", &head->authorization},
      {"X-Access-Token", &head->access_token},
      {"X-API-Key", &head->api_key},
      {"X-Project-ID", &head->project_id},
      {"X-Service-ID", &head->service_id},
      {"Sec-WebSocket-Key", &head->websocket_key},
      {"Sec-WebSocket-Version", &head->websocket_version},
  };
  for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
    if (text_is_nocase(name, slots[i].name))
      return slots[i].slot;
  return NULL;
}

void http_head_field(struct http_head *head, struct text name, struct text value) {
  value = trimmed(value);
  struct text *slot = slot_of(head, name);
  if (slot) {
    take_once(slot, value);
  } else if (text_is_nocase(name, "Host")) {
    take_once(&head->host, value);
    head->hosts++;
  } else if (text_is_nocase(name, "Connection")) {
    head->connection_upgrade |= list_has(value, "upgrade");
  } else if (text_is_nocase(name, "Upgrade")) {
    head->upgrade_websocket |= list_has(value, "websocket");
  } else if (text_is_nocase(name, "Expect")) {
    head->expect_continue |= text_is_nocase(value, "100-continue");
  } else if (text_is_nocase(name, "Content-Length")) {
    take_length(head, value);
  } else if (text_is_nocase(name, "Transfer-Encoding")) {
    take_encoding(head, value);
  } else if (text_is_nocase(name, "Sec-WebSocket-Protocol")) {
    take_protocols(head, value);
  }
}

void http_head_end(struct http_head *head) {
  if (head->chunked && head->has_length)
    refuse(head, 400, "Content-Length and Transfer-Encoding may not come together");
  if (head->chunked && head->minor == 0)
    refuse(head, 400, "Transfer-Encoding needs HTTP/1.1");
  if (head->hosts > 1)
    refuse(head, 400, "Host was sent twice");
  if (head->hosts == 0 && head->minor > 0)
    refuse(head, 400, "Host is missing");
}

/* ---- from bytes ---- */

/* Checks one byte of a line. A CR is right only before the LF, and an LF only behind a CR. */
static bool is_line_byte(char c) {
  unsigned char byte = (unsigned char)c;
  return byte == '\t' || (byte >= ' ' && byte != 0x7f);
}

/* Finds the end of the line that starts at `at`. 1: *line is it, *next where the next one starts; 0: not there yet;
 * -1: refused. */
static int next_line(struct http_head *head, const char *bytes, size_t len, size_t at, struct text *line,
                     size_t *next) {
  for (size_t i = at; i < len; i++) {
    if (bytes[i] == '\r') {
      if (i + 1 == len)
        return 0;
      if (bytes[i + 1] != '\n') {
        refuse(head, 400, "the request has a CR without LF");
        return -1;
      }
      *line = (struct text){bytes + at, i - at};
      *next = i + 2;
      return 1;
    }
    if (!is_line_byte(bytes[i])) {
      refuse(head, 400, bytes[i] == '\n' ? "the request has an LF without CR" : "the request has a control character");
      return -1;
    }
  }
  return 0;
}

static int parse_version(struct http_head *head, struct text version) {
  if (version.len != 8 || memcmp(version.at, "HTTP/", 5) != 0 || version.at[5] < '0' || version.at[5] > '9' ||
      version.at[6] != '.' || version.at[7] < '0' || version.at[7] > '9') {
    refuse(head, 400, "the request line is malformed");
    return -1;
  }
  if (version.at[5] != '1') {
    refuse(head, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    return -1;
  }
  return version.at[7] - '0';
}

static void parse_request_line(struct http_head *head, struct text line) {
  const char *first = memchr(line.at, ' ', line.len);
  const char *last = memrchr(line.at, ' ', line.len);
  if (!first || first == last) {
    refuse(head, 400, "the request line is malformed");
    return;
  }
  struct text method = {line.at, (size_t)(first - line.at)};
  struct text target = {first + 1, (size_t)(last - first - 1)};
  struct text version = {last + 1, line.len - (size_t)(last + 1 - line.at)};
  int minor = parse_version(head, version);
  if (minor >= 0)
    http_head_begin(head, method, target, minor);
}

static void parse_field(struct http_head *head, struct text line) {
  if (is_space(line.at[0])) {
    refuse(head, 400, "a header line is folded");
    return;
  }
  const char *colon = memchr(line.at, ':', line.len);
  struct text name = {line.at, colon ? (size_t)(colon - line.at) : 0};
  if (!is_token(name)) {
    refuse(head, 400, "a header line is malformed");
    return;
  }
  http_head_field(head, name, (struct text){colon + 1, line.len - name.len - 1});
}

enum http_head_state http_head_parse(struct http_head *head, const char *bytes, size_t len) {
  *head = (struct http_head){0};
  size_t at = 0;
  bool started = false;
  if (len > HTTP_HEAD_MAX)
    len = HTTP_HEAD_MAX;
  for (;;) {
    struct text line;
    size_t next;
    int found = next_line(head, bytes, len, at, &line, &next);
    if (found < 0)
      return HTTP_HEAD_BAD;
    if (found == 0)
      break;
    at = next;
    if (!started) {
      /* Empty lines before the request are skipped, as RFC 9112, 2.2 asks. */
      if (line.len > 0) {
        parse_request_line(head, line);
        started = true;
      }
    } else if (line.len > 0) {
      parse_field(head, line);
    } else {
      http_head_end(head);
      head->length = at;
      return head->status ? HTTP_HEAD_BAD : HTTP_HEAD_WHOLE;
    }
    if (head->status)
      return HTTP_HEAD_BAD;
  }
  if (len < HTTP_HEAD_MAX)
    return HTTP_HEAD_MORE;
  refuse(head, 431, "the request's head is longer than 4096 bytes");
  return HTTP_HEAD_BAD;
}
