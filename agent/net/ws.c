#include "sandkeeper/net/ws.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/net/ws_session.h"

#include <errno.h>
#include <fcntl.h>
#include <libwebsockets.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* The library has a table with a place for each descriptor the process may have, and looks descriptors up by scanning
 * it when it is told to make a smaller one. So it is made under a lowered limit of descriptors. */
#define FD_LIMIT 16384

/* What one read takes from a socket. The library has one such buffer for all, and allocates one for each session of
 * which it uses the first bytes only, so that the rest never becomes resident. */
#define READ_SIZE (32 * 1024)
#define SERVICE_SIZE (64 * 1024)
#define WRITE_SIZE (256 * 1024) /* more than any frame of ours */

#define PING_AFTER (20 * CLOCK_SECOND)
#define DROP_AFTER (20 * CLOCK_SECOND)

/* One in so many descriptors is left to the rest of the agent. */
#define FD_RESERVED_PART 8

/* ---- the library's memory ---- */

/* It clears its tables (16 bytes for each possible descriptor) and buffers when it starts, which makes all of them
 * resident. Their blocks are noted, and the pages that hold nothing but zeros given back to the kernel, to come again
 * when they are used. These are the only globals; the library takes a function without an argument. */
#define BLOCKS_MAX 8
#define BLOCK_LEAST (16 * 1024)

static struct {
  bool noting;
  unsigned n;
  struct {
    void *at;
    size_t size;
  } blocks[BLOCKS_MAX];
} memory;

static void *allocate(void *old, size_t size, const char *reason) {
  (void)reason;
  if (size == 0) {
    free(old);
    return NULL;
  }
  void *block = realloc(old, size);
  if (memory.noting && block && size >= BLOCK_LEAST && memory.n < BLOCKS_MAX) {
    memory.blocks[memory.n].at = block;
    memory.blocks[memory.n++].size = size;
  }
  return block;
}

static bool is_zero(const char *page, size_t size) {
  return page[0] == 0 && memcmp(page, page + 1, size - 1) == 0;
}

static void release_zero_pages(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  for (unsigned i = 0; i < memory.n; i++) {
    uintptr_t at = ((uintptr_t)memory.blocks[i].at + page - 1) / page * page;
    uintptr_t end = (uintptr_t)memory.blocks[i].at + memory.blocks[i].size;
    for (; at + page <= end; at += page)
      if (is_zero((const char *)at, page))
        madvise((void *)at, page, MADV_DONTNEED);
  }
  memory.n = 0;
}

/* ---- signs of life ---- */

static int64_t ping_after(const struct ws *ws) {
  return ws->options->ping_after > 0 ? ws->options->ping_after : PING_AFTER;
}

static int64_t drop_after(const struct ws *ws) {
  return ws->options->drop_after > 0 ? ws->options->drop_after : DROP_AFTER;
}

static void on_silence(struct loop_timer *timer);

static void start_ping_timer(struct ws *ws) {
  struct ws_session *alive = LIST_FIRST(&ws->alive, struct ws_session, node);
  struct ws_session *pinged = LIST_FIRST(&ws->pinged, struct ws_session, node);
  int64_t earliest = CLOCK_NEVER;
  if (alive)
    earliest = alive->since + ping_after(ws);
  if (pinged && pinged->since + drop_after(ws) < earliest)
    earliest = pinged->since + drop_after(ws);
  if (earliest != CLOCK_NEVER)
    loop_timer_start(ws->loop, &ws->ping_timer, earliest, on_silence, ws);
}

static void place(struct ws_session *session, struct list *list) {
  list_remove(&session->node);
  list_append(list, &session->node);
  session->since = loop_now(session->ws->loop);
}

/* The timer is left as it is: it fires at most once in 20 s for nothing. */
void ws_session_touch(struct ws_session *session) {
  if (session->rpc)
    place(session, &session->ws->alive);
}

/* Not silent: held, so that its pong cannot be read; or not heard yet, because the whole agent was stopped for a while.
 */
static bool is_excused(const struct ws_session *session) {
  int unread = 0;
  return session->held || (ioctl(session->fd, FIONREAD, &unread) == 0 && unread > 0);
}

static void on_silence(struct loop_timer *timer) {
  struct ws *ws = timer->arg;
  int64_t now = loop_now(ws->loop);
  struct ws_session *session;
  while ((session = LIST_FIRST(&ws->pinged, struct ws_session, node)) && session->since + drop_after(ws) <= now) {
    if (is_excused(session)) {
      place(session, &ws->alive);
      continue;
    }
    LOG(LOG_INFO, "ws", "no answer to a ping", LOG_S("address", session->address));
    list_remove(&session->node);
    ws_session_kill(session);
  }
  while ((session = LIST_FIRST(&ws->alive, struct ws_session, node)) && session->since + ping_after(ws) <= now) {
    place(session, &ws->pinged);
    session->ping_due = true;
    ws_session_ask_turn(session);
  }
  start_ping_timer(ws);
}

/* A peer that is gone without a word is found by the pings only while nothing is on its way to it; when something is,
 * TCP would try for a quarter of an hour. */
static void set_tcp_timeout(const struct ws *ws, int fd) {
  unsigned ms = (unsigned)((ping_after(ws) + drop_after(ws)) / CLOCK_MS);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms); /* fails for a unix socket, which needs none */
}

/* ---- sessions come and go ---- */

static void session_free(struct ws_session *session) {
  struct ws *ws = session->ws;
  ws_session_end(session);
  if (ws->served == session)
    ws->served = NULL;
  loop_watch_stop(ws->loop, &session->watch);
  loop_task_cancel(&session->task);
  loop_timer_stop(ws->loop, &session->timer);
  free(session->protocol);
  free(session->address);
  free(session);
}

static void on_all_closed(struct loop_task *task) {
  struct ws *ws = task->arg;
  void (*closed)(void *arg) = ws->closed;
  ws->closed = NULL;
  loop_timer_stop(ws->loop, &ws->close_timer);
  if (closed)
    closed(ws->closed_arg);
}

static void session_gone(struct ws_session *session) {
  struct ws *ws = session->ws;
  session_free(session);
  ws->n_sessions--;
  if (ws->n_sessions == 0 && ws->closing)
    loop_defer(ws->loop, &ws->close_task, on_all_closed, ws);
}

bool ws_has_room(const struct ws *ws, int fd) {
  return fd < ws->fd_limit && ws->n_sessions < (unsigned)(ws->fd_limit - ws->fd_limit / FD_RESERVED_PART);
}

static struct ws_session *session_new(struct ws *ws, const struct upgrade *upgrade, const char *peer_address) {
  struct ws_session *session = calloc(1, sizeof *session);
  if (!session)
    return NULL;
  session->ws = ws;
  session->fd = -1;
  session->peer.max_message = upgrade->max_message;
  memcpy(session->key, upgrade->key, sizeof session->key);
  list_init(&session->node);
  loop_watch_init(&session->watch);
  loop_task_init(&session->task);
  loop_timer_init(&session->timer);
  buf_init(&session->in, ws->options->max_message, 0);
  buf_init(&session->out, ws->options->max_message, BUF_HEADROOM);
  session->address = strdup(peer_address);
  if (upgrade->protocol.at)
    session->protocol = strndup(upgrade->protocol.at, upgrade->protocol.len);
  if (!session->address || (upgrade->protocol.at && !session->protocol)) {
    session_free(session);
    return NULL;
  }
  return session;
}

/* The library reads a head of our own making, which has nothing but what it needs, so that the client's odd ones never
 * reach its parser. */
void ws_adopt(struct ws *ws, int fd, const struct upgrade *upgrade, const char *peer_address) {
  struct ws_session *session = session_new(ws, upgrade, peer_address);
  if (!session) {
    close(fd);
    return;
  }
  char head[256];
  int len = snprintf(head, sizeof head,
                     "GET /ws HTTP/1.1\r\nHost: sandkeeper\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n",
                     session->key);
  ws->n_sessions++;
  ws->born = session;
  ws->served = session;
  session->fd = fd; /* the library's now, whatever happens */
  set_tcp_timeout(ws, fd);
  lws_adopt_socket_vhost_readbuf(ws->vhost, fd, head, (size_t)len);
  if (ws->born) { /* it never came so far as to tell us of it */
    ws->born = NULL;
    session_gone(session);
  }
  if (!ws->served)
    return;
  ws->served = NULL;
  if (session->watch.fd < 0) /* without memory it puts the handshake off */
    ws_session_kill(session);
  else if (session->turn_due)
    ws_session_ask_turn(session);
}

/* ---- the library's events ---- */

static void take_born(struct ws *ws, struct lws *wsi) {
  if (!ws->born)
    return;
  ws->born->wsi = wsi;
  lws_set_opaque_user_data(wsi, ws->born);
  ws->born = NULL;
}

/* The subprotocol in the answer to the handshake; `in` says where the library's buffer is. */
static int add_headers(struct ws_session *session, struct lws_process_html_args *args) {
  if (!session->protocol)
    return 0;
  int len = snprintf(args->p, (size_t)args->max_len, "Sec-WebSocket-Protocol: %s\r\n", session->protocol);
  if (len < 0 || len >= args->max_len)
    return -1;
  args->p += len;
  return 0;
}

static int on_session(struct ws_session *session, enum lws_callback_reasons reason, void *in, size_t len) {
  struct ws *ws = session->ws;
  switch ((int)reason) {
  case LWS_CALLBACK_ADD_HEADERS:
    return add_headers(session, in);
  case LWS_CALLBACK_ESTABLISHED:
    free(session->protocol);
    session->protocol = NULL;
    int opened = ws_session_opened(session);
    ws_session_touch(session);
    if (!loop_timer_is_started(&ws->ping_timer))
      start_ping_timer(ws);
    return opened;
  case LWS_CALLBACK_RECEIVE:
    return ws_session_receive(session, in, len);
  case LWS_CALLBACK_RECEIVE_PONG:
    ws_session_touch(session);
    return 0;
  case LWS_CALLBACK_SERVER_WRITEABLE:
    return ws_session_writeable(session);
  case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
    return ws_session_peer_closes(session, len);
  case LWS_CALLBACK_WS_SERVER_DROP_PROTOCOL:
    ws_session_fails(session);
    return 0;
  case LWS_CALLBACK_CLOSED:
    /* Before the descriptor is closed: a child between clone and exec has a copy of it, and the closing alone would
     * leave it in the epoll instance, with a pointer to a session that is gone. */
    loop_watch_stop(ws->loop, &session->watch);
    ws_session_end(session);
    return 0;
  case LWS_CALLBACK_WSI_DESTROY:
    session_gone(session);
    return 0;
  default:
    return 0;
  }
}

static void on_poll_change(struct ws_session *session) {
  if (session && session->ws->inside == 0) {
    session->ws->inside++;
    ws_session_polled(session);
    session->ws->inside--;
  }
}

static int on_event(struct lws *wsi, enum lws_callback_reasons reason, void *user, void *in, size_t len) {
  (void)user;
  switch ((int)reason) {
  case LWS_CALLBACK_GET_THREAD_ID:
    on_poll_change(lws_get_opaque_user_data(wsi));
    return 1;
  case LWS_CALLBACK_SERVER_NEW_CLIENT_INSTANTIATED:
    take_born(lws_context_user(lws_get_context(wsi)), wsi);
    return 0;
  case LWS_CALLBACK_ADD_HEADERS:
  case LWS_CALLBACK_ESTABLISHED:
  case LWS_CALLBACK_RECEIVE:
  case LWS_CALLBACK_RECEIVE_PONG:
  case LWS_CALLBACK_SERVER_WRITEABLE:
  case LWS_CALLBACK_WS_PEER_INITIATED_CLOSE:
  case LWS_CALLBACK_WS_SERVER_DROP_PROTOCOL:
  case LWS_CALLBACK_CLOSED:
  case LWS_CALLBACK_WSI_DESTROY: {
    struct ws_session *session = lws_get_opaque_user_data(wsi);
    if (!session)
      return 0;
    struct ws *ws = session->ws; /* the session may be gone afterwards */
    ws->inside++;
    int result = on_session(session, reason, in, len);
    ws->inside--;
    return result;
  }
  default:
    return 0;
  }
}

/* The byte of user space is not used; without any, the library does not say that it begins to close. */
static const struct lws_protocols protocols[] = {
    {.name = "sandkeeper",
     .callback = on_event,
     .per_session_data_size = 1,
     .rx_buffer_size = READ_SIZE,
     .tx_packet_size = WRITE_SIZE},
    {0},
};

/* The library logs as an error that it takes a socket with a head read before. */
static void on_log(int level, const char *line) {
  char text[256];
  (void)level;
  if (strstr(line, "adopt_socket_readbuf"))
    return;
  snprintf(text, sizeof text, "%.*s", (int)strcspn(line, "\n"), line);
  LOG(LOG_WARN, "ws", "library", LOG_S("message", text));
}

/* ---- life ---- */

/* No ping of the library's own: it sends one every so often to busy sessions too, and drops those that are held. */
static const lws_retry_bo_t no_pings = {0};

static struct lws_context *create_context(struct ws *ws) {
  struct lws_context_creation_info info = {
      .port = CONTEXT_PORT_NO_LISTEN,
      .options = LWS_SERVER_OPTION_EXPLICIT_VHOSTS | LWS_SERVER_OPTION_VALIDATE_UTF8 |
                 LWS_SERVER_OPTION_SKIP_SERVER_CANONICAL_NAME,
      .gid = -1,
      .uid = -1,
      .pt_serv_buf_size = SERVICE_SIZE,
      .max_http_header_pool = 4,
      .max_http_header_data = 1024,
      .protocols = protocols,
      .retry_and_idle_policy = &no_pings,
      .user = ws,
  };
  lws_set_log_level(LLL_ERR, on_log);
  lws_set_allocator(allocate);
  memory.noting = true;
  struct lws_context *context = lws_create_context(&info);
  memory.noting = false;
  if (!context)
    return NULL;
  info.vhost_name = "sandkeeper";
  ws->vhost = lws_create_vhost(context, &info);
  release_zero_pages();
  if (!ws->vhost) {
    lws_context_destroy(context);
    return NULL;
  }
  return context;
}

static struct lws_context *create_context_with_limit(struct ws *ws) {
  struct rlimit limit, lowered;
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
    return NULL;
  lowered = limit;
  if (lowered.rlim_cur > FD_LIMIT)
    lowered.rlim_cur = FD_LIMIT;
  ws->fd_limit = (int)lowered.rlim_cur;
  setrlimit(RLIMIT_NOFILE, &lowered);
  struct lws_context *context = create_context(ws);
  setrlimit(RLIMIT_NOFILE, &limit);
  return context;
}

struct ws *ws_new(struct loop *loop, const struct net_options *options, struct api *api, struct error *err) {
  struct ws *ws = calloc(1, sizeof *ws);
  if (!ws) {
    error_set_errno(err, ENOMEM, "WebSocket server");
    return NULL;
  }
  ws->loop = loop;
  ws->options = options;
  ws->api = api;
  list_init(&ws->alive);
  list_init(&ws->pinged);
  loop_timer_init(&ws->ping_timer);
  loop_timer_init(&ws->close_timer);
  loop_task_init(&ws->close_task);
  buf_init(&ws->out, options->max_message, BUF_HEADROOM);
  ws->context = create_context_with_limit(ws);
  if (!ws->context) {
    error_set(err, ERROR_INTERNAL, 0, "WebSocket server: libwebsockets does not start");
    ws_free(ws);
    return NULL;
  }
  /* What it leaves for the first turns of its own loop, which is never run again. A negative time is none. */
  for (int i = 0; i < 3; i++)
    lws_service(ws->context, -1);
  fd_cloexec_from(3); /* it opens its own without */
  return ws;
}

void ws_free(struct ws *ws) {
  if (!ws)
    return;
  ws->closed = NULL;
  if (ws->context)
    lws_context_destroy(ws->context);
  loop_timer_stop(ws->loop, &ws->ping_timer);
  loop_timer_stop(ws->loop, &ws->close_timer);
  loop_task_cancel(&ws->close_task);
  buf_free(&ws->out);
  free(ws);
}

void ws_run(struct ws *ws) {
  while (!ws->stop)
    loop_run_once(ws->loop, -1);
  ws->stop = false;
}

void ws_stop(struct ws *ws) {
  ws->stop = true;
}

static void on_close_deadline(struct loop_timer *timer) {
  struct ws *ws = timer->arg;
  struct list *const lists[] = {&ws->alive, &ws->pinged};
  for (size_t i = 0; i < 2; i++)
    LIST_FOREACH (lists[i], node)
      ws_session_kill(LIST_OWNER(node, struct ws_session, node));
  loop_defer(ws->loop, &ws->close_task, on_all_closed, ws);
}

void ws_close_all(struct ws *ws, unsigned code, const char *reason, int64_t deadline, void (*done)(void *arg),
                  void *arg) {
  struct list *const lists[] = {&ws->alive, &ws->pinged};
  ws->closing = true;
  ws->close_code = code;
  snprintf(ws->close_reason, sizeof ws->close_reason, "%s", reason);
  ws->closed = done;
  ws->closed_arg = arg;
  for (size_t i = 0; i < 2; i++)
    LIST_FOREACH (lists[i], node)
      ws_session_ask_turn(LIST_OWNER(node, struct ws_session, node));
  if (ws->n_sessions == 0)
    loop_defer(ws->loop, &ws->close_task, on_all_closed, ws);
  else
    loop_timer_start(ws->loop, &ws->close_timer, deadline, on_close_deadline, ws);
}

struct ws_stats ws_stats(const struct ws *ws) {
  return (struct ws_stats){.sessions = ws->n_sessions, .buffered = ws->buffered};
}
