/* prompt.c - what POST /prompt costs, and what it costs others. Talks HTTP to 127.0.0.1 and looks at no more of an
 * answer than it must.
 *
 *   prompt first PORT N                 p50 from a prompt to its first event, on one kept-alive connection:
 * microseconds prompt events PORT N                one prompt of N lines, that become N events of 100 bytes: seconds
 *   prompt health PORT N PROMPTS EXECS  p99 of N times /health, one every 5 ms, while so many prompts and execs are
 * read as fast as they come: milliseconds
 */
#include "measure.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define BUFFER_SIZE (1 << 20)
#define READERS_MAX 256

static int open_connection(uint16_t port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
    measure_die("connect");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

static void send_all(int fd, const char *bytes, size_t length) {
  while (length > 0) {
    ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);
    if (n < 0)
      measure_die("send");
    bytes += n;
    length -= (size_t)n;
  }
}

static void post(int fd, const char *path, const char *body, size_t length) {
  char head[256];
  int n = snprintf(head, sizeof head,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\nContent-Length: %zu\r\n\r\n",
                   path, length);
  /* In one piece while it is short, as clients do. */
  char *request = malloc((size_t)n + length);
  if (!request)
    measure_die("malloc");
  memcpy(request, head, (size_t)n);
  memcpy(request + n, body, length);
  send_all(fd, request, (size_t)n + length);
  free(request);
}

/* Reads until `text` has come, within the last bytes read and the `keep` before them. */
struct reading {
  int fd;
  char bytes[BUFFER_SIZE];
  size_t length;
};

static void read_until(struct reading *reading, const char *text) {
  size_t keep = strlen(text);
  for (;;) {
    char *found = memmem(reading->bytes, reading->length, text, keep);
    if (found) {
      size_t behind = (size_t)(found - reading->bytes) + keep;
      reading->length -= behind;
      memmove(reading->bytes, reading->bytes + behind, reading->length);
      return;
    }
    if (reading->length > keep) { /* a part of the text may stand at the end */
      memmove(reading->bytes, reading->bytes + reading->length - keep, keep);
      reading->length = keep;
    }
    ssize_t n = recv(reading->fd, reading->bytes + reading->length, BUFFER_SIZE - reading->length, 0);
    if (n <= 0) {
      fprintf(stderr, "prompt: the agent closed the connection; the last bytes: %.*s\n", (int)reading->length,
              reading->bytes);
      exit(1);
    }
    reading->length += (size_t)n;
  }
}

static struct reading reading;

static void measure_first(uint16_t port, long n) {
  static const char body[] = "{\"prompt\":\"hello\"}";
  int64_t *samples = calloc((size_t)n + 1, sizeof *samples);
  if (!samples || n < 1)
    measure_die("prompt first");
  reading.fd = open_connection(port);
  for (long i = -20; i < n; i++) {
    int64_t start = measure_now();
    post(reading.fd, "/prompt", body, sizeof body - 1);
    read_until(&reading, "{\"type\":\"text\"");
    if (i >= 0)
      samples[i] = measure_now() - start;
    read_until(&reading, "\r\n0\r\n\r\n");
  }
  printf("%.1f\n", (double)measure_percentile(samples, (size_t)n, 50) / 1e3);
  free(samples);
}

/* An event of 100 bytes: {"type":"text","text":"x...\n"} and its newline. */
#define LINE_TEXT 72

static void measure_events(uint16_t port, long n) {
  char line[LINE_TEXT + 3];
  memset(line, 'x', LINE_TEXT);
  memcpy(line + LINE_TEXT, "\\n", 3);
  size_t each = strlen(line), length = 0;
  char *body = malloc((size_t)n * each + 64);
  if (!body || n < 1)
    measure_die("prompt events");
  length += (size_t)sprintf(body, "{\"prompt\":\"");
  for (long i = 0; i < n; i++, length += each)
    memcpy(body + length, line, each);
  length += (size_t)sprintf(body + length, "\"}");
  reading.fd = open_connection(port);
  int64_t start = measure_now();
  post(reading.fd, "/prompt", body, length);
  read_until(&reading, "{\"type\":\"done\"}");
  printf("%.2f\n", (double)(measure_now() - start) / 1e9);
  free(body);
}

/* A process of its own, so that reading does not hold up what is measured. */
static pid_t start_readers(uint16_t port, long prompts, long execs) {
  static const char prompt[] = "{\"prompt\":\"hello\"}";
  static const char exec[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"yes\"}}";
  static struct pollfd polls[READERS_MAX];
  static char bytes[65536];
  long n = prompts + execs;
  if (n > READERS_MAX)
    measure_die("too many readers");
  pid_t pid = fork();
  if (pid != 0)
    return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (long i = 0; i < n; i++) {
    polls[i] = (struct pollfd){.fd = open_connection(port), .events = POLLIN};
    post(polls[i].fd, i < prompts ? "/prompt" : "/rpc", i < prompts ? prompt : exec,
         i < prompts ? sizeof prompt - 1 : sizeof exec - 1);
  }
  for (;;) {
    if (poll(polls, (nfds_t)n, -1) < 0)
      measure_die("poll");
    for (long i = 0; i < n; i++)
      if (polls[i].revents && recv(polls[i].fd, bytes, sizeof bytes, 0) <= 0) {
        fprintf(stderr, "prompt: a reader's connection ended\n");
        _exit(1);
      }
  }
}

static void measure_health(uint16_t port, long n, long prompts, long execs) {
  static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
  int64_t *samples = calloc((size_t)n + 1, sizeof *samples);
  if (!samples || n < 1)
    measure_die("prompt health");
  pid_t readers = start_readers(port, prompts, execs);
  usleep(500000);
  reading.fd = open_connection(port);
  for (long i = 0; i < n; i++) {
    int64_t start = measure_now();
    send_all(reading.fd, request, sizeof request - 1);
    read_until(&reading, "\"status\":\"ok\"");
    samples[i] = measure_now() - start;
    usleep(5000);
  }
  if (waitpid(readers, NULL, WNOHANG) != 0)
    measure_die("the readers ended");
  kill(readers, SIGKILL);
  waitpid(readers, NULL, 0);
  printf("%.2f\n", (double)measure_percentile(samples, (size_t)n, 99) / 1e6);
  free(samples);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  long numbers[5] = {0};
  for (int i = 2; i < argc && i < 6; i++)
    numbers[i - 2] = measure_number(argv[i], what);
  if (argc == 4 && !strcmp(what, "first"))
    measure_first((uint16_t)numbers[0], numbers[1]);
  else if (argc == 4 && !strcmp(what, "events"))
    measure_events((uint16_t)numbers[0], numbers[1]);
  else if (argc == 6 && !strcmp(what, "health"))
    measure_health((uint16_t)numbers[0], numbers[1], numbers[2], numbers[3]);
  else {
    fputs("usage: see the top of bench/prompt.c\n", stderr);
    return 2;
  }
  return 0;
}
