#include "sandkeeper/net/gate.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/net/access.h"
#include "sandkeeper/net/http_head.h"
#include "sandkeeper/net/listener.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define LISTENERS_MAX 16
#define WAITING_MAX 1024
#define ACCEPTS_PER_EVENT 64
#define HEAD_TIME (5 * CLOCK_SECOND)
#define DRAIN_TIME (2 * CLOCK_SECOND)
#define DRAIN_MAX (1024 * 1024)
#define PAUSE_TIME (100 * CLOCK_MS)

/* An accepted connection that nobody has yet. */
struct visitor {
  struct gate *gate;
  struct list node; /* in `waiting` or in `draining`, both in the order of their deadlines */
  struct loop_watch watch;
  int64_t deadline;
  int fd;
  size_t seen;    /* bytes of the head that were there at the last look */
  size_t drained; /* bytes thrown away after the answer */
  struct sockaddr_storage address;
  socklen_t address_length;
};

struct listener {
  struct gate *gate;
  struct loop_watch watch;
  int fd;
};

struct gate {
  struct loop *loop;
  const struct net_options *options;
  struct ws *ws;
  struct http *http;

  struct listener listeners[LISTENERS_MAX];
  unsigned n_listeners;
  uint16_t picked_port; /* by the kernel, for port 0 */
  uint16_t first_port;

  struct list waiting, draining;
  unsigned n_waiting;
  struct loop_timer timer; /* the earliest deadline */

  bool stopping;
  int spare_fd; /* given up for a moment to tell a client that there are no descriptors left */
  struct loop_timer pause;
};

static void visitor_free(struct visitor *visitor) {
  struct gate *gate = visitor->gate;
  loop_watch_stop(gate->loop, &visitor->watch);
  list_remove(&visitor->node);
  fd_close(&visitor->fd);
  free(visitor);
}

/* ---- deadlines ---- */

static void on_deadline(struct loop_timer *timer);

static void arm_deadline(struct gate *gate) {
  struct visitor *waiting = LIST_FIRST(&gate->waiting, struct visitor, node);
  struct visitor *draining = LIST_FIRST(&gate->draining, struct visitor, node);
  int64_t earliest = CLOCK_NEVER;
  if (waiting)
    earliest = waiting->deadline;
  if (draining && draining->deadline < earliest)
    earliest = draining->deadline;
  if (earliest == CLOCK_NEVER)
    loop_timer_stop(gate->loop, &gate->timer);
  else if (!loop_timer_is_started(&gate->timer) || gate->timer.deadline != earliest)
    loop_timer_start(gate->loop, &gate->timer, earliest, on_deadline, gate);
}

/* ---- answers of our own ---- */

static const char *reason_phrase(unsigned status) {
  switch (status) {
  case 400:
    return "Bad Request";
  case 408:
    return "Request Timeout";
  case 431:
    return "Request Header Fields Too Large";
  case 501:
    return "Not Implemented";
  case 503:
    return "Service Unavailable";
  case 505:
    return "HTTP Version Not Supported";
  default:
    return "Error";
  }
}

/* One short write into a fresh socket: it fits, or the client has gone. The messages are our own literals and need no
 * escaping. */
static void send_answer(int fd, unsigned status, const char *message) {
  char body[256], answer[512];
  int body_len =
      snprintf(body, sizeof body, "{\"code\":%u,\"message\":\"%s\",\"error\":{\"code\":%u,\"message\":\"%s\"}}", status,
               message, status, message);
  int len =
      snprintf(answer, sizeof answer,
               "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
               status, reason_phrase(status), body_len, body);
  if (body_len > 0 && (size_t)body_len < sizeof body && len > 0 && (size_t)len < sizeof answer)
    (void)!send(fd, answer, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void on_drainable(struct loop_watch *watch, uint32_t events);

/* Closing at once while bytes of the client are unread would reset the connection, and the answer with it. */
static void answer_and_drain(struct visitor *visitor, unsigned status, const char *message) {
  struct gate *gate = visitor->gate;
  send_answer(visitor->fd, status, message);
  LOG(LOG_INFO, "gate", "refused", LOG_I("status", status), LOG_S("reason", message));
  shutdown(visitor->fd, SHUT_WR);
  loop_watch_stop(gate->loop, &visitor->watch);
  list_remove(&visitor->node);
  list_append(&gate->draining, &visitor->node);
  visitor->deadline = loop_now(gate->loop) + DRAIN_TIME;
  if (loop_watch_start(gate->loop, &visitor->watch, visitor->fd, EPOLLIN, on_drainable, visitor) < 0)
    visitor_free(visitor);
}

static void on_drainable(struct loop_watch *watch, uint32_t events) {
  struct visitor *visitor = watch->arg;
  struct gate *gate = visitor->gate;
  char scratch[16384];
  ssize_t n = recv(visitor->fd, scratch, sizeof scratch, MSG_DONTWAIT);
  (void)events;
  if (n > 0)
    visitor->drained += (size_t)n;
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR) || visitor->drained > DRAIN_MAX) {
    visitor_free(visitor);
    arm_deadline(gate);
  }
}

/* ---- the head ---- */

static void leave_waiting(struct visitor *visitor) {
  list_remove(&visitor->node);
  visitor->gate->n_waiting--;
}

static void drop_waiting(struct visitor *visitor) {
  leave_waiting(visitor);
  visitor_free(visitor);
}

static void refuse_waiting(struct visitor *visitor, unsigned status, const char *message) {
  leave_waiting(visitor);
  answer_and_drain(visitor, status, message);
}

/* To the HTTP server, with nothing taken from the socket. */
static void hand_to_http(struct visitor *visitor) {
  struct gate *gate = visitor->gate;
  if (!http_make_room(gate->http)) {
    refuse_waiting(visitor, 503, "too many HTTP connections");
    return;
  }
  leave_waiting(visitor);
  loop_watch_stop(gate->loop, &visitor->watch);
  http_adopt(gate->http, fd_steal(&visitor->fd), (const struct sockaddr *)&visitor->address, visitor->address_length);
  visitor_free(visitor);
}

/* To the WebSocket server, without the head: it gets one of our own making, so that it never parses odd input. What
 * stands behind the head stays in the socket. */
static void hand_to_ws(struct visitor *visitor, const struct http_head *head, const struct upgrade *upgrade) {
  struct gate *gate = visitor->gate;
  char taken[HTTP_HEAD_MAX], text[ADDRESS_TEXT_SIZE];
  if (gate->stopping) {
    refuse_waiting(visitor, 503, "the agent is stopping");
    return;
  }
  if (!gate->ws || !ws_has_room(gate->ws, visitor->fd)) {
    refuse_waiting(visitor, 503, "too many WebSocket sessions");
    return;
  }
  if (recv(visitor->fd, taken, head->length, MSG_DONTWAIT) != (ssize_t)head->length) {
    drop_waiting(visitor);
    return;
  }
  address_text((const struct sockaddr *)&visitor->address, visitor->address_length, text);
  LOG(LOG_DEBUG, "gate", "websocket", LOG_S("address", text));
  access_note_client(head, text);
  leave_waiting(visitor);
  loop_watch_stop(gate->loop, &visitor->watch);
  ws_adopt(gate->ws, fd_steal(&visitor->fd), upgrade, text);
  visitor_free(visitor);
}

/* A refused upgrade goes to the HTTP server, which comes to the same refusal and answers it. */
static void hand_on(struct visitor *visitor, const struct http_head *head) {
  struct upgrade upgrade;
  struct refusal refusal = {0};
  if (head->upgrade_websocket && access_upgrade(visitor->gate->options, head, &upgrade, &refusal))
    hand_to_ws(visitor, head, &upgrade);
  else
    hand_to_http(visitor);
}

static void on_head(struct loop_watch *watch, uint32_t events);

/* Looks at what is there. `ended`: no more bytes will come. */
static void look(struct visitor *visitor, bool ended) {
  char bytes[HTTP_HEAD_MAX];
  struct http_head head;
  ssize_t n = recv(visitor->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    n = 0;
  else if (n <= 0)
    ended = true;
  visitor->seen = n > 0 ? (size_t)n : 0;
  enum http_head_state state = http_head_parse(&head, bytes, visitor->seen);
  if (state == HTTP_HEAD_BAD)
    refuse_waiting(visitor, head.status, head.reason);
  else if (state == HTTP_HEAD_WHOLE)
    hand_on(visitor, &head);
  else if (ended)
    drop_waiting(visitor);
  /* Edge-triggered: it fires for every arrival, where a level would spin on the bytes that stay in the socket.
   * (SO_RCVLOWAT would do for TCP; unix sockets do not heed it.) */
  else if (visitor->watch.fd < 0 && loop_watch_start(visitor->gate->loop, &visitor->watch, visitor->fd,
                                                     EPOLLIN | EPOLLRDHUP | EPOLLET, on_head, visitor) < 0)
    drop_waiting(visitor);
}

static void on_head(struct loop_watch *watch, uint32_t events) {
  struct visitor *visitor = watch->arg;
  struct gate *gate = visitor->gate;
  look(visitor, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0);
  arm_deadline(gate);
}

static void on_deadline(struct loop_timer *timer) {
  struct gate *gate = timer->arg;
  int64_t now = loop_now(gate->loop);
  struct visitor *visitor;
  while ((visitor = LIST_FIRST(&gate->draining, struct visitor, node)) && visitor->deadline <= now)
    visitor_free(visitor);
  while ((visitor = LIST_FIRST(&gate->waiting, struct visitor, node)) && visitor->deadline <= now) {
    if (visitor->seen > 0)
      refuse_waiting(visitor, 408, "the request's head took longer than 5 s");
    else
      drop_waiting(visitor);
  }
  arm_deadline(gate);
}

/* ---- accepting ---- */

static void add_visitor(struct gate *gate, int fd, const struct sockaddr_storage *address, socklen_t length) {
  struct visitor *visitor = calloc(1, sizeof *visitor);
  if (!visitor) {
    close(fd);
    return;
  }
  visitor->gate = gate;
  visitor->fd = fd;
  visitor->address = *address;
  visitor->address_length = length;
  visitor->deadline = loop_now(gate->loop) + HEAD_TIME;
  loop_watch_init(&visitor->watch);
  list_init(&visitor->node);
  if (gate->n_waiting == WAITING_MAX)
    drop_waiting(LIST_FIRST(&gate->waiting, struct visitor, node));
  list_append(&gate->waiting, &visitor->node);
  gate->n_waiting++;
  look(visitor, false); /* most clients have sent their head by now */
}

static void watch_listeners(struct gate *gate, uint32_t events) {
  for (unsigned i = 0; i < gate->n_listeners; i++)
    loop_watch_change(gate->loop, &gate->listeners[i].watch, events);
}

static void on_pause_over(struct loop_timer *timer) {
  struct gate *gate = timer->arg;
  if (gate->spare_fd < 0)
    gate->spare_fd = eventfd(0, EFD_CLOEXEC);
  watch_listeners(gate, EPOLLIN);
}

/* No descriptors or no memory: the listening socket stays readable, and accepting again at once would spin. One client
 * is told, with the spare descriptor; the others wait in the backlog. */
static void on_accept_failed(struct gate *gate, int listener_fd, int error) {
  LOG(LOG_WARN, "gate", "accept failed", LOG_S("reason", strerror(error)));
  if (error == EMFILE && gate->spare_fd >= 0) {
    fd_close(&gate->spare_fd);
    int fd = accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      send_answer(fd, 503, "no file descriptors left");
      close(fd);
    }
    gate->spare_fd = eventfd(0, EFD_CLOEXEC);
  }
  watch_listeners(gate, 0);
  loop_timer_start(gate->loop, &gate->pause, loop_now(gate->loop) + PAUSE_TIME, on_pause_over, gate);
}

/* accept(2) reports errors of the connection that was to be accepted; they are the client's affair. */
static bool is_clients_error(int error) {
  switch (error) {
  case EINTR:
  case ECONNABORTED:
  case EPROTO:
  case ENETDOWN:
  case ENOPROTOOPT:
  case EHOSTDOWN:
  case ENONET:
  case EHOSTUNREACH:
  case ENETUNREACH:
  case EPERM:
    return true;
  default:
    return false;
  }
}

static void on_connection(struct loop_watch *watch, uint32_t events) {
  struct listener *listener = watch->arg;
  struct gate *gate = listener->gate;
  (void)events;
  for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
    struct sockaddr_storage address = {0};
    socklen_t length = sizeof address;
    int fd = accept4(listener->fd, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      add_visitor(gate, fd, &address, length);
    } else if (errno == EAGAIN) {
      break;
    } else if (!is_clients_error(errno)) {
      on_accept_failed(gate, listener->fd, errno);
      break;
    }
  }
  arm_deadline(gate);
}

/* ---- life ---- */

struct gate *gate_new(struct loop *loop, const struct net_options *options, struct ws *ws, struct http *http,
                      struct error *err) {
  struct gate *gate = calloc(1, sizeof *gate);
  if (!gate) {
    error_set_errno(err, ENOMEM, "gate");
    return NULL;
  }
  gate->loop = loop;
  gate->options = options;
  gate->ws = ws;
  gate->http = http;
  gate->spare_fd = eventfd(0, EFD_CLOEXEC);
  list_init(&gate->waiting);
  list_init(&gate->draining);
  loop_timer_init(&gate->timer);
  loop_timer_init(&gate->pause);
  return gate;
}

void gate_set_stopping(struct gate *gate) {
  gate->stopping = true;
}

unsigned gate_port(const struct gate *gate) {
  return gate->first_port;
}

void gate_close_listeners(struct gate *gate) {
  for (unsigned i = 0; i < gate->n_listeners; i++) {
    loop_watch_stop(gate->loop, &gate->listeners[i].watch);
    listener_close(&gate->listeners[i].fd);
  }
  gate->n_listeners = 0;
  loop_timer_stop(gate->loop, &gate->pause);
}

void gate_free(struct gate *gate) {
  struct visitor *visitor;
  if (!gate)
    return;
  gate_close_listeners(gate);
  while ((visitor = LIST_FIRST(&gate->waiting, struct visitor, node)))
    drop_waiting(visitor);
  while ((visitor = LIST_FIRST(&gate->draining, struct visitor, node)))
    visitor_free(visitor);
  loop_timer_stop(gate->loop, &gate->timer);
  fd_close(&gate->spare_fd);
  free(gate);
}

/* Opens the address; for port 0 first with the port that another address has got. */
static int open_listener(struct gate *gate, const struct sockaddr *address, socklen_t length,
                         char text[static ADDRESS_TEXT_SIZE], struct error *err) {
  if (address->sa_family != AF_UNIX && address_port(address) == 0 && gate->picked_port != 0) {
    struct sockaddr_storage same;
    memcpy(&same, address, length);
    address_set_port((struct sockaddr *)&same, gate->picked_port);
    int fd = listener_open((const struct sockaddr *)&same, length, text, err);
    if (fd >= 0 || err->number != EADDRINUSE)
      return fd;
  }
  return listener_open(address, length, text, err);
}

static uint16_t bound_port(int fd) {
  struct sockaddr_storage bound = {0};
  socklen_t length = sizeof bound;
  return getsockname(fd, (struct sockaddr *)&bound, &length) == 0 ? address_port((struct sockaddr *)&bound) : 0;
}

/* The machine does not have the address family, or not the address. */
static bool is_family_off(int error) {
  return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EPFNOSUPPORT || error == EPROTONOSUPPORT;
}

int gate_listen(struct gate *gate, const struct sockaddr *address, socklen_t length, bool optional, struct error *err) {
  struct error failure = ERROR_INIT;
  char text[ADDRESS_TEXT_SIZE];
  if (gate->n_listeners == LISTENERS_MAX)
    return error_set(err, ERROR_INVALID, 0, "more than %d addresses to listen on", LISTENERS_MAX);
  struct listener *listener = &gate->listeners[gate->n_listeners];
  listener->gate = gate;
  listener->fd = open_listener(gate, address, length, text, &failure);
  if (listener->fd < 0 && optional && is_family_off(failure.number)) {
    LOG(LOG_INFO, "gate", "not listening", LOG_S("address", text), LOG_S("reason", failure.message));
    return 0;
  }
  if (listener->fd < 0)
    return error_set(err, failure.kind, failure.number, "%s", failure.message);
  if (loop_watch_start(gate->loop, &listener->watch, listener->fd, EPOLLIN, on_connection, listener) < 0) {
    error_set_errno(err, errno, "cannot wait for connections on %s", text);
    listener_close(&listener->fd);
    return -1;
  }
  gate->n_listeners++;
  uint16_t port = bound_port(listener->fd);
  if (address->sa_family != AF_UNIX && address_port(address) == 0)
    gate->picked_port = port;
  if (gate->first_port == 0)
    gate->first_port = port;
  LOG(LOG_INFO, "gate", "listening", LOG_S("address", text), LOG_I("port", port));
  return 0;
}

unsigned gate_listening(const struct gate *gate) {
  return gate->n_listeners;
}

unsigned gate_waiting(const struct gate *gate) {
  return gate->n_waiting;
}
