/* rpc_session_receive() with anything: bytes as they are, or requests made of them. Each message that comes out is JSON
 * and fits the client. Nothing is started at the input's word: exec is refused but for commands that are there, and the
 * file methods are left out. */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/call.h"
#include "sandkeeper/api/rpc.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/json_check.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/reaper.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* In the place of those in the library, which would touch files. */
const struct method file_methods[] = {{NULL, NULL}};
const struct method stream_methods[] = {{NULL, NULL}};

static struct sandbox sandbox;
static struct api api = {.sandbox = &sandbox};

struct client {
  struct peer peer; /* must be first */
  bool held;
};

static void require(bool condition) {
  if (!condition)
    abort();
}

static void wake(struct peer *peer) {
  (void)peer;
}

static void hold(struct peer *peer, bool held) {
  struct client *client = (struct client *)peer;
  require(client->held != held);
  client->held = held;
}

/* A thread of the fuzzer's own may get SIGCHLD and drop it. */
static void turn(int wait_ms) {
  loop_run_once(sandbox.loop, wait_ms);
  reaper_pass(&sandbox.commands);
}

/* ---- the commands that are there: "done" has ended, "runs" waits for input ---- */

static void start(const char *id, const char *text, bool input) {
  struct command_spec spec;
  struct command *command;
  struct error err = ERROR_INIT;
  bool existing;
  command_spec_init(&spec);
  spec.spawn.command = strdup(text);
  spec.title = strdup(text);
  spec.spawn.stdin_pipe = spec.keep_stdin = input;
  memcpy(spec.id, id, strlen(id) + 1);
  require(commands_start(&sandbox.commands, &spec, &command, &existing, &err) == 0);
  while (command->state == COMMAND_STARTING || (!input && !command_is_over(command)))
    turn(1);
  command_unref(command);
}

static void see_to_commands(void) {
  struct command *runs = commands_find(&sandbox.commands, "runs", NULL);
  if (runs && command_is_over(runs))
    commands_remove(&sandbox.commands, runs, NULL);
  sandbox.commands.refusing = false;
  if (!commands_find(&sandbox.commands, "done", NULL))
    start("done", "printf 'a\\342\\230\\225\\377\\000\"\\n'; printf 'err\\033' >&2", false);
  if (!commands_find(&sandbox.commands, "runs", NULL))
    start("runs", "exec cat", true);
  sandbox.commands.refusing = true;
}

static void set_up(void) {
  static char path[] = "PATH=/usr/bin:/bin", *environment[] = {path, NULL};
  struct error err = ERROR_INIT;
  struct sandbox_options options = {
      .id = "fuzz",
      .file_timeout = 60 * CLOCK_SECOND,
      .grace = CLOCK_SECOND,
      .commands = {.umask = 022, .max_running = 10, .keep_finished = 10, .log_memory = 1 << 20},
  };
  options.commands.stall_timeout = CLOCK_SECOND;
  getrlimit(RLIMIT_NOFILE, &options.commands.nofile);
  signals_block();
  /* The fuzzer's own. */
  sigset_t own;
  sigemptyset(&own);
  sigaddset(&own, SIGALRM);
  sigaddset(&own, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &own, NULL);
  require(sandbox_init(&sandbox, &options, environment, &err) == 0);
}

/* ---- requests made of bytes ---- */

struct input {
  const uint8_t *at, *end;
};

static unsigned next(struct input *input, unsigned below) {
  return input->at < input->end ? *input->at++ % below : 0;
}

static const char *const methods[] = {"exec", "exec_logs", "kill", "exec_input", "exec_list", "exec_remove", "nope"};
static const char *const fields[] = {"cmd_id",     "command", "argv",    "timeout", "idle_timeout", "signal",
                                     "scope",      "since",   "follow",  "stream",  "encoding",     "output",
                                     "data",       "eof",     "env",     "user",    "sudo",         "working_dir",
                                     "stdin_data", "stdin",   "detached"};
static const char *const values[] = {
    "\"done\"",
    "\"runs\"",
    "\"unknown\"",
    "true",
    "false",
    "null",
    "0",
    "1",
    "-1",
    "1.5",
    "1e300",
    "NaN",
    "\"\"",
    "[]",
    "{}",
    "[\"a\",\"b\"]",
    "[1]",
    "{\"stdout\":1}",
    "{\"stderr\":3,\"stdout\":0}",
    "{\"A\":\"b\",\"C\":null}",
    "\"USR1\"",
    "\"tree\"",
    "\"base64\"",
    "\"split\"",
    "\"none\"",
    "\"QUJD\"",
    "\"a\\u0000b\"",
    "\"\\ud800\"",
    "99999999999999999999",
    "\"CONT\"",
    "\"utf-8\"",
    "18",
};
static const char *const ids[] = {"1", "\"x\"", "null", "1.5", "true", "NaN", "\"\\u0000\"", "-0", "1e999", "[1]"};
#define PICK(input, list) ((list)[next(input, sizeof(list) / sizeof *(list))])

static void make_request(struct input *input, struct buf *out) {
  buf_append_string(out, next(input, 20) == 19 ? "{\"jsonrpc\":\"1.0\"" : "{\"jsonrpc\":\"2.0\"");
  if (next(input, 8) != 7)
    buf_printf(out, ",\"id\":%s", PICK(input, ids));
  buf_printf(out, ",\"method\":\"%s\",\"params\":{\"cmd_id\":%s", PICK(input, methods), values[next(input, 3)]);
  for (unsigned n = next(input, 5); n > 0; n--) {
    const char *field = PICK(input, fields);
    buf_printf(out, ",\"%s\":%s", field, PICK(input, values));
  }
  buf_append_string(out, "}}");
}

static void make_message(struct input *input, struct buf *out) {
  unsigned n = next(input, 8);
  if (n < 5) {
    make_request(input, out);
    return;
  }
  buf_append_string(out, "[");
  for (unsigned i = 0; i < n - 4; i++) {
    buf_append_string(out, i ? "," : "");
    make_request(input, out);
  }
  buf_append_string(out, "]");
}

/* ---- what comes out ---- */

static void check(const struct client *client, const struct buf *message) {
  require(!message->failed && message->len > 0 && message->len <= client->peer.max_message);
  struct json_member none = {.name = "none"};
  if (message->data[0] == '{') {
    require(json_check_object(message->data, message->len, &none));
    return;
  }
  struct buf wrapped;
  buf_init(&wrapped, SIZE_MAX, 0);
  buf_append_string(&wrapped, "{\"a\":");
  buf_append(&wrapped, message->data, message->len);
  buf_append_string(&wrapped, "}");
  require(json_check_object(wrapped.data, wrapped.len, &none));
  buf_free(&wrapped);
}

static void pull(struct client *client, struct rpc_session *session, int most) {
  struct buf message;
  buf_init(&message, SIZE_MAX, BUF_HEADROOM);
  while (most-- > 0 && rpc_session_pull(session, &message))
    check(client, &message);
  buf_free(&message);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
  static const struct peer_ops ops = {.wake = wake, .hold = hold};
  static const size_t limits[] = {1024, 1500, 65536, SIZE_MAX};
  if (!sandbox.loop)
    set_up();
  if (len < 2)
    return 0;
  see_to_commands();
  struct client client = {.peer = {.ops = &ops, .max_message = limits[bytes[0] % 4]}};
  struct rpc_session *session = rpc_session_open(&api, &client.peer, NULL);
  require(session != NULL);
  struct input input = {bytes + 1, bytes + len};
  if (bytes[0] & 4) {
    rpc_session_receive(session, (const char *)input.at, (size_t)(input.end - input.at));
    pull(&client, session, 100);
  } else {
    while (input.at < input.end) {
      struct buf message;
      buf_init(&message, 1 << 20, 0);
      make_message(&input, &message);
      if (!client.held)
        rpc_session_take(session, &message);
      buf_free(&message);
      if (next(&input, 3) == 2)
        turn(0);
      pull(&client, session, (int)next(&input, 6));
    }
  }
  turn(0);
  pull(&client, session, (int)(bytes[0] >> 3));
  rpc_session_close(session);
  return 0;
}
