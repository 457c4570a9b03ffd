#include "sandkeeper/net/http.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/net/http_exchange.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define CONNECTIONS_MAX 2048
/* So many are kept free, at the expense of those that ask for nothing: a health probe must not find the door shut. */
#define CONNECTIONS_SPARE 64

/* Bytes a connection: its head, and the pieces of body and answer under way. libmicrohttpd 0.9.75 takes pools of up to
 * 32 KiB from the heap, where those of connections that are gone stay as holes, and larger ones from mmap(2). */
#define POOL_SIZE (36 * 1024)

#define IDLE_TIMEOUT 60u /* seconds without a byte in either direction, while one is due */

#define FIRST_HEAD_TIME (10 * CLOCK_SECOND)
#define NEXT_HEAD_TIME (60 * CLOCK_SECOND)
#define BODY_TIME (20 * CLOCK_SECOND)
#define BODY_TIME_PER_BYTE (2 * CLOCK_MS)
#define BODY_TIME_MAX (60 * CLOCK_SECOND)

/* Turns of the library in one go while it has more to do, before others get theirs. */
#define RUNS_PER_TURN 4

/* ---- running the library ---- */

static void on_timer(struct loop_timer *timer);

/* The client's end is all that is left to be read. */
static bool is_read_to_its_end(const struct http_connection *connection) {
  const struct http_exchange *exchange = connection->exchange;
  int unread = 0;
  if (exchange && exchange->phase == HTTP_PHASE_COMPLETE)
    return false; /* its answer is under way */
  return ioctl(connection->fd, FIONREAD, &unread) == 0 && unread == 0;
}

/* When a client's end comes together with its last bytes, the library does not see it: its edge-triggered wait has told
 * of both at once, and it does not look again after a read that gave less than it asked for. This is called when it has
 * nothing left to do. */
static void cut_ended(struct http *http) {
  LIST_FOREACH (&http->ended, node) {
    struct http_connection *connection = LIST_OWNER(node, struct http_connection, ended_node);
    if (is_read_to_its_end(connection)) {
      list_remove(node);
      shutdown(connection->fd, SHUT_RDWR);
    }
  }
}

/* Its epoll is edge-triggered: what it has seen and not yet handled it tells only through the timeout (0), so this must
 * be asked after every run, resume and new connection, or it stalls. */
static void run(struct http *http) {
  MHD_UNSIGNED_LONG_LONG timeout_ms = 0;
  for (int i = 0; i < RUNS_PER_TURN; i++) {
    MHD_run(http->daemon);
    if (MHD_get_timeout(http->daemon, &timeout_ms) != MHD_YES) {
      loop_timer_stop(http->loop, &http->timer);
      cut_ended(http);
      return;
    }
    if (timeout_ms > 0) {
      cut_ended(http);
      int64_t deadline = loop_now(http->loop) + (int64_t)timeout_ms * CLOCK_MS;
      loop_timer_start(http->loop, &http->timer, deadline, on_timer, http);
      return;
    }
  }
  http_run_soon(http);
}

static void on_timer(struct loop_timer *timer) {
  run(timer->arg);
}

static void on_task(struct loop_task *task) {
  run(task->arg);
}

static void on_epoll(struct loop_watch *watch, uint32_t events) {
  (void)events;
  run(watch->arg);
}

void http_run_soon(struct http *http) {
  loop_defer(http->loop, &http->run, on_task, http);
}

/* ---- clients' clocks ---- */

void http_cut(struct http_connection *connection, const char *why) {
  LOG(LOG_INFO, "http", "connection cut", LOG_S("address", connection->address), LOG_S("reason", why));
  shutdown(connection->fd, SHUT_RDWR);
}

static void on_head_late(struct loop_timer *timer) {
  struct http_connection *connection = timer->arg;
  shutdown(connection->fd, SHUT_RDWR);
}

void http_expect_head(struct http_connection *connection, int64_t within) {
  struct loop *loop = connection->http->loop;
  loop_timer_start(loop, &connection->timer, loop_now(loop) + within, on_head_late, connection);
}

static void on_body_late(struct loop_timer *timer) {
  struct http_connection *connection = timer->arg;
  struct loop *loop = connection->http->loop;
  if (loop_now(loop) < connection->body_until)
    loop_timer_start(loop, &connection->timer, connection->body_until, on_body_late, connection);
  else
    http_cut(connection, "the request's body comes too slowly");
}

void http_expect_body(struct http_connection *connection) {
  struct loop *loop = connection->http->loop;
  connection->body_until = loop_now(loop) + BODY_TIME;
  loop_timer_start(loop, &connection->timer, connection->body_until, on_body_late, connection);
}

void http_body_came(struct http_connection *connection, size_t len) {
  int64_t latest = loop_now(connection->http->loop) + BODY_TIME_MAX;
  connection->body_until += (int64_t)len * BODY_TIME_PER_BYTE;
  if (connection->body_until > latest)
    connection->body_until = latest;
}

void http_expect_nothing(struct http_connection *connection) {
  loop_timer_stop(connection->http->loop, &connection->timer);
}

/* ---- what the library tells us ---- */

static int connection_fd(struct MHD_Connection *mhd) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
  return info ? info->connect_fd : -1;
}

/* Who only closes its sending side counts as gone while it waits; it cannot be told apart. */
static void on_hangup(struct loop_watch *watch, uint32_t events) {
  struct http_connection *connection = watch->arg;
  struct http *http = connection->http;
  (void)events;
  loop_watch_stop(http->loop, watch);
  connection->half_closed = true;
  list_append(&http->ended, &connection->ended_node);
  if (connection->exchange && connection->exchange->suspended)
    http_exchange_leave(connection->exchange);
  http_run_soon(http);
}

static void connection_opened(struct http *http, struct MHD_Connection *mhd, void **context) {
  struct http_connection *connection = calloc(1, sizeof *connection);
  *context = connection;
  if (!connection)
    return;
  connection->http = http;
  connection->fd = connection_fd(mhd);
  struct sockaddr_storage address = {0};
  socklen_t length = sizeof address;
  if (getpeername(connection->fd, (struct sockaddr *)&address, &length) < 0)
    length = 0;
  address_text((const struct sockaddr *)&address, length, connection->address);
  loop_timer_init(&connection->timer);
  loop_watch_init(&connection->watch);
  list_init(&connection->ended_node);
  list_init(&connection->idle_node);
  if (loop_watch_start(http->loop, &connection->watch, connection->fd, EPOLLRDHUP | EPOLLET, on_hangup, connection) < 0)
    LOG(LOG_WARN, "http", "client not watched", LOG_S("address", connection->address));
  list_append(&http->connections, &connection->node);
  http_expect_head(connection, FIRST_HEAD_TIME);
}

static void connection_closed(void **context) {
  struct http_connection *connection = *context;
  *context = NULL;
  if (!connection)
    return;
  loop_timer_stop(connection->http->loop, &connection->timer);
  loop_watch_stop(connection->http->loop, &connection->watch);
  list_remove(&connection->node);
  list_remove(&connection->ended_node);
  list_remove(&connection->idle_node);
  free(connection);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code) {
  struct http *http = arg;
  if (code == MHD_CONNECTION_NOTIFY_STARTED) {
    http->n_connections++;
    connection_opened(http, mhd, context);
  } else {
    http->n_connections--;
    connection_closed(context);
  }
}

static struct http_connection *connection_of(struct MHD_Connection *mhd) {
  const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info ? info->socket_context : NULL;
}

/* The request line has come. What this returns is handed to on_request(). */
static void *on_target(void *arg, const char *target, struct MHD_Connection *mhd) {
  struct http_connection *connection = connection_of(mhd);
  (void)arg;
  if (!connection)
    return NULL;
  list_remove(&connection->idle_node);
  return http_exchange_new(connection, mhd, target);
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *bytes, size_t *len, void **context) {
  (void)arg, (void)mhd, (void)url;
  if (!*context)
    return MHD_NO;
  return http_exchange_continue(*context, method, version, bytes, len) ? MHD_YES : MHD_NO;
}

static void on_completed(void *arg, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode code) {
  struct http *http = arg;
  (void)code;
  struct http_exchange *exchange = *context;
  *context = NULL;
  struct http_connection *connection = connection_of(mhd);
  if (exchange)
    http_exchange_end(exchange);
  if (connection) {
    http_expect_head(connection, NEXT_HEAD_TIME);
    list_append(&http->idle, &connection->idle_node);
  }
}

/* The library would decode the path in place; routes get it as it was sent. */
static size_t leave_encoded(void *arg, struct MHD_Connection *mhd, char *text) {
  (void)arg, (void)mhd;
  return strlen(text);
}

/* It would abort(). It is called for faults that leave it in an unknown state, such as a descriptor that somebody else
 * has closed; none is known that a client can bring about. Going on is worse for one client, aborting for all. */
static void on_panic(void *arg, const char *file, unsigned line, const char *reason) {
  (void)arg, (void)file;
  LOG(LOG_ERROR, "http", "library panic", LOG_S("reason", reason), LOG_I("line", line));
}

/* ---- life ---- */

static struct MHD_Daemon *start_daemon(struct http *http) {
  MHD_set_panic_func(on_panic, NULL);
  return MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request, http,
      MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_URI_LOG_CALLBACK, on_target, http,
      MHD_OPTION_NOTIFY_COMPLETED, on_completed, http, MHD_OPTION_UNESCAPE_CALLBACK, leave_encoded, NULL,
      MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_TIMEOUT,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_SIZE, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
}

struct http *http_new(struct loop *loop, const struct net_options *options, const struct route *routes, size_t n_routes,
                      struct api *api, struct error *err) {
  struct http *http = calloc(1, sizeof *http);
  if (!http) {
    error_set_errno(err, ENOMEM, "HTTP server");
    return NULL;
  }
  http->loop = loop;
  http->options = options;
  http->routes = routes;
  http->n_routes = n_routes;
  http->api = api;
  loop_watch_init(&http->watch);
  loop_timer_init(&http->timer);
  loop_timer_init(&http->finish_timer);
  loop_task_init(&http->run);
  loop_task_init(&http->finish_task);
  list_init(&http->connections);
  list_init(&http->ended);
  list_init(&http->idle);
  http->daemon = start_daemon(http);
  const union MHD_DaemonInfo *info = http->daemon ? MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
  if (!info || loop_watch_start(loop, &http->watch, info->epoll_fd, EPOLLIN, on_epoll, http) < 0) {
    error_set(err, ERROR_INTERNAL, 0, "HTTP server: libmicrohttpd does not start");
    http_free(http);
    return NULL;
  }
  return http;
}

void http_free(struct http *http) {
  if (!http)
    return;
  http->finished = NULL;
  if (http->daemon) {
    /* It refuses to stop while connections are suspended. */
    LIST_FOREACH (&http->connections, node) {
      struct http_connection *connection = LIST_OWNER(node, struct http_connection, node);
      if (connection->exchange)
        http_exchange_leave(connection->exchange);
    }
    MHD_run(http->daemon);
    loop_watch_stop(http->loop, &http->watch);
    MHD_stop_daemon(http->daemon);
  }
  loop_timer_stop(http->loop, &http->timer);
  loop_timer_stop(http->loop, &http->finish_timer);
  loop_task_cancel(&http->run);
  loop_task_cancel(&http->finish_task);
  free(http);
}

bool http_make_room(struct http *http) {
  if (http->n_connections >= CONNECTIONS_MAX - CONNECTIONS_SPARE && !list_is_empty(&http->idle)) {
    struct http_connection *longest = LIST_FIRST(&http->idle, struct http_connection, idle_node);
    list_remove(&longest->idle_node);
    http_cut(longest, "it is idle, and there are too many");
  }
  return http->n_connections < CONNECTIONS_MAX;
}

void http_adopt(struct http *http, int fd, const struct sockaddr *address, socklen_t length) {
  if (MHD_add_connection(http->daemon, fd, address, length) != MHD_YES) /* the library has closed it then */
    LOG(LOG_WARN, "http", "connection not taken", LOG_S("reason", strerror(errno)));
  http_run_soon(http);
}

void http_set_stopping(struct http *http) {
  http->stopping = true;
}

void http_observe(struct http *http, http_observer_fn *fn, void *arg) {
  http->observer = fn;
  http->observer_arg = arg;
}

/* ---- the end ---- */

static bool answers_are_under_way(const struct http *http) {
  LIST_FOREACH (&http->connections, node) {
    const struct http_connection *connection = LIST_OWNER(node, struct http_connection, node);
    if (connection->exchange && connection->exchange->phase == HTTP_PHASE_COMPLETE)
      return true;
  }
  return false;
}

static void finish(struct http *http) {
  void (*finished)(void *arg) = http->finished;
  http->finished = NULL;
  loop_timer_stop(http->loop, &http->finish_timer);
  finished(http->finished_arg);
}

static void on_finish_task(struct loop_task *task) {
  struct http *http = task->arg;
  if (http->finished && !answers_are_under_way(http))
    finish(http);
}

static void on_finish_late(struct loop_timer *timer) {
  finish(timer->arg);
}

void http_look_if_finished(struct http *http) {
  if (http->finished)
    loop_defer(http->loop, &http->finish_task, on_finish_task, http);
}

void http_finish(struct http *http, int64_t deadline, void (*done)(void *arg), void *arg) {
  http->finished = done;
  http->finished_arg = arg;
  if (loop_timer_start(http->loop, &http->finish_timer, deadline, on_finish_late, http) < 0)
    finish(http); /* no memory for the timer: nobody is waited for */
  else
    http_look_if_finished(http);
}

struct http_stats http_stats(const struct http *http) {
  return (struct http_stats){.connections = http->n_connections, .exchanges = http->n_exchanges};
}
