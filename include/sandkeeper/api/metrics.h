/* metrics.h - GET /metrics: what the agent does, in Prometheus' text format (version 0.0.4). docs/protocol.md,
 * section 7.
 *
 * Names follow the Prometheus conventions (base units, _total for counters); `promtool check metrics` is part of the
 * tests. Everything is counted anyway or read at the moment; asking costs nothing in between.
 */
#ifndef SANDKEEPER_API_METRICS_H
#define SANDKEEPER_API_METRICS_H

#include "sandkeeper/api/exchange.h"

#include <stddef.h>
#include <stdint.h>

/* Pairs of a route and a status; what comes behind is counted in the last one, as route "other". */
#define METRICS_ROWS 192
#define METRICS_HEALTH_BUCKETS 11

/* What only net/ knows; main() provides it. */
struct metrics_net {
  unsigned sessions;       /* WebSocket */
  size_t session_buffered; /* bytes of half-received messages */
  unsigned connections;    /* HTTP */
  unsigned exchanges;      /* HTTP requests under way */
};

struct metrics_row {
  const char *route; /* its path in the table; NULL: none fits */
  unsigned status;   /* 0: the client left before its answer */
  uint64_t count;
};

struct metrics {
  void (*net)(void *arg, struct metrics_net *out);
  void *net_arg;
  struct metrics_row rows[METRICS_ROWS];
  size_t n_rows;
  uint64_t health_buckets[METRICS_HEALTH_BUCKETS + 1]; /* not cumulated; the last has no bound */
  int64_t health_sum;                                  /* ns */
};

/* Counts one request: what http_observe() of net/http.h calls. `arg`: a struct metrics. */
void metrics_on_request(void *arg, const struct route *route, unsigned status, int64_t duration_ns);

/* The route GET /metrics. */
void metrics_handle(struct exchange *x);

#endif
