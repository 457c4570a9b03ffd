/* exec.h - what the files of exec share: parameters, the call that follows a command, and the command's output as JSON.
 */
#ifndef SANDKEEPER_API_EXEC_H
#define SANDKEEPER_API_EXEC_H

#include "sandkeeper/api/call.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/core/command.h"

#include <json-c/json_object.h>
#include <stdbool.h>

enum exec_output_mode { EXEC_COMBINED, EXEC_SPLIT, EXEC_NONE };

/* How a client wants to be told; the same for exec and exec_logs. */
struct exec_view {
  bool stream;
  bool base64;
  enum exec_output_mode mode;
};

/* ---- exec_params.c ---- */

int exec_view_parse(json_object *params, struct exec_view *view, struct error *err);

/* Fills the spec from the parameters of exec. It must be freed also after a failure. */
int exec_spec_parse(struct commands *commands, json_object *params, struct command_spec *spec, struct error *err);

/* The command that params.cmd_id names. */
struct command *exec_find(struct api *api, json_object *params, struct error *err);

/* ---- exec_output.c ---- */

/* The output up to position `end`, as members of an open object: "output", or "stdout" and "stderr", or nothing; then
 * "truncated". The oldest bytes go until what is written fits into `budget` bytes. */
void exec_output_write(struct json_out *out, const struct command *command, uint64_t end, const struct exec_view *view,
                       size_t budget);

/* ---- exec_call.c ---- */

/* What a call that follows a command answers with. */
struct exec_follow {
  struct exec_view view;
  bool detached; /* answer at the start */
  bool existing; /* exec with a cmd_id that was there */
  bool logs;     /* exec_logs: a timed out command is a result, not an error */
  bool follow;   /* go on after what is there */
  bool resume;   /* from `since` */
  uint64_t since[STREAMS];
};

/* Lets the call follow the command to its end. The reference is taken over. */
void exec_call_start(struct call *call, struct command *command, const struct exec_follow *follow);

#endif
