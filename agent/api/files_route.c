/* GET, HEAD and DELETE of /files. The file is opened and looked at on a worker; then the kernel sends it, or, where
 * that might wait for a network or a program, a worker reads ahead. */
#include "sandkeeper/api/files_route.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/api/file_ahead.h"
#include "sandkeeper/api/file_job.h"
#include "sandkeeper/api/http_range.h"
#include "sandkeeper/core/files_cancel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE (128u * 1024u)
#define ETAG_SIZE 64

struct file_request {
  struct job job;
  struct exchange *x; /* NULL: the client has gone */
  char *path;
  bool recursive;
  struct files_source source;
  struct image_type type;
  atomic_bool given_up;
  int status;
  struct error error;
};

static void free_request(struct job *job) {
  struct file_request *request = (struct file_request *)job;
  files_close(&request->source);
  free(request->path);
  free(request);
}

static void request_gone(struct exchange *x) {
  struct file_request *request = x->state;
  if (request)
    request->x = NULL;
}

/* The exchange, if it still waits for this; the request is then no longer its state. */
static struct exchange *let_go(struct file_request *request) {
  struct exchange *x = request->x;
  request->x = NULL;
  if (x) {
    x->state = NULL;
    x->gone = NULL;
  }
  return x;
}

static void fail_late(struct exchange *x, const struct file_request *request) {
  struct error error = ERROR_INIT;
  file_timed_out(&error, &request->job, x->method, request->path, x->api->sandbox->options.file_timeout);
  files_http_fail(x, &error);
}

static void submit(struct exchange *x, void (*work)(struct job *), void (*done)(struct job *, enum job_end end),
                   bool recursive) {
  struct error error = ERROR_INIT;
  char *path = files_http_path(x);
  if (!path)
    return;
  struct file_request *request = calloc(1, sizeof *request);
  if (!request) {
    free(path);
    error_set_errno(&error, ENOMEM, "/files");
    files_http_fail(x, &error);
    return;
  }
  *request = (struct file_request){.x = x, .path = path, .recursive = recursive, .source.fd = -1};
  request->job = (struct job){.class = JOB_FILE, .work = work, .done = done, .abandon = free_request};
  if (workers_submit(x->api->sandbox->workers, &request->job, NULL, false, &error) < 0) {
    free_request(&request->job);
    files_http_fail(x, &error);
    return;
  }
  x->state = request;
  x->gone = request_gone;
}

/* ---- GET ---- */

static void get_work(struct job *job) {
  struct file_request *request = (struct file_request *)job;
  request->status = files_open(request->path, &request->source, &request->error);
  if (request->status == 0)
    request->status = files_type(&request->source, request->path, &request->type, &request->error);
}

/* What is known of the file's version. */
struct version {
  char etag[ETAG_SIZE];
  char modified[HTTP_DATE_SIZE];
  time_t seconds;
};

static struct version version_of(const struct stat *st) {
  struct version version = {.seconds = st->st_mtim.tv_sec};
  snprintf(version.etag, sizeof version.etag, "\"%" PRIx64 "-%" PRIx64 "-%" PRIx64 "\"", (uint64_t)st->st_ino,
           (uint64_t)st->st_size, (uint64_t)files_modified(st));
  http_date(version.seconds, version.modified);
  return version;
}

/* RFC 9110, 13.2.2: If-Modified-Since counts only without If-None-Match. */
static bool is_fresh(struct exchange *x, const struct version *version) {
  const char *tags = x->ops->header(x, "If-None-Match");
  if (tags)
    return http_etag_matches(tags, version->etag);
  const char *since = x->ops->header(x, "If-Modified-Since");
  time_t seconds;
  return since && http_date_parse(since, &seconds) && version->seconds <= seconds;
}

/* A part of another version is of no use: then the whole file. */
static const char *wanted_range(struct exchange *x, const struct version *version) {
  const char *condition = x->ops->header(x, "If-Range");
  if (condition && strcmp(condition, version->etag) != 0 && strcmp(condition, version->modified) != 0)
    return NULL;
  return x->ops->header(x, "Range");
}

static void add_range(struct exchange *x, uint64_t start, uint64_t length, uint64_t size) {
  char text[96];
  if (length > 0)
    snprintf(text, sizeof text, "bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64, start, start + length - 1, size);
  else
    snprintf(text, sizeof text, "bytes */%" PRIu64, size);
  x->ops->add_header(x, "Content-Range", text);
}

/* ---- sending by a worker ---- */

static void ahead_changed(void *arg) {
  struct exchange *x = arg;
  x->ops->wake(x);
}

static void ahead_gone(struct exchange *x) {
  file_ahead_free(x->state);
}

static int ahead_pull(struct exchange *x, struct buf *out) {
  struct file_piece piece = {.bytes = *out};
  enum file_ahead_state state = file_ahead_take(x->state, &piece);
  *out = piece.bytes;
  if (state == AHEAD_FAILED)
    out->failed = true; /* the status has gone out; only a cut answer tells */
  return state == AHEAD_WAIT ? STREAM_WAIT : state == AHEAD_PIECE ? STREAM_MORE : STREAM_END;
}

/* `length` UINT64_MAX: until the end, wherever that is. */
static void send_ahead(struct exchange *x, struct file_request *request, unsigned status, uint64_t start,
                       uint64_t length) {
  struct error error = ERROR_INIT;
  struct file_ahead_spec spec = {
      .what = "GET",
      .timeout = x->api->sandbox->options.file_timeout,
      .offset = start,
      .end = length == UINT64_MAX ? UINT64_MAX : start + length,
      .piece = PIECE,
      .buffer_max = EXCHANGE_PIECE_MAX,
  };
  struct file_ahead *ahead =
      file_ahead_new(x->api->sandbox->workers, request->path, &request->source, &spec, ahead_changed, x, &error);
  request->path = NULL;
  if (!ahead) {
    files_http_fail(x, &error);
    return;
  }
  x->state = ahead;
  x->gone = ahead_gone;
  if (length == UINT64_MAX)
    x->ops->stream(x, status, request->type.mime, ahead_pull);
  else
    x->ops->stream_sized(x, status, request->type.mime, length, ahead_pull);
}

static void send(struct exchange *x, struct file_request *request, unsigned status, uint64_t start, uint64_t length) {
  if (!request->source.local && strcmp(x->method, "HEAD") != 0) {
    send_ahead(x, request, status, start, length);
    return;
  }
  int fd = request->source.fd;
  request->source.fd = -1;
  x->ops->send_file(x, status, request->type.mime, fd, start, length);
}

static void answer_get(struct exchange *x, struct file_request *request) {
  const struct stat *st = &request->source.st;
  uint64_t size = (uint64_t)st->st_size, start = 0, length = size;
  /* A page of the sandbox's files that a browser shows must not act with the agent's origin. */
  x->ops->add_header(x, "Content-Security-Policy", "sandbox");
  x->ops->add_header(x, "X-Content-Type-Options", "nosniff");
  x->ops->add_header(x, "Cache-Control", "no-cache");
  if (!request->source.sized) {
    send_ahead(x, request, 200, 0, UINT64_MAX);
    return;
  }
  struct version version = version_of(st);
  x->ops->add_header(x, "ETag", version.etag);
  x->ops->add_header(x, "Last-Modified", version.modified);
  x->ops->add_header(x, "Accept-Ranges", "bytes");
  if (is_fresh(x, &version)) {
    x->ops->reply(x, 304, NULL, NULL);
    return;
  }
  enum http_range range = HTTP_RANGE_NONE;
  if (strcmp(x->method, "GET") == 0)
    range = http_range_parse(wanted_range(x, &version), size, &start, &length);
  if (range == HTTP_RANGE_UNSATISFIABLE) {
    add_range(x, 0, 0, size);
    x->ops->fail(x, 416, "the range lies outside of the file's %" PRIu64 " bytes", size);
    return;
  }
  if (range == HTTP_RANGE_PART)
    add_range(x, start, length, size);
  send(x, request, range == HTTP_RANGE_PART ? 206 : 200, start, length);
}

static void get_done(struct job *job, enum job_end end) {
  struct file_request *request = (struct file_request *)job;
  struct exchange *x = let_go(request);
  if (x && end == JOB_TIMED_OUT)
    fail_late(x, request);
  else if (x && request->status < 0)
    files_http_fail(x, &request->error);
  else if (x)
    answer_get(x, request);
  if (end == JOB_DONE)
    free_request(job);
}

void files_get_handle(struct exchange *x) {
  submit(x, get_work, get_done, false);
}

/* ---- DELETE ---- */

static void delete_work(struct job *job) {
  struct file_request *request = (struct file_request *)job;
  files_cancel_watch(&request->given_up, &request->job.moved);
  request->status = files_remove(request->path, request->recursive, &request->error);
  files_cancel_watch(NULL, NULL);
}

static void delete_done(struct job *job, enum job_end end) {
  struct file_request *request = (struct file_request *)job;
  if (end == JOB_TIMED_OUT)
    atomic_store(&request->given_up, true);
  struct exchange *x = let_go(request);
  if (x && end == JOB_TIMED_OUT)
    fail_late(x, request);
  else if (x && request->status < 0)
    files_http_fail(x, &request->error);
  else if (x)
    x->ops->reply(x, 204, NULL, NULL);
  if (end == JOB_DONE)
    free_request(job);
}

void files_delete_handle(struct exchange *x) {
  struct error error = ERROR_INIT;
  bool recursive;
  if (files_http_switch(x, "recursive", &recursive, &error) < 0)
    files_http_fail(x, &error);
  else
    submit(x, delete_work, delete_done, recursive);
}
