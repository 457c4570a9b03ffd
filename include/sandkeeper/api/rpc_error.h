/* rpc_error.h - the errors of docs/protocol.md 3.2: a number for each kind, and the members of data. */
#ifndef SANDKEEPER_API_RPC_ERROR_H
#define SANDKEEPER_API_RPC_ERROR_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/base/json_out.h"

/* The requests that JSON-RPC itself refuses; the kinds of base/error.h have numbers of their own. */
enum rpc_code {
  RPC_PARSE_ERROR = -32700,
  RPC_INVALID_REQUEST = -32600,
  RPC_METHOD_NOT_FOUND = -32601,
  RPC_INVALID_PARAMS = -32602,
  RPC_INTERNAL_ERROR = -32603,
};

/* The number of an error's kind. */
int rpc_error_code(enum error_kind kind);

/* The error object {"code","message","data":{"kind",...}}; `more` (may be NULL) adds members to data. */
void rpc_error_write(struct json_out *out, const struct error *error, void (*more)(struct json_out *out, void *arg),
                     void *arg);

/* The error object of a request that was refused before it had a method; data.kind follows the code. */
void rpc_error_write_code(struct json_out *out, enum rpc_code code, const char *message);

#endif
