/* log.h - one line per event to stderr: text on a terminal, JSON otherwise, as --log-format says.
 *
 * text:  20:00:00.123 info  gate: listening address=0.0.0.0:4001
 * json:  {"time":"2026-11-29T20:00:00.123Z","level":"info","part":"gate","event":"listening","address":"0.0.0.0:4001"}
 *
 * A loop of failing clients must not fill a disk: each (part, event) may write 20 lines at once and 2 a second
 * after that; what was left out is said as "suppressed":n in the next line. Never blocks for long, never fails, never
 * allocates without a bound. The only global of the program: a log that had to be handed down would not be used. */
#ifndef SANDKEEPER_BASE_LOG_H
#define SANDKEEPER_BASE_LOG_H

#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_TEXT, LOG_FORMAT_JSON };

/* fd: usually 2; the caller keeps it open. AUTO asks isatty(fd). */
void log_setup(int fd, enum log_format format, enum log_level lowest);

/* One event. `part` and `event` are literals of lower-case words ("gate", "accept failed"); then fields as pairs:
 * name (literal), LOG_S(string) / LOG_I(int64_t) ..., ended by LOG_END. Values may be any bytes: they are escaped. */
struct log_field {
  const char *name;
  const char *string; /* NULL: it is `number` */
  int64_t number;
};
void log_event(enum log_level level, const char *part, const char *event, const struct log_field *fields, int n);

/* A function, because compilers warn of the test for NULL when the value is an array. */
static inline const char *log_string(const char *value) {
  return value == NULL ? "" : value;
}

#define LOG_S(name_, value_) ((struct log_field){.name = (name_), .string = log_string(value_)})
#define LOG_I(name_, value_) ((struct log_field){.name = (name_), .number = (int64_t)(value_)})

/* LOG(LOG_INFO, "gate", "listening", LOG_S("address", text), LOG_I("port", port)); fields may be absent. */
#define LOG(level, part, event, ...)                                                                           \
  do {                                                                                                         \
    const struct log_field log_fields_[] = {{0}, ##__VA_ARGS__};                                               \
    log_event((level), (part), (event), log_fields_ + 1, (int)(sizeof log_fields_ / sizeof *log_fields_) - 1); \
  } while (0)

#endif
