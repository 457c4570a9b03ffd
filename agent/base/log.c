#include "sandkeeper/base/log.h"

#include "sandkeeper/base/buf.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/json_out.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* A pipe takes so much at once without waiting when poll(2) says that it is writable (pipe(7), PIPE_BUF), and never
 * mixes it with what others write. */
#define LINE_MAX_BYTES 4096
#define VALUE_MAX_BYTES 2048 /* one value may not push all others out of the line */

#define BURST 20
#define PER_SECOND 2
#define KINDS 64 /* different events that are counted at the same time; the one unused for longest makes room */

struct kind {
  const char *part, *event;
  int64_t filled; /* when `tokens` was right, ns of the monotonic clock */
  int64_t tokens; /* in units of 1/CLOCK_SECOND of a line */
  uint64_t suppressed;
};

static struct {
  pthread_mutex_t lock;
  int fd;
  bool json;
  enum log_level lowest;
  uint64_t dropped; /* lines that the descriptor did not take */
  struct kind kinds[KINDS];
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = 2, .lowest = LOG_INFO};

void log_setup(int fd, enum log_format format, enum log_level lowest) {
  bool json = format == LOG_FORMAT_JSON || (format == LOG_FORMAT_AUTO && isatty(fd) != 1);
  pthread_mutex_lock(&state.lock);
  state.fd = fd;
  state.json = json;
  state.lowest = lowest;
  state.dropped = 0;
  memset(state.kinds, 0, sizeof state.kinds);
  pthread_mutex_unlock(&state.lock);
}

static struct kind *find_kind(const char *part, const char *event, int64_t now) {
  struct kind *oldest = &state.kinds[0];
  for (int i = 0; i < KINDS; i++) {
    struct kind *kind = &state.kinds[i];
    if (kind->part == NULL) {
      oldest = kind;
      break;
    }
    if (strcmp(kind->part, part) == 0 && strcmp(kind->event, event) == 0)
      return kind;
    if (kind->filled < oldest->filled)
      oldest = kind;
  }
  *oldest = (struct kind){.part = part, .event = event, .filled = now, .tokens = BURST * CLOCK_SECOND};
  return oldest;
}

/* True when this kind of event may write a line now. */
static bool take_token(struct kind *kind, int64_t now) {
  int64_t passed = now - kind->filled;
  int64_t most = BURST * CLOCK_SECOND;
  if (passed >= most / PER_SECOND)
    kind->tokens = most;
  else if (passed > 0)
    kind->tokens += passed * PER_SECOND;
  if (kind->tokens > most)
    kind->tokens = most;
  kind->filled = now;
  if (kind->tokens < CLOCK_SECOND) {
    kind->suppressed++;
    return false;
  }
  kind->tokens -= CLOCK_SECOND;
  return true;
}

/* ---- the line ---- */

static const char *level_name(enum log_level level) {
  switch (level) {
  case LOG_DEBUG:
    return "debug";
  case LOG_INFO:
    return "info";
  case LOG_WARN:
    return "warn";
  case LOG_ERROR:
    return "error";
  }
  return "error";
}

/* The inside of a JSON string, cut where a value becomes too long for the line. */
static void append_value(struct buf *line, const char *string) {
  struct utf8_carry carry = {.len = 0};
  struct json_text_limit limit = {.encoded = VALUE_MAX_BYTES, .decoded = SIZE_MAX};
  size_t len = strlen(string);
  if (json_text_append(line, &carry, string, len, &limit) == len)
    json_text_finish(line, &carry);
  else
    buf_append(line, "...", 3);
}

static void json_field(struct buf *line, const struct log_field *field) {
  buf_printf(line, ",\"%s\":", field->name);
  if (field->string == NULL) {
    buf_printf(line, "%" PRId64, field->number);
    return;
  }
  buf_append(line, "\"", 1);
  append_value(line, field->string);
  buf_append(line, "\"", 1);
}

/* A value that could be misread in a line of words is quoted as in JSON. */
static bool needs_quotes(const char *string) {
  if (*string == '\0')
    return true;
  for (; *string != '\0'; string++) {
    unsigned char c = (unsigned char)*string;
    if (c <= ' ' || c == '"' || c == '\\' || c == '=' || c >= 0x7f)
      return true;
  }
  return false;
}

static void text_field(struct buf *line, const struct log_field *field) {
  buf_printf(line, " %s=", field->name);
  if (field->string == NULL) {
    buf_printf(line, "%" PRId64, field->number);
    return;
  }
  bool quotes = needs_quotes(field->string);
  if (quotes)
    buf_append(line, "\"", 1);
  append_value(line, field->string);
  if (quotes)
    buf_append(line, "\"", 1);
}

/* A field that does not fit whole is left out: the line stays valid JSON. */
static void append_field(struct buf *line, const struct log_field *field, bool json) {
  size_t before = line->len;
  if (json)
    json_field(line, field);
  else
    text_field(line, field);
  if (line->failed) {
    line->len = before;
    line->failed = false;
  }
}

static void begin_line(struct buf *line, enum log_level level, const char *part, const char *event, bool json) {
  char time[CLOCK_RFC3339_SIZE];
  clock_rfc3339(clock_wall(), time);
  if (json) {
    buf_printf(line, "{\"time\":\"%s\",\"level\":\"%s\",\"part\":\"%s\",\"event\":\"%s\"", time, level_name(level),
               part, event);
    return;
  }
  char *clock = strchr(time, 'T');
  clock = clock == NULL ? time : clock + 1;
  clock[strcspn(clock, "Z")] = '\0';
  buf_printf(line, "%s %-5s %s: %s", clock, level_name(level), part, event);
}

/* One write(2) a line. A pipe or terminal that takes nothing now loses the line: a log nobody reads may not stop the
 * agent. With the lock held, so that no other thread fills the pipe between the question and the write. */
static bool write_line(int fd, const struct buf *line) {
  struct pollfd ready = {.fd = fd, .events = POLLOUT};
  if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0)
    return false;
  ssize_t n;
  do
    n = write(fd, line->data, line->len);
  while (n < 0 && errno == EINTR);
  return n == (ssize_t)line->len;
}

void log_event(enum log_level level, const char *part, const char *event, const struct log_field *fields, int n) {
  int saved = errno;
  pthread_mutex_lock(&state.lock);
  struct kind *kind = NULL;
  if (level >= state.lowest) {
    int64_t now = clock_monotonic();
    kind = find_kind(part, event, now);
    if (!take_token(kind, now))
      kind = NULL;
  }
  if (kind != NULL) {
    /* Memory that is full from the start never grows, so nothing is allocated. */
    char memory[LINE_MAX_BYTES];
    const size_t ending = 2; /* "}\n" */
    struct buf line = {.data = memory, .capacity = sizeof memory - ending, .max = sizeof memory - ending};
    begin_line(&line, level, part, event, state.json);
    if (kind->suppressed > 0)
      append_field(&line, &LOG_I("suppressed", kind->suppressed), state.json);
    if (state.dropped > 0)
      append_field(&line, &LOG_I("dropped", state.dropped), state.json);
    for (int i = 0; i < n; i++)
      append_field(&line, &fields[i], state.json);
    line.max = line.capacity = sizeof memory;
    buf_append_string(&line, state.json ? "}\n" : "\n");

    if (write_line(state.fd, &line)) {
      kind->suppressed = 0;
      state.dropped = 0;
    } else {
      state.dropped++;
    }
  }
  pthread_mutex_unlock(&state.lock);
  errno = saved;
}
