#include "sandkeeper/base/json_out.h"

#include "sandkeeper/base/base64.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_out_begin(struct json_out *out, struct buf *buf) {
  out->buf = buf;
  out->comma = false;
}

int json_out_end(struct json_out *out) {
  return out->buf->failed ? -1 : 0;
}

/* Every value and every key goes through here. */
static void separate(struct json_out *out) {
  if (out->comma)
    buf_append(out->buf, ",", 1);
  out->comma = true;
}

static void open_with(struct json_out *out, const char *bracket) {
  separate(out);
  buf_append(out->buf, bracket, 1);
  out->comma = false;
}

static void close_with(struct json_out *out, const char *bracket) {
  buf_append(out->buf, bracket, 1);
  out->comma = true;
}

void json_out_object(struct json_out *out) {
  open_with(out, "{");
}

void json_out_object_end(struct json_out *out) {
  close_with(out, "}");
}

void json_out_array(struct json_out *out) {
  open_with(out, "[");
}

void json_out_array_end(struct json_out *out) {
  close_with(out, "]");
}

void json_out_key(struct json_out *out, const char *key) {
  size_t len = strlen(key);
  separate(out);
  char *place = buf_reserve(out->buf, len + 3);
  if (place != NULL) {
    place[0] = '"';
    memcpy(place + 1, key, len);
    memcpy(place + 1 + len, "\":", 2);
    out->buf->len += len + 3;
  }
  out->comma = false;
}

void json_out_string(struct json_out *out, const char *string) {
  json_out_bytes(out, string, strlen(string));
}

void json_out_bytes(struct json_out *out, const void *bytes, size_t len) {
  struct utf8_carry carry = {.len = 0};
  json_out_text_begin(out);
  json_text_append(out->buf, &carry, bytes, len, NULL);
  json_text_finish(out->buf, &carry);
  json_out_text_end(out);
}

void json_out_base64(struct json_out *out, const void *bytes, size_t len) {
  json_out_text_begin(out);
  size_t encoded = base64_encoded_length(len);
  char *place = buf_reserve(out->buf, encoded);
  if (place != NULL) {
    base64_encode(place, bytes, len);
    out->buf->len += encoded;
  }
  json_out_text_end(out);
}

void json_out_int(struct json_out *out, int64_t value) {
  separate(out);
  buf_printf(out->buf, "%" PRId64, value);
}

void json_out_uint(struct json_out *out, uint64_t value) {
  separate(out);
  buf_printf(out->buf, "%" PRIu64, value);
}

void json_out_double(struct json_out *out, double value) {
  if (!isfinite(value)) {
    json_out_null(out);
    return;
  }
  separate(out);
  char text[32];
  snprintf(text, sizeof text, "%.15g", value); /* 0.1, not 0.10000000000000001 ... */
  if (strtod(text, NULL) < value || strtod(text, NULL) > value)
    snprintf(text, sizeof text, "%.17g", value); /* ... but every double comes back as it was */
  buf_append_string(out->buf, text);
}

void json_out_bool(struct json_out *out, bool value) {
  separate(out);
  buf_append_string(out->buf, value ? "true" : "false");
}

void json_out_null(struct json_out *out) {
  separate(out);
  buf_append(out->buf, "null", 4);
}

void json_out_raw(struct json_out *out, const char *json, size_t len) {
  separate(out);
  buf_append(out->buf, json, len);
}

void json_out_text_begin(struct json_out *out) {
  separate(out);
  buf_append(out->buf, "\"", 1);
}

void json_out_text_end(struct json_out *out) {
  buf_append(out->buf, "\"", 1);
}
