/* json_check.h - is a text one JSON value, and where in it does a member stand? Pure, allocates nothing.
 *
 * It exists beside json-c because that takes more than JSON (NaN, single quotes), and what is handed on to clients as
 * it is must be JSON for every one of them. */
#ifndef SANDKEEPER_BASE_JSON_CHECK_H
#define SANDKEEPER_BASE_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#define JSON_CHECK_DEPTH 64 /* levels of objects and arrays; the limit of docs/protocol.md 3.3 */

/* The value of one member of the outermost object, as it stands in the text. */
struct json_member {
  const char *name; /* what is looked for; plain ASCII */
  const char *at;   /* NULL: it is not there */
  size_t len;       /* a string's quotes count */
};

/* True when the whole text is one object (RFC 8259) with nothing but white space around it: valid UTF-8, no half
 * surrogate pair in an escape (RFC 7493, 2.1), at most JSON_CHECK_DEPTH levels. Finds `member`, the last one of that
 * name, however its name is escaped. */
bool json_check_object(const char *text, size_t len, struct json_member *member);

/* True when a string as it stands in a checked text, quotes included, means `string`, which is plain ASCII. False for
 * what is no string. */
bool json_string_is(const char *text, size_t len, const char *string);

/* True when the whole text is one number (RFC 8259, 6), and nothing around it. json-c gives a number back as it was
 * written, and it takes "1." and "-.5". */
bool json_is_number(const char *text, size_t len);

#endif
