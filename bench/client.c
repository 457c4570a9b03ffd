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
#include "session.h"

#include <dirent.h>
#include <poll.h>

#define CONNECTIONS_MAX 4096

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
