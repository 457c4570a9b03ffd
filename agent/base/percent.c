#include "sandkeeper/base/percent.h"

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  if (c >= 'a' && c <= 'f')
    return c - 'a' + 10;
  if (c >= 'A' && c <= 'F')
    return c - 'A' + 10;
  return -1;
}

ptrdiff_t percent_decode(char *out, const char *text, size_t len, bool plus_is_space) {
  size_t n = 0;
  for (size_t i = 0; i < len; i++) {
    char c = text[i];
    if (c == '%') {
      int high = len - i > 2 ? hex_digit(text[i + 1]) : -1;
      int low = len - i > 2 ? hex_digit(text[i + 2]) : -1;
      if (high < 0 || low < 0)
        return -1;
      c = (char)(high << 4 | low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    out[n++] = c;
  }
  return (ptrdiff_t)n;
}
