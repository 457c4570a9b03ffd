#include "sandkeeper/net/listener.h"

#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 1024

/* A proxy that drops a silent connection, or a client that lost its network, is noticed after about two minutes. */
#define KEEPALIVE_IDLE 60     /* seconds */
#define KEEPALIVE_INTERVAL 20 /* seconds */
#define KEEPALIVE_PROBES 3

static int set_option(int fd, int level, int option, int value) {
  return setsockopt(fd, level, option, &value, sizeof value);
}

/* Linux lets accepted sockets inherit these. */
static int set_tcp_options(int fd, int family) {
  if (family == AF_INET6 && set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) < 0)
    return -1;
  if (set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) < 0 || set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1) < 0)
    return -1;
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
  return 0;
}

/* Removes the file of a socket that nobody listens on. Anything else is left: bind() will say that it is in the way. */
static void remove_stale(const struct sockaddr *address, socklen_t length) {
  const char *path = ((const struct sockaddr_un *)(const void *)address)->sun_path;
  struct stat st;
  if (path[0] == '\0' || lstat(path, &st) < 0 || !S_ISSOCK(st.st_mode))
    return;
  cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, address, length) < 0 && errno == ECONNREFUSED)
    unlink(path);
}

static int bind_address(int fd, const struct sockaddr *address, socklen_t length) {
  if (address->sa_family != AF_UNIX)
    return set_tcp_options(fd, address->sa_family) < 0 ? -1 : bind(fd, address, length);
  remove_stale(address, length);
  /* The file gets the mode of the socket (unix(7) does not say so; Linux does it), so it is never open to more. */
  fchmod(fd, 0660);
  if (bind(fd, address, length) < 0)
    return -1;
  const char *path = ((const struct sockaddr_un *)(const void *)address)->sun_path;
  if (path[0] != '\0')
    chmod(path, 0660);
  return 0;
}

int listener_open(const struct sockaddr *address, socklen_t length, char text[static ADDRESS_TEXT_SIZE],
                  struct error *err) {
  address_text(address, length, text);
  cleanup_close int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind_address(fd, address, length) < 0 || listen(fd, BACKLOG) < 0) {
    error_set_errno(err, errno, "cannot listen on %s", text);
    return -1;
  }
  struct sockaddr_storage bound;
  socklen_t bound_length = sizeof bound;
  if (getsockname(fd, (struct sockaddr *)&bound, &bound_length) == 0)
    address_text((const struct sockaddr *)&bound, bound_length, text);
  return fd_steal(&fd);
}

void listener_close(int *fd) {
  struct sockaddr_un address;
  socklen_t length = sizeof address;
  if (*fd >= 0 && getsockname(*fd, (struct sockaddr *)&address, &length) == 0 && address.sun_family == AF_UNIX &&
      length > offsetof(struct sockaddr_un, sun_path) && address.sun_path[0] != '\0')
    unlink(address.sun_path);
  fd_close(fd);
}
