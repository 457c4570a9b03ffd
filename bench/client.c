/* client.c - a WebSocket client that does as little as a client can, so that the agent is what is measured. It talks to
 * 127.0.0.1, sends one masked text frame a request, and looks at no more of an answer than it must.
 *
 *   client exec PORT N                 p50 of {"command":"true"}, request to response: microseconds
 *   client stdout PORT BYTES COMMAND   COMMAND prints BYTES; request to response: MB/s
 *   client parallel PORT C N           N times `true` on each of C connections: commands a second
 *   client idle PORT C PID             opens C connections; resident memory of PID for each: KB
 *   client start N PROGRAM             starts PROGRAM N times; p50 from there to the first 200 on /health: ms
 *   client rest PID SECONDS            clock ticks of CPU and context switches of PID meanwhile
 *   client memory PID                  resident memory of PID: KB
 *   client port                        a port that is free now
 */
#include "measure.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>

#define BUFFER_SIZE (4 << 20)
#define HEAD_LOOK 64 /* the name of a notification stands within so many first bytes */
#define CONNECTIONS_MAX 4096

struct connection {
  int fd;
  char *bytes; /* what has come: bytes[start] to bytes[end] */
  size_t start, end;
};

/* --- Connections ------------------------------------------------------------------------------------------------- */

static int try_connect(uint16_t port) {
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

static void send_all(int fd, const void *bytes, size_t length) {
  const char *p = bytes;
  while (length > 0) {
    ssize_t n = send(fd, p, length, MSG_NOSIGNAL);
    if (n < 0)
      measure_die("send");
    p += n;
    length -= (size_t)n;
  }
}

static void receive_more(struct connection *connection) {
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

static void open_session(struct connection *connection, uint16_t port) {
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

static void send_frame(struct connection *connection, unsigned char opcode, const char *text, size_t length) {
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
static bool next_frame(struct connection *connection, unsigned char *opcode, char **text, size_t *length) {
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
static bool take_response(struct connection *connection, char **response, size_t *response_length) {
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

static void send_exec(struct connection *connection, const char *command) {
  char text[4096];
  int length = snprintf(text, sizeof text,
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"%s\"}}", command);
  if (length < 0 || (size_t)length >= sizeof text)
    measure_die("the command is too long");
  send_frame(connection, 1, text, (size_t)length);
}

static void exec_once(struct connection *connection, const char *command, char **response, size_t *length) {
  send_exec(connection, command);
  while (!take_response(connection, response, length))
    receive_more(connection);
}

/* --- Measurements ------------------------------------------------------------------------------------------------ */

static void measure_exec(uint16_t port, long n) {
  struct connection connection;
  char *response;
  size_t length;
  int64_t *samples = calloc((size_t)n + 1, sizeof *samples);
  if (!samples || n < 1)
    measure_die("client exec");
  open_session(&connection, port);
  for (int i = 0; i < 20; i++)
    exec_once(&connection, "true", &response, &length);
  for (long i = 0; i < n; i++) {
    int64_t start = measure_now();
    exec_once(&connection, "true", &response, &length);
    samples[i] = measure_now() - start;
  }
  printf("%.1f\n", (double)measure_percentile(samples, (size_t)n, 50) / 1e3);
  free(samples);
}

static void measure_stdout(uint16_t port, const char *bytes, const char *command) {
  struct connection connection;
  char *response, expected[64];
  size_t length;
  open_session(&connection, port);
  int64_t start = measure_now();
  exec_once(&connection, command, &response, &length);
  int64_t took = measure_now() - start;
  int n = snprintf(expected, sizeof expected, "\"stdout_bytes\":%s", bytes);
  if (!memmem(response, length, expected, (size_t)n)) {
    fprintf(stderr, "client: the response has no %s\n", expected);
    exit(1);
  }
  printf("%.0f\n", (double)measure_number(bytes, "BYTES") * 1e3 / (double)took);
}

static void measure_parallel(uint16_t port, long n_connections, long n) {
  static struct connection connections[64];
  static struct pollfd polls[64];
  static long left[64];
  char *response;
  size_t length;
  long open = n_connections;
  if (n_connections < 1 || n_connections > 64 || n < 1)
    measure_die("client parallel");
  for (long i = 0; i < n_connections; i++) {
    open_session(&connections[i], port);
    polls[i] = (struct pollfd){.fd = connections[i].fd, .events = POLLIN};
    left[i] = n;
  }
  int64_t start = measure_now();
  for (long i = 0; i < n_connections; i++)
    send_exec(&connections[i], "true");
  while (open > 0) {
    if (poll(polls, (nfds_t)n_connections, -1) < 0)
      measure_die("poll");
    for (long i = 0; i < n_connections; i++) {
      if (!polls[i].revents)
        continue;
      receive_more(&connections[i]);
      if (!take_response(&connections[i], &response, &length))
        continue;
      if (--left[i] > 0) {
        send_exec(&connections[i], "true");
      } else {
        polls[i].fd = -1;
        open--;
      }
    }
  }
  printf("%.0f\n", (double)(n_connections * n) * 1e9 / (double)(measure_now() - start));
}

/* The number behind a name in one of the process's files in /proc. */
static long proc_number(const char *path, const char *name) {
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

static long resident_kb(long pid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/status", pid);
  return proc_number(path, "VmRSS:");
}

static void measure_idle(uint16_t port, long n, long pid) {
  static struct connection connections[CONNECTIONS_MAX];
  if (n < 1 || n > CONNECTIONS_MAX)
    measure_die("client idle");
  /* The first few bring in code and grow tables that are there once. */
  static struct connection first[16];
  for (size_t i = 0; i < 16; i++)
    open_session(&first[i], port);
  usleep(200000);
  long before = resident_kb(pid);
  for (long i = 0; i < n; i++) {
    open_session(&connections[i], port);
    free(connections[i].bytes);
  }
  usleep(200000);
  printf("%.2f\n", (double)(resident_kb(pid) - before) / (double)n);
}

static uint16_t free_port(void) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t length = sizeof address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
      getsockname(fd, (struct sockaddr *)&address, &length) < 0)
    measure_die("free_port");
  close(fd);
  return ntohs(address.sin_port);
}

/* True once /health answers 200; false when nothing listens yet. */
static bool is_healthy(uint16_t port) {
  static const char request[] = "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
  char answer[64];
  int fd = try_connect(port);
  if (fd < 0)
    return false;
  send_all(fd, request, sizeof request - 1);
  ssize_t n = recv(fd, answer, sizeof answer, MSG_WAITALL);
  close(fd);
  if (n < 12 || memcmp(answer, "HTTP/1.1 200", 12) != 0) {
    fprintf(stderr, "client: /health is not 200\n");
    exit(1);
  }
  return true;
}

static void measure_start(long n, const char *program) {
  int64_t *samples = calloc((size_t)n + 1, sizeof *samples);
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (!samples || n < 1 || null < 0)
    measure_die("client start");
  for (long i = 0; i < n; i++) {
    char listen[64];
    uint16_t port = free_port();
    snprintf(listen, sizeof listen, "127.0.0.1:%u", (unsigned)port);
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--listen", listen, NULL};
    int64_t start = measure_now();
    pid_t pid = measure_spawn(argv, null);
    while (!is_healthy(port)) {
      int status;
      if (waitpid(pid, &status, WNOHANG) == pid || measure_now() - start > INT64_C(5000000000)) {
        fprintf(stderr, "client: %s does not start\n", program);
        exit(1);
      }
      usleep(50);
    }
    samples[i] = measure_now() - start;
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
  }
  printf("%.2f\n", (double)measure_percentile(samples, (size_t)n, 50) / 1e6);
  free(samples);
}

/* User and system ticks of the whole process: fields 14 and 15 of its stat, counted from behind the name in brackets.
 */
static long cpu_ticks(long pid) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (n <= 0)
    measure_die(path);
  close(fd);
  text[n] = '\0';
  char *p = strrchr(text, ')');
  for (int field = 2; p && field < 14; field++)
    p = strchr(p + 1, ' ');
  if (!p)
    measure_die(path);
  char *end;
  long user = strtol(p, &end, 10);
  return user + strtol(end, NULL, 10);
}

static long context_switches(long pid) {
  char folder[64], path[400];
  long sum = 0;
  snprintf(folder, sizeof folder, "/proc/%ld/task", pid);
  DIR *tasks = opendir(folder);
  if (!tasks)
    measure_die(folder);
  struct dirent *task;
  while ((task = readdir(tasks))) {
    if (task->d_name[0] == '.')
      continue;
    snprintf(path, sizeof path, "%s/%s/status", folder, task->d_name);
    sum += proc_number(path, "voluntary_ctxt_switches:") + proc_number(path, "nonvoluntary_ctxt_switches:");
  }
  closedir(tasks);
  return sum;
}

static void measure_rest(long pid, long seconds) {
  long ticks = cpu_ticks(pid), switches = context_switches(pid);
  sleep((unsigned)seconds);
  printf("%ld %ld\n", cpu_ticks(pid) - ticks, context_switches(pid) - switches);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  long first = argc > 2 ? measure_number(argv[2], "the second argument") : 0;
  if (argc == 4 && !strcmp(what, "exec"))
    measure_exec((uint16_t)first, measure_number(argv[3], "N"));
  else if (argc == 5 && !strcmp(what, "stdout"))
    measure_stdout((uint16_t)first, argv[3], argv[4]);
  else if (argc == 5 && !strcmp(what, "parallel"))
    measure_parallel((uint16_t)first, measure_number(argv[3], "C"), measure_number(argv[4], "N"));
  else if (argc == 5 && !strcmp(what, "idle"))
    measure_idle((uint16_t)first, measure_number(argv[3], "C"), measure_number(argv[4], "PID"));
  else if (argc == 4 && !strcmp(what, "start"))
    measure_start(first, argv[3]);
  else if (argc == 4 && !strcmp(what, "rest"))
    measure_rest(first, measure_number(argv[3], "SECONDS"));
  else if (argc == 3 && !strcmp(what, "memory"))
    printf("%ld\n", resident_kb(first));
  else if (argc == 2 && !strcmp(what, "port"))
    printf("%u\n", (unsigned)free_port());
  else {
    fputs("usage: see the top of bench/client.c\n", stderr);
    return 2;
  }
  return 0;
}
