/* floor.c - what the machine itself needs for the agent's work, without any agent. Each figure of the bench stands
 * beside its floor from the same run.
 *
 *   floor exec N PROGRAM ARG...        p50 of clone, exec, wait: microseconds
 *   floor parallel T N PROGRAM ARG...  the same N times in each of T threads: commands a second
 *   floor print BYTES                  prints text lines of 80 characters
 *   floor pipe BYTES                   reads such a printer through a pipe: MB/s
 */
#include "measure.h"

#include <pthread.h>

#define PIECE 65536

static void run_once(char *const *argv) {
  int status;
  pid_t pid = measure_spawn(argv, -1);
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fprintf(stderr, "floor: %s failed\n", argv[0]);
    exit(1);
  }
}

static void measure_exec(long n, char *const *argv) {
  int64_t *samples = calloc((size_t)n, sizeof *samples);
  if (!samples || n < 1)
    measure_die("floor exec");
  for (int i = 0; i < 20; i++)
    run_once(argv);
  for (long i = 0; i < n; i++) {
    int64_t start = measure_now();
    run_once(argv);
    samples[i] = measure_now() - start;
  }
  printf("%.1f\n", (double)measure_percentile(samples, (size_t)n, 50) / 1e3);
  free(samples);
}

struct parallel {
  long n;
  char *const *argv;
};

static void *parallel_main(void *arg) {
  const struct parallel *parallel = arg;
  for (long i = 0; i < parallel->n; i++)
    run_once(parallel->argv);
  return NULL;
}

static void measure_parallel(long n_threads, long n, char *const *argv) {
  pthread_t threads[64];
  struct parallel parallel = {n, argv};
  if (n_threads < 1 || n_threads > 64)
    measure_die("floor parallel");
  int64_t start = measure_now();
  for (long i = 0; i < n_threads; i++)
    if (pthread_create(&threads[i], NULL, parallel_main, &parallel))
      measure_die("pthread_create");
  for (long i = 0; i < n_threads; i++)
    pthread_join(threads[i], NULL);
  printf("%.0f\n", (double)(n_threads * n) * 1e9 / (double)(measure_now() - start));
}

static void print_lines(long bytes) {
  static char piece[PIECE];
  for (size_t i = 0; i < sizeof piece; i++)
    piece[i] = i % 80 == 79 ? '\n' : (char)('a' + i % 26);
  while (bytes > 0) {
    ssize_t n = write(1, piece, bytes < PIECE ? (size_t)bytes : PIECE);
    if (n < 0)
      measure_die("write");
    bytes -= n;
  }
}

static void measure_pipe(long bytes, const char *bytes_text) {
  static char piece[PIECE];
  char *argv[] = {(char *)(uintptr_t) "/proc/self/exe", (char *)(uintptr_t) "print", (char *)(uintptr_t)bytes_text,
                  NULL};
  int ends[2], status;
  if (pipe2(ends, O_CLOEXEC) < 0)
    measure_die("pipe2");
  int64_t start = measure_now();
  pid_t pid = measure_spawn(argv, ends[1]);
  close(ends[1]);
  long total = 0;
  ssize_t n;
  while ((n = read(ends[0], piece, sizeof piece)) > 0)
    total += n;
  if (waitpid(pid, &status, 0) != pid || total != bytes) {
    fprintf(stderr, "floor pipe: read %ld of %ld bytes\n", total, bytes);
    exit(1);
  }
  printf("%.0f\n", (double)total * 1e3 / (double)(measure_now() - start));
}

int main(int argc, char **argv) {
  if (argc > 3 && !strcmp(argv[1], "exec"))
    measure_exec(measure_number(argv[2], "N"), argv + 3);
  else if (argc > 4 && !strcmp(argv[1], "parallel"))
    measure_parallel(measure_number(argv[2], "T"), measure_number(argv[3], "N"), argv + 4);
  else if (argc == 3 && !strcmp(argv[1], "print"))
    print_lines(measure_number(argv[2], "BYTES"));
  else if (argc == 3 && !strcmp(argv[1], "pipe"))
    measure_pipe(measure_number(argv[2], "BYTES"), argv[2]);
  else {
    fputs("usage: floor exec N PROGRAM ARG... | parallel T N PROGRAM ARG... | print BYTES | pipe BYTES\n", stderr);
    return 2;
  }
  return 0;
}
