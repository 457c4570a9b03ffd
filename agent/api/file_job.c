#include "sandkeeper/api/file_job.h"

#include "sandkeeper/core/files_cancel.h"

#include <errno.h>
#include <stdlib.h>

static void free_file(struct job *job) {
  struct file_job *file = (struct file_job *)job;
  json_object_put(file->params);
  free(file->path);
  free(file->destination);
  free(file->after);
  buf_free(&file->response);
  free(file);
}

static void work(struct job *job) {
  struct file_job *file = (struct file_job *)job;
  files_cancel_watch(&file->given_up, &file->job.moved);
  file->status = file->run(file, &file->out, &file->error);
  files_cancel_watch(NULL, NULL);
}

static void ended(struct call *call) {
  struct file_job *file = call->state;
  file->call = NULL;
}

/* The call lives on without the job. */
static struct call *let_go(struct file_job *file) {
  struct call *call = file->call;
  if (call) {
    call->state = NULL;
    call->ended = NULL;
    call_keeps(call, -(ssize_t)file->kept);
  }
  file->call = NULL;
  return call;
}

static void done(struct job *job, enum job_end end) {
  struct file_job *file = (struct file_job *)job;
  struct call *call = let_go(file);
  if (end == JOB_TIMED_OUT)
    atomic_store(&file->given_up, true);
  if (call && end == JOB_TIMED_OUT) {
    struct error error = ERROR_INIT;
    file_timed_out(&error, job, call->method, file->path, call->api->sandbox->options.file_timeout);
    call_fail(call, &error);
  } else if (call && file->status < 0) {
    call_fail(call, &file->error);
  } else if (call) {
    call_result_take(call, &file->response, &file->out, file->hint);
  }
  if (end == JOB_DONE)
    free_file(job);
}

struct file_job *file_job_new(struct call *call, json_object *params,
                              int (*run)(struct file_job *file, struct json_out *out, struct error *err)) {
  struct file_job *file = calloc(1, sizeof *file);
  if (!file) {
    struct error error = ERROR_INIT;
    error_set_errno(&error, ENOMEM, "%s", call->method);
    call_fail(call, &error);
    return NULL;
  }
  file->job = (struct job){.class = JOB_FILE, .work = work, .done = done, .abandon = free_file};
  file->call = call;
  file->run = run;
  file->params = json_object_get(params);
  file->out = call_result_into(call, &file->response);
  call->state = file;
  call->ended = ended;
  return file;
}

void file_job_fail(struct file_job *file, const struct error *error) {
  call_fail(let_go(file), error);
  free_file(&file->job);
}

void file_job_start(struct file_job *file, bool changes) {
  struct call *call = file->call;
  struct error error = ERROR_INIT;
  if (workers_submit(call->api->sandbox->workers, &file->job, call_file_queue(call), changes, &error) < 0) {
    file_job_fail(file, &error);
    return;
  }
  file->kept = file->len + file->old_len;
  call_keeps(call, (ssize_t)file->kept);
}

size_t file_job_budget(const struct file_job *file) {
  return file->response.max - file->response.len;
}
