/* envelope.h - the shape of the control plane's answers: {"code":0,"message":"ok","data":...,"request_id":"..."}, and
 * for an error {"code":404,"message":"...","data":null,"request_id":"..."} with that HTTP status. */
#ifndef SANDKEEPER_API_ENVELOPE_H
#define SANDKEEPER_API_ENVELOPE_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/json_out.h"

#include <json-c/json_object.h>

struct envelope {
  struct exchange *x;
  struct buf body;
  struct json_out out; /* where the data goes: exactly one value */
};

void envelope_begin(struct envelope *envelope, struct exchange *x);
void envelope_send(struct envelope *envelope);

void envelope_fail(struct exchange *x, unsigned status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The request's body, a new reference to a JSON object; an empty body and null are an empty one. NULL: the exchange is
 * answered, 415 (not JSON by its Content-Type) or 400. */
json_object *envelope_body(struct exchange *x);

#endif
