/* sandbox_info.h - what a client is told of the sandbox: the "info" of docs/protocol.md, section 6. */
#ifndef SANDKEEPER_API_SANDBOX_INFO_H
#define SANDKEEPER_API_SANDBOX_INFO_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/json_out.h"

/* Writes it as one object. */
void sandbox_info_write(struct json_out *out, struct exchange *x);

#endif
