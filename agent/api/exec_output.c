/* The output of a command as it stands in exec.done and in the result. */
#include "sandkeeper/api/exec.h"
#include "sandkeeper/base/base64.h"

#include <stdlib.h>
#include <string.h>

/* Bytes are dropped in such steps when the output must get shorter. */
#define STEP 256

/* A walk over the log, run by run, that carries what a character's first bytes need between runs of the same stream. */
struct walk {
  const struct command_log *log;
  struct command_log_cursor at;
  uint64_t end;
  int only; /* one stream, or STREAMS for both in order of arrival */
};

static struct walk walk_begin(const struct command *command, uint64_t end, int only) {
  struct walk walk = {.log = &command->log, .at = command_log_begin(&command->log), .end = end, .only = only};
  if (walk.end > command->log.head)
    walk.end = command->log.head;
  return walk;
}

/* The next run, at most `max` bytes; 0 at the end. */
static size_t walk_next(struct walk *walk, size_t max, enum stream *stream, const uint8_t **bytes) {
  while (walk->at.position < walk->end) {
    uint64_t left = walk->end - walk->at.position;
    size_t n = command_log_peek(walk->log, &walk->at, left < max ? (size_t)left : max, stream, bytes);
    if (n == 0)
      return 0;
    if (walk->only == STREAMS || walk->only == (int)*stream)
      return n;
    command_log_advance(&walk->at, *stream, n);
  }
  return 0;
}

/* ---- text ---- */

struct text {
  struct utf8_carry carry[STREAMS];
  uint8_t cut[STREAMS]; /* so many of the next bytes may be the rest of a character whose start is gone */
};

static struct text text_begin(const struct walk *walk) {
  struct text text = {0};
  for (int s = 0; s < STREAMS; s++)
    text.cut[s] = walk->at.offset[s] > 0 ? 3 : 0;
  return text;
}

/* A character whose start is gone is left out whole. Its rest may lie in several runs. */
static size_t skip_rest(struct text *text, enum stream stream, const uint8_t *bytes, size_t n) {
  uint8_t *cut = &text->cut[stream];
  if (*cut == 0)
    return 0;
  size_t rest = utf8_leading_rest(bytes, n);
  if (rest > *cut)
    rest = *cut;
  *cut = rest == n ? (uint8_t)(*cut - rest) : 0;
  return rest;
}

static size_t text_length(struct walk walk) {
  struct text text = text_begin(&walk);
  size_t total = 0, n;
  enum stream stream;
  const uint8_t *bytes;
  while ((n = walk_next(&walk, SIZE_MAX, &stream, &bytes)) > 0) {
    size_t rest = skip_rest(&text, stream, bytes, n);
    total += json_text_length(&text.carry[stream], bytes + rest, n - rest);
    command_log_advance(&walk.at, stream, n);
  }
  for (int s = 0; s < STREAMS; s++)
    total += text.carry[s].len ? strlen(UTF8_REPLACEMENT) : 0;
  return total;
}

/* Moves the walk forward until at least `excess` encoded bytes lie behind it. What is left may begin inside of a
 * character, whose rest text_write() leaves out. */
static void text_drop(struct walk *walk, size_t excess) {
  struct text text = text_begin(walk);
  size_t dropped = 0, n;
  enum stream stream;
  const uint8_t *bytes;
  while (dropped < excess && (n = walk_next(walk, STEP, &stream, &bytes)) > 0) {
    size_t rest = skip_rest(&text, stream, bytes, n);
    dropped += json_text_length(&text.carry[stream], bytes + rest, n - rest);
    command_log_advance(&walk->at, stream, n);
  }
}

static void text_write(struct json_out *out, struct walk walk) {
  struct text text = text_begin(&walk);
  size_t n;
  enum stream stream;
  const uint8_t *bytes;
  json_out_text_begin(out);
  while ((n = walk_next(&walk, SIZE_MAX, &stream, &bytes)) > 0) {
    size_t rest = skip_rest(&text, stream, bytes, n);
    struct json_text_limit none = {SIZE_MAX, SIZE_MAX};
    json_text_append(out->buf, &text.carry[stream], bytes + rest, n - rest, &none);
    command_log_advance(&walk.at, stream, n);
  }
  for (int s = 0; s < STREAMS; s++)
    json_text_finish(out->buf, &text.carry[s]);
  json_out_text_end(out);
}

/* ---- exact bytes ---- */

static size_t raw_length(struct walk walk) {
  size_t total = 0, n;
  enum stream stream;
  const uint8_t *bytes;
  while ((n = walk_next(&walk, SIZE_MAX, &stream, &bytes)) > 0) {
    total += n;
    command_log_advance(&walk.at, stream, n);
  }
  return total;
}

/* base64 takes three bytes at a time, and runs end anywhere: they are put together first. */
static void raw_write(struct json_out *out, struct walk walk, size_t len, size_t skip) {
  uint8_t *all = malloc(len + 1);
  size_t have = 0, n;
  enum stream stream;
  const uint8_t *bytes;
  if (!all) {
    out->buf->failed = true;
    return;
  }
  while ((n = walk_next(&walk, SIZE_MAX, &stream, &bytes)) > 0) {
    memcpy(all + have, bytes, n);
    have += n;
    command_log_advance(&walk.at, stream, n);
  }
  json_out_base64(out, all + skip, have - skip);
  free(all);
}

/* ---- one value ---- */

static size_t length(const struct command *command, uint64_t end, int only, bool base64) {
  struct walk walk = walk_begin(command, end, only);
  return base64 ? base64_encoded_length(raw_length(walk)) : text_length(walk);
}

/* Writes one string of at most `budget` encoded bytes. Returns false when bytes had to go. */
static bool write_value(struct json_out *out, const struct command *command, uint64_t end, int only, bool base64,
                        size_t full, size_t budget) {
  struct walk walk = walk_begin(command, end, only);
  bool cut = full > budget;
  if (base64) {
    size_t raw = raw_length(walk), fits = budget / 4 * 3;
    raw_write(out, walk, raw, cut && raw > fits ? raw - fits : 0);
  } else {
    if (cut)
      text_drop(&walk, full - budget);
    text_write(out, walk);
  }
  return !cut;
}

void exec_output_write(struct json_out *out, const struct command *command, uint64_t end, const struct exec_view *view,
                       size_t budget) {
  bool whole = command->log.tail == 0;
  if (view->mode == EXEC_COMBINED) {
    size_t full = length(command, end, STREAMS, view->base64);
    json_out_key(out, "output");
    whole &= write_value(out, command, end, STREAMS, view->base64, full, budget);
  } else if (view->mode == EXEC_SPLIT) {
    size_t full[STREAMS], share = budget / 2;
    for (int s = 0; s < STREAMS; s++)
      full[s] = length(command, end, s, view->base64);
    /* Each may have half, and what the other leaves of its half. */
    for (int s = 0; s < STREAMS; s++) {
      size_t other = full[1 - s], left = other < share ? budget - other : share;
      json_out_key(out, s == STREAM_STDOUT ? "stdout" : "stderr");
      whole &= write_value(out, command, end, s, view->base64, full[s], left);
    }
  }
  json_out_key(out, "truncated");
  json_out_bool(out, !whole);
}
