/* json_out.h - writes JSON into a buffer. Everything it writes is valid JSON and valid UTF-8, whatever it is
 * given; commas are its own business. A failed buffer fails the whole document: check json_out_end() once.
 *
 * It exists beside json-c because output is what we stream: a ring's bytes go to the wire in one pass,
 * repaired and escaped, without an object tree and a second copy. */
#ifndef SANDKEEPER_BASE_JSON_OUT_H
#define SANDKEEPER_BASE_JSON_OUT_H

#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/utf8.h"

#include <stdbool.h>
#include <stdint.h>

struct json_out {
  struct buf *buf;
  bool comma; /* a comma is due before the next value or key */
};

void json_out_begin(struct json_out *out, struct buf *buf); /* appends to what buf holds */
int json_out_end(struct json_out *out);                     /* 0, or -1 when the buffer failed */

void json_out_object(struct json_out *out);
void json_out_object_end(struct json_out *out);
void json_out_array(struct json_out *out);
void json_out_array_end(struct json_out *out);
void json_out_key(struct json_out *out, const char *key); /* plain ASCII, written as it is */

void json_out_string(struct json_out *out, const char *string);            /* invalid UTF-8 is repaired */
void json_out_bytes(struct json_out *out, const void *bytes, size_t len);  /* the same, any bytes, NUL too */
void json_out_base64(struct json_out *out, const void *bytes, size_t len); /* as a base64 string */
void json_out_int(struct json_out *out, int64_t value);
void json_out_uint(struct json_out *out, uint64_t value);
void json_out_double(struct json_out *out, double value); /* NaN and infinity become null */
void json_out_bool(struct json_out *out, bool value);
void json_out_null(struct json_out *out);
void json_out_raw(struct json_out *out, const char *json, size_t len); /* a value that is JSON already */

/* A string value made of pieces: json_out_text_begin(), json_text_append()... on the same buffer,
 * json_out_text_end(). */
void json_out_text_begin(struct json_out *out);
void json_out_text_end(struct json_out *out);

/* Limits of one json_text_append; SIZE_MAX for none. */
struct json_text_limit {
  size_t encoded; /* bytes it may still add to the buffer; counted down */
  size_t decoded; /* bytes of UTF-8 that the receiver will see; counted down */
};

/* Appends the inside of a JSON string: repaired UTF-8, escaped (RFC 8259, section 7: quote, backslash, control
 * characters; the rest as it is). The start of an unfinished character at the end of `bytes` is kept in *carry and
 * comes out with the next piece. Stops before a character that would pass a limit, or when the buffer fails: then look
 * at `failed`, since trying again takes nothing. `limit` may be NULL. Returns the bytes of input taken (those kept in
 * carry count as taken). */
size_t json_text_append(struct buf *buf, struct utf8_carry *carry, const void *bytes, size_t len,
                        struct json_text_limit *limit);

/* Ends a stream: what the carry still holds is one U+FFFD. */
void json_text_finish(struct buf *buf, struct utf8_carry *carry);

/* How many bytes json_text_append() would add for these; nothing is written. Same rule for the carry. */
size_t json_text_length(struct utf8_carry *carry, const void *bytes, size_t len);

#endif
