/* PUT /files: the body goes to the disk through a worker, with two buffers that change places: one is filled by the
 * client while the other is written. A client that is faster than the disk waits. */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/file_job.h"
#include "sandkeeper/api/files_route.h"
#include "sandkeeper/core/files_cancel.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER (256u * 1024u)

struct put;

enum put_step { PUT_BEGIN, PUT_BYTES, PUT_COMMIT, PUT_ABORT };

/* What the worker touches. It belongs to the request while that lives and it is not out of reach. */
struct put_job {
  struct job job;
  struct put *put; /* NULL: nobody waits for it any more */
  enum put_step step;
  char *path;
  struct files_write_how how;
  struct files_upload *upload;
  struct buf bytes; /* to be written */
  struct files_written written;
  atomic_bool given_up;
  int status;
  struct error error;
};

struct put {
  struct exchange *x;
  struct put_job *idle, *at_work; /* neither: it is out of reach, or everything is over */
  struct buf filling;
  bool paused; /* the client waits for resume_body() */
  bool last;   /* the body is complete */
};

/* ---- on a worker ---- */

static void free_job(struct job *job) {
  struct put_job *put = (struct put_job *)job;
  files_upload_free(put->upload);
  buf_free(&put->bytes);
  free(put->path);
  free(put);
}

static void end_upload(struct put_job *job) {
  files_upload_free(job->upload);
  job->upload = NULL;
}

static void work(struct job *job) {
  struct put_job *put = (struct put_job *)job;
  files_cancel_watch(&put->given_up, &put->job.moved);
  put->status = 0;
  switch (put->step) {
  case PUT_BEGIN:
    put->upload = files_upload_begin(put->path, &put->how, &put->error);
    put->status = put->upload ? 0 : -1;
    break;
  case PUT_BYTES:
    put->status = files_upload_bytes(put->upload, put->bytes.data, put->bytes.len, &put->error);
    break;
  case PUT_COMMIT:
    put->status = files_upload_commit(put->upload, &put->written, &put->error);
    end_upload(put);
    break;
  case PUT_ABORT:
    end_upload(put);
    break;
  }
  if (put->status < 0)
    end_upload(put);
  files_cancel_watch(NULL, NULL);
}

/* ---- on the loop ---- */

static void advance(struct put *put);

/* Ends what nobody waits for: closing a file may block too. */
static void discard(struct put_job *job, struct workers *workers) {
  job->put = NULL;
  job->step = PUT_ABORT;
  if (!job->upload || workers_submit(workers, &job->job, NULL, false, NULL) < 0)
    free_job(&job->job);
}

static void fail(struct put *put, const struct error *error) {
  files_http_fail(put->x, error);
}

static void answer(struct put *put, const struct files_written *written) {
  struct exchange *x = put->x;
  struct buf body;
  struct json_out out;
  buf_init(&body, 256, 0);
  json_out_begin(&out, &body);
  json_out_object(&out);
  json_out_key(&out, "bytes_written");
  json_out_uint(&out, written->bytes);
  if (!written->atomic) {
    json_out_key(&out, "atomic");
    json_out_bool(&out, false);
  }
  json_out_object_end(&out);
  x->ops->reply(x, written->created ? 201 : 200, "application/json", &body);
}

static void submit(struct put *put, enum put_step step) {
  struct put_job *job = put->idle;
  struct error error = ERROR_INIT;
  job->step = step;
  if (workers_submit(put->x->api->sandbox->workers, &job->job, NULL, false, &error) < 0) {
    fail(put, &error);
    return;
  }
  put->idle = NULL;
  put->at_work = job;
}

static void done(struct job *job, enum job_end end) {
  struct put_job *work_done = (struct put_job *)job;
  struct put *put = work_done->put;
  if (!put) {
    if (end == JOB_TIMED_OUT)
      atomic_store(&work_done->given_up, true);
    if (end == JOB_DONE && work_done->step != PUT_ABORT)
      discard(work_done, job->workers);
    else if (end == JOB_DONE)
      free_job(job);
    return;
  }
  put->at_work = NULL;
  if (end == JOB_TIMED_OUT) {
    struct error error = ERROR_INIT;
    work_done->put = NULL;
    atomic_store(&work_done->given_up, true);
    file_timed_out(&error, job, "PUT", work_done->path, put->x->api->sandbox->options.file_timeout);
    fail(put, &error);
    return;
  }
  put->idle = work_done;
  if (work_done->status < 0) {
    fail(put, &work_done->error);
  } else if (work_done->step == PUT_COMMIT) {
    answer(put, &work_done->written);
  } else {
    if (work_done->step == PUT_BEGIN)
      put->x->ops->resume_body(put->x);
    advance(put);
  }
}

/* Gives the worker its next step, and the client room. */
static void advance(struct put *put) {
  struct put_job *job = put->idle;
  if (!job)
    return;
  bool full = put->filling.len >= BUFFER;
  if (full || (put->last && put->filling.len > 0)) {
    struct buf written = job->bytes;
    job->bytes = put->filling;
    put->filling = written;
    buf_reset(&put->filling, BUFFER);
    submit(put, PUT_BYTES);
  } else if (put->last) {
    submit(put, PUT_COMMIT);
  }
  if (put->paused && put->filling.len < BUFFER) {
    put->paused = false;
    put->x->ops->resume_body(put->x);
  }
}

static void gone(struct exchange *x) {
  struct put *put = x->state;
  if (put->at_work)
    put->at_work->put = NULL;
  if (put->idle)
    discard(put->idle, x->api->sandbox->workers);
  buf_free(&put->filling);
  free(put);
}

size_t files_put_body(struct exchange *x, const char *bytes, size_t len, bool last) {
  struct put *put = x->state;
  size_t room = BUFFER - put->filling.len;
  size_t taken = len < room ? len : room;
  /* All of it at once: a buffer that grows is moved about. */
  if (taken > 0 && (!buf_reserve(&put->filling, room) || buf_append(&put->filling, bytes, taken) < 0)) {
    struct error error = ERROR_INIT;
    error_set_errno(&error, ENOMEM, "PUT");
    fail(put, &error);
    return len;
  }
  put->paused = taken < len;
  put->last = last;
  advance(put);
  return taken;
}

/* ---- the start ---- */

static int parse_mode(struct exchange *x, struct files_write_how *how, struct error *err) {
  const char *text = x->ops->query(x, "mode", NULL);
  if (!text)
    return 0;
  size_t digits = strspn(text, "01234567");
  unsigned long mode = digits > 0 && digits < 16 ? strtoul(text, NULL, 8) : ULONG_MAX;
  if (text[digits] || mode > 07777)
    return error_set(err, ERROR_INVALID, 0, "mode: it takes octal digits like 0755, up to 7777, not \"%.64s\"", text);
  how->has_mode = true;
  how->mode = (mode_t)mode;
  return 0;
}

/* A condition that cannot be kept must not be passed over: RFC 9110, 13.1, forbids the write when it does not hold. */
static int refuse_conditions(struct exchange *x, struct error *err) {
  static const char *const names[] = {"If-Match", "If-None-Match", "If-Unmodified-Since"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (x->ops->header(x, names[i]))
      return error_set(err, ERROR_INVALID, 0, "%s: a PUT takes no conditions; nothing was written", names[i]);
  return 0;
}

static int parse(struct exchange *x, struct files_write_how *how, struct error *err) {
  *how = (struct files_write_how){.append = false};
  /* curl -C: what would be taken for the whole file is only its end. RFC 9110, 14.5, wants this refused. */
  if (x->ops->header(x, "Content-Range"))
    return error_set(err, ERROR_INVALID, 0, "Content-Range: a PUT takes a whole file, or with append=1 what is added");
  if (refuse_conditions(x, err) < 0 || parse_mode(x, how, err) < 0 ||
      files_http_switch(x, "append", &how->append, err) < 0)
    return -1;
  return files_http_switch(x, "fsync", &how->sync, err);
}

void files_put_handle(struct exchange *x) {
  struct error error = ERROR_INIT;
  struct files_write_how how;
  if (parse(x, &how, &error) < 0) {
    files_http_fail(x, &error);
    return;
  }
  char *path = files_http_path(x);
  if (!path)
    return;
  struct put *put = calloc(1, sizeof *put);
  struct put_job *job = calloc(1, sizeof *job);
  if (!put || !job) {
    free(put);
    free(job);
    free(path);
    error_set_errno(&error, ENOMEM, "PUT");
    files_http_fail(x, &error);
    return;
  }
  *job = (struct put_job){.put = put, .path = path, .how = how, .job.class = JOB_FILE};
  job->job.work = work;
  job->job.done = done;
  job->job.abandon = free_job;
  buf_init(&job->bytes, BUFFER, 0);
  *put = (struct put){.x = x, .idle = job};
  buf_init(&put->filling, BUFFER, 0);
  x->state = put;
  x->gone = gone;
  x->ops->hold_body(x);
  submit(put, PUT_BEGIN);
}
