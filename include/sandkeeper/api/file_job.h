/* file_job.h - a file method on its way: parameters read on the loop, the work and the writing of the answer on a
 * worker, the answer handed over on the loop. An answer of 20 MiB is encoded without holding anybody up.
 *
 * One job is one allocation; it outlives its call when the client goes or the file system does not answer. */
#ifndef SANDKEEPER_API_FILE_JOB_H
#define SANDKEEPER_API_FILE_JOB_H

#include "sandkeeper/api/call.h"
#include "sandkeeper/core/files.h"

#include <json-c/json_object.h>
#include <stdatomic.h>

struct file_job {
  struct job job;
  struct call *call; /* NULL: its client has gone */

  /* What to do, on a worker: calls the core and writes exactly one value, or fails. */
  int (*run)(struct file_job *file, struct json_out *out, struct error *err);
  const char *hint; /* what to do instead when the answer is too large; may be NULL */

  /* Parameters, as the method needs them. Borrowed strings point into `params`. */
  json_object *params; /* a reference; on the worker only its strings are read */
  char *path, *destination;
  const char *bytes, *old_bytes; /* content, data, new_text; old_text */
  size_t len, old_len;
  size_t kept; /* the call has been told of (call_keeps) */
  char *after;
  uint64_t offset;
  size_t limit;
  struct files_write_how how;
  bool flag; /* replace_all, recursive, overwrite */

  atomic_bool given_up; /* it came back too late to change anything */

  /* The outcome. */
  int status;
  struct error error;
  struct buf response;
  struct json_out out;
};

/* A job for this call that holds its parameters. NULL: the call was answered with the reason. */
struct file_job *file_job_new(struct call *call, json_object *params,
                              int (*run)(struct file_job *file, struct json_out *out, struct error *err));

/* Sends it to a worker, in the order of the client's file methods; `changes`: it changes something. Ends it otherwise.
 */
void file_job_start(struct file_job *file, bool changes);

/* Instead of starting it: the call is answered with the error. */
void file_job_fail(struct file_job *file, const struct error *error);

/* Bytes that the answer may have. */
size_t file_job_budget(const struct file_job *file);

/* ---- parameters (file_params.c) ---- */

/* The path that `field`, or its bytes in base64 in field_b64, names. NULL and *err. */
char *file_params_path(json_object *params, const char *field, struct error *err);

/* A file's name, not a path, in the same two forms; *name is NULL when it is absent. */
int file_params_name(json_object *params, const char *field, char **name, struct error *err);

/* mode, append, offset (only with `at_offset`), fsync. */
int file_params_how(json_object *params, bool at_offset, struct files_write_how *how, struct error *err);

/* What a path is relative to: the agent's work directory, which is its current one. */
char *file_workdir(void);

/* The sentence for a job that has not come back, or whose turn has not come. In done(), before the job is let go. */
void file_timed_out(struct error *error, const struct job *job, const char *method, const char *path,
                    int64_t timeout_ns);

#endif
