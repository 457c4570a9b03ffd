/* clock.h - the two clocks. Durations and deadlines are int64_t nanoseconds of CLOCK_MONOTONIC; what a client
 * sees is wall time, RFC 3339 in UTC with milliseconds. */
#ifndef SANDKEEPER_BASE_CLOCK_H
#define SANDKEEPER_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_MS INT64_C(1000000)
#define CLOCK_SECOND INT64_C(1000000000)
#define CLOCK_NEVER INT64_MAX

#define CLOCK_RFC3339_SIZE 32 /* "2026-11-29T20:00:00.000Z" and its NUL, with room for any year */

int64_t clock_monotonic(void); /* ns */
int64_t clock_wall(void);      /* ns since 1970 */

/* Writes RFC 3339 of a wall time; truncates to milliseconds. Returns `out`. */
char *clock_rfc3339(int64_t wall_ns, char out[static CLOCK_RFC3339_SIZE]);

#endif
