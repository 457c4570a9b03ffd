#include "sandkeeper/base/json_check.h"

#include "sandkeeper/base/utf8.h"

#include <stdint.h>
#include <string.h>

/* Every function moves `at` behind what it has read, or says false. */
struct scan {
  const char *at, *end;
};

static void skip_space(struct scan *text) {
  while (text->at < text->end && (*text->at == ' ' || *text->at == '\t' || *text->at == '\n' || *text->at == '\r'))
    text->at++;
}

static bool take(struct scan *text, char c) {
  if (text->at == text->end || *text->at != c)
    return false;
  text->at++;
  return true;
}

/* ---- strings ---- */

static int hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return c - '0';
  c |= 0x20;
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The four digits behind \u. */
static bool take_hex(struct scan *text, unsigned *code) {
  if (text->end - text->at < 4)
    return false;
  *code = 0;
  for (int i = 0; i < 4; i++) {
    int digit = hex_digit(*text->at++);
    if (digit < 0)
      return false;
    *code = *code << 4 | (unsigned)digit;
  }
  return true;
}

static bool is_high_half(unsigned code) {
  return code >= 0xd800 && code <= 0xdbff;
}

static bool is_low_half(unsigned code) {
  return code >= 0xdc00 && code <= 0xdfff;
}

/* What follows a backslash. *code: the character if it is one below U+10000; of a pair the first half. */
static bool take_escape(struct scan *text, unsigned *code) {
  static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  if (text->at == text->end)
    return false;
  char letter = *text->at++;
  if (letter != 'u') {
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (!found)
      return false;
    *code = (unsigned char)meanings[found - letters];
    return true;
  }
  unsigned low;
  if (!take_hex(text, code) || is_low_half(*code))
    return false;
  if (!is_high_half(*code))
    return true;
  return take(text, '\\') && take(text, 'u') && take_hex(text, &low) && is_low_half(low);
}

static bool take_string(struct scan *text) {
  if (!take(text, '"'))
    return false;
  while (text->at < text->end) {
    unsigned code;
    unsigned char c = (unsigned char)*text->at++;
    if (c == '"')
      return true;
    if (c < 0x20 || (c == '\\' && !take_escape(text, &code)))
      return false;
  }
  return false;
}

bool json_string_is(const char *string, size_t len, const char *wanted) {
  struct scan text = {string, string + len};
  if (!take(&text, '"'))
    return false;
  while (text.at < text.end) {
    unsigned code = (unsigned char)*text.at++;
    if (code == '"')
      return *wanted == '\0';
    if (code == '\\' && !take_escape(&text, &code))
      return false;
    if (*wanted == '\0' || code != (unsigned char)*wanted++)
      return false;
  }
  return false;
}

/* ---- values ---- */

static bool take_digits(struct scan *text) {
  const char *start = text->at;
  while (text->at < text->end && *text->at >= '0' && *text->at <= '9')
    text->at++;
  return text->at > start;
}

static bool take_number(struct scan *text) {
  take(text, '-');
  if (!take(text, '0') && !take_digits(text))
    return false;
  if (take(text, '.') && !take_digits(text))
    return false;
  if (take(text, 'e') || take(text, 'E')) {
    if (!take(text, '+'))
      take(text, '-');
    return take_digits(text);
  }
  return true;
}

bool json_is_number(const char *string, size_t len) {
  struct scan text = {string, string + len};
  return take_number(&text) && text.at == text.end;
}

static bool take_word(struct scan *text, const char *word) {
  size_t len = strlen(word);
  if ((size_t)(text->end - text->at) < len || memcmp(text->at, word, len) != 0)
    return false;
  text->at += len;
  return true;
}

static bool take_value(struct scan *text, unsigned depth);

/* One member of an object. */
static bool take_member(struct scan *text, unsigned depth, struct json_member *member) {
  const char *name = text->at;
  if (!take_string(text))
    return false;
  size_t name_len = (size_t)(text->at - name);
  skip_space(text);
  if (!take(text, ':'))
    return false;
  skip_space(text);
  const char *value = text->at;
  if (!take_value(text, depth))
    return false;
  if (member && json_string_is(name, name_len, member->name)) {
    member->at = value;
    member->len = (size_t)(text->at - value);
  }
  return true;
}

static bool take_object(struct scan *text, unsigned depth, struct json_member *member) {
  if (depth == 0 || !take(text, '{'))
    return false;
  skip_space(text);
  if (take(text, '}'))
    return true;
  do {
    skip_space(text);
    if (!take_member(text, depth - 1, member))
      return false;
    skip_space(text);
  } while (take(text, ','));
  return take(text, '}');
}

static bool take_array(struct scan *text, unsigned depth) {
  if (depth == 0 || !take(text, '['))
    return false;
  skip_space(text);
  if (take(text, ']'))
    return true;
  do {
    skip_space(text);
    if (!take_value(text, depth - 1))
      return false;
    skip_space(text);
  } while (take(text, ','));
  return take(text, ']');
}

/* Recurses at most JSON_CHECK_DEPTH times. */
static bool take_value(struct scan *text, unsigned depth) {
  if (text->at == text->end)
    return false;
  switch (*text->at) {
  case '{':
    return take_object(text, depth, NULL);
  case '[':
    return take_array(text, depth);
  case '"':
    return take_string(text);
  case 't':
    return take_word(text, "true");
  case 'f':
    return take_word(text, "false");
  case 'n':
    return take_word(text, "null");
  default:
    return take_number(text);
  }
}

bool json_check_object(const char *string, size_t len, struct json_member *member) {
  struct scan text = {string, string + len};
  member->at = NULL;
  member->len = 0;
  skip_space(&text);
  if (!take_object(&text, JSON_CHECK_DEPTH, member))
    return false;
  skip_space(&text);
  return text.at == text.end && utf8_valid_prefix((const uint8_t *)string, len) == len;
}
