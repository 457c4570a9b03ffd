/* What is written is compared with a plain reference, piece by piece, and read back by json-c. */
#include "sandkeeper/base/json_out.h"

#include "run.h"
#include "utf8_reference.h"

#include <check.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

/* ---- the reference ---- */

/* What one character or error becomes; its length. `seen`: bytes that the receiver has after decoding. */
static size_t reference_piece(const uint8_t *bytes, size_t n, enum utf8_kind kind, char *out, size_t *seen) {
  *seen = 1;
  if (kind != UTF8_CHARACTER) {
    *seen = 3;
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
  }
  switch (bytes[0]) {
  case '"':
  case '\\':
    return (size_t)sprintf(out, "\\%c", bytes[0]);
  case '\b':
    return (size_t)sprintf(out, "\\b");
  case '\f':
    return (size_t)sprintf(out, "\\f");
  case '\n':
    return (size_t)sprintf(out, "\\n");
  case '\r':
    return (size_t)sprintf(out, "\\r");
  case '\t':
    return (size_t)sprintf(out, "\\t");
  default:
    break;
  }
  if (bytes[0] < 0x20)
    return (size_t)sprintf(out, "\\u%04x", bytes[0]);
  memcpy(out, bytes, n);
  *seen = n;
  return n;
}

/* All of a text, as if it ended here. Returns the length. */
static size_t reference_json(const uint8_t *bytes, size_t len, char *out) {
  size_t length = 0, n, seen;
  for (size_t at = 0; at < len; at += n) {
    enum utf8_kind kind = reference_next(bytes + at, len - at, &n);
    length += reference_piece(bytes + at, n, kind, out + length, &seen);
  }
  return length;
}

/* ---- text ---- */

#define MAX_TEXT 4000

static void check_whole(struct buf *buf, struct utf8_carry *carry, const char *expected, size_t length) {
  json_text_finish(buf, carry);
  REQUIRE(!buf->failed);
  if (buf->len != length || memcmp(buf->data, expected, length) != 0)
    ck_abort_msg("%.*s\ninstead of\n%.*s", (int)buf->len, buf->data, (int)length, expected);
  buf_reset(buf, SIZE_MAX);
}

START_TEST(test_every_split_gives_the_same) {
  uint64_t seed = 21 + (uint64_t)_i;
  struct buf buf;
  buf_init(&buf, 1 << 20, 0);
  for (int round = 0; round < 300; round++) {
    uint8_t text[120];
    char expected[6 * sizeof text];
    size_t len = 1 + reference_random(&seed, sizeof text);
    reference_text(&seed, text, len);
    size_t length = reference_json(text, len, expected);
    for (size_t first = 0; first <= len; first++) {
      size_t second = first + reference_random(&seed, (uint32_t)(len - first) + 1);
      const size_t cuts[] = {0, first, second, len};
      struct utf8_carry carry = {.len = 0}, counting = {.len = 0};
      size_t counted = 0;
      for (int i = 0; i < 3; i++) {
        size_t n = cuts[i + 1] - cuts[i];
        REQUIRE(json_text_append(&buf, &carry, text + cuts[i], n, NULL) == n);
        counted += json_text_length(&counting, text + cuts[i], n);
        REQUIRE(counted == buf.len);
        REQUIRE(carry.len == counting.len && memcmp(carry.bytes, counting.bytes, carry.len) == 0);
        REQUIRE(carry.len == utf8_incomplete_tail(text, cuts[i + 1]));
      }
      check_whole(&buf, &carry, expected, length);
    }
    struct utf8_carry carry = {.len = 0};
    for (size_t at = 0; at < len; at++)
      REQUIRE(json_text_append(&buf, &carry, text + at, 1, NULL) == 1);
    check_whole(&buf, &carry, expected, length);
  }
  buf_free(&buf);
}
END_TEST

START_TEST(test_long_texts) {
  uint64_t seed = 31;
  static uint8_t text[MAX_TEXT];
  static char expected[6 * MAX_TEXT];
  for (int round = 0; round < 2000; round++) {
    size_t len = reference_random(&seed, MAX_TEXT);
    reference_text(&seed, text, len);
    if (round % 4 == 0)
      memset(text, round % 8 == 0 ? 0 : 0xff, len); /* the most that a byte can become */
    size_t length = reference_json(text, len, expected);
    struct buf buf;
    buf_init(&buf, length + 3, 0); /* not a byte more than it needs */
    struct utf8_carry carry = {.len = 0};
    size_t at = 0;
    while (at < len) {
      size_t n = 1 + reference_random(&seed, (uint32_t)(len - at));
      REQUIRE(json_text_append(&buf, &carry, text + at, n, NULL) == n);
      at += n;
    }
    check_whole(&buf, &carry, expected, length);
    buf_free(&buf);
  }
}
END_TEST

/* Stops before the first piece that passes a limit, and goes on from there with new limits as if nothing had been. */
START_TEST(test_limits) {
  uint64_t seed = 41 + (uint64_t)_i;
  struct buf buf;
  buf_init(&buf, 1 << 20, 0);
  for (int round = 0; round < 3000; round++) {
    uint8_t text[200];
    char expected[6 * sizeof text];
    size_t len = 1 + reference_random(&seed, sizeof text);
    reference_text(&seed, text, len);
    size_t length = reference_json(text, len, expected);
    struct utf8_carry carry = {.len = 0};
    size_t at = 0, input = 0;
    while (at < len) {
      struct json_text_limit limit = {
          .encoded = reference_random(&seed, 4) == 0 ? SIZE_MAX : reference_random(&seed, 160),
          .decoded = reference_random(&seed, 4) == 0 ? SIZE_MAX : reference_random(&seed, 160),
      };
      struct json_text_limit before = limit;
      size_t n = 1 + reference_random(&seed, (uint32_t)(len - at));
      size_t written = buf.len;
      size_t took = json_text_append(&buf, &carry, text + at, n, &limit);
      REQUIRE(took <= n);

      /* What it should have written: whole pieces from where the last one ended. */
      size_t encoded = 0, decoded = 0;
      while (input < at + n) {
        char piece[8];
        size_t units, seen;
        enum utf8_kind kind = reference_next(text + input, at + n - input, &units);
        if (kind == UTF8_INCOMPLETE)
          break;
        size_t size = reference_piece(text + input, units, kind, piece, &seen);
        if (encoded + size > before.encoded || decoded + seen > before.decoded)
          break;
        encoded += size;
        decoded += seen;
        input += units;
      }
      REQUIRE(buf.len - written == encoded);
      REQUIRE(before.encoded - limit.encoded == encoded);
      REQUIRE(before.decoded - limit.decoded == decoded);
      /* Taken and not written is what the carry holds. */
      REQUIRE(at + took - input == carry.len);
      at += took;
    }
    check_whole(&buf, &carry, expected, length);
  }
  buf_free(&buf);
}
END_TEST

START_TEST(test_a_full_buffer_fails) {
  uint64_t seed = 51;
  uint8_t text[300];
  char expected[6 * sizeof text];
  reference_text(&seed, text, sizeof text);
  size_t length = reference_json(text, sizeof text, expected);
  for (size_t max = 0; max < length; max++) {
    struct buf buf;
    struct utf8_carry carry = {.len = 0};
    buf_init(&buf, max, 8);
    json_text_append(&buf, &carry, text, sizeof text, NULL);
    json_text_finish(&buf, &carry);
    REQUIRE(buf.failed);
    REQUIRE(buf.len <= max && (buf.len == 0 || memcmp(buf.data, expected, buf.len) == 0));
    REQUIRE(json_text_append(&buf, &carry, "x", 1, NULL) == 0);
    buf_free(&buf);
  }
}
END_TEST

/* Case 16: a character split over two reads, and one that never comes to its end. */
START_TEST(test_case_16_split_character) {
  struct buf buf;
  buf_init(&buf, 1000, 0);
  struct utf8_carry carry = {.len = 0};
  ck_assert_uint_eq(json_text_append(&buf, &carry, "\342", 1, NULL), 1);
  ck_assert_uint_eq(buf.len, 0);
  ck_assert_uint_eq(json_text_append(&buf, &carry, "\230\225", 2, NULL), 2);
  ck_assert_str_eq(buf_string(&buf), "\342\230\225");
  ck_assert_uint_eq(json_text_append(&buf, &carry, "\342\230", 2, NULL), 2);
  json_text_finish(&buf, &carry);
  json_text_finish(&buf, &carry);
  ck_assert_str_eq(buf_string(&buf), "\342\230\225\357\277\275");
  buf_free(&buf);
}
END_TEST

/* Case 17: one invalid byte is one U+FFFD, and NUL is a character like others. */
START_TEST(test_case_17_invalid_byte) {
  struct buf buf;
  buf_init(&buf, 1000, 0);
  struct json_out out;
  json_out_begin(&out, &buf);
  json_out_bytes(&out, "a\377b\000c", 5);
  ck_assert_int_eq(json_out_end(&out), 0);
  ck_assert_str_eq(buf_string(&buf), "\"a\357\277\275b\\u0000c\"");
  buf_free(&buf);
}
END_TEST

/* ---- documents ---- */

START_TEST(test_document) {
  struct buf buf;
  buf_init(&buf, 10000, BUF_HEADROOM);
  struct json_out out;
  json_out_begin(&out, &buf);
  json_out_object(&out);
  json_out_key(&out, "empty");
  json_out_object(&out);
  json_out_object_end(&out);
  json_out_key(&out, "list");
  json_out_array(&out);
  json_out_int(&out, INT64_MIN);
  json_out_uint(&out, UINT64_MAX);
  json_out_bool(&out, true);
  json_out_bool(&out, false);
  json_out_null(&out);
  json_out_double(&out, 0.1);
  json_out_double(&out, 1e300);
  json_out_double(&out, -3);
  json_out_double(&out, NAN);
  json_out_double(&out, -INFINITY);
  json_out_string(&out, "");
  json_out_string(&out, "a\"b");
  json_out_base64(&out, "\0\1\2\3", 4);
  json_out_base64(&out, "", 0);
  json_out_raw(&out, "{\"x\":[1]}", 9);
  json_out_array(&out);
  json_out_array_end(&out);
  json_out_array_end(&out);
  json_out_key(&out, "text");
  json_out_text_begin(&out);
  struct utf8_carry carry = {.len = 0};
  json_text_append(&buf, &carry, "one ", 4, NULL);
  json_text_append(&buf, &carry, "two", 3, NULL);
  json_out_text_end(&out);
  json_out_key(&out, "last");
  json_out_int(&out, 0);
  json_out_object_end(&out);
  ck_assert_int_eq(json_out_end(&out), 0);
  ck_assert_str_eq(buf_string(&buf),
                   "{\"empty\":{},\"list\":[-9223372036854775808,18446744073709551615,true,false,null,"
                   "0.1,1e+300,-3,null,null,\"\",\"a\\\"b\",\"AAECAw==\",\"\",{\"x\":[1]},[]],"
                   "\"text\":\"one two\",\"last\":0}");
  buf_free(&buf);
}
END_TEST

START_TEST(test_doubles_come_back) {
  uint64_t seed = 61;
  struct buf buf;
  buf_init(&buf, 100, 0);
  for (int i = 0; i < 20000; i++) {
    uint64_t bits = (uint64_t)reference_random(&seed, UINT32_MAX) << 32 | reference_random(&seed, UINT32_MAX);
    double value;
    memcpy(&value, &bits, sizeof value);
    if (i % 2 == 0)
      value = (double)reference_random(&seed, 1000000) / 1000;
    struct json_out out;
    json_out_begin(&out, &buf);
    json_out_double(&out, value);
    REQUIRE(json_out_end(&out) == 0);
    double back = strtod(buf_string(&buf), NULL);
    if (isfinite(value))
      REQUIRE(memcmp(&back, &value, sizeof value) == 0);
    else
      REQUIRE(strcmp(buf_string(&buf), "null") == 0);
    buf_reset(&buf, SIZE_MAX);
  }
  buf_free(&buf);
}
END_TEST

/* Another reader agrees about what a string means. */
START_TEST(test_json_c_reads_it_back) {
  uint64_t seed = 71;
  struct buf buf;
  buf_init(&buf, 1 << 20, 0);
  for (int round = 0; round < 2000; round++) {
    uint8_t text[200], repaired[3 * sizeof text];
    size_t len = reference_random(&seed, sizeof text), repaired_len = 0, n;
    reference_text(&seed, text, len);
    for (size_t at = 0; at < len; at += n) {
      bool valid = reference_next(text + at, len - at, &n) == UTF8_CHARACTER;
      memcpy(repaired + repaired_len, valid ? (const char *)text + at : UTF8_REPLACEMENT, valid ? n : 3);
      repaired_len += valid ? n : 3;
    }
    struct json_out out;
    json_out_begin(&out, &buf);
    json_out_array(&out);
    json_out_bytes(&out, text, len);
    json_out_array_end(&out);
    REQUIRE(json_out_end(&out) == 0);
    struct json_tokener *tokener = json_tokener_new();
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
    struct json_object *array = json_tokener_parse_ex(tokener, buf.data, (int)buf.len);
    REQUIRE(array != NULL && json_tokener_get_error(tokener) == json_tokener_success);
    struct json_object *string = json_object_array_get_idx(array, 0);
    REQUIRE((size_t)json_object_get_string_len(string) == repaired_len);
    REQUIRE(memcmp(json_object_get_string(string), repaired, repaired_len) == 0);
    json_object_put(array);
    json_tokener_free(tokener);
    buf_reset(&buf, SIZE_MAX);
  }
  buf_free(&buf);
}
END_TEST

START_TEST(test_a_failed_buffer_fails_the_document) {
  struct buf buf;
  buf_init(&buf, 20, 0);
  struct json_out out;
  json_out_begin(&out, &buf);
  json_out_array(&out);
  json_out_base64(&out, "0123456789012345", 16);
  json_out_key(&out, "never written");
  json_out_array_end(&out);
  ck_assert_int_eq(json_out_end(&out), -1);
  buf_free(&buf);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("json_out");
  TCase *tcase = tcase_create("json_out");
  tcase_set_timeout(tcase, 60);
  tcase_add_loop_test(tcase, test_every_split_gives_the_same, 0, 4);
  tcase_add_test(tcase, test_long_texts);
  tcase_add_loop_test(tcase, test_limits, 0, 4);
  tcase_add_test(tcase, test_a_full_buffer_fails);
  tcase_add_test(tcase, test_case_16_split_character);
  tcase_add_test(tcase, test_case_17_invalid_byte);
  tcase_add_test(tcase, test_document);
  tcase_add_test(tcase, test_doubles_come_back);
  tcase_add_test(tcase, test_json_c_reads_it_back);
  tcase_add_test(tcase, test_a_failed_buffer_fails_the_document);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
