#include "sandkeeper/base/base64.h"

#include <stdbool.h>

static const char alphabet[64] = {'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'I', 'J', 'K', 'L', 'M', 'N', 'O', 'P',
                                  'Q', 'R', 'S', 'T', 'U', 'V', 'W', 'X', 'Y', 'Z', 'a', 'b', 'c', 'd', 'e', 'f',
                                  'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', 'q', 'r', 's', 't', 'u', 'v',
                                  'w', 'x', 'y', 'z', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '+', '/'};

#define NONE 0x80 /* the bit that no value of the alphabet has */

/* From '+' (43) to 'z' (122). */
static const uint8_t values[80] = {62,   NONE, NONE, NONE, 63,   52,   53, 54, 55, 56, 57, 58, 59, 60, 61, NONE,
                                   NONE, NONE, NONE, NONE, NONE, NONE, 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,
                                   10,   11,   12,   13,   14,   15,   16, 17, 18, 19, 20, 21, 22, 23, 24, 25,
                                   NONE, NONE, NONE, NONE, NONE, NONE, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35,
                                   36,   37,   38,   39,   40,   41,   42, 43, 44, 45, 46, 47, 48, 49, 50, 51};

static inline uint32_t value_of(char c) {
  uint32_t i = (uint32_t)(uint8_t)c - '+';
  return i < sizeof values ? values[i] : NONE;
}

size_t base64_encoded_length(size_t len) {
  return len / 3 * 4 + (len % 3 == 0 ? 0 : 4);
}

size_t base64_decoded_length(size_t len) {
  return len / 4 * 3 + len % 4;
}

void base64_encode(char *out, const void *bytes, size_t len) {
  const uint8_t *in = bytes;
  for (; len >= 3; len -= 3, in += 3, out += 4) {
    uint32_t group = (uint32_t)in[0] << 16 | (uint32_t)in[1] << 8 | in[2];
    out[0] = alphabet[group >> 18];
    out[1] = alphabet[group >> 12 & 63];
    out[2] = alphabet[group >> 6 & 63];
    out[3] = alphabet[group & 63];
  }
  if (len == 0)
    return;
  uint32_t group = (uint32_t)in[0] << 16 | (len == 2 ? (uint32_t)in[1] << 8 : 0);
  out[0] = alphabet[group >> 18];
  out[1] = alphabet[group >> 12 & 63];
  out[2] = len == 2 ? alphabet[group >> 6 & 63] : '=';
  out[3] = '=';
}

static ssize_t wrong(size_t *bad_at, size_t offset) {
  if (bad_at != NULL)
    *bad_at = offset;
  return -1;
}

/* The last group, from `at`: 0 to 4 characters that need not be right. `out` has `done` bytes. */
static ssize_t decode_last(uint8_t *out, size_t done, const char *text, size_t len, size_t at, size_t *bad_at) {
  uint32_t group = 0;
  size_t n = 0;
  for (; n < 4 && at + n < len; n++) {
    uint32_t value = value_of(text[at + n]);
    if (value == NONE)
      break;
    group = group << 6 | value;
  }
  size_t stop = at + n;
  if (n == 0 && stop == len)
    return (ssize_t)done;
  if (n == 4) {
    out[done] = (uint8_t)(group >> 16);
    out[done + 1] = (uint8_t)(group >> 8);
    out[done + 2] = (uint8_t)group;
    return (ssize_t)done + 3;
  }
  if (stop == len || text[stop] != '=' || n < 2)
    return wrong(bad_at, stop);
  if ((n == 2 && (group & 15) != 0) || (n == 3 && (group & 3) != 0))
    return wrong(bad_at, stop); /* bits that the padding drops */
  if (n == 2 && (stop + 1 >= len || text[stop + 1] != '='))
    return wrong(bad_at, stop + 1);
  if (at + 4 != len)
    return wrong(bad_at, at + 4);
  out[done] = (uint8_t)(n == 2 ? group >> 4 : group >> 10);
  if (n == 3)
    out[done + 1] = (uint8_t)(group >> 2);
  return (ssize_t)done + (n == 2 ? 1 : 2);
}

ssize_t base64_decode(void *bytes, const char *text, size_t len, size_t *bad_at) {
  uint8_t *out = bytes;
  size_t at = 0, done = 0;
  for (; len - at > 4; at += 4, done += 3) {
    uint32_t a = value_of(text[at]), b = value_of(text[at + 1]);
    uint32_t c = value_of(text[at + 2]), d = value_of(text[at + 3]);
    if (((a | b | c | d) & NONE) != 0)
      break;
    uint32_t group = a << 18 | b << 12 | c << 6 | d;
    out[done] = (uint8_t)(group >> 16);
    out[done + 1] = (uint8_t)(group >> 8);
    out[done + 2] = (uint8_t)group;
  }
  return decode_last(out, done, text, len, at, bad_at);
}
