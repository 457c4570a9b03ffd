/* exec, exec_logs, kill, exec_input, exec_list, exec_remove: docs/protocol.md 4.1 to 4.5. */
#include "sandkeeper/api/exec.h"
#include "sandkeeper/api/params.h"
#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* How long kill with scope "tree" waits for what it hit before it counts survivors. */
#define TREE_SETTLE (200 * CLOCK_MS)

/* ---- exec, exec_logs ---- */

static void exec_start(struct call *call, json_object *params) {
  struct commands *commands = &call->api->sandbox->commands;
  struct error error = ERROR_INIT;
  struct command_spec spec;
  struct exec_follow follow = {.follow = true};
  struct command *command;
  if (exec_spec_parse(commands, params, &spec, &error) < 0 || exec_view_parse(params, &follow.view, &error) < 0 ||
      params_bool(params, "detached", false, &follow.detached, &error) < 0) {
    command_spec_free(&spec);
    call_fail(call, &error);
  } else if (commands_start(commands, &spec, &command, &follow.existing, &error) < 0) {
    call_fail(call, &error);
  } else {
    exec_call_start(call, command, &follow);
  }
}

static int parse_since(json_object *params, struct exec_follow *follow, struct error *err) {
  static const char *const names[STREAMS] = {"stdout", "stderr"};
  json_object *since;
  if (params_typed(params, "since", json_type_object, false, &since, err) < 0)
    return -1;
  if (!since)
    return 0;
  follow->resume = true;
  for (int s = 0; s < STREAMS; s++) {
    int64_t offset;
    if (params_integer(since, names[s], 0, INT64_MAX, 0, &offset, NULL, err) < 0)
      return error_wrap(err, "since");
    follow->since[s] = (uint64_t)offset;
  }
  return 0;
}

static void exec_logs_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct exec_follow follow = {.logs = true};
  struct command *command = exec_find(call->api, params, &error);
  if (!command || exec_view_parse(params, &follow.view, &error) < 0 ||
      params_bool(params, "follow", true, &follow.follow, &error) < 0 || parse_since(params, &follow, &error) < 0)
    call_fail(call, &error);
  else
    exec_call_start(call, command_ref(command), &follow);
}

/* ---- kill ---- */

static int parse_signal(json_object *params, int *number, struct error *err) {
  json_object *value = params_get(params, "signal");
  const char *name;
  int64_t whole;
  *number = SIGTERM;
  if (!value)
    return 0;
  if (json_object_is_type(value, json_type_string))
    *number = params_plain_string(value, "signal", &name, NULL) < 0 ? -1 : signals_parse(name);
  else
    *number = params_integer(params, "signal", 1, 64, 0, &whole, NULL, NULL) < 0 ? -1 : (int)whole;
  if (*number < 0)
    return error_set(err, ERROR_INVALID, 0, "signal: it takes a name like SIGTERM or TERM, or a number from 1 to 64");
  return 0;
}

static void answer_kill(struct call *call, bool signaled, const int *survivors) {
  struct json_out out = call_result(call);
  json_out_object(&out);
  json_out_key(&out, "signaled");
  json_out_bool(&out, signaled);
  if (survivors) {
    json_out_key(&out, "survivors");
    if (*survivors < 0)
      json_out_null(&out);
    else
      json_out_int(&out, *survivors);
  }
  json_out_object_end(&out);
  call_result_end(call, &out, NULL);
}

/* A kill of the whole tree waits for the count of what it left. */
struct tree_kill {
  struct call *call;
  struct command *command; /* a reference */
  struct command_observer observer;
  bool starting; /* the signal waits for the program, which is all there will be to hit */
};

static void tree_kill_changed(struct command_observer *observer, struct command *command) {
  struct tree_kill *kill = observer->arg;
  if (kill->starting) {
    kill->starting = false;
    if (command->state == COMMAND_FAILED)
      answer_kill(kill->call, false, NULL);
    else
      terminator_watch(&command->terminator, TREE_SETTLE);
    return;
  }
  if (terminator_is_active(&command->terminator) || kill->call->answered)
    return;
  int survivors = terminator_survivors(&command->terminator);
  answer_kill(kill->call, true, &survivors);
}

static void tree_kill_ended(struct call *call) {
  struct tree_kill *kill = call->state;
  command_unobserve(&kill->observer);
  command_unref(kill->command);
  free(kill);
}

static void kill_tree(struct call *call, struct command *command, int number) {
  bool signaled;
  struct tree_kill *kill = calloc(1, sizeof *kill);
  if (!kill) {
    struct error error = ERROR_INIT;
    error_set_errno(&error, ENOMEM, "kill");
    call_fail(call, &error);
    return;
  }
  *kill = (struct tree_kill){.call = call, .command = command_ref(command)};
  kill->observer = (struct command_observer){.changed = tree_kill_changed, .arg = kill};
  command_observe(command, &kill->observer);
  call->state = kill;
  call->ended = tree_kill_ended;
  kill->starting = command->state == COMMAND_STARTING;
  if (kill->starting)
    command_signal(command, number, &signaled, NULL);
  else
    command_signal_tree(command, number, TREE_SETTLE);
}

static void kill_start(struct call *call, json_object *params) {
  static const char *const scopes[] = {"group", "tree", NULL};
  struct error error = ERROR_INIT;
  int number, scope;
  bool signaled = false;
  struct command *command = exec_find(call->api, params, &error);
  if (!command || parse_signal(params, &number, &error) < 0 ||
      params_choice(params, "scope", scopes, 0, &scope, &error) < 0) {
    call_fail(call, &error);
  } else if (scope == 1 && (command->state == COMMAND_STARTING || command->state == COMMAND_RUNNING)) {
    kill_tree(call, command, number);
  } else if (command_signal(command, number, &signaled, &error) < 0) {
    call_fail(call, &error);
  } else {
    answer_kill(call, signaled, NULL);
  }
}

/* ---- exec_input ---- */

/* The bytes go in also when the client that sent them has gone. */
struct input {
  struct command_input input;
  struct call *call; /* NULL: it has gone */
  char *bytes;
  size_t len;
};

static void input_ended(struct call *call) {
  struct input *input = call->state;
  if (input)
    input->call = NULL;
}

static void input_done(struct command_input *command_input, const struct error *error) {
  struct input *input = LIST_OWNER(command_input, struct input, input);
  struct call *call = input->call;
  if (call) {
    call->state = NULL;
    if (error) {
      call_fail(call, error);
    } else {
      struct json_out out = call_result(call);
      json_out_object(&out);
      json_out_key(&out, "bytes_written");
      json_out_uint(&out, input->len);
      json_out_object_end(&out);
      call_result_end(call, &out, NULL);
    }
  }
  free(input->bytes);
  free(input);
}

static int parse_data(json_object *params, struct input *input, struct error *err) {
  static const char *const encodings[] = {"utf-8", "base64", NULL};
  const char *data;
  size_t len, bad;
  int encoding;
  if (params_bytes(params, "data", false, &data, &len, err) < 0 ||
      params_choice(params, "encoding", encodings, 0, &encoding, err) < 0 ||
      params_bool(params, "eof", false, &input->input.eof, err) < 0)
    return -1;
  input->bytes = malloc(len + 1);
  if (!input->bytes)
    return error_set_errno(err, ENOMEM, "data");
  if (encoding == 0) {
    if (len)
      memcpy(input->bytes, data, len);
    input->len = len;
    return 0;
  }
  ssize_t decoded = base64_decode(input->bytes, data ? data : "", len, &bad);
  if (decoded < 0)
    return error_set(err, ERROR_INVALID, 0, "data: it is not base64 at character %zu", bad);
  input->len = (size_t)decoded;
  return 0;
}

static void exec_input_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct command *command = exec_find(call->api, params, &error);
  struct input *input = command ? calloc(1, sizeof *input) : NULL;
  if (command && !input)
    error_set_errno(&error, ENOMEM, "exec_input");
  if (!input || parse_data(params, input, &error) < 0) {
    if (input)
      free(input->bytes);
    free(input);
    call_fail(call, &error);
    return;
  }
  input->call = call;
  input->input.bytes = input->bytes;
  input->input.len = input->len;
  input->input.done = input_done;
  list_init(&input->input.node);
  call->state = input;
  call->ended = input_ended;
  if (command_input(command, &input->input, &error) < 0)
    input_done(&input->input, &error);
}

/* ---- exec_list, exec_remove ---- */

static void write_entry(struct json_out *out, const struct command *command) {
  char text[CLOCK_RFC3339_SIZE];
  bool over = command_is_over(command);
  json_out_object(out);
  json_out_key(out, "cmd_id");
  json_out_string(out, command->id);
  json_out_key(out, "pid");
  json_out_int(out, command->pid);
  json_out_key(out, command->title_is_argv ? "argv" : "command");
  if (command->title_is_argv)
    json_out_raw(out, command->title, strlen(command->title));
  else
    json_out_string(out, command->title);
  json_out_key(out, "state");
  json_out_string(out, over ? "finished" : "running");
  json_out_key(out, "started_at");
  if (command->state == COMMAND_STARTING)
    json_out_null(out);
  else
    json_out_string(out, clock_rfc3339(command->started_wall, text));
  json_out_key(out, "exit_code");
  if (over)
    json_out_int(out, command->exit_code);
  else
    json_out_null(out);
  json_out_key(out, "reason");
  if (over)
    json_out_string(out, command_reason_name(command->reason));
  else
    json_out_null(out);
  json_out_object_end(out);
}

static void exec_list_start(struct call *call, json_object *params) {
  (void)params;
  struct commands *commands = &call->api->sandbox->commands;
  const struct list *lists[] = {&commands->finished, &commands->live};
  struct json_out out = call_result(call);
  json_out_array(&out);
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    LIST_FOREACH (lists[i], node) {
      const struct command *command = LIST_OWNER(node, struct command, node);
      if (!command->hidden)
        write_entry(&out, command);
    }
  json_out_array_end(&out);
  call_result_end(call, &out, "forget finished commands with exec_remove");
}

static void exec_remove_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct command *command = exec_find(call->api, params, &error);
  if (!command || commands_remove(&call->api->sandbox->commands, command, &error) < 0)
    call_fail(call, &error);
  else
    call_result_empty(call);
}

const struct method exec_methods[] = {
    {"exec", exec_start},
    {"exec_logs", exec_logs_start},
    {"kill", kill_start},
    {"exec_input", exec_input_start},
    {"exec_list", exec_list_start},
    {"exec_remove", exec_remove_start},
    {NULL, NULL},
};
