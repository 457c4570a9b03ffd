/* percent.h - percent-decoding, RFC 3986 section 2.1. Pure. */
#ifndef SANDKEEPER_BASE_PERCENT_H
#define SANDKEEPER_BASE_PERCENT_H

#include <stdbool.h>
#include <stddef.h>

/* Decodes into `out`, which may be `text` itself and needs room for len bytes. plus_is_space: as in a query. Returns
 * the decoded length, or -1 when a percent sign is not followed by two hex digits. No NUL is added; %00 becomes one. */
ptrdiff_t percent_decode(char *out, const char *text, size_t len, bool plus_is_space);

#endif
