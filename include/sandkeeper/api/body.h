/* body.h - a request body that is collected whole, for routes that take theirs in a sink (api/exchange.h): so that all
 * bodies that are on their way together have a limit too, not only each of them. */
#ifndef SANDKEEPER_API_BODY_H
#define SANDKEEPER_API_BODY_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* All bodies that are being collected. Owner: the api. */
struct bodies {
  size_t max;  /* bytes: --max-buffered */
  size_t held; /* now */
};

struct body {
  struct bodies *bodies;
  struct buf bytes;
};

/* max: bytes of this body. */
void body_init(struct body *body, struct bodies *bodies, size_t max);

/* True when it has taken the bytes. Else the exchange has been answered: 413, 429 with Retry-After, 503. The first
 * piece may be empty: only the announced length is looked at. */
bool body_take(struct body *body, struct exchange *x, const char *bytes, size_t len);

/* The bytes are somebody else's matter from now on, and count no longer. */
void body_move(struct body *body, struct buf *to);
void body_free(struct body *body); /* fine to call again */

#endif
