/* base64.h - RFC 4648 section 4, with padding. libwebsockets' own only decodes strings that end in NUL, and the
 * floors above net/ may not call it. */
#ifndef SANDKEEPER_BASE_BASE64_H
#define SANDKEEPER_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes that base64_encode writes for `len` bytes, padding included. */
size_t base64_encoded_length(size_t len);
void base64_encode(char *out, const void *bytes, size_t len); /* no NUL at the end */

/* An upper bound of what base64_decode writes. */
size_t base64_decoded_length(size_t len);

/* Strict: alphabet of section 4, padding right and only at the end, no line breaks, unused bits zero.
 * `out` may be `text` (in place). Returns the bytes written, or -1 with *bad_at the first wrong offset. */
ssize_t base64_decode(void *out, const char *text, size_t len, size_t *bad_at);

#endif
