/* route.h - which route takes a request. Pure. */
#ifndef SANDKEEPER_NET_ROUTE_H
#define SANDKEEPER_NET_ROUTE_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/net/http_head.h"

#include <stdbool.h>
#include <stddef.h>

struct route_match {
  const struct route *route; /* NULL: no route has the path and the method */
  bool known;                /* some route has the path */
  char allow[96];            /* the methods of the path, "GET, HEAD, OPTIONS" */
};

struct route_match route_find(const struct route *routes, size_t n_routes, struct text path, struct text method);

#endif
