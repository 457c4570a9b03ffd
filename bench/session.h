/* session.h - a WebSocket session that does as little as a client can: masked text frames of a few KB out, and of what
 * comes in it looks at no more than it must. And what /proc tells of the agent's memory. */
#ifndef BENCH_SESSION_H
#define BENCH_SESSION_H

#include "measure.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/socket.h>

#define BUFFER_SIZE (4 << 20)
#define HEAD_LOOK 64 /* the name of a notification stands within so many first bytes */

struct connection {
  int fd;
  char *bytes; /* what has come: bytes[start] to bytes[end] */
  size_t start, end;
};

/* --- Connections ------------------------------------------------------------------------------------------------- */

static inline int try_connect(uint16_t port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0)
    measure_die("socket");
  if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
    close(fd);
    return -1;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

static inline void send_all(int fd, const void *bytes, size_t length) {
  const char *p = bytes;
  while (length > 0) {
    ssize_t n = send(fd, p, length, MSG_NOSIGNAL);
    if (n < 0)
      measure_die("send");
    p += n;
    length -= (size_t)n;
  }
}

static inline void receive_more(struct connection *connection) {
  if (connection->start > 0) {
    memmove(connection->bytes, connection->bytes + connection->start, connection->end - connection->start);
    connection->end -= connection->start;
    connection->start = 0;
  }
  if (connection->end == BUFFER_SIZE) {
    fprintf(stderr, "client: a message is longer than %d bytes\n", BUFFER_SIZE);
    exit(1);
  }
  ssize_t n = recv(connection->fd, connection->bytes + connection->end, BUFFER_SIZE - connection->end, 0);
  if (n <= 0) {
    fprintf(stderr, "client: the agent closed the connection\n");
    exit(1);
  }
  connection->end += (size_t)n;
}

static inline void open_session(struct connection *connection, uint16_t port) {
  static const char request[] = "GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
  *connection = (struct connection){.fd = try_connect(port), .bytes = malloc(BUFFER_SIZE)};
  if (connection->fd < 0 || !connection->bytes)
    measure_die("connect");
  send_all(connection->fd, request, sizeof request - 1);
  char *end = NULL;
  while (!end) {
    receive_more(connection);
    end = memmem(connection->bytes, connection->end, "\r\n\r\n", 4);
  }
  if (memcmp(connection->bytes, "HTTP/1.1 101", 12) != 0) {
    fprintf(stderr, "client: no WebSocket: %.*s\n", (int)strcspn(connection->bytes, "\r"), connection->bytes);
    exit(1);
  }
  connection->start = (size_t)(end + 4 - connection->bytes);
}

/* --- Frames (RFC 6455 section 5.2) ------------------------------------------------------------------------------- */

static inline void send_frame(struct connection *connection, unsigned char opcode, const char *text, size_t length) {
  static const unsigned char mask[4] = {0x5a, 0xc3, 0x17, 0x88};
  unsigned char frame[4096 + 14];
  size_t at = 0;
  if (length > 4096)
    measure_die("send_frame");
  frame[at++] = 0x80 | opcode;
  if (length < 126) {
    frame[at++] = (unsigned char)(0x80 | length);
  } else {
    frame[at++] = 0x80 | 126;
    frame[at++] = (unsigned char)(length >> 8);
    frame[at++] = (unsigned char)length;
  }
  memcpy(frame + at, mask, 4);
  at += 4;
  for (size_t i = 0; i < length; i++)
    frame[at++] = (unsigned char)text[i] ^ mask[i % 4];
  send_all(connection->fd, frame, at);
}

/* The next whole frame in the buffer: its text and length; false when more must come first. */
static inline bool next_frame(struct connection *connection, unsigned char *opcode, char **text, size_t *length) {
  const unsigned char *p = (unsigned char *)connection->bytes + connection->start;
  size_t have = connection->end - connection->start, head = 2;
  if (have < 2)
    return false;
  uint64_t n = p[1] & 0x7f;
  size_t extra = n == 126 ? 2 : n == 127 ? 8 : 0;
  if (have < head + extra)
    return false;
  if (extra) {
    n = 0;
    for (size_t i = 0; i < extra; i++)
      n = n << 8 | p[2 + i];
  }
  head += extra;
  if (have - head < n)
    return false;
  *opcode = p[0] & 0x0f;
  *text = connection->bytes + connection->start + head;
  *length = (size_t)n;
  connection->start += head + (size_t)n;
  return true;
}

/* Takes what is in the buffer. True when a response, that is no notification, is among it; it must be no error. */
static inline bool take_response(struct connection *connection, char **response, size_t *response_length) {
  unsigned char opcode;
  char *text;
  size_t length;
  while (next_frame(connection, &opcode, &text, &length)) {
    if (opcode == 9)
      send_frame(connection, 10, text, length);
    if (opcode != 1 && opcode != 0)
      continue;
    if (opcode == 0 || memmem(text, length < HEAD_LOOK ? length : HEAD_LOOK, "\"method\"", 8))
      continue;
    if (memmem(text, length, "\"error\":{", 9)) {
      fprintf(stderr, "client: %.*s\n", length < 500 ? (int)length : 500, text);
      exit(1);
    }
    *response = text;
    *response_length = length;
    return true;
  }
  return false;
}

/* The number behind a name in one of the process's files in /proc. */
static inline long proc_number(const char *path, const char *name) {
  char line[512];
  long value = -1;
  FILE *file = fopen(path, "re");
  if (!file)
    measure_die(path);
  while (value < 0 && fgets(line, sizeof line, file))
    if (!strncmp(line, name, strlen(name)))
      value = strtol(line + strlen(name), NULL, 10);
  fclose(file);
  if (value < 0) {
    fprintf(stderr, "client: no %s in %s\n", name, path);
    exit(1);
  }
  return value;
}

static inline long resident_kb(long pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/status", pid);
  return proc_number(path, "VmRSS:");
}

#endif
