/* probe.c - see probe.h. */
#include "sandkeeper/probe.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/error.h"
#include "sandkeeper/base/fdutil.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT (3 * CLOCK_SECOND)
#define ANSWER_MAX 4096 /* a health answer is a few hundred bytes; the rest, if any, does not matter */

struct target {
  char text[256]; /* for the line that is printed */
  char path[256]; /* of the request */
  struct sockaddr_storage address;
  socklen_t length;
};

static int usage_error(const char *what, const char *value) {
  error_say("sandkeeper health: %s '%s' is not valid; it takes %s", what, value,
            !strcmp(what, "--timeout") ? "seconds, or a number with ms, s, m or h"
                                       : "http://ADDRESS[:PORT][/PATH] or unix:/PATH");
  return 2;
}

/* "2", "0.5", "500ms", "3s", "1m". */
static bool parse_time(const char *text, int64_t *ns) {
  char *end = NULL;
  if (!isdigit((unsigned char)text[0]) && text[0] != '.')
    return false;
  double value = strtod(text, &end);
  double unit = 1;
  if (!strcmp(end, "ms"))
    unit = 0.001;
  else if (!strcmp(end, "m"))
    unit = 60;
  else if (!strcmp(end, "h"))
    unit = 3600;
  else if (*end && strcmp(end, "s") != 0)
    return false;
  value *= unit;
  if (!(value > 0 && value <= 24 * 3600.0))
    return false;
  *ns = (int64_t)(value * (double)CLOCK_SECOND);
  return true;
}

static bool target_unix(struct target *target, const char *path) {
  struct sockaddr_un *address = (struct sockaddr_un *)&target->address;
  size_t length = strlen(path);
  if (length == 0 || length >= sizeof address->sun_path)
    return false;
  address->sun_family = AF_UNIX;
  memcpy(address->sun_path, path, length + 1);
  target->length = (socklen_t)sizeof *address;
  snprintf(target->text, sizeof target->text, "unix:%s", path);
  return true;
}

/* "127.0.0.1:4001", "[::1]:4001", "localhost", ... up to `end`. An agent that listens on the wildcard address is
 * reached through loopback. No names are looked up: a probe must not depend on a resolver. */
static bool target_inet(struct target *target, const char *text, size_t length, int default_port) {
  char host[INET6_ADDRSTRLEN + 2], port_text[6] = "";
  const char *colon = text[0] == '[' ? memchr(text, ']', length) : text;
  colon = colon ? memchr(colon, ':', length - (size_t)(colon - text)) : NULL;
  size_t host_length = colon ? (size_t)(colon - text) : length;
  if (host_length == 0 || host_length >= sizeof host)
    return false;
  memcpy(host, text, host_length);
  host[host_length] = '\0';
  long port = default_port;
  if (colon) {
    size_t digits = length - host_length - 1;
    if (digits == 0 || digits >= sizeof port_text || strspn(colon + 1, "0123456789") < digits)
      return false;
    memcpy(port_text, colon + 1, digits);
    port = strtol(port_text, NULL, 10);
  }
  if (port < 1 || port > 65535)
    return false;

  if (host[0] == '[') {
    struct sockaddr_in6 *address = (struct sockaddr_in6 *)&target->address;
    if (host[host_length - 1] != ']')
      return false;
    host[host_length - 1] = '\0';
    if (inet_pton(AF_INET6, host + 1, &address->sin6_addr) != 1)
      return false;
    if (IN6_IS_ADDR_UNSPECIFIED(&address->sin6_addr))
      address->sin6_addr = in6addr_loopback;
    address->sin6_family = AF_INET6;
    address->sin6_port = htons((uint16_t)port);
    target->length = (socklen_t)sizeof *address;
    snprintf(target->text, sizeof target->text, "%s]:%ld", host, port);
    return true;
  }
  struct sockaddr_in *address = (struct sockaddr_in *)&target->address;
  if (inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &address->sin_addr) != 1)
    return false;
  if (address->sin_addr.s_addr == htonl(INADDR_ANY))
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address->sin_family = AF_INET;
  address->sin_port = htons((uint16_t)port);
  target->length = (socklen_t)sizeof *address;
  snprintf(target->text, sizeof target->text, "%s:%ld", host, port);
  return true;
}

static bool target_from_url(struct target *target, const char *url) {
  memset(target, 0, sizeof *target);
  strcpy(target->path, "/health");
  if (!strncmp(url, "unix:", 5))
    return target_unix(target, url + 5);
  if (strncmp(url, "http://", 7) != 0)
    return false;
  const char *authority = url + 7;
  size_t length = strcspn(authority, "/");
  const char *path = authority + length;
  if (path[0] && path[1]) {
    if (strlen(path) >= sizeof target->path || path[strcspn(path, " \t\r\n")])
      return false;
    strcpy(target->path, path);
  }
  return length > 0 && target_inet(target, authority, length, 80);
}

/* Where an agent with this environment listens: the first of SANDKEEPER_LISTEN, else SANDKEEPER_PORT on loopback. Read
 * as config.c reads them: spaces may stand before an address, and a port that Kubernetes has set is none. */
static bool target_from_environment(struct target *target, const char **wrong) {
  const char *listen_on = getenv("SANDKEEPER_LISTEN"), *port = getenv("SANDKEEPER_PORT");
  memset(target, 0, sizeof *target);
  strcpy(target->path, "/health");
  if (listen_on && *listen_on) {
    char first[128];
    *wrong = listen_on;
    listen_on += strspn(listen_on, " ");
    size_t length = strcspn(listen_on, ",");
    if (length >= sizeof first)
      return false;
    memcpy(first, listen_on, length);
    first[length] = '\0';
    return !strncmp(first, "unix:", 5) ? target_unix(target, first + 5) : target_inet(target, first, length, 4001);
  }
  char address[32];
  *wrong = port;
  bool is_set = port && *port && strncmp(port, "tcp://", 6) != 0;
  int length = snprintf(address, sizeof address, "127.0.0.1:%s", is_set ? port : "4001");
  return length > 0 && (size_t)length < sizeof address && target_inet(target, address, (size_t)length, 4001);
}

/* 0 when ready; else an errno. */
static int wait_for(int fd, short events, int64_t deadline) {
  for (;;) {
    int64_t left = deadline - clock_monotonic();
    if (left <= 0)
      return ETIMEDOUT;
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, (int)((left + CLOCK_MS - 1) / CLOCK_MS));
    if (n > 0)
      return 0;
    if (n < 0 && errno != EINTR)
      return errno;
  }
}

static int connect_to(int fd, const struct target *target, int64_t deadline) {
  if (connect(fd, (const struct sockaddr *)&target->address, target->length) == 0)
    return 0;
  if (errno != EINPROGRESS && errno != EINTR)
    return errno;
  int number = wait_for(fd, POLLOUT, deadline);
  socklen_t length = sizeof number;
  if (!number && getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &length) < 0)
    number = errno;
  return number;
}

/* The request and its answer, up to the end of the connection or of the buffer. Returns 0 or an errno. */
static int ask(const struct target *target, int64_t deadline, char *answer, size_t max) {
  cleanup_close int fd = socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    return errno;
  int number = connect_to(fd, target, deadline);
  if (number)
    return number;
  char request[512];
  int length = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                        target->path);
  /* An empty socket buffer takes so little at once. */
  if (send(fd, request, (size_t)length, MSG_NOSIGNAL) != length)
    return errno ? errno : EIO;
  size_t have = 0;
  while (have < max - 1) {
    ssize_t n = recv(fd, answer + have, max - 1 - have, 0);
    if (n > 0)
      have += (size_t)n;
    else if (n == 0)
      break;
    else if (errno == EAGAIN)
      number = wait_for(fd, POLLIN, deadline);
    else if (errno != EINTR)
      number = errno;
    if (number)
      return number;
  }
  answer[have] = '\0';
  return 0;
}

/* The answer's status, 0 when it is no HTTP answer; *body is what follows the head, made fit for one line. */
static int read_answer(char *answer, const char **body) {
  char *text = strstr(answer, "\r\n\r\n");
  *body = text ? text + 4 : "";
  for (char *p = text ? text + 4 : NULL; p && *p; p++)
    if ((unsigned char)*p < ' ' || *p == 127)
      *p = p[1] ? ' ' : '\0';
  /* "HTTP/1.1 200 OK" */
  if (strncmp(answer, "HTTP/1.", 7) != 0 || !isdigit((unsigned char)answer[7]) || answer[8] != ' ')
    return 0;
  return atoi(answer + 9);
}

static int probe(const struct target *target, int64_t timeout) {
  static char answer[ANSWER_MAX];
  const char *body = "";
  int number = ask(target, clock_monotonic() + timeout, answer, sizeof answer);
  if (number) {
    printf("unhealthy: %s: %s\n", target->text,
           number == ETIMEDOUT ? "no answer within the timeout" : strerror(number));
    return 1;
  }
  int status = read_answer(answer, &body);
  if (!status)
    printf("unhealthy: %s: the answer is not HTTP\n", target->text);
  else
    printf("%s: %s: %d %s\n", status == 200 ? "healthy" : "unhealthy", target->text, status, body);
  return status == 200 ? 0 : 1;
}

int probe_main(int argc, char **argv) {
  const char *url = NULL;
  int64_t timeout = DEFAULT_TIMEOUT;
  for (int i = 1; i < argc; i++) {
    const char *name = argv[i], *value = NULL;
    const char *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    if (!strcmp(name, "--help")) {
      puts("usage: sandkeeper health [--url URL] [--timeout TIME]\nExit code 0 when the agent answers 200, else 1.");
      return 0;
    }
    bool is_url = length == 5 && !memcmp(name, "--url", 5), is_timeout = length == 9 && !memcmp(name, "--timeout", 9);
    if (!is_url && !is_timeout) {
      error_say("sandkeeper health: unknown option '%s'; it takes --url and --timeout", name);
      return 2;
    }
    value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : "";
    if (is_url)
      url = value;
    else if (!parse_time(value, &timeout))
      return usage_error("--timeout", value);
  }

  struct target target;
  const char *wrong = "";
  if (url && !target_from_url(&target, url))
    return usage_error("--url", url);
  if (!url && !target_from_environment(&target, &wrong)) {
    error_say("sandkeeper health: SANDKEEPER_LISTEN or SANDKEEPER_PORT '%s' is not an address; use --url", wrong);
    return 2;
  }
  return probe(&target, timeout);
}
