/* worker.h - the few threads that may block: they start processes, touch files and read /proc.
 *
 * A job goes in on the loop's thread, work() runs on a worker, done() runs on the loop. At rest there is no
 * thread: they are started when needed, at most 8, and end after 10 s without work. One class of job never takes all of
 * them (6 at most), so that a hung mount leaves threads for starting processes, and the other way round; spawn jobs go
 * ahead of file jobs.
 *
 * A job that has not come back in time (--file-timeout, counted from when its turn in its queue came, or from when it
 * last said that it gets on) is written off: done() is called with JOB_TIMED_OUT, its thread no longer counts, and the
 * job's memory belongs to the stuck thread, which calls abandon() if it ever comes back. At most 8 threads may be
 * written off and not back; then jobs are refused with ERROR_BUSY.
 */
#ifndef SANDKEEPER_CORE_WORKER_H
#define SANDKEEPER_CORE_WORKER_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/base/list.h"
#include "sandkeeper/core/loop.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct workers;

enum job_class { JOB_SPAWN, JOB_FILE, JOB_CLASSES };
enum job_end { JOB_DONE, JOB_TIMED_OUT };

struct job_queue;
struct job;
struct job {
  /* Set by the caller before workers_submit(). */
  enum job_class class;
  void (*work)(struct job *job);                   /* on a worker; may block; touches only what the job owns */
  void (*done)(struct job *job, enum job_end end); /* on the loop; after JOB_DONE the job is the caller's again; after
                                                      JOB_TIMED_OUT it must not be touched once done() returns */
  void (*abandon)(struct job *job); /* after JOB_TIMED_OUT, when work() came back (on the worker, or on the loop) or was
                                       never begun (on the loop), and instead of done() when the pool ends: frees the
                                       job */

  /* work() may store there when it got on, in ns of CLOCK_MONOTONIC: a long job is none that hangs. 0: it has not. */
  _Atomic int64_t moved;

  /* The worker pool's. */
  struct workers *workers;
  struct job_queue *queue;
  struct list node, queue_node;
  struct loop_timer timer;
  bool changes, admitted;
  /* Under the pool's lock. */
  enum job_state { JOB_WAITING, JOB_READY, JOB_RUNNING, JOB_FINISHED, JOB_WRITTEN_OFF } state;
};

/* Keeps the order of one session's jobs: a job that changes something waits for all before it, and all after it wait
 * for it; jobs that only read run side by side. */
struct job_queue {
  struct list waiting; /* in the order submitted, running ones included */
  uint32_t length;
  bool abandoned;
};
/* NULL: no memory. */
struct job_queue *job_queue_new(void);
/* Its owner is done with it: what was submitted goes on, and the last job to leave frees it. */
void job_queue_abandon(struct job_queue *queue);

struct worker_stats {
  uint32_t threads, busy, written_off, queued;
};

/* timeout_ns: --file-timeout. NULL and *err without an eventfd. */
struct workers *workers_new(struct loop *loop, int64_t timeout_ns, struct error *err);

/* Ends the threads. Jobs that are still under way are not done: abandon() is called for each, here or, when its thread
 * is stuck for more than a second, on that thread. So whoever a job points to must have let go of it before. A stuck
 * thread is left behind, and what it uses is leaked on purpose. */
void workers_free(struct workers *workers);

/* Queues a job. `queue` may be NULL; `changes`: it changes something. done() never runs inside this call.
 * -1 with ERROR_BUSY: 1024 jobs of this class wait, 8 threads are written off, or there is no thread and none can be
 * made. */
int workers_submit(struct workers *workers, struct job *job, struct job_queue *queue, bool changes, struct error *err);

/* Hears of the threads, on the loop; for core/idle.h. Each may be NULL. */
struct workers_observer {
  void (*jobs_done)(void *arg, uint32_t jobs); /* so many more; after their done() */
  void (*all_left)(void *arg);                 /* the last thread is about to end: there was no work for 10 s */
  void *arg;
};
void workers_observe(struct workers *workers, const struct workers_observer *observer);

struct worker_stats workers_stats(struct workers *workers);

#endif
