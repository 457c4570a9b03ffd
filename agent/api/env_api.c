/* POST /api/v1/env: sets environment variables for all later commands. The body is an object NAME: "value"; null takes
 * a variable away. It is what the SDKs' payloads call; all variables are set, or none. */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/envelope.h"
#include "sandkeeper/api/params.h"

#include <json-c/linkhash.h>
#include <stdio.h>
#include <string.h>

/* A variable that execve(2) would not take (MAX_ARG_STRLEN, 128 KiB) or a whole that leaves little of its limit for the
 * commands' own would make every later command fail. */
#define VARIABLE_MAX (128u * 1024u - 1)
#define ALL_MAX (512u * 1024u)

static bool is_ours(const char *name) {
  return strcmp(name, "SANDBOX_ID") == 0 || strncmp(name, "SANDKEEPER_", strlen("SANDKEEPER_")) == 0;
}

static int check(const char *name, json_object *value, struct error *err) {
  char what[128];
  const char *text = "";
  snprintf(what, sizeof what, "variable \"%.64s\"", name);
  if (!name[0] || strchr(name, '='))
    return error_set(err, ERROR_INVALID, 0, "%s: a name is not empty and has no \"=\"", what);
  if (is_ours(name))
    return error_set(err, ERROR_INVALID, 0, "%s: the agent sets it itself", what);
  if (value && params_plain_string(value, what, &text, err) < 0)
    return -1;
  if (strlen(name) + 1 + strlen(text) > VARIABLE_MAX)
    return error_set(err, ERROR_TOO_LARGE, 0, "%s: it takes at most %u bytes with its name", what, VARIABLE_MAX);
  return 0;
}

static size_t size_of(const struct env *env) {
  size_t size = 0;
  for (size_t i = 0; i < env->count; i++)
    size += strlen(env->vars[i]) + 1;
  return size;
}

static int change(struct env *env, json_object *variables, struct error *err) {
  env_remove_if(env, params_has, variables);
  json_object_object_foreach(variables, name, value) {
    if (check(name, value, err) < 0)
      return -1;
    if (value && env_add(env, name, json_object_get_string(value)) < 0)
      return error_set(err, ERROR_INTERNAL, 0, "there is no memory for the environment");
  }
  if (size_of(env) > ALL_MAX)
    return error_set(err, ERROR_TOO_LARGE, 0, "the environment would have %zu bytes; it takes at most %u", size_of(env),
                     ALL_MAX);
  return 0;
}

static unsigned status_of(enum error_kind kind) {
  return kind == ERROR_INVALID ? 400 : kind == ERROR_TOO_LARGE ? 413 : 500;
}

static void answer(struct exchange *x, json_object *variables) {
  struct env *env = &x->api->sandbox->commands.env, changed;
  struct error err = ERROR_INIT;
  struct envelope envelope;
  env_init(&changed);
  if (env_copy(&changed, env) < 0)
    error_set(&err, ERROR_INTERNAL, 0, "there is no memory for the environment");
  else
    change(&changed, variables, &err);
  if (err.kind != ERROR_NONE) {
    env_free(&changed);
    envelope_fail(x, status_of(err.kind), "%s", err.message);
    return;
  }
  env_free(env);
  *env = changed;
  envelope_begin(&envelope, x);
  json_out_object(&envelope.out);
  json_out_object_end(&envelope.out);
  envelope_send(&envelope);
}

void env_api_handle(struct exchange *x) {
  json_object *variables = envelope_body(x);
  if (variables)
    answer(x, variables);
  json_object_put(variables);
}
