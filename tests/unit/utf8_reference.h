/* utf8_reference.h - UTF-8 in the plainest way there is, to compare with: the rows of table 3-7 of the Unicode standard
 * ("well-formed UTF-8 byte sequences"), and a generator of text that is hard on a decoder. */
#ifndef TESTS_UNIT_UTF8_REFERENCE_H
#define TESTS_UNIT_UTF8_REFERENCE_H

#include "sandkeeper/base/utf8.h"

#include <string.h>

static const struct {
  size_t n;
  uint8_t range[4][2];
} utf8_rows[] = {
    {1, {{0x00, 0x7f}}},
    {2, {{0xc2, 0xdf}, {0x80, 0xbf}}},
    {3, {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}},
    {3, {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {3, {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}},
    {3, {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {4, {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {4, {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
    {4, {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}},
};

/* The longest start of a row that the bytes begin with is one unit, be it whole or not ("maximal subpart"). */
static inline enum utf8_kind reference_next(const uint8_t *bytes, size_t len, size_t *n) {
  *n = 1;
  for (size_t row = 0; row < sizeof utf8_rows / sizeof *utf8_rows; row++) {
    size_t same = 0;
    while (same < utf8_rows[row].n && same < len && bytes[same] >= utf8_rows[row].range[same][0] &&
           bytes[same] <= utf8_rows[row].range[same][1])
      same++;
    if (same == 0)
      continue;
    *n = same;
    if (same == utf8_rows[row].n)
      return UTF8_CHARACTER;
    return same == len ? UTF8_INCOMPLETE : UTF8_INVALID;
  }
  return UTF8_INVALID;
}

static inline uint32_t reference_random(uint64_t *seed, uint32_t below) {
  *seed ^= *seed << 13;
  *seed ^= *seed >> 7;
  *seed ^= *seed << 17;
  return (uint32_t)(*seed >> 33) % below;
}

/* Fills all of `out`: runs of plain text of any length, escapes, whole characters, characters cut short, wild bytes. */
static inline void reference_text(uint64_t *seed, uint8_t *out, size_t len) {
  size_t at = 0;
  while (at < len) {
    uint8_t piece[64];
    size_t n = 0;
    switch (reference_random(seed, 8)) {
    case 0:
    case 1:
      for (n = 0; n < 1 + reference_random(seed, 40); n++)
        piece[n] = (uint8_t)(' ' + reference_random(seed, 95));
      break;
    case 2:
      piece[n++] = (uint8_t) "\"\\\n\r\t\b\f\x1b\x7f/"[reference_random(seed, 11)];
      break;
    case 3:
      piece[n++] = (uint8_t)reference_random(seed, 256);
      break;
    default: {
      size_t row = reference_random(seed, sizeof utf8_rows / sizeof *utf8_rows);
      /* Cut short sometimes. */
      size_t want = utf8_rows[row].n - (reference_random(seed, 6) == 0 ? reference_random(seed, 3) : 0);
      for (; n < want && n < utf8_rows[row].n; n++) {
        uint8_t low = utf8_rows[row].range[n][0], high = utf8_rows[row].range[n][1];
        /* The borders of the range, and the first bytes outside of it, are where mistakes live. */
        switch (reference_random(seed, 8)) {
        case 0:
          piece[n] = low;
          break;
        case 1:
          piece[n] = high;
          break;
        case 2:
          piece[n] = (uint8_t)(reference_random(seed, 4) == 0 ? high + 1 : high);
          break;
        case 3:
          piece[n] = (uint8_t)(reference_random(seed, 4) == 0 ? low - 1 : low);
          break;
        default:
          piece[n] = (uint8_t)(low + reference_random(seed, (uint32_t)(high - low) + 1));
        }
      }
    }
    }
    if (n > len - at)
      n = len - at;
    memcpy(out + at, piece, n);
    at += n;
  }
}

#endif
