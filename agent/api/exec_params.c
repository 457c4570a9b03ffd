/* The parameters of exec: docs/protocol.md 4.1. */
#include "sandkeeper/api/exec.h"
#include "sandkeeper/api/params.h"
#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/commands.h"

#include <errno.h>
#include <json-c/linkhash.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct error *err) {
  return error_set_errno(err, ENOMEM, "exec");
}

int exec_view_parse(json_object *params, struct exec_view *view, struct error *err) {
  static const char *const encodings[] = {"utf-8", "base64", NULL};
  static const char *const modes[] = {"combined", "split", "none", NULL};
  int encoding, mode;
  if (params_bool(params, "stream", true, &view->stream, err) < 0 ||
      params_choice(params, "encoding", encodings, 0, &encoding, err) < 0 ||
      params_choice(params, "output", modes, EXEC_COMBINED, &mode, err) < 0)
    return -1;
  view->base64 = encoding == 1;
  view->mode = (enum exec_output_mode)mode;
  return 0;
}

static int copy_string(char **to, const char *from, struct error *err) {
  if (!from)
    return 0;
  *to = strdup(from);
  return *to ? 0 : no_memory(err);
}

/* cmd_id goes into an environment variable and into logs: no surprises in it. */
static int parse_id(json_object *params, char id[static COMMAND_ID_MAX + 1], struct error *err) {
  static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  const char *text;
  if (params_string(params, "cmd_id", false, &text, err) < 0)
    return -1;
  if (!text)
    return 0;
  size_t len = strlen(text);
  if (len == 0 || len > COMMAND_ID_MAX || strspn(text, allowed) != len)
    return error_set(err, ERROR_INVALID, 0, "cmd_id: it takes 1 to %d characters of A-Z a-z 0-9 . _ -", COMMAND_ID_MAX);
  memcpy(id, text, len + 1);
  return 0;
}

/* The title of an argv is its JSON, cut so that listing stays short. */
static int title_of_argv(json_object *argv, struct command_spec *spec, struct error *err) {
  struct buf text;
  struct json_out out;
  buf_init(&text, COMMAND_TITLE_MAX, 0);
  json_out_begin(&out, &text);
  json_out_array(&out);
  for (size_t i = 0; i < json_object_array_length(argv) && !text.failed; i++)
    json_out_string(&out, json_object_get_string(json_object_array_get_idx(argv, i)));
  json_out_array_end(&out);
  spec->title_is_argv = json_out_end(&out) == 0;
  if (spec->title_is_argv)
    spec->title = strdup(buf_string(&text) ? text.data : "[]");
  else
    spec->title = strndup(json_object_get_string(json_object_array_get_idx(argv, 0)), COMMAND_TITLE_MAX);
  buf_free(&text);
  return spec->title ? 0 : no_memory(err);
}

static int parse_argv(json_object *argv, struct command_spec *spec, struct error *err) {
  size_t n = json_object_array_length(argv);
  if (n == 0)
    return error_set(err, ERROR_INVALID, 0, "argv: it takes an array of at least one string");
  spec->spawn.argv = calloc(n + 1, sizeof(char *));
  if (!spec->spawn.argv)
    return no_memory(err);
  for (size_t i = 0; i < n; i++) {
    const char *word;
    if (params_plain_string(json_object_array_get_idx(argv, i), "argv", &word, err) < 0 ||
        copy_string(&spec->spawn.argv[i], word, err) < 0)
      return -1;
  }
  return title_of_argv(argv, spec, err);
}

static int parse_program(json_object *params, struct command_spec *spec, struct error *err) {
  const char *command;
  json_object *argv;
  if (params_string(params, "command", false, &command, err) < 0 ||
      params_typed(params, "argv", json_type_array, false, &argv, err) < 0)
    return -1;
  if (command && argv)
    return error_set(err, ERROR_INVALID, 0, "command and argv: give one of them, not both");
  if (!command && !argv)
    return error_set(err, ERROR_INVALID, 0, "command: it is missing; give command (a string) or argv (strings)");
  if (argv)
    return parse_argv(argv, spec, err);
  spec->title = strndup(command, COMMAND_TITLE_MAX);
  if (!spec->title)
    return no_memory(err);
  return copy_string(&spec->spawn.command, command, err);
}

static int set_variable(struct env *env, const char *name, json_object *value, struct error *err) {
  if (!*name || strchr(name, '='))
    return error_set(err, ERROR_INVALID, 0, "env: \"%.100s\" is no name of a variable; it takes one without \"=\"",
                     name);
  if (!value)
    return 0; /* it has been removed */
  char what[128];
  const char *text;
  snprintf(what, sizeof what, "env.%.100s", name);
  if (params_plain_string(value, what, &text, err) < 0)
    return -1;
  return env_add(env, name, text) < 0 ? no_memory(err) : 0;
}

static int parse_env(struct commands *commands, json_object *params, struct spawn *spawn, struct error *err) {
  json_object *variables;
  if (params_typed(params, "env", json_type_object, false, &variables, err) < 0)
    return -1;
  if (env_copy(&spawn->env, &commands->env) < 0)
    return no_memory(err);
  if (spawn->user || (commands->options.user && !spawn->sudo)) {
    /* They belong to whoever the agent is; the command's own are filled in at its start. */
    env_unset(&spawn->env, "HOME");
    env_unset(&spawn->env, "USER");
    env_unset(&spawn->env, "LOGNAME");
  }
  if (!variables)
    return 0;
  env_remove_if(&spawn->env, params_has, variables);
  json_object_object_foreach(variables, name, value) {
    if (set_variable(&spawn->env, name, value, err) < 0)
      return -1;
  }
  return 0;
}

static int parse_user(json_object *params, struct spawn *spawn, struct error *err) {
  const char *user, *working_dir;
  if (params_bool(params, "sudo", false, &spawn->sudo, err) < 0 ||
      params_string(params, "user", false, &user, err) < 0 ||
      params_string(params, "working_dir", false, &working_dir, err) < 0)
    return -1;
  if (user && spawn->sudo)
    return error_set(err, ERROR_INVALID, 0, "user and sudo: give one of them, not both");
  if (user && !*user)
    return error_set(err, ERROR_INVALID, 0, "user: it takes a name or a uid, not an empty string");
  if (working_dir && !*working_dir)
    working_dir = NULL; /* the SDKs leave it empty when it is not set */
  if (copy_string(&spawn->user, user, err) < 0)
    return -1;
  return copy_string(&spawn->working_dir, working_dir, err);
}

static int parse_input(json_object *params, struct command_spec *spec, struct error *err) {
  const char *input;
  if (params_bool(params, "stdin", false, &spec->keep_stdin, err) < 0 ||
      params_bytes(params, "stdin_data", false, &input, &spec->input_len, err) < 0)
    return -1;
  spec->spawn.stdin_pipe = input || spec->keep_stdin;
  if (!input)
    return 0;
  spec->input = malloc(spec->input_len + 1);
  if (!spec->input)
    return no_memory(err);
  memcpy(spec->input, input, spec->input_len);
  return 0;
}

int exec_spec_parse(struct commands *commands, json_object *params, struct command_spec *spec, struct error *err) {
  command_spec_init(spec);
  if (parse_id(params, spec->id, err) < 0 || parse_program(params, spec, err) < 0 ||
      parse_user(params, &spec->spawn, err) < 0 || parse_env(commands, params, &spec->spawn, err) < 0)
    return -1;
  if (params_seconds(params, "timeout", &spec->timeout, err) < 0 ||
      params_seconds(params, "idle_timeout", &spec->idle_timeout, err) < 0)
    return -1;
  return parse_input(params, spec, err);
}

struct command *exec_find(struct api *api, json_object *params, struct error *err) {
  const char *id;
  if (params_string(params, "cmd_id", true, &id, err) < 0)
    return NULL;
  return commands_find(&api->sandbox->commands, id, err);
}
