#include "sandkeeper/core/quantity.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 19 /* as many fit into 64 bits */
#define EXPONENT_MAX 18
__extension__ typedef unsigned __int128 wide;

struct parsed {
  uint64_t digits;
  int tens; /* times 10 to the power of this */
  int twos; /* times 2 to the power of this */
};

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/* Reads "12.50": the digits without the point, and where the point was. NULL: it is none. */
static const char *read_number(const char *at, struct parsed *parsed) {
  int seen = 0, used = 0, zeros = 0;
  bool fraction = false;
  for (; is_digit(*at) || (*at == '.' && !fraction); at++) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    seen++;
    if (fraction && *at == '0') {
      zeros++; /* they count only when something follows */
      continue;
    }
    for (int places = fraction ? zeros + 1 : 1; places > 0; places--) {
      bool last = places == 1;
      parsed->digits = parsed->digits * 10 + (uint64_t)(last ? *at - '0' : 0);
      used += parsed->digits > 0;
      parsed->tens -= fraction;
      if (used > DIGITS_MAX || parsed->tens < -DIGITS_MAX)
        return NULL;
    }
    zeros = 0;
  }
  return seen > 0 ? at : NULL;
}

static bool read_suffix(const char *suffix, struct parsed *parsed) {
  static const char small[] = "num", large[] = "kMGTPE", binary[] = "KMGTPE";
  const char *found;
  if (!suffix[0])
    return true;
  if ((suffix[0] == 'e' || suffix[0] == 'E') && suffix[1] && suffix[1] != 'i') {
    char *end;
    bool number = is_digit(suffix[1]) || ((suffix[1] == '+' || suffix[1] == '-') && is_digit(suffix[2]));
    long exponent = number ? strtol(suffix + 1, &end, 10) : 0;
    if (!number || *end || exponent > EXPONENT_MAX || exponent < -EXPONENT_MAX)
      return false;
    parsed->tens += (int)exponent;
    return true;
  }
  if (suffix[1] == 'i' && !suffix[2] && (found = strchr(binary, suffix[0])) != NULL)
    parsed->twos = 10 * (int)(found - binary + 1);
  else if (!suffix[1] && (found = strchr(small, suffix[0])) != NULL)
    parsed->tens -= 9 - 3 * (int)(found - small);
  else if (!suffix[1] && (found = strchr(large, suffix[0])) != NULL)
    parsed->tens += 3 * (int)(found - large + 1);
  else
    return false;
  return true;
}

/* False: over INT64_MAX. */
static bool evaluate(const struct parsed *parsed, uint32_t scale, int64_t *value) {
  const wide most = (wide)1 << 126;
  wide sum = (wide)parsed->digits * scale, divisor = 1;
  for (int i = 0; i < parsed->twos; i++) {
    if (sum > most / 2)
      return false;
    sum *= 2;
  }
  for (int i = parsed->tens; i > 0; i--) {
    if (sum > most / 10)
      return false;
    sum *= 10;
  }
  for (int i = parsed->tens; i < 0 && divisor <= most / 10; i++)
    divisor *= 10;
  sum = sum / divisor + (sum % divisor > 0);
  if (sum > INT64_MAX)
    return false;
  *value = (int64_t)sum;
  return true;
}

int quantity_parse(const char *name, const char *text, uint32_t scale, int64_t *value, struct error *err) {
  struct parsed parsed = {0};
  const char *suffix = read_number(text + (text[0] == '+'), &parsed);
  if (!suffix || !read_suffix(suffix, &parsed))
    return error_set(
        err, ERROR_INVALID, 0,
        "%s: \"%.64s\" is no quantity; it takes a number above 0 with a suffix like m, k, M, G, Ki, Mi, Gi", name,
        text);
  if (parsed.digits == 0)
    return error_set(err, ERROR_INVALID, 0, "%s: \"%.64s\" is nothing; it takes a quantity above 0", name, text);
  if (!evaluate(&parsed, scale, value))
    return error_set(err, ERROR_INVALID, 0, "%s: \"%.64s\" is too much", name, text);
  return 0;
}
