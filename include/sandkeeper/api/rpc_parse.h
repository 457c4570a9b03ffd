/* rpc_parse.h - a message's bytes into a json-c tree. Pure; may run on a worker. */
#ifndef SANDKEEPER_API_RPC_PARSE_H
#define SANDKEEPER_API_RPC_PARSE_H

#include "sandkeeper/base/error.h"

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stddef.h>

#define RPC_DEPTH_MAX 64 /* docs/protocol.md 3.3 */
#define RPC_VALUES_MAX 131072

/* 0 and *value (NULL is JSON's null), a new reference; or -1 with ERROR_INVALID and the offset in the message,
 * or with ERROR_INTERNAL when there is no memory. As strict as json-c gets (it still takes NaN and "1."): valid UTF-8,
 * nothing behind the value, no member name that holds a NUL (json-c would cut it there). Values are counted as commas
 * and opened brackets. */
int rpc_parse(const char *text, size_t len, json_object **value, struct error *err);

/* The same for a request: a member name that holds a NUL is no parse error, but *nul_in_name. Of such a value only the
 * id may be used, to say so to whoever waits for the answer. */
int rpc_parse_request(const char *text, size_t len, json_object **value, bool *nul_in_name, struct error *err);

#endif
