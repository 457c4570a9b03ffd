/* measure.h - what the bench programs share: the clock, medians, and starting a program the cheapest way. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static inline _Noreturn void measure_die(const char *what) {
  perror(what);
  exit(1);
}

static inline int64_t measure_now(void) { /* ns */
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline int measure_compare(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Sorts the samples; the one below which `percent` of them lie. */
static inline int64_t measure_percentile(int64_t *samples, size_t n, unsigned percent) {
  qsort(samples, n, sizeof *samples, measure_compare);
  return samples[(n - 1) * percent / 100];
}

static inline long measure_number(const char *text, const char *what) {
  char *end;
  long value = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < 0) {
    fprintf(stderr, "%s: '%s' is no number\n", what, text);
    exit(2);
  }
  return value;
}

/* A new process without copying the page tables, as the agent does it: the caller waits until the program runs. */
struct measure_start {
  char *const *argv;
  int out; /* becomes stdout and stderr; -1: kept */
};

static inline int measure_child(void *arg) {
  const struct measure_start *start = arg;
  if (start->out >= 0 && (dup2(start->out, 1) < 0 || dup2(start->out, 2) < 0))
    _exit(126);
  execve(start->argv[0], start->argv, environ);
  _exit(127);
}

#define MEASURE_STACK 65536
static inline pid_t measure_spawn(char *const *argv, int out) {
  struct measure_start start = {argv, out};
  char *stack = malloc(MEASURE_STACK);
  if (!stack)
    measure_die("malloc");
  pid_t pid = clone(measure_child, stack + MEASURE_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
  free(stack); /* the child is in its own memory now */
  if (pid < 0)
    measure_die("clone");
  return pid;
}

#endif
