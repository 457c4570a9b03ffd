#include "sandkeeper/base/base64.h"

#include "run.h"

#include <check.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

/* RFC 4648, section 10. */
static const struct {
  const char *bytes, *text;
} vectors[] = {
    {"", ""},
    {"f", "Zg=="},
    {"fo", "Zm8="},
    {"foo", "Zm9v"},
    {"foob", "Zm9vYg=="},
    {"fooba", "Zm9vYmE="},
    {"foobar", "Zm9vYmFy"},
    {"\xfb\xff\xbf", "+/+/"},
};

START_TEST(test_vectors) {
  const char *bytes = vectors[_i].bytes, *text = vectors[_i].text;
  char out[16];
  ck_assert_uint_eq(base64_encoded_length(strlen(bytes)), strlen(text));
  base64_encode(out, bytes, strlen(bytes));
  ck_assert_mem_eq(out, text, strlen(text));
  ck_assert_uint_ge(base64_decoded_length(strlen(text)), strlen(bytes));
  ck_assert_int_eq(base64_decode(out, text, strlen(text), NULL), (ssize_t)strlen(bytes));
  ck_assert_mem_eq(out, bytes, strlen(bytes));
}
END_TEST

/* The plainest encoder: bit by bit. */
static void reference_encode(char *out, const uint8_t *bytes, size_t len) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t bits = len * 8, n = 0;
  for (size_t bit = 0; bit < bits; bit += 6) {
    unsigned value = 0;
    for (size_t i = bit; i < bit + 6; i++)
      value = value << 1 | (i < bits ? (unsigned)bytes[i / 8] >> (7 - i % 8) & 1u : 0);
    out[n++] = alphabet[value];
  }
  while (n % 4 != 0)
    out[n++] = '=';
}

static uint64_t seed = 7;

static uint8_t random_byte(void) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (uint8_t)(seed >> 56);
}

/* Exact sizes on the heap: the address sanitizer sees one byte too many. */
START_TEST(test_every_length) {
  for (size_t len = 0; len < 400; len++) {
    uint8_t *bytes = malloc(len + 1);
    size_t text_len = base64_encoded_length(len);
    char *text = malloc(text_len + 1), *expected = malloc(text_len + 1);
    char *exact = malloc(text_len == 0 ? 1 : text_len);
    REQUIRE(bytes != NULL && text != NULL && expected != NULL && exact != NULL);
    for (size_t i = 0; i < len; i++)
      bytes[i] = random_byte();
    base64_encode(exact, bytes, len);
    reference_encode(expected, bytes, len);
    REQUIRE(memcmp(exact, expected, text_len) == 0);
    size_t room = base64_decoded_length(text_len);
    uint8_t *decoded = malloc(room == 0 ? 1 : room);
    REQUIRE(decoded != NULL);
    REQUIRE(base64_decode(decoded, exact, text_len, NULL) == (ssize_t)len);
    REQUIRE(memcmp(decoded, bytes, len) == 0);
    REQUIRE(base64_decode(exact, exact, text_len, NULL) == (ssize_t)len); /* in place */
    REQUIRE(memcmp(exact, bytes, len) == 0);
    free(bytes);
    free(text);
    free(expected);
    free(exact);
    free(decoded);
  }
}
END_TEST

/* ---- what is wrong, and where ---- */

static int value_of(char c) {
  static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const char *at = c == '\0' ? NULL : strchr(alphabet, c);
  return at == NULL ? -1 : (int)(at - alphabet);
}

/* The first offset where `text` stops being the start of some right text; SIZE_MAX when it is right to its end. */
static size_t reference_bad(const char *text, size_t len) {
  for (size_t at = 0; at < len; at++) {
    size_t in_group = at % 4;
    const char *group = text + at - in_group;
    if (at >= 4 && in_group == 0 && text[at - 1] == '=')
      return at;
    if (text[at] == '=') {
      if (in_group < 2)
        return at;
      bool second = in_group == 3 && group[2] == '=';
      if (!second && (value_of(text[at - 1]) & (in_group == 2 ? 15 : 3)) != 0)
        return at;
    } else if (value_of(text[at]) < 0 || (in_group == 3 && group[2] == '=')) {
      return at;
    }
  }
  return len % 4 == 0 ? SIZE_MAX : len;
}

static void check_bad(const char *text, size_t len) {
  char out[64];
  size_t bad = 12345, expected = reference_bad(text, len);
  ssize_t n = base64_decode(out, text, len, &bad);
  if (expected == SIZE_MAX ? n < 0 : n != -1 || bad != expected)
    ck_abort_msg("\"%.*s\": %zd, bad at %zu instead of %zu", (int)len, text, n, bad, expected);
}

/* All texts of up to 9 of these characters, which are each different in some rule. */
START_TEST(test_all_mistakes) {
  static const char some[] = "AQR/=-";
  const size_t n_some = sizeof some - 1;
  for (size_t len = 0; len <= 8; len++) {
    size_t texts = 1;
    for (size_t i = 0; i < len; i++)
      texts *= n_some;
    for (size_t number = 0; number < texts; number++) {
      char text[9];
      size_t rest = number;
      for (size_t i = 0; i < len; i++, rest /= n_some)
        text[i] = some[rest % n_some];
      check_bad(text, len);
    }
  }
}
END_TEST

START_TEST(test_every_byte_in_every_place) {
  for (int byte = 0; byte < 256; byte++)
    for (size_t place = 0; place < 24; place++) {
      char text[25] = "AAAAAAAAAAAAAAAAAAAAAAAA";
      text[place] = (char)byte;
      check_bad(text, 24);
    }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("base64");
  TCase *tcase = tcase_create("base64");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, test_vectors, 0, (int)(sizeof vectors / sizeof *vectors));
  tcase_add_test(tcase, test_every_length);
  tcase_add_test(tcase, test_all_mistakes);
  tcase_add_test(tcase, test_every_byte_in_every_place);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
