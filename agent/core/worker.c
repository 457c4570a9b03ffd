#include "sandkeeper/core/worker.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define THREADS_MAX 8
#define THREADS_PER_CLASS 6
#define WRITTEN_OFF_MAX 8
#define WAITING_MAX 1024
#define IDLE_SECONDS 10
/* Room for a few paths and libmagic's tables; only what is touched becomes resident. */
#define STACK_SIZE (512 * 1024)

struct workers {
  struct loop *loop;
  int64_t timeout;
  int event_fd;
  struct loop_watch watch;
  struct workers_observer observer;
  uint32_t submitted[JOB_CLASSES]; /* not done yet; the loop's */

  pthread_mutex_t lock;
  pthread_cond_t work_came;
  pthread_cond_t thread_left;
  /* Under the lock. */
  struct list ready[JOB_CLASSES];
  struct list busy;
  struct list finished;
  uint32_t n_ready; /* of all classes */
  uint32_t running[JOB_CLASSES];
  uint32_t threads, idle, written_off;
  bool stopping, all_left;
};

/* ---- the threads' side ---- */

static struct job *take_ready(struct workers *workers) {
  for (int class = 0; class < JOB_CLASSES; class ++) {
    if (workers->running[class] >= THREADS_PER_CLASS || list_is_empty(&workers->ready[class]))
      continue;
    struct job *job = LIST_FIRST(&workers->ready[class], struct job, node);
    list_remove(&job->node);
    list_append(&workers->busy, &job->node);
    job->state = JOB_RUNNING;
    workers->running[class]++;
    workers->n_ready--;
    return job;
  }
  return NULL;
}

/* Waits for a job; NULL when the thread should end. */
static struct job *wait_for_job(struct workers *workers) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += IDLE_SECONDS;
  int status = 0;
  while (!workers->stopping) {
    struct job *job = take_ready(workers);
    if (job || status == ETIMEDOUT)
      return job;
    workers->idle++;
    status = pthread_cond_timedwait(&workers->work_came, &workers->lock, &until);
    workers->idle--;
  }
  return NULL;
}

/* Hands a job back to the loop; *wake: the loop has to be told. Returns false for one that was written off: this thread
 * no longer counts. */
static bool give_back(struct workers *workers, struct job *job, bool *wake) {
  if (job->state == JOB_WRITTEN_OFF) {
    workers->written_off--;
    return false;
  }
  workers->running[job->class]--;
  list_remove(&job->node);
  job->state = JOB_FINISHED;
  *wake = list_is_empty(&workers->finished);
  list_append(&workers->finished, &job->node);
  return true;
}

/* Without the lock, which is the first thing that the loop wants when it wakes up. */
static void wake_loop(struct workers *workers) {
  uint64_t one = 1;
  pthread_mutex_unlock(&workers->lock);
  (void)!write(workers->event_fd, &one, sizeof one);
  pthread_mutex_lock(&workers->lock);
}

static void *thread_main(void *arg) {
  struct workers *workers = arg;
  pthread_mutex_lock(&workers->lock);
  struct job *job;
  while ((job = wait_for_job(workers))) {
    pthread_mutex_unlock(&workers->lock);
    job->work(job);
    pthread_mutex_lock(&workers->lock);
    bool wake = false;
    if (!give_back(workers, job, &wake)) {
      pthread_mutex_unlock(&workers->lock);
      job->abandon(job);
      return NULL;
    }
    if (wake)
      wake_loop(workers);
  }
  if (--workers->threads == 0 && !workers->stopping) {
    uint64_t one = 1;
    workers->all_left = true;
    (void)!write(workers->event_fd, &one, sizeof one);
  }
  pthread_cond_signal(&workers->thread_left);
  pthread_mutex_unlock(&workers->lock);
  return NULL;
}

static void start_thread(struct workers *workers) {
  pthread_attr_t attributes;
  pthread_t thread;
  if (pthread_attr_init(&attributes) != 0)
    return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, STACK_SIZE);
  /* When no thread can be made the job waits for one that is busy, or for its deadline. */
  if (pthread_create(&thread, &attributes, thread_main, workers) == 0)
    workers->threads++;
  pthread_attr_destroy(&attributes);
}

static uint32_t n_running(const struct workers *workers) {
  uint32_t n = 0;
  for (int class = 0; class < JOB_CLASSES; class ++)
    n += workers->running[class];
  return n;
}

/* Sees to it that what is ready is taken. An idle thread that was called for the last job has not
 * taken it yet, perhaps, and would be counted twice: what counts is how many threads have no job. Lets go of the lock
 * before it calls one, as a thread that wakes up wants it. */
static void call_thread(struct workers *workers) {
  bool wake = workers->idle > 0;
  if (workers->n_ready > workers->threads - n_running(workers) && workers->threads < THREADS_MAX && !workers->stopping)
    start_thread(workers);
  pthread_mutex_unlock(&workers->lock);
  if (wake)
    pthread_cond_signal(&workers->work_came);
}

/* ---- the loop's side ---- */

struct job_queue *job_queue_new(void) {
  struct job_queue *queue = calloc(1, sizeof *queue);
  if (queue)
    list_init(&queue->waiting);
  return queue;
}

void job_queue_abandon(struct job_queue *queue) {
  queue->abandoned = true;
  if (queue->length == 0)
    free(queue);
}

static void on_deadline(struct loop_timer *timer);

static void make_ready(struct workers *workers, struct job *job) {
  job->admitted = true;
  pthread_mutex_lock(&workers->lock);
  job->state = JOB_READY;
  list_append(&workers->ready[job->class], &job->node);
  workers->n_ready++;
  call_thread(workers);
}

/* At the end of the pool every job becomes ready, to be abandoned. */
static bool may_begin(struct workers *workers) {
  pthread_mutex_lock(&workers->lock);
  bool may = workers->stopping || workers->written_off < WRITTEN_OFF_MAX;
  pthread_mutex_unlock(&workers->lock);
  return may;
}

/* The turn of a job has come: its time begins. While too many threads are written off it ends at once instead, or a
 * long queue of calls on a hanging mount would cost a thread for each. */
static void begin(struct workers *workers, struct job *job) {
  bool may = may_begin(workers);
  /* Moving a timer that is there cannot fail. */
  loop_timer_start(workers->loop, &job->timer, loop_now(workers->loop) + (may ? workers->timeout : 0), on_deadline,
                   job);
  if (may)
    make_ready(workers, job);
}

/* Lets run what may: from the front, reading jobs together, a changing one alone. */
static void admit(struct workers *workers, struct job_queue *queue) {
  bool first = true;
  LIST_FOREACH (&queue->waiting, node) {
    struct job *job = LIST_OWNER(node, struct job, queue_node);
    if (job->changes && !first)
      return;
    if (!job->admitted)
      begin(workers, job);
    if (job->changes)
      return;
    first = false;
  }
}

/* Takes a job that has come to its end out of everything but its queue's length, so that the queue stays. */
static struct job_queue *unlink_job(struct workers *workers, struct job *job) {
  workers->submitted[job->class]--;
  loop_timer_stop(workers->loop, &job->timer);
  list_remove(&job->queue_node);
  return job->queue;
}

static void queue_moves_on(struct workers *workers, struct job_queue *queue) {
  if (!queue)
    return;
  queue->length--;
  admit(workers, queue);
  if (queue->abandoned && queue->length == 0)
    free(queue);
}

/* What becomes of a job whose done() has been told of the timeout. Until here the job was safe from its thread: only a
 * written-off job is freed by it. Returns true when nobody else will free it. */
static bool write_off(struct workers *workers, struct job *job) {
  bool ours = true;
  pthread_mutex_lock(&workers->lock);
  if (job->state == JOB_READY)
    workers->n_ready--;
  list_remove(&job->node); /* ready, busy, or it came back while done() ran */
  if (job->state == JOB_RUNNING) {
    job->state = JOB_WRITTEN_OFF;
    ours = false;
    workers->running[job->class]--;
    workers->threads--;
    workers->written_off++;
    if (workers->n_ready > 0) {
      call_thread(workers);
      return ours;
    }
  }
  pthread_mutex_unlock(&workers->lock);
  return ours;
}

static void on_deadline(struct loop_timer *timer) {
  struct job *job = timer->arg;
  struct workers *workers = job->workers;
  pthread_mutex_lock(&workers->lock);
  bool finished = job->state == JOB_FINISHED;
  bool running = job->state == JOB_RUNNING;
  pthread_mutex_unlock(&workers->lock);
  if (finished)
    return; /* it came back at the last moment: its done() is on the way */
  int64_t moved = atomic_load(&job->moved);
  if (running && moved > 0 && moved + workers->timeout > loop_now(workers->loop) &&
      loop_timer_start(workers->loop, &job->timer, moved + workers->timeout, on_deadline, job) == 0)
    return;
  struct job_queue *queue = unlink_job(workers, job);
  job->done(job, JOB_TIMED_OUT);
  if (write_off(workers, job))
    job->abandon(job);
  queue_moves_on(workers, queue); /* last: whether the next one may begin depends on the threads written off */
}

static void on_finished(struct loop_watch *watch, uint32_t events) {
  (void)events;
  struct workers *workers = watch->arg;
  uint64_t count;
  (void)!read(workers->event_fd, &count, sizeof count);

  struct list finished;
  list_init(&finished);
  pthread_mutex_lock(&workers->lock);
  while (!list_is_empty(&workers->finished)) {
    struct list *node = workers->finished.next;
    list_remove(node);
    list_append(&finished, node);
  }
  bool all_left = workers->all_left;
  workers->all_left = false;
  pthread_mutex_unlock(&workers->lock);

  uint32_t jobs = 0;
  while (!list_is_empty(&finished)) {
    struct job *job = LIST_FIRST(&finished, struct job, node);
    list_remove(&job->node);
    queue_moves_on(workers, unlink_job(workers, job));
    job->done(job, JOB_DONE);
    jobs++;
  }
  const struct workers_observer *observer = &workers->observer;
  if (observer->jobs_done && jobs > 0)
    observer->jobs_done(observer->arg, jobs);
  if (observer->all_left && all_left)
    observer->all_left(observer->arg);
}

void workers_observe(struct workers *workers, const struct workers_observer *observer) {
  workers->observer = *observer;
}

/* A job can wait for a thread that is busy; without any, and without a way to start one, it would wait for nothing. */
static bool has_thread(struct workers *workers) {
  pthread_mutex_lock(&workers->lock);
  if (workers->threads == 0 && !workers->stopping)
    start_thread(workers);
  bool has = workers->threads > 0;
  pthread_mutex_unlock(&workers->lock);
  return has;
}

int workers_submit(struct workers *workers, struct job *job, struct job_queue *queue, bool changes, struct error *err) {
  if (!may_begin(workers)) {
    if (err)
      err->limit = WRITTEN_OFF_MAX;
    return error_set(err, ERROR_BUSY, 0, "%d threads hang in file systems that do not answer; nothing was started",
                     WRITTEN_OFF_MAX);
  }
  if (workers->submitted[job->class] >= WAITING_MAX) {
    error_set(err, ERROR_BUSY, 0, "%u jobs are waiting already; nothing was started", WAITING_MAX);
    if (err)
      err->limit = WAITING_MAX;
    return -1;
  }
  if (!has_thread(workers))
    return error_set(err, ERROR_BUSY, EAGAIN, "no thread can be started (a limit of processes?); nothing was started");
  job->workers = workers;
  job->queue = queue;
  job->changes = changes;
  job->admitted = false;
  atomic_store(&job->moved, 0);
  job->state = JOB_WAITING;
  list_init(&job->node);
  list_init(&job->queue_node);
  loop_timer_init(&job->timer);
  if (loop_timer_start(workers->loop, &job->timer, CLOCK_NEVER, on_deadline, job) < 0)
    return error_set_errno(err, ENOMEM, "a timer for the job");
  workers->submitted[job->class]++;
  if (!queue) {
    begin(workers, job);
    return 0;
  }
  list_append(&queue->waiting, &job->queue_node);
  queue->length++;
  admit(workers, queue);
  return 0;
}

struct workers *workers_new(struct loop *loop, int64_t timeout_ns, struct error *err) {
  struct workers *workers = calloc(1, sizeof *workers);
  if (!workers) {
    error_set_errno(err, ENOMEM, "workers");
    return NULL;
  }
  workers->loop = loop;
  workers->timeout = timeout_ns;
  for (int class = 0; class < JOB_CLASSES; class ++)
    list_init(&workers->ready[class]);
  list_init(&workers->busy);
  list_init(&workers->finished);
  loop_watch_init(&workers->watch);
  pthread_mutex_init(&workers->lock, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&workers->work_came, &monotonic);
  pthread_cond_init(&workers->thread_left, &monotonic);
  pthread_condattr_destroy(&monotonic);
  workers->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (workers->event_fd < 0 ||
      loop_watch_start(loop, &workers->watch, workers->event_fd, EPOLLIN, on_finished, workers) < 0) {
    error_set_errno(err, errno, "workers");
    workers_free(workers);
    return NULL;
  }
  return workers;
}

static struct job *take_left(struct workers *workers) {
  struct list *const lists[] = {&workers->finished, &workers->ready[JOB_SPAWN], &workers->ready[JOB_FILE]};
  struct job *job = NULL;
  pthread_mutex_lock(&workers->lock);
  for (size_t i = 0; !job && i < sizeof lists / sizeof *lists; i++)
    job = LIST_FIRST(lists[i], struct job, node);
  if (job)
    list_remove(&job->node);
  pthread_mutex_unlock(&workers->lock);
  return job;
}

/* Those that leave a queue make others ready, so in the end it was all of them. */
static void abandon_left(struct workers *workers) {
  struct job *job;
  while ((job = take_left(workers))) {
    queue_moves_on(workers, unlink_job(workers, job));
    job->abandon(job);
  }
}

static void write_off_busy(struct workers *workers) {
  for (;;) {
    pthread_mutex_lock(&workers->lock);
    struct job *job = LIST_FIRST(&workers->busy, struct job, node);
    pthread_mutex_unlock(&workers->lock);
    if (!job)
      return;
    struct job_queue *queue = unlink_job(workers, job);
    if (write_off(workers, job))
      job->abandon(job);
    queue_moves_on(workers, queue);
  }
}

/* Returns true when all are gone. */
static bool stop_threads(struct workers *workers) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 1;
  pthread_mutex_lock(&workers->lock);
  workers->stopping = true;
  pthread_cond_broadcast(&workers->work_came);
  int status = 0;
  while (workers->threads > 0 && status != ETIMEDOUT)
    status = pthread_cond_timedwait(&workers->thread_left, &workers->lock, &until);
  bool gone = workers->threads == 0 && workers->written_off == 0;
  pthread_mutex_unlock(&workers->lock);
  return gone;
}

void workers_free(struct workers *workers) {
  if (!workers)
    return;
  loop_watch_stop(workers->loop, &workers->watch);
  bool gone = stop_threads(workers);
  write_off_busy(workers);
  abandon_left(workers);
  if (!gone)
    return;
  fd_close(&workers->event_fd);
  pthread_mutex_destroy(&workers->lock);
  pthread_cond_destroy(&workers->work_came);
  pthread_cond_destroy(&workers->thread_left);
  free(workers);
}

struct worker_stats workers_stats(struct workers *workers) {
  pthread_mutex_lock(&workers->lock);
  uint32_t busy = n_running(workers);
  struct worker_stats stats = {
      .threads = workers->threads,
      .busy = busy,
      .written_off = workers->written_off,
      .queued = workers->submitted[JOB_SPAWN] + workers->submitted[JOB_FILE] - busy,
  };
  pthread_mutex_unlock(&workers->lock);
  return stats;
}
