#include "sandkeeper/api/file_ahead.h"

#include "sandkeeper/api/file_job.h"

#include <errno.h>
#include <stdlib.h>

/* Pieces that wait at most; a long one has no second one beside it. */
#define PIECES 2
#define LONG_PIECE (512u * 1024u)

/* What the worker touches. It belongs to the reader while that lives and is not out of reach. */
struct ahead_job {
  struct job job;
  struct file_ahead *ahead; /* NULL: nobody waits for it any more */
  char *path;
  struct files_source source;
  struct file_ahead_spec spec;
  uint64_t offset; /* of the next byte to read */
  uint8_t *raw;    /* for what is encoded */

  int status;
  struct error error;
  struct file_piece made;
  bool last; /* nothing is behind it */
};

struct file_ahead {
  struct workers *workers;
  void (*changed)(void *arg);
  void *arg;
  struct ahead_job *idle;    /* waits for its next piece */
  struct ahead_job *at_work; /* on a worker; neither: it is out of reach */
  struct file_piece ready[PIECES];
  int n_ready;
  bool last, failed;
  struct error error;
};

/* ---- on a worker ---- */

static void free_job(struct job *job) {
  struct ahead_job *ahead = (struct ahead_job *)job;
  files_close(&ahead->source);
  if (ahead->spec.free_arg)
    ahead->spec.free_arg(ahead->spec.arg);
  buf_free(&ahead->made.bytes);
  free(ahead->raw);
  free(ahead->path);
  free(ahead);
}

/* Where the file's bytes go: straight into the piece, or to where they are encoded from. */
static void *place_for(struct ahead_job *job, size_t len) {
  if (!job->spec.encode)
    return buf_reserve(&job->made.bytes, len);
  if (!job->raw)
    job->raw = malloc(job->spec.piece);
  return job->raw;
}

static int read_piece(struct ahead_job *job) {
  const struct file_ahead_spec *spec = &job->spec;
  uint64_t left = spec->end > job->offset ? spec->end - job->offset : 0;
  size_t want = left < spec->piece ? (size_t)left : spec->piece;
  struct file_piece *made = &job->made;
  void *place = place_for(job, want);
  if (!place)
    return error_set_errno(&job->error, ENOMEM, "cannot read %s", job->path);
  ssize_t n = files_read_at(&job->source, job->path, job->offset, place, want, &job->error);
  if (n < 0)
    return -1;
  made->len = (size_t)n;
  made->offset = job->offset;
  job->offset += made->len;
  job->last = made->len < want || want == left;
  if (!spec->encode)
    made->bytes.len = made->len;
  else if (made->len > 0)
    spec->encode(spec->arg, job->raw, made->len, made->offset, &made->bytes);
  return made->bytes.failed ? error_set_errno(&job->error, ENOMEM, "cannot read %s", job->path) : 0;
}

static void work(struct job *job) {
  struct ahead_job *ahead = (struct ahead_job *)job;
  ahead->status = read_piece(ahead);
}

/* ---- on the loop ---- */

static void fail(struct file_ahead *ahead, const struct error *error) {
  ahead->failed = true;
  ahead->error = *error;
}

static void exchange(struct file_piece *a, struct file_piece *b) {
  struct file_piece other = *a;
  *a = *b;
  *b = other;
}

/* -1: it cannot be sent to a worker; the reader has failed then. */
static int submit(struct file_ahead *ahead) {
  struct ahead_job *job = ahead->idle;
  struct error error = ERROR_INIT;
  buf_reset(&job->made.bytes, SIZE_MAX);
  job->made.bytes.max = job->spec.buffer_max;
  if (workers_submit(ahead->workers, &job->job, NULL, false, &error) < 0) {
    fail(ahead, &error);
    return -1;
  }
  ahead->idle = NULL;
  ahead->at_work = job;
  return 0;
}

static int make_next(struct file_ahead *ahead) {
  if (!ahead->idle || ahead->last || ahead->failed)
    return 0;
  int most = ahead->idle->spec.piece < LONG_PIECE ? PIECES : 1;
  return ahead->n_ready < most ? submit(ahead) : 0;
}

static void done(struct job *job, enum job_end end) {
  struct ahead_job *work_done = (struct ahead_job *)job;
  struct file_ahead *ahead = work_done->ahead;
  if (!ahead) {
    if (end == JOB_DONE)
      free_job(job);
    return;
  }
  ahead->at_work = NULL;
  if (end == JOB_TIMED_OUT) {
    struct error error = ERROR_INIT;
    work_done->ahead = NULL;
    file_timed_out(&error, job, work_done->spec.what, work_done->path, work_done->spec.timeout);
    fail(ahead, &error);
  } else {
    ahead->idle = work_done;
    if (work_done->status < 0)
      fail(ahead, &work_done->error);
    else if (work_done->made.len > 0)
      exchange(&ahead->ready[ahead->n_ready++], &work_done->made);
    ahead->last = work_done->last;
    make_next(ahead);
  }
  ahead->changed(ahead->arg);
}

struct file_ahead *file_ahead_new(struct workers *workers, char *path, struct files_source *source,
                                  const struct file_ahead_spec *spec, void (*changed)(void *arg), void *arg,
                                  struct error *err) {
  struct ahead_job *job = calloc(1, sizeof *job);
  struct file_ahead *ahead = calloc(1, sizeof *ahead);
  if (!job || !ahead) {
    error_set_errno(err, ENOMEM, "cannot read %s", path);
    files_close(source);
    if (spec->free_arg)
      spec->free_arg(spec->arg);
    free(path);
    free(job);
    free(ahead);
    return NULL;
  }
  *job = (struct ahead_job){
      .ahead = ahead, .path = path, .source = *source, .spec = *spec, .offset = spec->offset, .job.class = JOB_FILE};
  job->job.work = work;
  job->job.done = done;
  job->job.abandon = free_job;
  source->fd = -1;
  *ahead = (struct file_ahead){.workers = workers, .changed = changed, .arg = arg, .idle = job};
  buf_init(&job->made.bytes, spec->buffer_max, BUF_HEADROOM);
  for (int i = 0; i < PIECES; i++)
    buf_init(&ahead->ready[i].bytes, spec->buffer_max, BUF_HEADROOM);
  if (submit(ahead) == 0)
    return ahead;
  *err = ahead->error;
  file_ahead_free(ahead);
  return NULL;
}

void file_ahead_free(struct file_ahead *ahead) {
  if (!ahead)
    return;
  if (ahead->at_work)
    ahead->at_work->ahead = NULL;
  if (ahead->idle)
    free_job(&ahead->idle->job);
  for (int i = 0; i < PIECES; i++)
    buf_free(&ahead->ready[i].bytes);
  free(ahead);
}

enum file_ahead_state file_ahead_take(struct file_ahead *ahead, struct file_piece *piece) {
  if (ahead->n_ready > 0) {
    exchange(piece, &ahead->ready[0]);
    for (int i = 1; i < PIECES; i++)
      exchange(&ahead->ready[i - 1], &ahead->ready[i]);
    ahead->n_ready--;
    make_next(ahead);
    return AHEAD_PIECE;
  }
  if (ahead->failed)
    return AHEAD_FAILED;
  return ahead->last ? AHEAD_END : AHEAD_WAIT;
}

const struct error *file_ahead_error(const struct file_ahead *ahead) {
  return &ahead->error;
}
