#include "sandkeeper/base/clock.h"

static int64_t read_clock(clockid_t id) {
  struct timespec now;
  clock_gettime(id, &now); /* cannot fail: both clocks always exist */
  return (int64_t)now.tv_sec * CLOCK_SECOND + now.tv_nsec;
}

int64_t clock_monotonic(void) {
  return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_wall(void) {
  return read_clock(CLOCK_REALTIME);
}

/* Writes a number of so many digits and what stands behind it; returns the place behind that. */
static char *put(char *at, int64_t value, int digits, char behind) {
  for (int i = digits - 1; i >= 0; i--) {
    at[i] = (char)('0' + value % 10);
    value /= 10;
  }
  at[digits] = behind;
  return at + digits + 1;
}

/* Not gmtime_r: glibc's reads /etc/localtime on its first call, even for UTC.
 * The date is counted in years that begin on 1 March, so that the leap day is the last one, and in eras of 400 years,
 * which all have 146097 days. */
char *clock_rfc3339(int64_t wall_ns, char out[static CLOCK_RFC3339_SIZE]) {
  int64_t ms = wall_ns / CLOCK_MS - (wall_ns % CLOCK_MS < 0);
  int64_t days = ms / 86400000 - (ms % 86400000 < 0);
  int64_t in_day = ms - days * 86400000;

  days += 719468;              /* from 0000-03-01 to 1970-01-01 */
  int64_t era = days / 146097; /* an int64_t of ns reaches from 1677 to 2262: never negative */
  int64_t in_era = days - era * 146097;
  int64_t year_of_era = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
  int64_t in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  int64_t month = (5 * in_year + 2) / 153; /* 0 is March */
  int64_t day = in_year - (153 * month + 2) / 5 + 1;
  month = month < 10 ? month + 3 : month - 9;
  int64_t year = era * 400 + year_of_era + (month <= 2);

  char *at = put(out, year, 4, '-');
  at = put(at, month, 2, '-');
  at = put(at, day, 2, 'T');
  at = put(at, in_day / 3600000, 2, ':');
  at = put(at, in_day / 60000 % 60, 2, ':');
  at = put(at, in_day / 1000 % 60, 2, '.');
  at = put(at, in_day % 1000, 3, 'Z');
  *at = '\0';
  return out;
}
