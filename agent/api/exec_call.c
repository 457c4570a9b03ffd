/* A call that follows a command: exec.start, what it prints, exec.done, the result. One message at a time, when the
 * client can take one: what is not sent yet is only a position in the command's log. */
#include "sandkeeper/api/exec.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/core/commands.h"
#include "sandkeeper/core/reader.h"
#include "sandkeeper/core/signals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* docs/protocol.md 3.3: what the receiver sees of one notification. */
#define PAYLOAD_MAX (64u * 1024u)
/* In base64, a multiple of three bytes that stays below it. */
#define PAYLOAD_RAW_MAX (PAYLOAD_MAX / 4 * 3)
/* Bytes of a character behind its first. */
#define CUT_MOST 3
/* What a message needs beside its output: all other fields of a result with ids of the longest kind. */
#define ENVELOPE 256

enum phase { PHASE_START, PHASE_OUTPUT, PHASE_DONE, PHASE_RESULT };

struct exec_call {
  struct call *call;
  struct command *command; /* a reference */
  struct exec_follow follow;
  enum phase phase;
  struct command_observer observer;
  struct reader reader;
  struct utf8_carry carry[STREAMS];
  uint64_t carry_offset[STREAMS];
  uint8_t cut[STREAMS]; /* so many of the next bytes may be the rest of a character whose start was not sent */
};

/* ---- the result ---- */

static void write_time(struct json_out *out, const char *key, int64_t wall) {
  char text[CLOCK_RFC3339_SIZE];
  json_out_key(out, key);
  json_out_string(out, clock_rfc3339(wall, text));
}

static void write_start(struct json_out *out, const struct command *command) {
  json_out_key(out, "cmd_id");
  json_out_string(out, command->id);
  json_out_key(out, "pid");
  json_out_int(out, command->pid);
  write_time(out, "started_at", command->started_wall);
}

static void write_end(struct json_out *out, const struct command *command) {
  json_out_key(out, "exit_code");
  json_out_int(out, command->exit_code);
  write_time(out, "finished_at", command->finished_wall);
  json_out_key(out, "duration_ms");
  json_out_int(out, (command->finished - command->started) / CLOCK_MS);
  json_out_key(out, "reason");
  json_out_string(out, command_reason_name(command->reason));
  json_out_key(out, "signal");
  if (command->signal)
    json_out_string(out, signals_name(command->signal));
  else
    json_out_null(out);
  json_out_key(out, "oom_killed");
  json_out_bool(out, command->oom_killed);
  json_out_key(out, "survivors");
  if (command->survivors < 0)
    json_out_null(out);
  else
    json_out_int(out, command->survivors);
}

/* A command that still runs (exec_logs without follow) has no end to tell of. */
static void write_no_end(struct json_out *out) {
  json_out_key(out, "exit_code");
  json_out_null(out);
  json_out_key(out, "reason");
  json_out_null(out);
}

static void write_result(struct json_out *out, void *arg) {
  struct exec_call *exec = arg;
  const struct command *command = exec->command;
  size_t budget = call_budget(exec->call);
  write_start(out, command);
  if (command_is_over(command))
    write_end(out, command);
  else
    write_no_end(out);
  json_out_key(out, "stdout_bytes");
  json_out_uint(out, command->log.head_offset[STREAM_STDOUT]);
  json_out_key(out, "stderr_bytes");
  json_out_uint(out, command->log.head_offset[STREAM_STDERR]);
  if (exec->follow.existing) {
    json_out_key(out, "existing");
    json_out_bool(out, true);
  }
  size_t used = out->buf->len + ENVELOPE;
  exec_output_write(out, command, exec->reader.end, &exec->follow.view, budget > used ? budget - used : 0);
}

static void program_of_command(struct json_out *out, void *arg) {
  const struct command *command = arg;
  json_out_key(out, "program");
  const char *program = command->by_sudo ? "sudo" : command->title;
  json_out_string(out, command->program ? command->program : program);
}

/* sudo(8), run with -n, ends with 1 and says why on stderr when it would have to ask for a password or may not: the
 * program was never started. */
static bool refused_by_sudo(const struct command *command, struct error *why) {
  static const char sudo[] = "sudo: ";
  struct command_log_cursor begin = command_log_begin(&command->log);
  enum stream stream;
  const uint8_t *bytes;
  if (!command->by_sudo || command->exit_code != 1 || command->log.head_offset[STREAM_STDOUT] > 0 || begin.position > 0)
    return false;
  size_t n = command_log_peek(&command->log, &begin, SIZE_MAX, &stream, &bytes);
  if (n < sizeof sudo || memcmp(bytes, sudo, sizeof sudo - 1) != 0)
    return false;
  const uint8_t *line_end = memchr(bytes, '\n', n);
  error_set(why, ERROR_SPAWN_FAILED, EPERM, "%.*s", (int)(line_end ? line_end - bytes : (ptrdiff_t)n),
            (const char *)bytes);
  return true;
}

static void answer_result(struct exec_call *exec) {
  const struct command *command = exec->command;
  struct error refused = ERROR_INIT;
  if (command_is_over(command) && !exec->follow.logs && refused_by_sudo(command, &refused)) {
    call_fail_with(exec->call, &refused, program_of_command, exec->command);
    return;
  }
  bool timed_out = command->reason == REASON_TIMED_OUT || command->reason == REASON_IDLE_TIMED_OUT;
  if (command_is_over(command) && timed_out && !exec->follow.logs) {
    struct error error = ERROR_INIT;
    int64_t limit = command->reason == REASON_TIMED_OUT ? command->timeout : command->idle_timeout;
    error_set(&error, ERROR_TIMED_OUT, 0, "command %s: it was ended after %g s%s", command->id,
              (double)limit / (double)CLOCK_SECOND,
              command->reason == REASON_TIMED_OUT ? ", its timeout" : " without output, its idle_timeout");
    call_fail_with(exec->call, &error, write_result, exec);
    return;
  }
  struct json_out out = call_result(exec->call);
  json_out_object(&out);
  write_result(&out, exec);
  json_out_object_end(&out);
  call_result_end(exec->call, &out, NULL);
}

static void answer_detached(struct exec_call *exec) {
  struct json_out out = call_result(exec->call);
  json_out_object(&out);
  write_start(&out, exec->command);
  if (exec->follow.existing) {
    json_out_key(&out, "existing");
    json_out_bool(&out, true);
  }
  json_out_object_end(&out);
  call_result_end(exec->call, &out, NULL);
}

static void answer_failed(struct exec_call *exec) {
  struct command *command = exec->command;
  struct error no_memory = ERROR_INIT;
  error_set_errno(&no_memory, ENOMEM, "command %s", command->id);
  const struct error *error = command->error ? command->error : &no_memory;
  call_fail_with(exec->call, error, error->kind == ERROR_SPAWN_FAILED ? program_of_command : NULL, command);
}

/* ---- notifications ---- */

static bool send_start(struct exec_call *exec, struct buf *message) {
  struct json_out out = call_notification(exec->call, "exec.start", message);
  write_start(&out, exec->command);
  call_notification_end(&out);
  return true;
}

static bool send_done(struct exec_call *exec, struct buf *message) {
  const struct command *command = exec->command;
  struct json_out out = call_notification(exec->call, "exec.done", message);
  json_out_key(&out, "cmd_id");
  json_out_string(&out, command->id);
  json_out_key(&out, "exit_code");
  json_out_int(&out, command->exit_code);
  json_out_key(&out, "reason");
  json_out_string(&out, command_reason_name(command->reason));
  size_t used = message->len + ENVELOPE;
  exec_output_write(&out, command, exec->reader.end, &exec->follow.view, message->max > used ? message->max - used : 0);
  call_notification_end(&out);
  return true;
}

/* The start of a character that waits in the carry for its rest is lost with it. */
static bool send_gap(struct exec_call *exec, const struct reader_piece *gap, struct buf *message) {
  uint64_t carried = exec->carry[gap->stream].len;
  struct json_out out = call_notification(exec->call, "exec.gap", message);
  json_out_key(&out, "stream");
  json_out_string(&out, gap->stream == STREAM_STDOUT ? "stdout" : "stderr");
  json_out_key(&out, "offset");
  json_out_uint(&out, gap->offset - carried);
  json_out_key(&out, "dropped_bytes");
  json_out_uint(&out, gap->lost + carried);
  call_notification_end(&out);
  reader_take(&exec->reader, gap, 0);
  exec->carry[gap->stream].len = 0;
  exec->cut[gap->stream] = CUT_MOST;
  return true;
}

static struct json_out output_begin(struct exec_call *exec, enum stream stream, uint64_t offset, struct buf *message) {
  struct json_out out = call_notification(exec->call, stream == STREAM_STDOUT ? "exec.stdout" : "exec.stderr", message);
  json_out_key(&out, "offset");
  json_out_uint(&out, offset);
  json_out_key(&out, "data");
  return out;
}

static bool send_base64(struct exec_call *exec, const struct reader_piece *piece, struct buf *message) {
  struct json_out out = output_begin(exec, piece->stream, piece->offset, message);
  size_t room = (message->max - message->len - 8) / 4 * 3;
  size_t n = piece->len < room ? piece->len : room;
  json_out_base64(&out, piece->bytes, n);
  call_notification_end(&out);
  reader_take(&exec->reader, piece, n);
  return true;
}

/* A replay that starts in the middle of a character starts at the next. The piece may end inside of it too: then
 * nothing of it is left, and the next piece has the rest. */
static void skip_rest(struct exec_call *exec, struct reader_piece *piece) {
  uint8_t *cut = &exec->cut[piece->stream];
  if (*cut == 0)
    return;
  size_t rest = piece->offset > 0 ? utf8_leading_rest(piece->bytes, piece->len) : 0;
  if (rest > *cut)
    rest = *cut;
  reader_take(&exec->reader, piece, rest);
  piece->bytes += rest;
  piece->len -= rest;
  exec->carry_offset[piece->stream] += rest;
  *cut = piece->len > 0 ? 0 : (uint8_t)(*cut - rest);
}

/* Whole characters of one stream, from as many pieces of the ring as fit. False: they all wait in the carry for the
 * rest of their character. */
static bool send_text(struct exec_call *exec, struct reader_piece *piece, struct buf *message) {
  enum stream stream = piece->stream;
  struct utf8_carry *carry = &exec->carry[stream];
  if (carry->len == 0)
    exec->carry_offset[stream] = piece->offset;
  skip_rest(exec, piece);
  if (piece->len == 0)
    return false;
  struct json_out out = output_begin(exec, stream, exec->carry_offset[stream], message);
  json_out_text_begin(&out);
  size_t before = message->len;
  struct json_text_limit limit = {.encoded = message->max - message->len - 8, .decoded = PAYLOAD_MAX};
  for (;;) {
    size_t taken = json_text_append(message, carry, piece->bytes, piece->len, &limit);
    reader_take(&exec->reader, piece, taken);
    if (taken < piece->len || reader_next(&exec->reader, PAYLOAD_MAX, piece) != READER_DATA || piece->stream != stream)
      break;
  }
  exec->carry_offset[stream] = exec->reader.cursor.offset[stream] - carry->len;
  json_out_text_end(&out);
  call_notification_end(&out);
  return message->failed || message->len - 3 > before;
}

/* At the end a character that was never finished is one U+FFFD. */
static bool send_rest(struct exec_call *exec, struct buf *message) {
  for (int s = 0; s < STREAMS; s++) {
    if (exec->carry[s].len == 0)
      continue;
    struct json_out out = output_begin(exec, (enum stream)s, exec->carry_offset[s], message);
    json_out_text_begin(&out);
    json_text_finish(message, &exec->carry[s]);
    json_out_text_end(&out);
    call_notification_end(&out);
    return true;
  }
  return false;
}

static bool send_output(struct exec_call *exec, struct buf *message) {
  struct reader_piece piece;
  for (;;) {
    bool base64 = exec->follow.view.base64;
    switch (reader_next(&exec->reader, base64 ? PAYLOAD_RAW_MAX : PAYLOAD_MAX, &piece)) {
    case READER_NOTHING:
      return false;
    case READER_GAP:
      return send_gap(exec, &piece, message);
    case READER_DATA:
      if (base64 ? send_base64(exec, &piece, message) : send_text(exec, &piece, message))
        return true;
      buf_reset(message, SIZE_MAX);
      continue;
    case READER_END:
      if (send_rest(exec, message))
        return true;
      exec->phase = PHASE_DONE;
      return false;
    }
  }
}

/* ---- the order of things ---- */

static bool exec_next(struct call *call, struct buf *message) {
  struct exec_call *exec = call->state;
  const struct command *command = exec->command;
  if (command->state == COMMAND_STARTING)
    return false;
  if (command->state == COMMAND_FAILED) {
    answer_failed(exec);
    return false;
  }
  if (exec->phase == PHASE_START) {
    if (exec->follow.detached) {
      answer_detached(exec);
      return false;
    }
    exec->phase = exec->follow.view.stream ? PHASE_OUTPUT : PHASE_RESULT;
    if (exec->follow.view.stream)
      return send_start(exec, message);
  }
  if (exec->phase == PHASE_OUTPUT && send_output(exec, message))
    return true;
  if (exec->phase == PHASE_DONE) {
    exec->phase = PHASE_RESULT;
    if (command_is_over(command))
      return send_done(exec, message);
  }
  if (exec->phase == PHASE_RESULT && (command_is_over(command) || !exec->follow.follow))
    answer_result(exec);
  return false;
}

static void exec_ended(struct call *call) {
  struct exec_call *exec = call->state;
  command_unobserve(&exec->observer);
  reader_detach(&exec->reader);
  command_unref(exec->command);
  free(exec);
}

static void on_changed(struct command_observer *observer, struct command *command) {
  struct exec_call *exec = observer->arg;
  if (command_is_over(command) && exec->reader.end == UINT64_MAX)
    exec->reader.end = command->end;
  call_wake(exec->call);
}

static void on_output(struct reader *reader) {
  struct exec_call *exec = reader->arg;
  call_wake(exec->call);
}

/* Nobody is told of a notification's command: it just runs. */
static void forget(struct call *call, struct command *command) {
  command_unref(command);
  call_result_empty(call);
}

void exec_call_start(struct call *call, struct command *command, const struct exec_follow *follow) {
  struct error error = ERROR_INIT;
  if (!call->id) {
    forget(call, command);
    return;
  }
  struct exec_call *exec = calloc(1, sizeof *exec);
  if (!exec) {
    command_unref(command);
    error_set_errno(&error, ENOMEM, "%s", call->method);
    call_fail(call, &error);
    return;
  }
  *exec = (struct exec_call){.call = call, .command = command, .follow = *follow};
  exec->follow.view.stream = follow->view.stream && call_streams(call);
  exec->observer = (struct command_observer){.changed = on_changed, .arg = exec};
  command_observe(command, &exec->observer);
  for (int s = 0; s < STREAMS; s++)
    exec->cut[s] = CUT_MOST;
  if (exec->follow.view.stream && !follow->detached)
    reader_attach(&exec->reader, command, follow->follow, on_output, exec);
  else
    exec->reader.end = command_is_over(command) || !follow->follow ? command->log.head : UINT64_MAX;
  call->state = exec;
  call->next = exec_next;
  call->ended = exec_ended;
  if (follow->resume && exec->reader.command && reader_seek(&exec->reader, follow->since, &error) < 0) {
    call_fail(call, &error);
    return;
  }
  call_wake(call);
}
