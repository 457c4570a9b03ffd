/* utf8.c against the table of the Unicode standard. */
#include "sandkeeper/base/utf8.h"

#include "../unit/utf8_reference.h"

#include <stdbool.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
  size_t valid = 0;
  bool whole = true;
  enum utf8_kind kind = UTF8_CHARACTER;
  size_t n = 0;
  for (size_t at = 0; at < len; at += n) {
    size_t expected;
    kind = reference_next(bytes + at, len - at, &expected);
    if (utf8_next(bytes + at, len - at, &n) != kind || n != expected)
      abort();
    whole = whole && kind == UTF8_CHARACTER;
    if (whole)
      valid += n;
  }
  if (utf8_valid_prefix(bytes, len) != valid)
    abort();
  if (utf8_incomplete_tail(bytes, len) != (kind == UTF8_INCOMPLETE ? n : 0))
    abort();
  if (utf8_leading_rest(bytes, len) > 3)
    abort();
  return 0;
}
