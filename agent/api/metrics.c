#include "sandkeeper/api/metrics.h"

#include "sandkeeper/api/api.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define BODY_MAX (256 * 1024)

/* ---- counting requests ---- */

static const int64_t health_bounds[METRICS_HEALTH_BUCKETS] = {
    100000,  250000,   500000,   1000000,  2500000, /* 0.1 ms ... */
    5000000, 10000000, 25000000, 50000000, 100000000, 500000000,
};

static void count(struct metrics *metrics, const char *route, unsigned status) {
  for (size_t i = 0; i < metrics->n_rows; i++) {
    struct metrics_row *row = &metrics->rows[i];
    if (row->status == status && (row->route == route || (row->route && route && strcmp(row->route, route) == 0))) {
      row->count++;
      return;
    }
  }
  if (metrics->n_rows < METRICS_ROWS)
    metrics->rows[metrics->n_rows++] = (struct metrics_row){.route = route, .status = status, .count = 1};
  else
    metrics->rows[METRICS_ROWS - 1].count++;
}

void metrics_on_request(void *arg, const struct route *route, unsigned status, int64_t duration_ns) {
  struct metrics *metrics = arg;
  count(metrics, route ? route->path : NULL, status);
  if (!route || strcmp(route->path, "/health") != 0)
    return;
  int bucket = 0;
  while (bucket < METRICS_HEALTH_BUCKETS && duration_ns > health_bounds[bucket])
    bucket++;
  metrics->health_buckets[bucket]++;
  metrics->health_sum += duration_ns;
}

/* ---- the text format ---- */

/* A family begins with its two comment lines; its samples must follow in one block. */
static void family(struct buf *out, const char *name, const char *type, const char *help) {
  buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void sample(struct buf *out, const char *name, uint64_t value) {
  buf_printf(out, "%s %llu\n", name, (unsigned long long)value);
}

/* name{label="value"}; values are words of our own, which need no escapes. */
static void labelled(struct buf *out, const char *name, const char *label, const char *label_value, uint64_t value) {
  buf_printf(out, "%s{%s=\"%s\"} %llu\n", name, label, label_value, (unsigned long long)value);
}

static void counter(struct buf *out, const char *name, const char *help, uint64_t value) {
  family(out, name, "counter", help);
  sample(out, name, value);
}

static void gauge(struct buf *out, const char *name, const char *help, uint64_t value) {
  family(out, name, "gauge", help);
  sample(out, name, value);
}

static void seconds(struct buf *out, const char *name, const char *type, const char *help, int64_t ns) {
  family(out, name, type, help);
  buf_printf(out, "%s %.3f\n", name, (double)ns / (double)CLOCK_SECOND);
}

static void histogram(struct buf *out, const char *name, const char *help, const int64_t *bounds,
                      const uint64_t *buckets, size_t n, int64_t sum) {
  uint64_t total = 0;
  family(out, name, "histogram", help);
  for (size_t i = 0; i < n; i++) {
    total += buckets[i];
    buf_printf(out, "%s_bucket{le=\"%g\"} %llu\n", name, (double)bounds[i] / (double)CLOCK_SECOND,
               (unsigned long long)total);
  }
  total += buckets[n];
  buf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n", name, (unsigned long long)total);
  buf_printf(out, "%s_sum %.9f\n%s_count %llu\n", name, (double)sum / (double)CLOCK_SECOND, name,
             (unsigned long long)total);
}

/* ---- the parts ---- */

static void write_agent(struct buf *out, const struct api *api) {
  const struct sandbox *sandbox = api->sandbox;
  family(out, "sandkeeper_build_info", "gauge", "The agent's version; the value is always 1.");
  buf_printf(out, "sandkeeper_build_info{version=\"%s\"} 1\n", api->options.version);
  seconds(out, "sandkeeper_uptime_seconds", "gauge", "Time since the agent was started.",
          loop_now(sandbox->loop) - sandbox->started);
}

static void write_commands(struct buf *out, const struct command_counts *counts) {
  gauge(out, "sandkeeper_commands_running", "Commands that run now.", counts->running);
  gauge(out, "sandkeeper_commands_kept", "Finished commands whose log can still be read.", counts->finished);
  counter(out, "sandkeeper_commands_started_total", "Commands that were started.", counts->started);
  counter(out, "sandkeeper_commands_failed_total", "Commands whose program could not be started.", counts->failed);
  family(out, "sandkeeper_commands_ended_total", "counter", "Commands that have ended, by the reason of their end.");
  for (int reason = 0; reason < REASONS; reason++)
    labelled(out, "sandkeeper_commands_ended_total", "reason", command_reason_name((enum command_reason)reason),
             counts->ended[reason]);
  histogram(out, "sandkeeper_spawn_duration_seconds", "Time from the request to the running program.",
            commands_spawn_bounds, counts->spawn_buckets, SPAWN_BUCKETS, counts->spawn_sum);
  family(out, "sandkeeper_output_bytes_total", "counter", "Bytes that programs have printed.");
  labelled(out, "sandkeeper_output_bytes_total", "stream", "stdout", counts->bytes[STREAM_STDOUT]);
  labelled(out, "sandkeeper_output_bytes_total", "stream", "stderr", counts->bytes[STREAM_STDERR]);
  counter(out, "sandkeeper_output_dropped_bytes_total", "Bytes of output that logs had to let go.", counts->dropped);
  gauge(out, "sandkeeper_log_memory_bytes", "Memory of all commands' logs.", counts->log_memory);
  counter(out, "sandkeeper_orphans_reaped_total", "Processes that were reaped and were no command's leader.",
          counts->orphans);
}

static void write_prompts(struct buf *out, const struct prompts *prompts) {
  static const char *const ends[PROMPT_ENDS] = {"done", "failed", "left", "refused"};
  gauge(out, "sandkeeper_prompts_running", "Prompts that are being answered.", prompts->running);
  family(out, "sandkeeper_prompts_total", "counter", "Prompts that are over, by their outcome.");
  for (int end = 0; end < PROMPT_ENDS; end++)
    labelled(out, "sandkeeper_prompts_total", "outcome", ends[end], prompts->ended[end]);
}

static void write_requests(struct buf *out, const struct metrics *metrics) {
  family(out, "sandkeeper_http_requests_total", "counter",
         "HTTP requests, by route and status; 499: the client left before its answer.");
  for (size_t i = 0; i < metrics->n_rows; i++) {
    const struct metrics_row *row = &metrics->rows[i];
    buf_printf(out, "sandkeeper_http_requests_total{route=\"%s\",code=\"%u\"} %llu\n", row->route ? row->route : "none",
               row->status ? row->status : 499, (unsigned long long)row->count);
  }
}

static void write_net(struct buf *out, const struct api *api) {
  const struct metrics *metrics = &api->metrics;
  struct metrics_net net = {0};
  if (metrics->net)
    metrics->net(metrics->net_arg, &net);
  gauge(out, "sandkeeper_websocket_sessions", "Open WebSocket sessions.", net.sessions);
  gauge(out, "sandkeeper_websocket_buffered_bytes", "Bytes of half-received WebSocket messages.", net.session_buffered);
  gauge(out, "sandkeeper_http_connections", "Open HTTP connections.", net.connections);
  gauge(out, "sandkeeper_http_requests_in_flight", "HTTP requests under way.", net.exchanges);
  gauge(out, "sandkeeper_http_buffered_bytes", "Bytes of half-received bodies of /rpc and /prompt.", api->bodies.held);
  write_requests(out, metrics);
  histogram(out, "sandkeeper_health_duration_seconds", "Time to answer /health.", health_bounds,
            metrics->health_buckets, METRICS_HEALTH_BUCKETS, metrics->health_sum);
}

static void write_workers(struct buf *out, struct workers *workers) {
  struct worker_stats stats = workers_stats(workers);
  gauge(out, "sandkeeper_workers", "Worker threads.", stats.threads);
  gauge(out, "sandkeeper_workers_busy", "Worker threads that are at work.", stats.busy);
  gauge(out, "sandkeeper_workers_written_off", "Worker threads that hang in a file system and are not waited for.",
        stats.written_off);
  gauge(out, "sandkeeper_worker_jobs_waiting", "Jobs that wait for a worker.", stats.queued);
}

/* ---- the process, under the names that all exporters use ---- */

static uint64_t resident_bytes(void) {
  char text[256];
  if (fd_read_file("/proc/self/statm", text, sizeof text) <= 0)
    return 0;
  char *end;
  strtoull(text, &end, 10); /* the first field is the whole address space */
  return strtoull(end, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t open_fds(void) {
  DIR *folder = opendir("/proc/self/fd");
  uint64_t n = 0;
  if (!folder)
    return 0;
  while (readdir(folder))
    n++;
  closedir(folder);
  return n > 3 ? n - 3 : 0; /* ".", "..", and the folder's own */
}

static void write_process(struct buf *out, const struct sandbox *sandbox) {
  struct rusage usage = {0};
  struct rlimit limit = {0};
  getrusage(RUSAGE_SELF, &usage);
  getrlimit(RLIMIT_NOFILE, &limit);
  int64_t cpu = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * CLOCK_SECOND +
                (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * INT64_C(1000);
  seconds(out, "process_cpu_seconds_total", "counter", "Processor time of the agent.", cpu);
  seconds(out, "process_start_time_seconds", "gauge", "When the agent was started, since 1970.", sandbox->started_wall);
  gauge(out, "process_resident_memory_bytes", "Resident memory of the agent.", resident_bytes());
  gauge(out, "process_open_fds", "Open descriptors of the agent.", open_fds());
  gauge(out, "process_max_fds", "Most descriptors it may have.", limit.rlim_cur);
}

void metrics_handle(struct exchange *x) {
  struct api *api = x->api;
  struct sandbox *sandbox = api->sandbox;
  struct buf body;
  buf_init(&body, BODY_MAX, 0);
  write_agent(&body, api);
  write_commands(&body, &sandbox->commands.counts);
  write_prompts(&body, &api->prompts);
  write_net(&body, api);
  write_workers(&body, sandbox->workers);
  write_process(&body, sandbox);
  x->ops->add_header(x, "Cache-Control", "no-store");
  x->ops->reply(x, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}
