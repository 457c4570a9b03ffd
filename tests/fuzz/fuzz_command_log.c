/* command_log.c against an array of all that was written. The input is a program: an operation a byte, arguments
 * behind it. */
#include "sandkeeper/core/command_log.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define HISTORY 65536u

static uint8_t history[HISTORY], streams[HISTORY];
static uint64_t totals[HISTORY + 1][STREAMS];
static uint8_t source[HISTORY];

static void require(bool condition) {
  if (!condition)
    abort();
}

static void check_content(const struct command_log *log, uint64_t tail, uint64_t head) {
  struct command_log_cursor cursor = command_log_begin(log);
  require(cursor.position == tail && command_log_end(log).position == head);
  require(memcmp(cursor.offset, totals[tail], sizeof totals[0]) == 0);
  require(memcmp(command_log_end(log).offset, totals[head], sizeof totals[0]) == 0);
  enum stream stream;
  const uint8_t *bytes;
  size_t n;
  while ((n = command_log_peek(log, &cursor, SIZE_MAX, &stream, &bytes)) > 0) {
    require(n <= head - cursor.position && memcmp(bytes, history + cursor.position, n) == 0);
    for (size_t i = 0; i < n; i++)
      require(streams[cursor.position + i] == stream);
    command_log_advance(&cursor, stream, n);
  }
  require(cursor.position == head);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
  if (source[1] == 0)
    for (uint32_t i = 0; i < HISTORY; i++)
      source[i] = (uint8_t)(i * 2654435761u >> 13 | 1);
  struct command_log log;
  uint32_t limit = 64u << (len > 0 ? bytes[0] % 6 : 0);
  command_log_init(&log, limit);
  uint64_t tail = 0, head = 0, keep = UINT64_MAX;
  for (size_t at = 1; at + 2 < len; at += 3) {
    size_t n = (bytes[at + 1] | (size_t)bytes[at + 2] << 8) % (2 * limit);
    enum stream stream = bytes[at] >> 7 ? STREAM_STDERR : STREAM_STDOUT;
    switch (bytes[at] % 5) {
    case 0:
      n %= 70;
      /* fallthrough */
    case 1: {
      if (head + n > HISTORY)
        n = HISTORY - head;
      size_t took = command_log_append(&log, stream, source + head, n, keep);
      require(took <= n);
      for (size_t i = 0; i < took; i++) {
        history[head] = source[head];
        streams[head] = (uint8_t)stream;
        memcpy(totals[head + 1], totals[head], sizeof totals[0]);
        totals[++head][stream]++;
      }
      uint64_t kept = keep > head ? head : keep < tail ? tail : keep;
      tail = head - tail > limit ? head - limit : tail;
      require(tail <= kept);
      require(took == n || head - kept == limit);
      break;
    }
    case 2:
      keep = n % 3 == 0 ? UINT64_MAX : n % 3 == 1 ? head : tail + (head - tail) / 2;
      break;
    case 3:
      command_log_shrink(&log);
      break;
    default:
      if (n % 16 == 0) {
        command_log_free(&log);
        tail = head;
      }
    }
    check_content(&log, tail, head);
  }
  command_log_free(&log);
  return 0;
}
