/* http_range.h - conditional and partial GET: RFC 9110, sections 8.8, 13 and 14. Pure. */
#ifndef SANDKEEPER_API_HTTP_RANGE_H
#define SANDKEEPER_API_HTTP_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define HTTP_DATE_SIZE 32 /* "Sun, 06 Nov 1994 08:49:37 GMT" */

/* An IMF-fixdate (RFC 9110, 5.6.7). Returns `out`. */
char *http_date(time_t seconds, char out[HTTP_DATE_SIZE]);

/* The same back; false for another format: clients return what they were sent. */
bool http_date_parse(const char *text, time_t *seconds);

/* True when the list of If-None-Match has this tag ("..." with its quotes) or is a star. Weak comparison. */
bool http_etag_matches(const char *list, const char *etag);

enum http_range { HTTP_RANGE_NONE, HTTP_RANGE_PART, HTTP_RANGE_UNSATISFIABLE };

/* What a Range header (may be NULL) means for `size` bytes. NONE: all of it, also for a header that is not understood,
 * and for several ranges at once, which a server may ignore. PART: [*start, *start + *length). */
enum http_range http_range_parse(const char *text, uint64_t size, uint64_t *start, uint64_t *length);

#endif
