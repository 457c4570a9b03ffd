#include "sandkeeper/base/utf8.h"

#include <string.h>

#define HIGH_BITS UINT64_C(0x8080808080808080)

/* RFC 3629, section 4: the first byte says how many follow and what the second may be; the third and the fourth are
 * any continuation byte. */
static size_t lead(uint8_t byte, uint8_t *low, uint8_t *high) {
  *low = 0x80;
  *high = 0xbf;
  if (byte >= 0xc2 && byte <= 0xdf)
    return 2;
  if (byte >= 0xe0 && byte <= 0xef) {
    if (byte == 0xe0)
      *low = 0xa0; /* no overlong forms */
    if (byte == 0xed)
      *high = 0x9f; /* no surrogates */
    return 3;
  }
  if (byte >= 0xf0 && byte <= 0xf4) {
    if (byte == 0xf0)
      *low = 0x90;
    if (byte == 0xf4)
      *high = 0x8f; /* nothing above U+10FFFF */
    return 4;
  }
  return 0;
}

enum utf8_kind utf8_next(const uint8_t *bytes, size_t len, size_t *n) {
  *n = 1;
  if (bytes[0] < 0x80)
    return UTF8_CHARACTER;
  uint8_t low, high;
  size_t need = lead(bytes[0], &low, &high);
  if (need == 0)
    return UTF8_INVALID;
  size_t i = 1;
  for (; i < need && i < len; i++) {
    if (bytes[i] < low || bytes[i] > high)
      break;
    low = 0x80;
    high = 0xbf;
  }
  *n = i;
  if (i == need)
    return UTF8_CHARACTER;
  return i == len ? UTF8_INCOMPLETE : UTF8_INVALID;
}

size_t utf8_valid_prefix(const uint8_t *bytes, size_t len) {
  size_t at = 0;
  while (at < len) {
    while (len - at >= sizeof(uint64_t)) {
      uint64_t word;
      memcpy(&word, bytes + at, sizeof word);
      if ((word & HIGH_BITS) != 0)
        break;
      at += sizeof word;
    }
    while (at < len && bytes[at] < 0x80)
      at++;
    while (at < len && bytes[at] >= 0x80) {
      size_t n;
      if (utf8_next(bytes + at, len - at, &n) != UTF8_CHARACTER)
        return at;
      at += n;
    }
  }
  return at;
}

size_t utf8_incomplete_tail(const uint8_t *bytes, size_t len) {
  /* A first byte can never be inside a character, so the nearest one decides, whatever stands before it. */
  for (size_t tail = 1; tail <= 3 && tail <= len; tail++) {
    uint8_t byte = bytes[len - tail];
    if ((byte & 0xc0) == 0x80)
      continue;
    size_t n;
    return utf8_next(bytes + len - tail, tail, &n) == UTF8_INCOMPLETE ? tail : 0;
  }
  return 0;
}

size_t utf8_leading_rest(const uint8_t *bytes, size_t len) {
  size_t n = 0;
  while (n < 3 && n < len && (bytes[n] & 0xc0) == 0x80)
    n++;
  return n;
}
