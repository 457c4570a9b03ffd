/* read_stream: docs/protocol.md 4.6. A worker reads ahead and encodes (file_ahead.h); the client's connection pulls
 * what it can take. */
#include "sandkeeper/api/file_ahead.h"
#include "sandkeeper/api/file_job.h"
#include "sandkeeper/api/params.h"
#include "sandkeeper/api/turns.h"
#include "sandkeeper/base/base64.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_DEFAULT 65536
#define CHUNK_MAX (4 * 1024 * 1024)
/* A client that wants small chunks gets them cut, on the loop, from a piece of about this size. */
#define PIECE_SMALL 16384
/* What a notification has beside its head and its data. */
#define ENVELOPE 64
/* The bytes themselves, and two or three times what they become in base64: being made, waiting, being sent. */
#define MEMORY_PER_PIECE 5

/* Opens the file on a worker. */
struct open_job {
  struct job job;
  struct file_stream *stream; /* NULL: nobody waits for it any more */
  char *path;
  struct files_source source;
  struct image_type type;
  int status;
  struct error error;
};

struct file_stream {
  struct call *call;
  struct open_job *opening;
  struct turn turn;        /* for memory to read ahead */
  struct open_job *opened; /* what waits for it */
  struct file_ahead *ahead;
  size_t chunk; /* bytes in one notification */
  size_t piece; /* bytes in one piece: a chunk, or some small ones */
  uint64_t offset, end;

  struct file_piece small; /* the piece that small chunks are cut from */
  size_t sent;             /* bytes of it */
  struct image_type type;
  uint64_t total;
  bool done_sent, failed;
  struct error error;
};

static void write_chunk(struct json_out *out, const void *bytes, size_t len, uint64_t offset) {
  json_out_key(out, "data");
  json_out_base64(out, bytes, len);
  json_out_key(out, "offset");
  json_out_uint(out, offset);
  call_notification_end(out);
}

/* ---- on a worker ---- */

static void free_open(struct job *job) {
  struct open_job *opening = (struct open_job *)job;
  files_close(&opening->source);
  free(opening->path);
  free(opening);
}

static void open_work(struct job *job) {
  struct open_job *opening = (struct open_job *)job;
  opening->status = files_open(opening->path, &opening->source, &opening->error);
  if (opening->status == 0)
    opening->status = files_type(&opening->source, opening->path, &opening->type, &opening->error);
}

/* The head was written on the loop: it holds the call's id. */
static void encode(const void *arg, const uint8_t *bytes, size_t len, uint64_t offset, struct buf *out) {
  const struct buf *head = arg;
  struct json_out json = {.buf = out, .comma = true};
  /* As much as it takes and no more: what is below 128 KiB is used again and again, and not mapped anew. */
  buf_reserve(out, head->len + base64_encoded_length(len) + ENVELOPE);
  buf_append(out, head->data, head->len);
  write_chunk(&json, bytes, len, offset);
}

static void free_head(void *arg) {
  buf_free(arg);
  free(arg);
}

/* ---- on the loop ---- */

static void fail(struct file_stream *stream, const struct error *error) {
  stream->failed = true;
  stream->error = *error;
  call_wake(stream->call);
}

static void changed(void *arg) {
  struct file_stream *stream = arg;
  call_wake(stream->call);
}

static struct buf *make_head(struct call *call) {
  struct buf *head = malloc(sizeof *head);
  if (!head)
    return NULL;
  buf_init(head, SIZE_MAX, 0);
  call_notification(call, "read_stream.chunk", head);
  return head;
}

static void read_ahead(struct file_stream *stream, struct open_job *opened) {
  struct api *api = stream->call->api;
  bool small = stream->piece > stream->chunk;
  struct error error = ERROR_INIT;
  struct file_ahead_spec spec = {
      .what = "read_stream",
      .timeout = api->sandbox->options.file_timeout,
      .offset = stream->offset,
      .end = stream->end,
      .piece = stream->piece,
      .buffer_max = small ? stream->piece : call_message_max(stream->call),
  };
  if (!small) {
    spec.arg = make_head(stream->call);
    spec.encode = encode;
    spec.free_arg = free_head;
    if (!spec.arg) {
      error_set_errno(&error, ENOMEM, "read_stream");
      fail(stream, &error);
      return;
    }
  }
  stream->ahead = file_ahead_new(api->sandbox->workers, opened->path, &opened->source, &spec, changed, stream, &error);
  opened->path = NULL;
  if (!stream->ahead)
    fail(stream, &error);
}

static void granted(void *arg) {
  struct file_stream *stream = arg;
  struct open_job *opened = stream->opened;
  stream->opened = NULL;
  read_ahead(stream, opened);
  free_open(&opened->job);
}

static void open_done(struct job *job, enum job_end end) {
  struct open_job *opening = (struct open_job *)job;
  struct file_stream *stream = opening->stream;
  opening->stream = NULL;
  if (stream) {
    struct error error = ERROR_INIT;
    stream->opening = NULL;
    if (end == JOB_TIMED_OUT) {
      file_timed_out(&error, job, "read_stream", opening->path, stream->call->api->sandbox->options.file_timeout);
      fail(stream, &error);
    } else if (opening->status < 0) {
      fail(stream, &opening->error);
    } else {
      stream->type = opening->type;
      stream->opened = opening;
      if (turns_take(call_ahead(stream->call), &stream->turn, stream->piece * MEMORY_PER_PIECE, granted, stream))
        granted(stream);
      return;
    }
  }
  if (end == JOB_DONE)
    free_open(job);
}

/* ---- what the client gets ---- */

static void send_small(struct file_stream *stream, struct buf *out) {
  struct json_out json = call_notification(stream->call, "read_stream.chunk", out);
  size_t left = stream->small.len - stream->sent;
  size_t len = stream->chunk < left ? stream->chunk : left;
  write_chunk(&json, stream->small.bytes.data + stream->sent, len, stream->small.offset + stream->sent);
  stream->sent += len;
  stream->total += len;
}

static void send_done(struct file_stream *stream, struct buf *out) {
  struct json_out json = call_notification(stream->call, "read_stream.done", out);
  json_out_key(&json, "total_bytes");
  json_out_uint(&json, stream->total);
  call_notification_end(&json);
  stream->done_sent = true;
}

static void answer(struct file_stream *stream) {
  struct json_out out = call_result(stream->call);
  json_out_object(&out);
  json_out_key(&out, "type");
  json_out_string(&out, stream->type.image ? "image" : "text");
  json_out_key(&out, "total_bytes");
  json_out_uint(&out, stream->total);
  json_out_key(&out, "mime_type");
  json_out_string(&out, stream->type.mime);
  json_out_object_end(&out);
  call_result_end(stream->call, &out, NULL);
}

/* The next notification, if there is one. */
static bool next_chunk(struct file_stream *stream, struct buf *out, enum file_ahead_state *state) {
  if (stream->sent < stream->small.len) {
    send_small(stream, out);
    return true;
  }
  if (stream->piece > stream->chunk) {
    stream->sent = stream->small.len = 0;
    *state = file_ahead_take(stream->ahead, &stream->small);
    if (*state != AHEAD_PIECE)
      return false;
    send_small(stream, out);
    return true;
  }
  struct file_piece piece = {.bytes = *out};
  *state = file_ahead_take(stream->ahead, &piece);
  *out = piece.bytes;
  stream->total += *state == AHEAD_PIECE ? piece.len : 0;
  return *state == AHEAD_PIECE;
}

static bool next(struct call *call, struct buf *out) {
  struct file_stream *stream = call->state;
  enum file_ahead_state state = AHEAD_WAIT;
  if (stream->failed) {
    call_fail(call, &stream->error);
    return false;
  }
  if (!stream->ahead)
    return false;
  if (next_chunk(stream, out, &state))
    return true;
  if (state == AHEAD_FAILED) {
    call_fail(call, file_ahead_error(stream->ahead));
  } else if (state == AHEAD_END && !stream->done_sent) {
    send_done(stream, out);
    return true;
  } else if (state == AHEAD_END) {
    answer(stream);
  }
  return false;
}

static void ended(struct call *call) {
  struct file_stream *stream = call->state;
  if (stream->opening)
    stream->opening->stream = NULL;
  if (stream->opened)
    free_open(&stream->opened->job);
  file_ahead_free(stream->ahead);
  buf_free(&stream->small.bytes);
  turns_give(call_ahead(call), &stream->turn);
  free(stream);
}

/* ---- the start ---- */

static int parse(json_object *params, struct file_stream *stream, char **path, struct error *err) {
  int64_t chunk, offset, length;
  bool limited;
  *path = file_params_path(params, "path", err);
  if (!*path || params_integer(params, "chunk_size", 1, CHUNK_MAX, CHUNK_DEFAULT, &chunk, NULL, err) < 0 ||
      params_integer(params, "offset", 0, INT64_MAX, 0, &offset, NULL, err) < 0 ||
      params_integer(params, "length", 0, INT64_MAX, 0, &length, &limited, err) < 0)
    return -1;
  stream->offset = (uint64_t)offset;
  stream->end = limited ? stream->offset + (uint64_t)length : UINT64_MAX;
  stream->chunk = (size_t)chunk;
  return 0;
}

/* A chunk that does not fit into one message of this client comes in several. */
static int plan(struct call *call, struct file_stream *stream, struct error *err) {
  size_t max = call_message_max(call);
  size_t used = strlen(call->id) + sizeof "{'jsonrpc':'2.0','method':'read_stream.chunk','params':{'id':" + ENVELOPE;
  size_t fits = max > used ? (max - used) / 4 * 3 : 0;
  if (fits == 0)
    return error_set(err, ERROR_TOO_LARGE, 0, "read_stream: the messages that this client takes are too small for it");
  if (stream->chunk > fits)
    stream->chunk = fits;
  stream->piece = stream->chunk < PIECE_SMALL ? PIECE_SMALL / stream->chunk * stream->chunk : stream->chunk;
  return 0;
}

/* -1: nothing was started. */
static int start(struct call *call, json_object *params, struct file_stream *stream, struct error *err) {
  char *path;
  if (parse(params, stream, &path, err) < 0 || plan(call, stream, err) < 0) {
    free(path);
    return -1;
  }
  struct open_job *opening = calloc(1, sizeof *opening);
  if (!opening) {
    free(path);
    return error_set_errno(err, ENOMEM, "read_stream");
  }
  *opening = (struct open_job){.stream = stream, .path = path, .source.fd = -1, .job.class = JOB_FILE};
  opening->job.work = open_work;
  opening->job.done = open_done;
  opening->job.abandon = free_open;
  if (workers_submit(call->api->sandbox->workers, &opening->job, call_file_queue(call), false, err) < 0) {
    free_open(&opening->job);
    return -1;
  }
  stream->opening = opening;
  return 0;
}

static void read_stream_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  if (!call->id) { /* nobody would see the pieces */
    call_result_empty(call);
    return;
  }
  struct file_stream *stream = calloc(1, sizeof *stream);
  if (!stream)
    error_set_errno(&error, ENOMEM, "read_stream");
  if (!stream || start(call, params, stream, &error) < 0) {
    free(stream);
    call_fail(call, &error);
    return;
  }
  stream->call = call;
  turn_init(&stream->turn);
  buf_init(&stream->small.bytes, stream->piece, BUF_HEADROOM);
  call->state = stream;
  call->next = next;
  call->ended = ended;
}

const struct method stream_methods[] = {{"read_stream", read_stream_start}, {NULL, NULL}};
