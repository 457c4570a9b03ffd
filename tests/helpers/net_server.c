/* net_server.c - the network floor without an agent behind it: an echo over WebSocket (what the Autobahn suite wants),
 * and HTTP routes that do what real ones do. Takes the agent's own options. Log and exit code are the agent's too. */
#include "sandkeeper/api/health.h"
#include "sandkeeper/api/rpc.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/config.h"
#include "sandkeeper/core/loop.h"
#include "sandkeeper/net/gate.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

struct api {
  struct config config;
  struct net_options options;
  struct loop *loop;
  struct ws *ws;
  struct http *http;
  struct gate *gate;
  int64_t started;
  uint64_t gone; /* exchanges that ended */
  bool stopping;
};

/* ---- an echo in the place of api/rpc.c ---- */

struct message {
  struct list node;
  size_t len;
  char bytes[];
};

struct rpc_session {
  struct peer *peer;
  struct list messages;
  struct loop *loop;
  struct loop_timer timer;
  uint64_t flood; /* bytes still to be sent after "flood N" */
  bool holding;
};

struct rpc_session *rpc_session_open(struct api *api, struct peer *peer, struct error *err) {
  struct rpc_session *session = calloc(1, sizeof *session);
  if (!session) {
    error_set_errno(err, ENOMEM, "session");
    return NULL;
  }
  session->peer = peer;
  session->loop = api->loop;
  list_init(&session->messages);
  loop_timer_init(&session->timer);
  return session;
}

void rpc_session_close(struct rpc_session *session) {
  struct message *message;
  while ((message = LIST_FIRST(&session->messages, struct message, node))) {
    list_remove(&message->node);
    free(message);
  }
  loop_timer_stop(session->loop, &session->timer);
  free(session);
}

static void release(struct loop_timer *timer) {
  struct rpc_session *session = timer->arg;
  session->holding = false;
  session->peer->ops->hold(session->peer, false);
}

/* "hold MS" holds the client for that long, "flood BYTES" sends so much; all else comes back. */
void rpc_session_receive(struct rpc_session *session, const char *bytes, size_t len) {
  char text[64] = "";
  if (session->holding)
    abort(); /* the contract of peer->hold is broken */
  if (len < sizeof text)
    memcpy(text, bytes, len);
  if (strncmp(text, "hold ", 5) == 0) {
    session->holding = true;
    session->peer->ops->hold(session->peer, true);
    loop_timer_start(session->loop, &session->timer, loop_now(session->loop) + atol(text + 5) * CLOCK_MS, release,
                     session);
  } else if (strncmp(text, "flood ", 6) == 0) {
    session->flood = strtoull(text + 6, NULL, 10);
    session->peer->ops->wake(session->peer);
    return;
  } else if (strcmp(text, "max_message") == 0) {
    len = (size_t)snprintf(text, sizeof text, "%zu", session->peer->max_message);
    bytes = text;
  }
  struct message *message = malloc(sizeof *message + len);
  if (!message)
    return;
  message->len = len;
  if (len > 0)
    memcpy(message->bytes, bytes, len);
  list_append(&session->messages, &message->node);
  session->peer->ops->wake(session->peer);
}

void rpc_session_take(struct rpc_session *session, struct buf *message) {
  rpc_session_receive(session, message->data ? message->data : "", message->len);
  buf_free(message);
}

bool rpc_session_has_more(const struct rpc_session *session) {
  (void)session;
  return false;
}

bool rpc_session_pull(struct rpc_session *session, struct buf *out) {
  buf_reset(out, SIZE_MAX);
  struct message *message = LIST_FIRST(&session->messages, struct message, node);
  if (message) {
    list_remove(&message->node);
    buf_append(out, message->bytes, message->len);
    free(message);
    return true;
  }
  if (session->flood == 0)
    return false;
  size_t len = session->flood < 60000 ? (size_t)session->flood : 60000;
  char *room = buf_reserve(out, len);
  if (!room)
    return false;
  memset(room, 'x', len);
  out->len += len;
  session->flood -= len;
  return true;
}

bool rpc_session_idle(const struct rpc_session *session) {
  return list_is_empty(&session->messages);
}

/* ---- routes ---- */

void api_health(struct api *api, struct health *out) {
  *out = (struct health){.stopping = api->stopping,
                         .sandbox_id = api->config.sandbox_id,
                         .version = "test",
                         .uptime = clock_monotonic() - api->started};
}

/* State of an exchange that has to do with time. */
struct work {
  struct exchange *x;
  struct loop_timer timer;
  struct loop *loop;
  uint64_t total, left, offset;
  int interval_ms;
  bool ready;
};

static void work_gone(struct exchange *x) {
  struct work *work = x->state;
  x->api->gone++;
  loop_timer_stop(work->loop, &work->timer);
  free(work);
}

static struct work *work_new(struct exchange *x) {
  struct work *work = calloc(1, sizeof *work);
  if (!work)
    return NULL;
  work->x = x;
  work->loop = x->api->loop;
  loop_timer_init(&work->timer);
  x->state = work;
  x->gone = work_gone;
  return work;
}

static uint64_t number(struct exchange *x, const char *name, uint64_t fallback) {
  const char *value = x->ops->query(x, name, NULL);
  return value ? strtoull(value, NULL, 10) : fallback;
}

static void after(struct work *work, int ms, loop_timer_fn *fn) {
  loop_timer_start(work->loop, &work->timer, loop_now(work->loop) + ms * CLOCK_MS, fn, work);
}

/* POST /echo: the body, and what the request says in headers. */
static void echo_handle(struct exchange *x) {
  struct buf body;
  const char *value = x->ops->query(x, "q", NULL);
  buf_init(&body, SIZE_MAX, 0);
  buf_append(&body, x->body->data, x->body->len);
  if (value)
    x->ops->add_header(x, "X-Query", value);
  x->ops->add_header(x, "X-Path", x->path);
  x->ops->reply(x, 200, "text/plain", &body);
}

/* GET /wait?ms=N: an answer after that time. */
static void wait_over(struct loop_timer *timer) {
  struct work *work = timer->arg;
  struct buf body;
  buf_init(&body, 64, 0);
  buf_append_string(&body, "done\n");
  work->x->ops->reply(work->x, 200, "text/plain", &body);
}

static void wait_handle(struct exchange *x) {
  struct work *work = work_new(x);
  if (!work)
    x->ops->fail(x, 503, "no memory");
  else
    after(work, (int)number(x, "ms", 100), wait_over);
}

/* GET /stream?lines=N&ms=M: a line every M ms; with 0 as fast as the client takes them, 100 bytes each. */
static void stream_tick(struct loop_timer *timer) {
  struct work *work = timer->arg;
  work->ready = true;
  work->x->ops->wake(work->x);
}

static int stream_pull(struct exchange *x, struct buf *out) {
  struct work *work = x->state;
  if (work->left == 0)
    return STREAM_END;
  if (work->interval_ms > 0 && !work->ready) {
    if (!loop_timer_is_started(&work->timer))
      after(work, work->interval_ms, stream_tick);
    return STREAM_WAIT;
  }
  work->ready = false;
  work->left--;
  buf_printf(out, "{\"type\":\"text\",\"n\":%llu,\"text\":\"%060d\"}\n", (unsigned long long)(work->total - work->left),
             0);
  return STREAM_MORE;
}

static void stream_handle(struct exchange *x) {
  struct work *work = work_new(x);
  if (!work) {
    x->ops->fail(x, 503, "no memory");
    return;
  }
  work->total = work->left = number(x, "lines", 10);
  work->interval_ms = (int)number(x, "ms", 0);
  work->ready = true;
  x->ops->stream(x, 200, "application/x-ndjson", stream_pull);
}

/* GET /file?path=P: by sendfile. */
static void file_handle(struct exchange *x) {
  const char *path = x->ops->query(x, "path", NULL);
  struct stat st;
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
  if (fd < 0 || fstat(fd, &st) < 0) {
    fd_close(&fd);
    x->ops->fail(x, 404, "there is no file %s", path ? path : "");
    return;
  }
  x->ops->send_file(x, 200, "application/octet-stream", fd, 0, (uint64_t)st.st_size);
}

/* PUT /sink?pause=MS&every=N&refuse=1&hold=MS&at=N: counts the body; pauses the client for MS after every N bytes;
 * refuses at once or after N bytes. */
static void sink_resume(struct loop_timer *timer) {
  struct work *work = timer->arg;
  work->ready = true;
  work->x->ops->resume_body(work->x);
}

static void sink_refuse(struct loop_timer *timer) {
  struct work *work = timer->arg;
  work->x->ops->fail(work->x, 403, "not here");
}

static void sink_handle(struct exchange *x) {
  struct work *work = work_new(x);
  if (!work) {
    x->ops->fail(x, 503, "no memory");
    return;
  }
  work->left = number(x, "every", UINT64_MAX);
  uint64_t hold_ms = number(x, "hold", 0);
  if (hold_ms > 0) {
    x->ops->hold_body(x);
    after(work, (int)hold_ms, number(x, "refuse", 0) ? sink_refuse : sink_resume);
  } else if (number(x, "refuse", 0)) {
    x->ops->fail(x, 403, "not here");
  }
}

static size_t sink_body(struct exchange *x, const char *bytes, size_t len, bool last) {
  struct work *work = x->state;
  struct buf body;
  (void)bytes;
  if (!last) {
    uint64_t stop_at = number(x, "at", UINT64_MAX);
    if (work->total + len > stop_at)
      x->ops->fail(x, 403, "not after %llu bytes", (unsigned long long)stop_at);
    if (len >= work->left) {
      size_t taken = (size_t)work->left;
      work->total += taken;
      work->left = number(x, "every", UINT64_MAX);
      after(work, (int)number(x, "pause", 10), sink_resume);
      return taken;
    }
    work->total += len;
    work->left -= len;
    return len;
  }
  buf_init(&body, 256, 0);
  buf_printf(&body, "{\"bytes_written\":%llu}", (unsigned long long)work->total);
  x->ops->reply(x, 200, "application/json", &body);
  return 0;
}

/* GET /state: what the tests look at from outside. */
static void state_handle(struct exchange *x) {
  struct http_stats http = http_stats(x->api->http);
  struct ws_stats ws = ws_stats(x->api->ws);
  struct buf body;
#ifdef __GLIBC__
  malloc_trim(0); /* so that resident memory is what is in use */
#endif
  buf_init(&body, 512, 0);
  buf_printf(&body,
             "{\"connections\":%u,\"exchanges\":%u,\"gone\":%llu,\"sessions\":%u,\"buffered\":%zu,\"waiting\":%u}",
             http.connections, http.exchanges, (unsigned long long)x->api->gone, ws.sessions, ws.buffered,
             gate_waiting(x->api->gate));
  x->ops->reply(x, 200, "application/json", &body);
}

static const struct route routes[] = {
    {.methods = "GET HEAD", .path = "/health", .open = true, .handle = health_handle},
    {.methods = "GET HEAD", .path = "/state", .open = true, .handle = state_handle},
    {.methods = "POST", .path = "/echo", .body_max = 1024 * 1024, .handle = echo_handle},
    {.methods = "GET POST", .path = "/tree/*", .body_max = 1024, .handle = echo_handle},
    {.methods = "GET HEAD", .path = "/wait", .handle = wait_handle},
    {.methods = "GET HEAD", .path = "/stream", .handle = stream_handle},
    {.methods = "GET HEAD", .path = "/file", .handle = file_handle},
    {.methods = "PUT", .path = "/file", .handle = sink_handle, .body = sink_body},
    {.methods = "PUT", .path = "/sink", .body_max = (size_t)8 << 30, .handle = sink_handle, .body = sink_body},
};

/* ---- life ---- */

static void raise_descriptor_limit(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

static void on_sessions_closed(void *arg) {
  struct api *api = arg;
  ws_stop(api->ws);
}

/* The first signal ends in good order, the second at once. */
static void on_signal(struct loop_watch *watch, uint32_t events) {
  struct api *api = watch->arg;
  struct signalfd_siginfo info;
  (void)events;
  if (read(watch->fd, &info, sizeof info) != sizeof info)
    return;
  if (info.ssi_signo == SIGUSR1) {
    api->stopping = true;
    http_set_stopping(api->http);
    gate_close_listeners(api->gate);
  } else if (api->stopping) {
    ws_stop(api->ws);
  } else {
    api->stopping = true;
    http_set_stopping(api->http);
    gate_close_listeners(api->gate);
    ws_close_all(api->ws, 1001, "the agent is stopping", loop_now(api->loop) + 2 * CLOCK_SECOND, on_sessions_closed,
                 api);
  }
}

static int listen_all(struct api *api, struct error *err) {
  for (size_t i = 0; i < api->config.n_listen; i++) {
    const struct config_listen *listen = &api->config.listen[i];
    if (gate_listen(api->gate, (const struct sockaddr *)&listen->address, listen->length, listen->optional, err) < 0)
      return -1;
  }
  return 0;
}

static int build(struct api *api, struct error *err) {
  if (!(api->loop = loop_new(NULL, err)) || !(api->ws = ws_new(api->loop, &api->options, api, err)) ||
      !(api->http = http_new(api->loop, &api->options, routes, sizeof routes / sizeof *routes, api, err)) ||
      !(api->gate = gate_new(api->loop, &api->options, api->ws, api->http, err)))
    return -1;
  return listen_all(api, err);
}

int main(int argc, char **argv) {
  struct error err = ERROR_INIT;
  struct api api = {.started = clock_monotonic()};
  struct loop_watch signals;
  sigset_t set;

  if (config_parse(&api.config, argc, argv, &err) < 0) {
    fprintf(stderr, "net_server: %s\n", err.message);
    return 2;
  }
  log_setup(2, api.config.log_format, api.config.log_level);
  raise_descriptor_limit();
  api.options = (struct net_options){.sandbox_id = api.config.sandbox_id,
                                     .token = api.config.token,
                                     .allow_origins = api.config.allow_origin,
                                     .n_allow_origins = api.config.n_allow_origin,
                                     .max_message = (size_t)api.config.max_message,
                                     .max_buffered = (size_t)api.config.max_buffered,
                                     .binary = getenv("NET_SERVER_BINARY") != NULL};
  const char *ping = getenv("NET_SERVER_PING_MS"); /* for tests that cannot wait for 20 s */
  if (ping)
    api.options.ping_after = api.options.drop_after = atol(ping) * CLOCK_MS;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGUSR1);
  sigprocmask(SIG_BLOCK, &set, NULL);
  cleanup_close int signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  loop_watch_init(&signals);
  int code = 1;
  if (build(&api, &err) < 0 || loop_watch_start(api.loop, &signals, signal_fd, EPOLLIN, on_signal, &api) < 0) {
    fprintf(stderr, "net_server: %s\n", err.message);
  } else {
    ws_run(api.ws);
    code = 0;
    loop_watch_stop(api.loop, &signals);
  }
  gate_free(api.gate);
  http_free(api.http);
  ws_free(api.ws);
  loop_free(api.loop);
  config_free(&api.config);
  return code;
}
