/* envelope.h - the shape of the control plane's answers: {"code":0,"message":"ok","data":...,"request_id":"..."}, and
 * for an error {"code":404,"message":"...","data":null,"request_id":"..."} with that HTTP status. */
#ifndef SANDKEEPER_API_ENVELOPE_H
#define SANDKEEPER_API_ENVELOPE_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/json_out.h"

struct envelope {
  struct exchange *x;
  struct buf body;
  struct json_out out; /* where the data goes: exactly one value */
};

void envelope_begin(struct envelope *envelope, struct exchange *x);
void envelope_send(struct envelope *envelope);

void envelope_fail(struct exchange *x, unsigned status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
