#include "sandkeeper/base/json_out.h"

#include "sandkeeper/base/base64.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- the document ---- */

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

/* ---- the text of a string ---- */

/* RFC 8259, section 7: what must be escaped, and how. `len` 0: the byte is written as it is. */
struct escape {
  char text[7];
  uint8_t len;
};

#define U(hex) \
  { "\\u00" hex, 6 }
static const struct escape escapes[128] = {
    U("00"),
    U("01"),
    U("02"),
    U("03"),
    U("04"),
    U("05"),
    U("06"),
    U("07"),
    {"\\b", 2},
    {"\\t", 2},
    {"\\n", 2},
    U("0b"),
    {"\\f", 2},
    {"\\r", 2},
    U("0e"),
    U("0f"),
    U("10"),
    U("11"),
    U("12"),
    U("13"),
    U("14"),
    U("15"),
    U("16"),
    U("17"),
    U("18"),
    U("19"),
    U("1a"),
    U("1b"),
    U("1c"),
    U("1d"),
    U("1e"),
    U("1f"),
    ['"'] = {"\\\"", 2},
    ['\\'] = {"\\\\", 2},
};
#undef U

#define REPLACEMENT_LEN (sizeof UTF8_REPLACEMENT - 1)

/* One piece of output: what a character (or an error) of the input becomes. */
struct piece {
  const char *text;
  size_t encoded; /* bytes of `text` */
  size_t decoded; /* bytes that the receiver sees */
  size_t taken;   /* bytes of input */
};

/* The first character of `len` >= 1 bytes; false when it is not finished. `piece` may point into `bytes`. */
static bool next_piece(const uint8_t *bytes, size_t len, struct piece *piece) {
  if (bytes[0] < 0x80) {
    const struct escape *escape = &escapes[bytes[0]];
    bool plain = escape->len == 0;
    *piece = (struct piece){
        .text = plain ? (const char *)bytes : escape->text,
        .encoded = plain ? 1 : escape->len,
        .decoded = 1,
        .taken = 1,
    };
    return true;
  }
  size_t n;
  enum utf8_kind kind = utf8_next(bytes, len, &n);
  if (kind == UTF8_CHARACTER)
    *piece = (struct piece){.text = (const char *)bytes, .encoded = n, .decoded = n, .taken = n};
  else
    *piece =
        (struct piece){.text = UTF8_REPLACEMENT, .encoded = REPLACEMENT_LEN, .decoded = REPLACEMENT_LEN, .taken = n};
  return kind != UTF8_INCOMPLETE;
}

/* The part that is worth being fast: many bytes of input with room for whatever they become. It looks at 16 (or 8)
 * bytes at once and writes more than it means to keep, so it ends a little before the input or the room does; the
 * caller does the rest piece by piece. With `write` false it only counts. */
struct run {
  const uint8_t *in, *end;
  char *out;
  size_t room;    /* bytes at `out` */
  size_t decoded; /* bytes that may still be seen by the receiver */
};

#define RUN_IN 16   /* no less input than this */
#define RUN_ROOM 32 /* no less room than this: a load of 16 and an escape of 8 behind it */

#ifdef __SSE2__
/* Copies up to the first byte that is no plain ASCII, at most 16; returns how many those are. */
static inline size_t copy_plain(const uint8_t *in, char *out, bool write) {
  __m128i block = _mm_loadu_si128((const __m128i *)(const void *)in);
  if (write)
    _mm_storeu_si128((__m128i *)(void *)out, block);
  /* The comparison is signed: below 0x20 also are all bytes from 0x80. */
  __m128i special =
      _mm_or_si128(_mm_cmplt_epi8(block, _mm_set1_epi8(0x20)),
                   _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('"')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\\'))));
  unsigned mask = (unsigned)_mm_movemask_epi8(special);
  return mask == 0 ? 16 : (size_t)__builtin_ctz(mask);
}
#define COPY_PLAIN 16
#else
#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))
static inline size_t copy_plain(const uint8_t *in, char *out, bool write) {
  uint64_t word;
  memcpy(&word, in, sizeof word);
  if (write)
    memcpy(out, &word, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  /* The high bit of each byte that is special; a borrow can only reach bytes behind the first such one. */
  uint64_t special =
      (word | (word - EACH(0x20)) | ((word ^ EACH('"')) - EACH(1)) | ((word ^ EACH('\\')) - EACH(1))) & EACH(0x80);
  return special == 0 ? 8 : (size_t)__builtin_ctzll(special) / 8;
}
#define COPY_PLAIN 8
#endif

static inline __attribute__((always_inline)) void run_piece(struct run *run, const char *text, size_t encoded,
                                                            size_t decoded, size_t taken, bool write, size_t copy) {
  if (write) {
    memcpy(run->out, text, copy);
    run->out += encoded;
    run->room -= encoded;
  }
  run->in += taken;
  run->decoded -= decoded;
}

static inline __attribute__((always_inline)) size_t run_fast(struct run *run, bool write) {
  size_t encoded = 0;
  while (run->end - run->in >= RUN_IN && run->room >= RUN_ROOM && run->decoded >= RUN_IN) {
    size_t plain = copy_plain(run->in, run->out, write);
    run->in += plain;
    run->decoded -= plain;
    encoded += plain;
    if (write) {
      run->out += plain;
      run->room -= plain;
    }
    if (plain == COPY_PLAIN)
      continue;
    if (*run->in < 0x80) {
      const struct escape *escape = &escapes[*run->in];
      run_piece(run, (const char *)escape, escape->len, 1, 1, write, sizeof *escape);
      encoded += escape->len;
      continue;
    }
    while (run->end - run->in >= 4 && run->room >= RUN_ROOM && run->decoded >= 4 && *run->in >= 0x80) {
      size_t n;
      if (utf8_next(run->in, 4, &n) == UTF8_CHARACTER) {
        run_piece(run, (const char *)run->in, n, n, n, write, 4);
        encoded += n;
      } else {
        run_piece(run, UTF8_REPLACEMENT, REPLACEMENT_LEN, REPLACEMENT_LEN, n, write, 4);
        encoded += REPLACEMENT_LEN;
      }
    }
  }
  return encoded;
}

static size_t smaller(size_t a, size_t b) {
  return a < b ? a : b;
}

/* Everything that the fast run can do of `bytes`; returns the bytes of input it took. */
static size_t append_fast(struct buf *buf, const uint8_t *bytes, size_t len, struct json_text_limit *limit) {
  if (len < RUN_IN)
    return 0;
  size_t free_of_max = buf->max - buf->len;
  size_t room = smaller(smaller(limit->encoded, free_of_max), len <= SIZE_MAX - RUN_ROOM ? len + RUN_ROOM : len);
  if (room < RUN_ROOM)
    return 0;
  char *place = buf_reserve(buf, room);
  if (place == NULL)
    return 0;
  struct run run = {.in = bytes, .end = bytes + len, .out = place, .room = room, .decoded = limit->decoded};
  size_t encoded = run_fast(&run, true);
  buf->len += encoded;
  limit->encoded -= encoded;
  limit->decoded = run.decoded;
  return (size_t)(run.in - bytes);
}

/* True when it was written; else a limit forbids it, or the buffer failed. */
static bool append_piece(struct buf *buf, const struct piece *piece, struct json_text_limit *limit) {
  if (piece->encoded > limit->encoded || piece->decoded > limit->decoded)
    return false;
  if (buf_append(buf, piece->text, piece->encoded) != 0)
    return false;
  limit->encoded -= piece->encoded;
  limit->decoded -= piece->decoded;
  return true;
}

/* What the carry and the first bytes behind it become. Returns false when they are still not finished: all of `bytes`
 * is in the carry then. `joined` is where the piece's text may be. The piece's `taken` counts bytes of input only. */
static bool carry_piece(struct utf8_carry *carry, const uint8_t *bytes, size_t len, uint8_t joined[static 4],
                        struct piece *piece) {
  size_t more = smaller(len, 4u - carry->len);
  memcpy(joined, carry->bytes, carry->len);
  memcpy(joined + carry->len, bytes, more);
  if (next_piece(joined, carry->len + more, piece)) {
    piece->taken -= carry->len; /* the carry is a good start, so the piece has at least its bytes */
    return true;
  }
  memcpy(carry->bytes, joined, carry->len + more); /* not finished: 3 bytes at most */
  carry->len = (uint8_t)(carry->len + more);
  return false;
}

size_t json_text_append(struct buf *buf, struct utf8_carry *carry, const void *input, size_t len,
                        struct json_text_limit *limit) {
  struct json_text_limit none = {.encoded = SIZE_MAX, .decoded = SIZE_MAX};
  if (limit == NULL)
    limit = &none;
  const uint8_t *bytes = input;
  size_t at = 0;
  struct piece piece;
  if (len == 0 || buf->failed)
    return 0;

  if (carry->len > 0) {
    uint8_t joined[4];
    if (!carry_piece(carry, bytes, len, joined, &piece))
      return len;
    if (!append_piece(buf, &piece, limit))
      return 0;
    carry->len = 0;
    at = piece.taken;
  }

  while (at < len) {
    at += append_fast(buf, bytes + at, len - at, limit);
    for (int i = 0; i < RUN_IN && at < len; i++) {
      if (!next_piece(bytes + at, len - at, &piece)) {
        carry->len = (uint8_t)(len - at);
        memcpy(carry->bytes, bytes + at, len - at);
        return len;
      }
      if (!append_piece(buf, &piece, limit))
        return at;
      at += piece.taken;
    }
  }
  return at;
}

void json_text_finish(struct buf *buf, struct utf8_carry *carry) {
  if (carry->len > 0)
    buf_append(buf, UTF8_REPLACEMENT, REPLACEMENT_LEN);
  carry->len = 0;
}

size_t json_text_length(struct utf8_carry *carry, const void *input, size_t len) {
  const uint8_t *bytes = input;
  size_t at = 0, length = 0;
  struct piece piece;
  if (len == 0)
    return 0;

  if (carry->len > 0) {
    uint8_t joined[4];
    if (!carry_piece(carry, bytes, len, joined, &piece))
      return 0;
    carry->len = 0;
    at = piece.taken;
    length = piece.encoded;
  }

  struct run run = {.in = bytes + at, .end = bytes + len, .room = SIZE_MAX, .decoded = SIZE_MAX};
  length += run_fast(&run, false);
  at = (size_t)(run.in - bytes);

  while (at < len) {
    if (!next_piece(bytes + at, len - at, &piece)) {
      carry->len = (uint8_t)(len - at);
      memcpy(carry->bytes, bytes + at, len - at);
      break;
    }
    length += piece.encoded;
    at += piece.taken;
  }
  return length;
}
