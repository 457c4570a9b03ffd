/* files.c - what the agent does with files, and beside it what the machine does without one.
 *
 *   files small PORT N PATH           p50 of {"method":"read"}, request to response: microseconds
 *   files stream PORT PATH PID        read_stream: MB/s of file bytes, and the most memory PID took more than before:
 * KB files get PORT PATH               GET /files: MB/s files put PORT PATH BYTES         PUT /files: MB/s files
 * floor-small N               p50 of 1 KB there and back over loopback: microseconds files floor-get PATH a server that
 * sends PATH by sendfile(2): MB/s files floor-put PATH BYTES        a server that writes what comes into PATH, as `cat`
 * does: MB/s
 */
#include "measure.h"
#include "session.h"

#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#define PIECE (128 << 10) /* what cat(1) of coreutils takes at once */

static double mb_per_s(uint64_t bytes, int64_t ns) {
  return (double)bytes * 1e3 / (double)ns;
}

static uint64_t size_of(const char *path) {
  struct stat st;
  if (stat(path, &st) < 0)
    measure_die(path);
  return (uint64_t)st.st_size;
}

/* --- Over WebSocket ---------------------------------------------------------------------------------------------- */

static void send_call(struct connection *connection, const char *method, const char *path) {
  char text[4096];
  int length = snprintf(text, sizeof text,
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"%s\",\"params\":{\"path\":\"%s\"}}", method, path);
  if (length < 0 || (size_t)length >= sizeof text)
    measure_die("the path is too long");
  send_frame(connection, 1, text, (size_t)length);
}

static void measure_small(uint16_t port, long n, const char *path) {
  struct connection connection;
  char *response;
  size_t length;
  int64_t *samples = calloc((size_t)n + 1, sizeof *samples);
  if (!samples || n < 1)
    measure_die("files small");
  open_session(&connection, port);
  for (long i = -20; i < n; i++) {
    int64_t start = measure_now();
    send_call(&connection, "read", path);
    while (!take_response(&connection, &response, &length))
      receive_more(&connection);
    samples[i < 0 ? 0 : i] = measure_now() - start;
  }
  printf("%.1f\n", (double)measure_percentile(samples, (size_t)n, 50) / 1e3);
  free(samples);
}

static void measure_stream(uint16_t port, const char *path, long pid) {
  struct connection connection;
  char *response, expected[64];
  size_t length;
  uint64_t bytes = size_of(path), received = 0, looked = 0;
  open_session(&connection, port);
  long before = resident_kb(pid), most = before;
  int64_t start = measure_now();
  send_call(&connection, "read_stream", path);
  while (!take_response(&connection, &response, &length)) {
    size_t had = connection.end - connection.start;
    receive_more(&connection);
    received += connection.end - connection.start - had;
    if (received - looked < 32u << 20)
      continue;
    looked = received;
    long now = resident_kb(pid);
    most = now > most ? now : most;
  }
  int64_t took = measure_now() - start;
  int n = snprintf(expected, sizeof expected, "\"total_bytes\":%llu", (unsigned long long)bytes);
  if (!memmem(response, length, expected, (size_t)n)) {
    fprintf(stderr, "files: the response has no %s\n", expected);
    exit(1);
  }
  printf("%.0f %ld\n", mb_per_s(bytes, took), most - before);
}

/* --- Over HTTP --------------------------------------------------------------------------------------------------- */

static char *new_piece(void) {
  char *piece = malloc(PIECE);
  if (!piece)
    measure_die("malloc");
  memset(piece, 'x', PIECE);
  return piece;
}

/* Takes everything that comes; the bytes behind the head. */
static uint64_t receive_all(int fd, bool has_head) {
  char *piece = new_piece();
  uint64_t bytes = 0;
  ssize_t n;
  while ((n = recv(fd, piece, PIECE, 0)) > 0) {
    char *end = has_head ? memmem(piece, (size_t)n, "\r\n\r\n", 4) : NULL;
    if (has_head && (!end || (memcmp(piece, "HTTP/1.1 200", 12) != 0 && memcmp(piece, "HTTP/1.1 201", 12) != 0))) {
      fprintf(stderr, "files: %.*s\n", (int)n, piece);
      exit(1);
    }
    bytes += (uint64_t)n - (has_head ? (size_t)(end + 4 - piece) : 0);
    has_head = false;
  }
  free(piece);
  return bytes;
}

static void send_bytes(int fd, uint64_t bytes) {
  char *piece = new_piece();
  for (uint64_t sent = 0; sent < bytes; sent += PIECE)
    send_all(fd, piece, bytes - sent < PIECE ? bytes - sent : PIECE);
  free(piece);
}

static void measure_get(uint16_t port, const char *path) {
  char request[4096];
  int length = snprintf(request, sizeof request,
                        "GET /files?path=%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", path);
  int64_t start = measure_now();
  int fd = try_connect(port);
  if (fd < 0)
    measure_die("connect");
  send_all(fd, request, (size_t)length);
  uint64_t bytes = receive_all(fd, true);
  int64_t took = measure_now() - start;
  if (bytes != size_of(path)) {
    fprintf(stderr, "files: %llu bytes came\n", (unsigned long long)bytes);
    exit(1);
  }
  printf("%.0f\n", mb_per_s(bytes, took));
}

static void measure_put(uint16_t port, const char *path, uint64_t bytes) {
  char request[4096];
  int length =
      snprintf(request, sizeof request,
               "PUT /files?path=%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %llu\r\n\r\n",
               path, (unsigned long long)bytes);
  int64_t start = measure_now();
  int fd = try_connect(port);
  if (fd < 0)
    measure_die("connect");
  send_all(fd, request, (size_t)length);
  send_bytes(fd, bytes);
  receive_all(fd, true);
  int64_t took = measure_now() - start;
  if (size_of(path) != bytes)
    measure_die("files put: the file is not whole");
  printf("%.0f\n", mb_per_s(bytes, took));
}

/* --- The floors: one thread that serves one connection ------------------------------------------------------------ */

struct server {
  int listener;
  const char *path; /* NULL: an echo */
  bool writes;
};

static void serve_file(int fd, const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    measure_die(path);
  while (sendfile(fd, file, NULL, 1 << 30) > 0)
    ;
  close(file);
}

static void serve_sink(int fd, const char *path) {
  char *piece = new_piece();
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0)
    measure_die(path);
  ssize_t n;
  while ((n = read(fd, piece, PIECE)) > 0)
    if (write(file, piece, (size_t)n) != n)
      measure_die(path);
  close(file);
  free(piece);
}

static void serve_echo(int fd) {
  char bytes[4096];
  ssize_t n;
  while ((n = read(fd, bytes, sizeof bytes)) > 0)
    send_all(fd, bytes, (size_t)n);
}

static void *serve(void *arg) {
  struct server *server = arg;
  int one = 1, fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
  if (fd < 0)
    measure_die("accept4");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (!server->path)
    serve_echo(fd);
  else if (server->writes)
    serve_sink(fd, server->path);
  else
    serve_file(fd, server->path);
  close(fd);
  return NULL;
}

/* Starts it; the connection's other end. */
static int start_server(struct server *server, pthread_t *thread) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  socklen_t length = sizeof address;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  server->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (server->listener < 0 || bind(server->listener, (struct sockaddr *)&address, sizeof address) < 0 ||
      listen(server->listener, 1) < 0 || getsockname(server->listener, (struct sockaddr *)&address, &length) < 0 ||
      pthread_create(thread, NULL, serve, server))
    measure_die("a server");
  int fd = try_connect(ntohs(address.sin_port));
  if (fd < 0)
    measure_die("connect");
  return fd;
}

static void floor_get(const char *path) {
  struct server server = {.path = path};
  pthread_t thread;
  int64_t start = measure_now();
  int fd = start_server(&server, &thread);
  uint64_t bytes = receive_all(fd, false);
  printf("%.0f\n", mb_per_s(bytes, measure_now() - start));
}

static void floor_put(const char *path, uint64_t bytes) {
  struct server server = {.path = path, .writes = true};
  pthread_t thread;
  int64_t start = measure_now();
  int fd = start_server(&server, &thread);
  send_bytes(fd, bytes);
  close(fd);
  pthread_join(thread, NULL);
  printf("%.0f\n", mb_per_s(bytes, measure_now() - start));
}

static void floor_small(long n) {
  struct server server = {.path = NULL};
  pthread_t thread;
  char bytes[1024] = "";
  int64_t *samples = calloc((size_t)n + 1, sizeof *samples);
  if (!samples || n < 1)
    measure_die("files floor-small");
  int fd = start_server(&server, &thread);
  for (long i = 0; i < n; i++) {
    int64_t start = measure_now();
    send_all(fd, bytes, sizeof bytes);
    if (recv(fd, bytes, sizeof bytes, MSG_WAITALL) != (ssize_t)sizeof bytes)
      measure_die("recv");
    samples[i] = measure_now() - start;
  }
  printf("%.1f\n", (double)measure_percentile(samples, (size_t)n, 50) / 1e3);
  free(samples);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  if (argc == 5 && !strcmp(what, "small"))
    measure_small((uint16_t)measure_number(argv[2], "PORT"), measure_number(argv[3], "N"), argv[4]);
  else if (argc == 5 && !strcmp(what, "stream"))
    measure_stream((uint16_t)measure_number(argv[2], "PORT"), argv[3], measure_number(argv[4], "PID"));
  else if (argc == 4 && !strcmp(what, "get"))
    measure_get((uint16_t)measure_number(argv[2], "PORT"), argv[3]);
  else if (argc == 5 && !strcmp(what, "put"))
    measure_put((uint16_t)measure_number(argv[2], "PORT"), argv[3], (uint64_t)measure_number(argv[4], "BYTES"));
  else if (argc == 3 && !strcmp(what, "floor-small"))
    floor_small(measure_number(argv[2], "N"));
  else if (argc == 3 && !strcmp(what, "floor-get"))
    floor_get(argv[2]);
  else if (argc == 4 && !strcmp(what, "floor-put"))
    floor_put(argv[2], (uint64_t)measure_number(argv[3], "BYTES"));
  else
    return fprintf(stderr, "files: see the head of bench/files.c\n"), 2;
  return 0;
}
