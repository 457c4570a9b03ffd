#include "sandkeeper/api/rpc_parse.h"

#include "sandkeeper/base/utf8.h"

#include <errno.h>
#include <json-c/json_tokener.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

/* The closing quote of the string that holds `at`. */
static const char *string_end(const char *at, const char *end) {
  while (at < end && *at != '"')
    at += *at == '\\' ? 2 : 1;
  return at < end ? at : end;
}

/* True when a colon follows the string: it is a member name. */
static bool is_name(const char *quote, const char *end) {
  const char *at = quote + 1;
  while (at < end && strchr(" \t\r\n", *at))
    at++;
  return at < end && *at == ':';
}

/* True when the backslash at `at` is the second of a pair. */
static bool is_escaped(const char *text, const char *at) {
  const char *first = at;
  while (first > text && first[-1] == '\\')
    first--;
  return (at - first) % 2 == 1;
}

/* json-c keeps member names as C strings: {"PATH\u0000x":1} would read as PATH. */
static bool has_nul_in_name(const char *text, size_t len) {
  static const char nul[] = "\\u0000";
  const char *end = text + len, *at = text;
  while ((at = memmem(at, (size_t)(end - at), nul, sizeof nul - 1))) {
    if (is_escaped(text, at)) { /* a backslash, and then plain "u0000" */
      at++;
      continue;
    }
    at = string_end(at, end);
    if (at == end)
      return false;
    if (is_name(at, end))
      return true;
  }
  return false;
}

/* Looks over what stands outside of strings: json-c makes up to 750 bytes of a "{}", and freeing millions of values
 * takes the loop seconds. It also takes names in single quotes, which would hide from this and from the check above
 * what is in them. */
static int check_values(const char *text, size_t len, struct error *err) {
  const char *end = text + len, *at = text;
  size_t values = 1;
  while (at < end) {
    char c = *at++;
    if (c == '"') {
      at = string_end(at, end);
      at += at < end;
    } else if (c == '\'') {
      return error_set(err, ERROR_INVALID, 0, "parse error: a single quote at byte %td", at - 1 - text);
    } else if ((c == ',' || c == '[' || c == '{') && ++values > RPC_VALUES_MAX) {
      return error_set(err, ERROR_INVALID, 0, "parse error: more than %d values at byte %td", RPC_VALUES_MAX,
                       at - 1 - text);
    }
  }
  return 0;
}

static bool is_null(const char *text, size_t len) {
  size_t at = 0;
  while (at < len && strchr(" \t\r\n", text[at]))
    at++;
  return at < len && (text[at] == 'n' || text[at] == 'N');
}

static int tokenize(json_tokener *tokener, const char *text, size_t len, json_object **value, struct error *err) {
  *value = json_tokener_parse_ex(tokener, text, (int)len);
  enum json_tokener_error status = json_tokener_get_error(tokener);
  if (status == json_tokener_continue) { /* a number at the top ends only when something follows */
    *value = json_tokener_parse_ex(tokener, " ", 1);
    status = json_tokener_get_error(tokener);
    if (status == json_tokener_continue)
      return error_set(err, ERROR_INVALID, 0,
                       len ? "parse error: the message ends in the middle of its JSON"
                           : "parse error: the message is empty");
  }
  /* Without memory json-c says success, and gives what it gives for "null". */
  if (status == json_tokener_success && !*value && !is_null(text, len))
    return error_set_errno(err, ENOMEM, "reading the message");
  if (status == json_tokener_success)
    return 0;
  size_t at = json_tokener_get_parse_end(tokener);
  if (status == json_tokener_error_depth)
    return error_set(err, ERROR_INVALID, 0, "parse error: nested deeper than %d levels at byte %zu", RPC_DEPTH_MAX, at);
  return error_set(err, ERROR_INVALID, 0, "parse error: %s at byte %zu", json_tokener_error_desc(status), at);
}

int rpc_parse(const char *text, size_t len, json_object **value, struct error *err) {
  bool nul_in_name;
  int status = rpc_parse_request(text, len, value, &nul_in_name, err);
  if (status < 0 || !nul_in_name)
    return status;
  json_object_put(*value);
  *value = NULL;
  return error_set(err, ERROR_INVALID, 0, "parse error: a member name holds a NUL character");
}

int rpc_parse_request(const char *text, size_t len, json_object **value, bool *nul_in_name, struct error *err) {
  *value = NULL;
  *nul_in_name = false;
  if (len == 0)
    text = ""; /* an empty buffer has no address */
  if (len > INT_MAX)
    return error_set(err, ERROR_INVALID, 0, "parse error: the message is longer than %d bytes", INT_MAX);
  size_t valid = utf8_valid_prefix((const uint8_t *)text, len); /* json-c takes halves of pairs and overlong ones */
  if (valid < len)
    return error_set(err, ERROR_INVALID, 0, "parse error: invalid UTF-8 at byte %zu", valid);
  const char *nul = memchr(text, '\0', len); /* json-c takes one for the end */
  if (nul)
    return error_set(err, ERROR_INVALID, 0, "parse error: a NUL byte at byte %td", nul - text);
  if (check_values(text, len, err) < 0)
    return -1;
  json_tokener *tokener =
      json_tokener_new_ex(RPC_DEPTH_MAX + 1); /* the value in the innermost one is a level of its own */
  if (!tokener)
    return error_set_errno(err, ENOMEM, "parse error");
  json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
  int status = tokenize(tokener, text, len, value, err);
  *nul_in_name = status == 0 && has_nul_in_name(text, len);
  json_tokener_free(tokener);
  return status;
}
