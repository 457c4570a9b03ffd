#include "sandkeeper/api/rpc_error.h"

int rpc_error_code(enum error_kind kind) {
  switch (kind) {
  case ERROR_INVALID:
    return RPC_INVALID_PARAMS;
  case ERROR_NOT_FOUND:
    return -32001;
  case ERROR_TIMED_OUT:
    return -32002;
  case ERROR_PERMISSION:
    return -32003;
  case ERROR_WRONG_TYPE:
    return -32004;
  case ERROR_EDIT_CONFLICT:
    return -32005;
  case ERROR_TOO_LARGE:
    return -32006;
  case ERROR_NO_SPACE:
    return -32007;
  case ERROR_SPAWN_FAILED:
    return -32008;
  case ERROR_STOPPED:
    return -32009;
  case ERROR_BUSY:
    return -32010;
  case ERROR_EXISTS:
    return -32011;
  case ERROR_IO:
    return -32000;
  case ERROR_NONE:
  case ERROR_INTERNAL:
    break;
  }
  return RPC_INTERNAL_ERROR;
}

static void write_head(struct json_out *out, int code, const char *message, const char *kind) {
  json_out_object(out);
  json_out_key(out, "code");
  json_out_int(out, code);
  json_out_key(out, "message");
  json_out_string(out, message);
  json_out_key(out, "data");
  json_out_object(out);
  json_out_key(out, "kind");
  json_out_string(out, kind);
}

static void write_tail(struct json_out *out) {
  json_out_object_end(out);
  json_out_object_end(out);
}

static void write_conflict(struct json_out *out, const struct error *error) {
  json_out_key(out, "count");
  json_out_uint(out, error->count);
  json_out_key(out, "lines");
  json_out_array(out);
  for (uint32_t i = 0; i < error->n_lines && i < ERROR_LINES_MAX; i++)
    json_out_uint(out, error->lines[i]);
  json_out_array_end(out);
}

void rpc_error_write(struct json_out *out, const struct error *error, void (*more)(struct json_out *out, void *arg),
                     void *arg) {
  write_head(out, rpc_error_code(error->kind), error->message, error_kind_name(error->kind));
  if (error->number) {
    json_out_key(out, "errno");
    json_out_int(out, error->number);
  }
  if (error->limit) {
    json_out_key(out, "limit");
    json_out_uint(out, error->limit);
  }
  if (error->kind == ERROR_EDIT_CONFLICT)
    write_conflict(out, error);
  if (more)
    more(out, arg);
  write_tail(out);
}

void rpc_error_write_code(struct json_out *out, enum rpc_code code, const char *message) {
  static const struct {
    enum rpc_code code;
    const char *kind;
  } kinds[] = {
      {RPC_PARSE_ERROR, "parse_error"},
      {RPC_INVALID_REQUEST, "invalid_request"},
      {RPC_METHOD_NOT_FOUND, "method_not_found"},
      {RPC_INVALID_PARAMS, "invalid_params"},
  };
  const char *kind = "internal_error";
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (kinds[i].code == code)
      kind = kinds[i].kind;
  write_head(out, code, message, kind);
  write_tail(out);
}
