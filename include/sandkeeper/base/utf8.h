/* utf8.h - UTF-8 (RFC 3629) seen byte by byte: where a character ends, what is none, what is not finished.
 *
 * What counts as one error follows the Unicode standard's "maximal subpart" rule (Unicode 15, 3.9, table 3-8),
 * as Python's errors="replace" and the WHATWG decoder do: \xe2\x98 followed by 'a' is one U+FFFD, \xff is one. */
#ifndef SANDKEEPER_BASE_UTF8_H
#define SANDKEEPER_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

enum utf8_kind {
  UTF8_CHARACTER,  /* a whole, valid character */
  UTF8_INVALID,    /* bytes that can start no character: replaced by one U+FFFD */
  UTF8_INCOMPLETE, /* all bytes there are belong to one character that is not finished */
};

/* Looks at the first character of `len` >= 1 bytes. *n: the bytes it takes (1-4). */
enum utf8_kind utf8_next(const uint8_t *bytes, size_t len, size_t *n);

/* The length of the longest prefix that is valid UTF-8 of whole characters. Runs of ASCII are skipped a word at
 * a time. */
size_t utf8_valid_prefix(const uint8_t *bytes, size_t len);

/* How many of the last bytes (0-3) are the start of a character that is not finished. */
size_t utf8_incomplete_tail(const uint8_t *bytes, size_t len);

/* How many of the first bytes (0-3) are continuation bytes, that is the rest of a character cut before. */
size_t utf8_leading_rest(const uint8_t *bytes, size_t len);

/* What a stream's reader carries from one piece to the next: the start of a character that was not finished. */
struct utf8_carry {
  uint8_t bytes[3];
  uint8_t len;
};

#endif
