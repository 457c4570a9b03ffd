/* json_text.c: whatever the pieces and limits are, the result is that of the whole text, and json-c reads it. The first
 * byte of the input says how to cut, the second what the limits are. */
#include "sandkeeper/base/json_out.h"

#include "../unit/utf8_reference.h"

#include <json-c/json.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void require(bool condition) {
  if (!condition)
    abort();
}

/* The text in one piece, as a JSON string. */
static void write_whole(struct buf *buf, const uint8_t *text, size_t len) {
  struct json_out out;
  json_out_begin(&out, buf);
  json_out_array(&out);
  json_out_bytes(&out, text, len);
  json_out_array_end(&out);
  require(json_out_end(&out) == 0);
}

static void write_pieces(struct buf *buf, const uint8_t *text, size_t len, size_t piece, size_t limit_step) {
  struct utf8_carry carry = {.len = 0}, counting = {.len = 0};
  size_t counted = 0;
  buf_append(buf, "[\"", 2);
  size_t start = buf->len;
  for (size_t at = 0; at < len;) {
    size_t n = piece < len - at ? piece : len - at;
    struct json_text_limit limit = {.encoded = limit_step, .decoded = limit_step};
    size_t took = json_text_append(buf, &carry, text + at, n, limit_step == 0 ? NULL : &limit);
    require(took <= n);
    require(took > 0 || limit_step - limit.encoded > 0);
    counted += json_text_length(&counting, text + at, took);
    at += took;
  }
  /* A piece of the carry alone may have been written before the limit stopped the rest; then both agree again. */
  require(buf->len - start == counted);
  json_text_finish(buf, &carry);
  buf_append(buf, "\"]", 2);
}

static void check_json_c(const struct buf *buf, const uint8_t *text, size_t len) {
  struct json_tokener *tokener = json_tokener_new();
  json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
  struct json_object *array = json_tokener_parse_ex(tokener, buf->data, (int)buf->len);
  require(array != NULL && json_tokener_get_error(tokener) == json_tokener_success);
  struct json_object *string = json_object_array_get_idx(array, 0);
  const char *got = json_object_get_string(string);
  size_t done = 0, n;
  for (size_t at = 0; at < len; at += n) {
    bool valid = reference_next(text + at, len - at, &n) == UTF8_CHARACTER;
    size_t expected_n = valid ? n : 3;
    require(memcmp(got + done, valid ? (const char *)text + at : UTF8_REPLACEMENT, expected_n) == 0);
    done += expected_n;
  }
  require((size_t)json_object_get_string_len(string) == done);
  json_object_put(array);
  json_tokener_free(tokener);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
  if (len < 2)
    return 0;
  size_t piece = bytes[0] + (size_t)1;
  size_t limit = bytes[1] < 6 ? 0 : bytes[1]; /* 6 is the longest that one character becomes */
  bytes += 2;
  len -= 2;
  struct buf whole, pieces;
  buf_init(&whole, 1 << 24, 0);
  buf_init(&pieces, 1 << 24, 3);
  write_whole(&whole, bytes, len);
  write_pieces(&pieces, bytes, len, piece, limit);
  require(!pieces.failed && whole.len == pieces.len && memcmp(whole.data, pieces.data, whole.len) == 0);
  check_json_c(&whole, bytes, len);
  buf_free(&whole);
  buf_free(&pieces);
  return 0;
}
