#include "sandkeeper/api/prompt.h"

#include "sandkeeper/api/prompt_run.h"
#include "sandkeeper/api/rpc.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/json_out.h"
#include "sandkeeper/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_MAX (64u * 1024u)
/* Nobody knows when a prompt will be over: soon enough to be quick, late enough not to be a loop. */
#define RETRY_AFTER "1"
#define ERROR_BODY_MAX (32 * 1024)
/* PROMPT_FILL, and what one step adds: a line of PROMPT_LINE_MAX whose every byte becomes an escape of six. */
#define PENDING_MAX (32u * 1024u * 1024u)

static const char *const end_names[PROMPT_ENDS] = {"done", "failed", "left", "refused"};

const char *prompt_handler_name(const struct prompts *prompts) {
  const char *handler = prompts->options.handler;
  return strcmp(handler, "echo") == 0 || strcmp(handler, "none") == 0 ? handler : "command";
}

static const struct prompt_source *source_of(const struct prompts *prompts) {
  return strcmp(prompts->options.handler, "echo") == 0 ? &prompt_echo : &prompt_handler;
}

static struct loop *loop_of(const struct prompt *prompt) {
  return prompt->api->sandbox->loop;
}

/* ---- life ---- */

static void release_place(struct prompt *prompt) {
  if (prompt->has_place)
    prompt->api->prompts.running--;
  prompt->has_place = false;
}

/* The files of a prompt are removed by a worker, at the agent's own end at once: no worker would come to it. */
struct remove_job {
  struct job job;
  char *directory;
};

static void remove_work(struct job *job) {
  prompt_files_remove(((struct remove_job *)job)->directory);
}

static void remove_free(struct job *job) {
  struct remove_job *removal = (struct remove_job *)job;
  free(removal->directory);
  free(removal);
}

static void remove_done(struct job *job, enum job_end end) {
  if (end == JOB_DONE)
    remove_free(job);
}

static void remove_directory(struct sandbox *sandbox, char *directory) {
  struct remove_job *removal = directory ? calloc(1, sizeof *removal) : NULL;
  if (removal) {
    removal->job = (struct job){.class = JOB_FILE, .work = remove_work, .done = remove_done, .abandon = remove_free};
    removal->directory = directory;
    if (!sandbox->stopping && workers_submit(sandbox->workers, &removal->job, NULL, false, NULL) == 0)
      return;
    free(removal);
  }
  prompt_files_remove(directory);
  free(directory);
}

static void log_end(const struct prompt *prompt) {
  int64_t took = loop_now(loop_of(prompt)) - prompt->started;
  LOG(LOG_INFO, "prompt", "ended", LOG_S("outcome", end_names[prompt->end]), LOG_I("duration_ms", took / CLOCK_MS));
}

static void prompt_free(struct prompt *prompt) {
  struct api *api = prompt->api;
  release_place(prompt);
  api->prompts.ended[prompt->end]++;
  if (prompt->answered)
    log_end(prompt);
  if (prompt->source)
    prompt->source->free(prompt);
  remove_directory(api->sandbox, prompt->request.directory);
  prompt->request.directory = NULL;
  prompt_request_free(&prompt->request);
  prompt_events_free(&prompt->events);
  buf_free(&prompt->pending);
  body_free(&prompt->body);
  free(prompt);
}

void prompt_over(struct prompt *prompt) {
  if (!prompt->x && !prompt->prepare)
    prompt_free(prompt);
}

static void on_gone(struct exchange *x) {
  struct prompt *prompt = x->state;
  prompt->x = NULL;
  if (prompt->answered && !prompt->ended)
    prompt->end = PROMPT_LEFT;
  if (prompt->prepare)
    return; /* its end is the prompt's */
  if (!prompt->source || prompt->source->leave(prompt))
    prompt_free(prompt);
}

/* ---- answers ---- */

static void reply_error(struct exchange *x, unsigned status, const char *message) {
  struct buf body;
  struct json_out out;
  buf_init(&body, ERROR_BODY_MAX, 0);
  json_out_begin(&out, &body);
  json_out_object(&out);
  json_out_key(&out, "error");
  json_out_string(&out, message);
  json_out_object_end(&out);
  x->ops->reply(x, status, "application/json", &body);
}

void prompt_refuse(struct prompt *prompt, unsigned status, const char *message) {
  prompt->ended = true;
  if (prompt->x)
    reply_error(prompt->x, status, message);
}

static int pull(struct exchange *x, struct buf *out) {
  struct prompt *prompt = x->state;
  for (;;) {
    size_t left = prompt->pending.len - prompt->sent, room = PIECE_MAX - out->len;
    size_t n = left < room ? left : room;
    buf_append(out, prompt->pending.data + prompt->sent, n);
    prompt->sent += n;
    if (out->len == PIECE_MAX)
      return STREAM_MORE;
    if (prompt->ended)
      break;
    buf_reset(&prompt->pending, PROMPT_FILL);
    prompt->sent = 0;
    int state = prompt->source->fill(prompt);
    if (prompt->pending.failed)
      out->failed = true; /* no memory: a client must not take half an answer for a whole one */
    prompt->ended = state == STREAM_END;
    if (state == STREAM_WAIT && prompt->pending.len == 0)
      return out->len > 0 ? STREAM_MORE : STREAM_WAIT;
  }
  release_place(prompt); /* the client may come again as soon as it has read the end */
  return STREAM_END;
}

void prompt_answer(struct prompt *prompt) {
  struct exchange *x = prompt->x;
  if (!x || prompt->answered)
    return;
  prompt->answered = true;
  prompt->end = PROMPT_DONE;
  x->ops->add_header(x, "Cache-Control", "no-cache");
  x->ops->stream(x, 200, "application/x-ndjson", pull);
}

void prompt_wake(struct prompt *prompt) {
  if (prompt->x && prompt->answered)
    prompt->x->ops->wake(prompt->x);
}

/* ---- preparing ---- */

struct prepare_job {
  struct job job;
  struct prompt *prompt; /* NULL: written off */
  struct buf text;       /* what is to be parsed; empty: it is done already */
  struct prompt_request request;
  bool writes_files;
  char *user; /* NULL: the agent's own */
  int status;
  struct error error;
};

static unsigned status_of(const struct error *error) {
  switch (error->kind) {
  case ERROR_INVALID:
    return 400;
  case ERROR_NO_SPACE:
    return 507;
  case ERROR_STOPPED:
  case ERROR_BUSY:
    return 503;
  default:
    return 500;
  }
}

static void begin(struct prompt *prompt, int status, const struct error *error) {
  prompt->source = status == 0 ? source_of(&prompt->api->prompts) : NULL;
  if (prompt->source)
    prompt->source->start(prompt);
  else
    prompt_refuse(prompt, status_of(error), error->message);
}

static void prepare_work(struct job *job) {
  struct prepare_job *prepare = (struct prepare_job *)job;
  if (prepare->text.len > 0)
    prepare->status = prompt_request_parse(&prepare->request, prepare->text.data, prepare->text.len, &prepare->error);
  buf_free(&prepare->text);
  if (prepare->status == 0)
    prepare->status = prompt_files_decode(&prepare->request, prepare->writes_files, prepare->user, &prepare->error);
}

static void prepare_free(struct prepare_job *prepare) {
  buf_free(&prepare->text);
  prompt_request_free(&prepare->request);
  free(prepare->user);
  free(prepare);
}

static void prepare_abandon(struct job *job) {
  struct prepare_job *prepare = (struct prepare_job *)job;
  prompt_files_remove(prepare->request.directory);
  prepare_free(prepare);
}

static void prepare_done(struct job *job, enum job_end end) {
  struct prepare_job *prepare = (struct prepare_job *)job;
  struct prompt *prompt = prepare->prompt;
  prompt->prepare = NULL;
  if (end == JOB_TIMED_OUT) {
    struct error error = ERROR_INIT;
    error_set(&error, ERROR_TIMED_OUT, 0, "the prompt's files could not be written in time");
    begin(prompt, -1, &error);
  } else {
    prompt->request = prepare->request;
    prepare->request = (struct prompt_request){0};
    if (prompt->x)
      begin(prompt, prepare->status, &prepare->error);
    prepare_free(prepare);
  }
  if (!prompt->x)
    prompt_free(prompt);
}

static int submit(struct prompt *prompt, struct buf *text, struct error *err) {
  struct sandbox *sandbox = prompt->api->sandbox;
  const char *user = sandbox->commands.options.user;
  struct prepare_job *prepare = calloc(1, sizeof *prepare);
  if (!prepare)
    return error_set(err, ERROR_INTERNAL, 0, "there is no memory for the prompt");
  prepare->job =
      (struct job){.class = JOB_FILE, .work = prepare_work, .done = prepare_done, .abandon = prepare_abandon};
  prepare->prompt = prompt;
  prepare->writes_files = source_of(&prompt->api->prompts)->writes_files;
  prepare->user = user ? strdup(user) : NULL;
  prepare->request = prompt->request;
  prompt->request = (struct prompt_request){0};
  buf_init(&prepare->text, text->max, text->headroom);
  buf_move(&prepare->text, text);
  int status = prepare->user || !user ? workers_submit(sandbox->workers, &prepare->job, NULL, false, err)
                                      : error_set(err, ERROR_INTERNAL, 0, "there is no memory for the prompt");
  if (status < 0)
    prepare_free(prepare);
  else
    prompt->prepare = prepare;
  return status;
}

/* The body is there. What is short and has no files is done at once: a worker would cost more. */
static void prepare(struct prompt *prompt) {
  struct error error = ERROR_INIT;
  struct buf text;
  int status = 0;
  buf_init(&text, PROMPT_BODY_MAX, 0);
  body_move(&prompt->body, &text);
  bool is_short = text.len <= RPC_PARSE_INLINE_MAX;
  if (is_short) {
    status = prompt_request_parse(&prompt->request, text.data, text.len, &error);
    buf_free(&text);
  }
  bool for_worker = status == 0 && (!is_short || prompt->request.n_files > 0);
  if (for_worker)
    status = submit(prompt, &text, &error);
  buf_free(&text);
  if (status < 0 || !for_worker)
    begin(prompt, status, &error);
}

/* ---- the route ---- */

/* NULL: a prompt may begin. */
static const char *no_place(struct api *api, unsigned *status, char *message, size_t size) {
  const struct prompts *prompts = &api->prompts;
  if (strcmp(prompts->options.handler, "none") == 0) {
    *status = 501;
    return "this sandbox has no handler for prompts (--prompt-handler none)";
  }
  if (api->sandbox->commands.refusing) {
    *status = 503;
    return "the sandbox is stopped and takes no prompts; start it first";
  }
  if (prompts->running < prompts->options.concurrency)
    return NULL;
  *status = 429;
  snprintf(message, size, "%u prompts run at once, which is the limit (--prompt-concurrency)", prompts->running);
  return message;
}

static bool refused(struct exchange *x) {
  char message[128];
  unsigned status;
  const char *why = no_place(x->api, &status, message, sizeof message);
  if (!why)
    return false;
  if (status == 429)
    x->ops->add_header(x, "Retry-After", RETRY_AFTER);
  reply_error(x, status, why);
  return true;
}

void prompt_handle(struct exchange *x) {
  struct api *api = x->api;
  if (refused(x)) {
    api->prompts.ended[PROMPT_REFUSED]++;
    return;
  }
  struct prompt *prompt = calloc(1, sizeof *prompt);
  if (!prompt) {
    reply_error(x, 503, "there is no memory for the prompt");
    return;
  }
  prompt->x = x;
  prompt->api = api;
  prompt->end = PROMPT_REFUSED;
  prompt->started = loop_now(loop_of(prompt));
  list_init(&prompt->observer.node);
  loop_timer_init(&prompt->closed_timer);
  body_init(&prompt->body, &api->bodies, PROMPT_BODY_MAX);
  buf_init(&prompt->pending, PENDING_MAX, 0);
  prompt_events_init(&prompt->events, api->prompts.options.text_type);
  x->state = prompt;
  x->gone = on_gone;
}

size_t prompt_body(struct exchange *x, const char *bytes, size_t len, bool last) {
  struct prompt *prompt = x->state;
  if (!last) {
    body_take(&prompt->body, x, bytes, len);
    return len;
  }
  if (refused(x)) /* others were faster */
    return 0;
  prompt->has_place = true;
  prompt->api->prompts.running++;
  sandbox_life_touch(prompt->api->sandbox);
  prepare(prompt);
  return 0;
}
