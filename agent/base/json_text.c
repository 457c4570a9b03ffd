/* The inside of a JSON string. It has a file of its own, apart from json_out.c, because all output of all commands goes
 * through it. */
#include "sandkeeper/base/json_out.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

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
 * bytes at once and copies more than it means to keep, so it ends a little before the input or the room does; the
 * caller does the rest piece by piece. With `write` false it only counts. */
struct run {
  const uint8_t *in, *end;
  char *out;
  size_t used, room; /* bytes at `out` */
  size_t decoded;    /* bytes that the receiver may still see */
};

#define RUN_IN 32    /* no less input than this: two blocks, for the copy that begins inside the first */
#define RUN_ROOM 128 /* no less room than this: 16 escapes of 6 bytes, and what the last copy is too long */

/* One bit for each byte of a block that is not plain, that is neither control, quote, backslash nor from 0x80 up. In a
 * word of 8 it is the byte's high bit. */
#ifdef __SSE2__
#define BLOCK 16u
#define BIT_SHIFT 0
static inline uint64_t special_bytes(const uint8_t *in) {
  __m128i block = _mm_loadu_si128((const __m128i *)(const void *)in);
  /* The comparison is signed: below 0x20 also are all bytes from 0x80. */
  __m128i special =
      _mm_or_si128(_mm_cmplt_epi8(block, _mm_set1_epi8(0x20)),
                   _mm_or_si128(_mm_cmpeq_epi8(block, _mm_set1_epi8('"')), _mm_cmpeq_epi8(block, _mm_set1_epi8('\\'))));
  return (unsigned)_mm_movemask_epi8(special);
}
#else
#define BLOCK 8u
#define BIT_SHIFT 3
#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))
/* The high bit of each byte that is 0; exact, no carry leaves a byte that is below 0x80. */
static inline uint64_t zero_bytes(uint64_t word) {
  return ~(((word & EACH(0x7f)) + EACH(0x7f)) | word) & EACH(0x80);
}
static inline uint64_t special_bytes(const uint8_t *in) {
  uint64_t word;
  memcpy(&word, in, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  uint64_t control = ~((word & EACH(0x7f)) + EACH(0x60)) & EACH(0x80);
  return (word & EACH(0x80)) | control | zero_bytes(word ^ EACH('"')) | zero_bytes(word ^ EACH('\\'));
}
#endif

/* The length of the whole, valid character that begins at `in`, of which 4 bytes can be read; 0 if there is none. What
 * utf8_next() says, for the case that nearly always is. */
static inline size_t whole_character(const uint8_t *in) {
  uint32_t second = in[1], third = in[2] ^ 0x80u, fourth = in[3] ^ 0x80u;
  if (in[0] < 0xe0)
    return in[0] >= 0xc2 && (second ^ 0x80) < 0x40 ? 2 : 0;
  if (in[0] < 0xf0) {
    uint32_t value = (in[0] & 15u) << 6 | (second ^ 0x80); /* without the last 6 bits */
    bool valid =
        (second ^ 0x80) < 0x40 && third < 0x40 && value >= 0x800 >> 6 && (value < 0xd800 >> 6 || value >= 0xe000 >> 6);
    return valid ? 3 : 0;
  }
  uint32_t value = (in[0] & 15u) << 6 | (second ^ 0x80); /* without the last 12 bits */
  bool valid =
      (second ^ 0x80) < 0x40 && third < 0x40 && fourth < 0x40 && value >= 0x10000 >> 12 && value < 0x110000 >> 12;
  return valid ? 4 : 0;
}

/* Always inlined, so that `write` is a constant in each of the two copies. */
#define INLINE static inline __attribute__((always_inline))

/* Copies `copy` bytes, of which `encoded` are meant. */
INLINE void put(struct run *run, const void *text, size_t copy, size_t encoded, bool write) {
  if (write)
    memcpy(run->out + run->used, text, copy);
  run->used += encoded;
}

/* Characters that are not ASCII, and errors, until an ASCII byte comes or too little is left. */
INLINE void run_wide(struct run *run, bool write) {
  while (run->end - run->in >= 4 && run->room - run->used >= 4 && run->decoded >= 4 && *run->in >= 0x80) {
    size_t n = whole_character(run->in);
    if (n > 0) {
      put(run, run->in, 4, n, write);
      run->decoded -= n;
    } else {
      utf8_next(run->in, 4, &n);
      put(run, UTF8_REPLACEMENT, 4, REPLACEMENT_LEN, write);
      run->decoded -= REPLACEMENT_LEN;
    }
    run->in += n;
  }
}

/* One block up to its end, or to the first byte that is not ASCII: then it returns true. */
INLINE bool run_block(struct run *run, bool write) {
  uint64_t special = special_bytes(run->in);
  size_t from = 0;
  for (; special != 0; special &= special - 1) {
    size_t at = (size_t)__builtin_ctzll(special) >> BIT_SHIFT;
    put(run, run->in + from, BLOCK, at - from, write);
    from = at;
    if (run->in[at] >= 0x80)
      break;
    const struct escape *escape = &escapes[run->in[at]];
    put(run, escape, sizeof *escape, escape->len, write);
    from = at + 1;
  }
  if (special == 0) {
    put(run, run->in + from, BLOCK, BLOCK - from, write);
    from = BLOCK;
  }
  run->in += from;
  run->decoded -= from;
  return special != 0;
}

INLINE void run_fast(struct run *run, bool write) {
  while (run->end - run->in >= RUN_IN && run->room - run->used >= RUN_ROOM && run->decoded >= BLOCK)
    if (run_block(run, write))
      run_wide(run, write);
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
  run_fast(&run, true);
  buf->len += run.used;
  limit->encoded -= run.used;
  limit->decoded = run.decoded;
  return (size_t)(run.in - bytes);
}

/* Makes one piece of a plain byte and those behind it that are plain too, as far as the limits go. */
static void join_plain(struct piece *piece, const uint8_t *bytes, size_t len, const struct json_text_limit *limit) {
  len = smaller(len, smaller(limit->encoded, limit->decoded));
  size_t n = 1;
  while (n < len && bytes[n] < 0x80 && escapes[bytes[n]].len == 0)
    n++;
  piece->encoded = piece->decoded = piece->taken = n;
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
    /* A few pieces one by one, then it may go fast again. */
    size_t stop = at + smaller(len - at, RUN_IN);
    while (at < stop) {
      if (!next_piece(bytes + at, len - at, &piece)) {
        carry->len = (uint8_t)(len - at);
        memcpy(carry->bytes, bytes + at, len - at);
        return len;
      }
      if (piece.encoded == 1)
        join_plain(&piece, bytes + at, stop - at, limit);
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
  run_fast(&run, false);
  length += run.used;
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
