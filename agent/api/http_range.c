#include "sandkeeper/api/http_range.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

/* By hand: strftime writes the names of the locale. */
char *http_date(time_t seconds, char out[HTTP_DATE_SIZE]) {
  struct tm tm;
  time_t none = 0;
  if (!gmtime_r(&seconds, &tm) || tm.tm_year + 1900 > 9999 || tm.tm_year + 1900 < 0)
    gmtime_r(&none, &tm); /* a year that the format has no room for */
  snprintf(out, HTTP_DATE_SIZE, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[(unsigned)tm.tm_wday % 7], tm.tm_mday % 100,
           months[(unsigned)tm.tm_mon % 12], (tm.tm_year + 1900) % 10000, tm.tm_hour % 100, tm.tm_min % 100,
           tm.tm_sec % 100);
  return out;
}

bool http_date_parse(const char *text, time_t *seconds) {
  struct tm tm = {.tm_isdst = 0};
  char day[4], month[4], zone[4];
  int end = 0;
  if (sscanf(text, "%3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d %3[A-Z]%n", day, &tm.tm_mday, month, &tm.tm_year,
             &tm.tm_hour, &tm.tm_min, &tm.tm_sec, zone, &end) != 8 ||
      text[end] != '\0' || strcmp(zone, "GMT") != 0)
    return false;
  tm.tm_mon = 0;
  while (tm.tm_mon < 12 && strcmp(months[tm.tm_mon], month) != 0)
    tm.tm_mon++;
  if (tm.tm_mon == 12)
    return false;
  tm.tm_year -= 1900;
  *seconds = timegm(&tm);
  return true;
}

bool http_etag_matches(const char *list, const char *etag) {
  size_t len = strlen(etag);
  const char *at = list + strspn(list, " \t");
  if (*at == '*')
    return at[1 + strspn(at + 1, " \t")] == '\0';
  while (*at) {
    at += strspn(at, " \t,");
    if (strncmp(at, "W/", 2) == 0)
      at += 2;
    if (*at != '"')
      return false;
    const char *end = strchr(at + 1, '"');
    if (!end)
      return false;
    if ((size_t)(end + 1 - at) == len && memcmp(at, etag, len) == 0)
      return true;
    at = end + 1;
    at += strspn(at, " \t");
    if (*at != ',')
      return false;
  }
  return false;
}

/* Digits only; what is beyond 64 bits is as good as the largest number. False without a digit. */
static bool parse_number(const char **at, uint64_t *number) {
  const char *start = *at;
  *number = 0;
  for (; **at >= '0' && **at <= '9'; ++*at) {
    unsigned digit = (unsigned)(**at - '0');
    *number = *number > (UINT64_MAX - digit) / 10 ? UINT64_MAX : *number * 10 + digit;
  }
  return *at > start;
}

enum http_range http_range_parse(const char *text, uint64_t size, uint64_t *start, uint64_t *length) {
  uint64_t first, last = UINT64_MAX;
  if (!text || strncasecmp(text, "bytes=", 6) != 0)
    return HTTP_RANGE_NONE;
  const char *at = text + 6;
  at += strspn(at, " \t");
  bool has_first = parse_number(&at, &first);
  if (*at++ != '-')
    return HTTP_RANGE_NONE;
  bool has_last = parse_number(&at, &last);
  at += strspn(at, " \t");
  if (*at || (!has_first && !has_last) || (has_first && has_last && last < first))
    return HTTP_RANGE_NONE;
  if (!has_first) { /* the last bytes */
    if (last == 0 || size == 0)
      return HTTP_RANGE_UNSATISFIABLE;
    first = last < size ? size - last : 0;
    last = size - 1;
  }
  if (first >= size)
    return HTTP_RANGE_UNSATISFIABLE;
  if (!has_last || last > size - 1)
    last = size - 1;
  *start = first;
  *length = last - first + 1;
  return HTTP_RANGE_PART;
}
