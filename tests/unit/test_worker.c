/* The workers, with jobs that hang on a condition which the test controls. */
#include "sandkeeper/core/worker.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/core/loop.h"

#include "run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* What keeps jobs from going on, and what they tell. One for the whole test. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int open_gates; /* bit mask */
static int at_work, most_at_work;
static _Atomic int n_done, n_timed_out, n_abandoned, n_works;
static bool frees; /* done() frees the job */

/* The pool's clock: it stands still until a test moves it, so that no job is written off by a slow machine. */
static _Atomic int64_t fake_now;

static int64_t fake_clock(void) {
  return fake_now;
}

struct test_job {
  struct job job;
  int number;
  int gate;        /* waits for it in work(); -1: does not */
  int finished_at; /* order of done() */
  bool working;
};

static struct loop *loop;
static struct workers *workers;

#define TIMEOUT (60 * CLOCK_SECOND)

static void set_up(void) {
  struct error err = ERROR_INIT;
  fake_now = CLOCK_SECOND;
  open_gates = 0;
  at_work = most_at_work = 0;
  n_done = n_timed_out = n_abandoned = n_works = 0;
  frees = false;
  loop = loop_new(fake_clock, &err);
  ck_assert_ptr_nonnull(loop);
  workers = workers_new(loop, TIMEOUT, &err);
  ck_assert_ptr_nonnull(workers);
}

static void tear_down(void) {
  workers_free(workers);
  loop_free(loop);
}

static void open_gate(int gate) {
  pthread_mutex_lock(&lock);
  open_gates |= 1 << gate;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

static void work(struct job *job) {
  struct test_job *test = (struct test_job *)job;
  n_works++;
  pthread_mutex_lock(&lock);
  test->working = true;
  at_work++;
  if (at_work > most_at_work)
    most_at_work = at_work;
  pthread_cond_broadcast(&changed);
  while (test->gate >= 0 && !(open_gates & 1 << test->gate))
    pthread_cond_wait(&changed, &lock);
  at_work--;
  pthread_mutex_unlock(&lock);
}

static int order[64];

static void done(struct job *job, enum job_end end) {
  struct test_job *test = (struct test_job *)job;
  if (end == JOB_TIMED_OUT) {
    n_timed_out++;
    return;
  }
  if (n_done < 64)
    order[n_done] = test->number;
  test->finished_at = ++n_done;
  if (frees)
    free(test);
}

static void abandon(struct job *job) {
  free(job);
  n_abandoned++;
}

static struct test_job *new_job(int number, enum job_class class, int gate) {
  struct test_job *test = calloc(1, sizeof *test);
  ck_assert_ptr_nonnull(test);
  *test = (struct test_job){
      .job = {.class = class, .work = work, .done = done, .abandon = abandon}, .number = number, .gate = gate};
  return test;
}

static struct test_job *submit(int number, enum job_class class, int gate, struct job_queue *queue, bool changes) {
  struct error err = ERROR_INIT;
  struct test_job *test = new_job(number, class, gate);
  int before = n_done;
  ck_assert_int_eq(workers_submit(workers, &test->job, queue, changes, &err), 0);
  ck_assert_int_eq(n_done, before); /* never inside */
  return test;
}

static void run_until_done(int n) {
  while (n_done < n)
    loop_run_once(loop, 100);
}

/* Waits, without the loop, until the job is being worked on. */
static void wait_for_work(struct test_job *test) {
  pthread_mutex_lock(&lock);
  while (!test->working)
    pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void wait_for_works(int n) {
  pthread_mutex_lock(&lock);
  while (n_works < n || at_work < n)
    pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static bool is_working(struct test_job *test) {
  pthread_mutex_lock(&lock);
  bool working = test->working;
  pthread_mutex_unlock(&lock);
  return working;
}

/* Moves the clock behind every deadline and lets the loop see it. */
static void let_time_out(int n) {
  fake_now += TIMEOUT + 1;
  /* The timerfd was set by the fake clock's distance, so it is not what wakes us. */
  while (n_timed_out < n)
    loop_run_once(loop, 1);
}

/* ---- simple ---- */

START_TEST(test_many_jobs) {
  enum { N = 500 };
  static struct test_job *jobs[N];
  ck_assert_uint_eq(workers_stats(workers).threads, 0);
  for (int i = 0; i < N; i++)
    jobs[i] = submit(i, i % 2 ? JOB_SPAWN : JOB_FILE, -1, NULL, false);
  run_until_done(N);
  ck_assert_int_eq(n_works, N);
  struct worker_stats stats = workers_stats(workers);
  ck_assert_uint_eq(stats.busy, 0);
  ck_assert_uint_eq(stats.queued, 0);
  ck_assert_uint_le(stats.threads, 8);
  for (int i = 0; i < N; i++)
    free(jobs[i]);
}
END_TEST

/* Two jobs come at once while one thread is idle: the second must not wait behind the first, which may hang. */
START_TEST(test_idle_thread_is_not_counted_twice) {
  struct test_job *first = submit(0, JOB_FILE, -1, NULL, false);
  run_until_done(1);
  free(first);
  for (int round = 0; round < 20; round++) {
    struct test_job *hangs = submit(1, JOB_FILE, 0, NULL, false);
    struct test_job *quick = submit(2, JOB_FILE, -1, NULL, false);
    run_until_done(2 + 2 * round);
    ck_assert(quick->finished_at > 0);
    free(quick);
    open_gate(0);
    run_until_done(3 + 2 * round);
    open_gates = 0;
    free(hangs);
  }
}
END_TEST

/* ---- classes ---- */

START_TEST(test_one_class_never_takes_all_threads) {
  enum { N = 20 };
  struct test_job *files[N], *spawn;
  for (int i = 0; i < N; i++)
    files[i] = submit(i, JOB_FILE, 0, NULL, false);
  wait_for_works(6);
  spawn = submit(100, JOB_SPAWN, -1, NULL, false);
  run_until_done(1);
  ck_assert_int_eq(order[0], 100);
  struct worker_stats stats = workers_stats(workers);
  ck_assert_uint_eq(stats.busy, 6);
  ck_assert_uint_eq(stats.queued, N - 6);
  ck_assert_int_eq(most_at_work, 7);
  open_gate(0);
  run_until_done(N + 1);
  ck_assert_int_le(most_at_work, 7);
  for (int i = 0; i < N; i++)
    free(files[i]);
  free(spawn);
}
END_TEST

START_TEST(test_the_other_way_round) {
  struct test_job *spawns[10], *file;
  for (int i = 0; i < 10; i++)
    spawns[i] = submit(i, JOB_SPAWN, 0, NULL, false);
  wait_for_works(6);
  file = submit(100, JOB_FILE, -1, NULL, false);
  run_until_done(1);
  ck_assert_int_eq(order[0], 100);
  open_gate(0);
  run_until_done(11);
  for (int i = 0; i < 10; i++)
    free(spawns[i]);
  free(file);
}
END_TEST

START_TEST(test_spawn_jobs_go_ahead) {
  struct test_job *hang[8], *files[5], *spawns[5];
  for (int i = 0; i < 8; i++)
    hang[i] = submit(i, i < 4 ? JOB_FILE : JOB_SPAWN, i == 0 ? 1 : 0, NULL, false);
  wait_for_works(8);
  for (int i = 0; i < 5; i++)
    files[i] = submit(100 + i, JOB_FILE, -1, NULL, false);
  for (int i = 0; i < 5; i++)
    spawns[i] = submit(200 + i, JOB_SPAWN, -1, NULL, false);
  open_gate(1); /* one thread is left: it takes them one by one */
  run_until_done(11);
  ck_assert_int_eq(order[0], 0);
  for (int i = 0; i < 5; i++) {
    ck_assert_int_eq(order[1 + i], 200 + i);
    ck_assert_int_eq(order[6 + i], 100 + i);
  }
  open_gate(0);
  run_until_done(18);
  for (int i = 0; i < 8; i++)
    free(hang[i]);
  for (int i = 0; i < 5; i++) {
    free(files[i]);
    free(spawns[i]);
  }
}
END_TEST

START_TEST(test_waiting_jobs_have_a_limit) {
  enum { LIMIT = 1024 };
  static struct test_job *jobs[LIMIT];
  struct error err = ERROR_INIT;
  for (int i = 0; i < LIMIT; i++)
    jobs[i] = submit(i, JOB_FILE, 0, NULL, false);
  struct test_job *refused = new_job(-1, JOB_FILE, 0);
  ck_assert_int_eq(workers_submit(workers, &refused->job, NULL, false, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_BUSY);
  ck_assert_uint_eq(err.limit, LIMIT);
  free(refused);
  struct test_job *other = submit(LIMIT, JOB_SPAWN, -1, NULL, false); /* the other class has its own */
  open_gate(0);
  run_until_done(LIMIT + 1);
  for (int i = 0; i < LIMIT; i++)
    free(jobs[i]);
  free(other);
}
END_TEST

/* ---- queues ---- */

START_TEST(test_readers_together_changes_alone) {
  struct job_queue *queue = job_queue_new();
  struct test_job *read1 = submit(1, JOB_FILE, 0, queue, false);
  struct test_job *read2 = submit(2, JOB_FILE, 0, queue, false);
  struct test_job *write3 = submit(3, JOB_FILE, 1, queue, true);
  struct test_job *write4 = submit(4, JOB_FILE, -1, queue, true);
  struct test_job *read5 = submit(5, JOB_FILE, 2, queue, false);
  struct test_job *read6 = submit(6, JOB_FILE, 2, queue, false);
  struct test_job *all[] = {read1, read2, write3, write4, read5, read6};
  wait_for_works(2); /* both readers at once */
  ck_assert(is_working(read1) && is_working(read2));
  loop_run_once(loop, 20);
  ck_assert(!is_working(write3));
  open_gate(0);
  run_until_done(2);
  wait_for_work(write3);
  loop_run_once(loop, 20);
  ck_assert(!is_working(write4) && !is_working(read5));
  open_gate(1);
  run_until_done(4);
  ck_assert_int_eq(order[2], 3);
  ck_assert_int_eq(order[3], 4);
  wait_for_work(read5);
  wait_for_work(read6);
  open_gate(2);
  run_until_done(6);
  for (int i = 0; i < 6; i++)
    free(all[i]);
  job_queue_abandon(queue);
}
END_TEST

START_TEST(test_queues_do_not_wait_for_each_other) {
  struct job_queue *slow = job_queue_new(), *quick = job_queue_new();
  struct test_job *a = submit(1, JOB_FILE, 0, slow, true);
  struct test_job *b = submit(2, JOB_FILE, -1, slow, true);
  struct test_job *c = submit(3, JOB_FILE, -1, quick, true);
  run_until_done(1);
  ck_assert_int_eq(order[0], 3);
  open_gate(0);
  run_until_done(3);
  free(a);
  free(b);
  free(c);
  job_queue_abandon(slow);
  job_queue_abandon(quick);
}
END_TEST

/* The client has gone: what it sent still happens, and the last job frees the queue. */
START_TEST(test_abandoned_queue) {
  struct job_queue *queue = job_queue_new();
  struct test_job *a = submit(1, JOB_FILE, 0, queue, true);
  struct test_job *b = submit(2, JOB_FILE, -1, queue, true);
  job_queue_abandon(queue);
  open_gate(0);
  run_until_done(2);
  ck_assert_int_eq(n_works, 2);
  free(a);
  free(b);
  job_queue_abandon(job_queue_new());
}
END_TEST

/* Random reads and changes of several queues; each job checks what runs beside it. */
struct shared {
  _Atomic int readers, writers, last;
};

struct queued_job {
  struct job job;
  struct shared *shared;
  int number;
  bool changes;
};

static _Atomic int wrong;

static void queued_work(struct job *job) {
  struct queued_job *queued = (struct queued_job *)job;
  struct shared *shared = queued->shared;
  if (queued->changes) {
    wrong += shared->writers++ != 0 || shared->readers != 0;
    wrong += shared->last >= queued->number;
    shared->last = queued->number;
    shared->writers--;
  } else {
    shared->readers++;
    wrong += shared->writers != 0 || shared->last >= queued->number;
    shared->readers--;
  }
}

static void queued_done(struct job *job, enum job_end end) {
  wrong += end != JOB_DONE;
  n_done++;
  free(job);
}

START_TEST(test_queues_keep_order) {
  enum { QUEUES = 4, N = 800 };
  static struct shared shared[QUEUES];
  struct job_queue *queues[QUEUES];
  unsigned seed = 12345;
  wrong = 0;
  for (int i = 0; i < QUEUES; i++) {
    queues[i] = job_queue_new();
    shared[i] = (struct shared){.last = -1};
  }
  for (int i = 0; i < N; i++) {
    seed = seed * 1103515245u + 12345u;
    int q = (int)(seed >> 16) % QUEUES;
    struct queued_job *queued = calloc(1, sizeof *queued);
    queued->job = (struct job){.class = JOB_FILE, .work = queued_work, .done = queued_done, .abandon = abandon};
    queued->shared = &shared[q];
    queued->number = i;
    queued->changes = seed >> 20 & 1;
    struct error err = ERROR_INIT;
    ck_assert_int_eq(workers_submit(workers, &queued->job, queues[q], queued->changes, &err), 0);
    if (i % 50 == 0)
      loop_dispatch(loop);
  }
  for (int i = 0; i < QUEUES; i++)
    job_queue_abandon(queues[i]);
  run_until_done(N);
  ck_assert_int_eq(wrong, 0);
}
END_TEST

/* ---- written off ---- */

START_TEST(test_written_off_and_back) {
  submit(1, JOB_FILE, 0, NULL, false);
  wait_for_works(1);
  let_time_out(1);
  ck_assert_int_eq(n_abandoned, 0);
  struct worker_stats stats = workers_stats(workers);
  ck_assert_uint_eq(stats.written_off, 1);
  ck_assert_uint_eq(stats.busy, 0);
  ck_assert_uint_eq(stats.queued, 0);
  /* Another thread does what comes next. */
  struct test_job *next = submit(2, JOB_FILE, -1, NULL, false);
  run_until_done(1);
  free(next);
  open_gate(0);
  while (n_abandoned < 1 || workers_stats(workers).written_off > 0)
    loop_run_once(loop, 1);
  ck_assert_int_eq(n_timed_out, 1);
  ck_assert_int_eq(n_done, 1);
  ck_assert_int_eq(n_abandoned, 1);
}
END_TEST

/* What gets on is none that hangs, however long it takes; its time counts from its last step. */
START_TEST(test_a_job_that_gets_on) {
  struct test_job *test = submit(1, JOB_FILE, 0, NULL, false);
  wait_for_work(test);
  for (int i = 0; i < 3; i++) {
    fake_now += TIMEOUT - CLOCK_SECOND;
    test->job.moved = fake_now;
    fake_now += 2 * CLOCK_SECOND;
    loop_run_once(loop, 1);
    loop_run_once(loop, 1);
    ck_assert_int_eq(n_timed_out, 0);
  }
  fake_now += TIMEOUT - 3 * CLOCK_SECOND;
  loop_run_once(loop, 1);
  ck_assert_int_eq(n_timed_out, 0);
  let_time_out(1);
  open_gate(0);
  while (n_abandoned < 1)
    loop_run_once(loop, 1);
}
END_TEST

/* It came back, but the loop has not seen it when the deadline comes: done as if nothing had been. */
START_TEST(test_back_at_the_last_moment) {
  struct test_job *test = submit(1, JOB_FILE, -1, NULL, false);
  while (workers_stats(workers).busy > 0 || n_works == 0 || at_work > 0)
    usleep(100);
  while (test->job.state != JOB_FINISHED) { /* read without the lock: only this thread waits for it */
    workers_stats(workers);
    usleep(100);
  }
  fake_now += TIMEOUT + 1;
  run_until_done(1);
  ck_assert_int_eq(n_timed_out, 0);
  free(test);
}
END_TEST

/* Never begun: all threads hang. It is told of its deadline too, and freed once. */
START_TEST(test_waiting_job_times_out) {
  frees = true;
  for (int i = 0; i < 6; i++)
    submit(i, JOB_FILE, 0, NULL, false);
  wait_for_works(6);
  struct job_queue *queue = job_queue_new();
  submit(6, JOB_FILE, -1, NULL, false);
  submit(7, JOB_FILE, -1, queue, true);
  submit(8, JOB_FILE, -1, queue, true); /* waits behind 7 */
  fake_now += TIMEOUT + 1;
  while (n_timed_out + n_done < 9)
    loop_run_once(loop, 1);
  job_queue_abandon(queue);
  /* A thread that replaces a stuck one may have taken one of the three before its deadline was seen. */
  ck_assert_int_ge(n_timed_out, 6);
  open_gate(0);
  while (n_abandoned < n_timed_out)
    loop_run_once(loop, 1);
  for (int i = 0; i < 5; i++)
    loop_run_once(loop, 1);
  ck_assert_int_eq(n_abandoned, n_timed_out);
  ck_assert_int_eq(n_timed_out + n_done, 9);
}
END_TEST

/* A change that hangs lets its queue go on once it is written off. */
START_TEST(test_queue_goes_on_behind_a_written_off_job) {
  struct job_queue *queue = job_queue_new();
  submit(1, JOB_FILE, 0, queue, true);
  wait_for_works(1);
  fake_now += TIMEOUT / 2;
  struct test_job *next = submit(2, JOB_FILE, -1, queue, true);
  fake_now += TIMEOUT / 2 + 1;
  while (n_timed_out < 1)
    loop_run_once(loop, 1);
  run_until_done(1);
  ck_assert_int_eq(n_timed_out, 1);
  free(next);
  job_queue_abandon(queue);
  open_gate(0);
  while (n_abandoned < 1)
    loop_run_once(loop, 1);
}
END_TEST

START_TEST(test_eight_written_off_are_the_end) {
  int submitted = 0;
  while (submitted < 8) {
    for (int i = 0; i < 4; i++)
      submit(submitted++, i % 2 ? JOB_SPAWN : JOB_FILE, 0, NULL, false);
    wait_for_works(submitted);
    let_time_out(submitted);
  }
  ck_assert_uint_eq(workers_stats(workers).written_off, 8);
  struct error err = ERROR_INIT;
  struct test_job *refused = new_job(9, JOB_SPAWN, -1);
  ck_assert_int_eq(workers_submit(workers, &refused->job, NULL, false, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_BUSY);
  ck_assert_uint_eq(err.limit, 8);
  open_gate(0);
  while (n_abandoned < 8)
    loop_run_once(loop, 1);
  while (workers_stats(workers).written_off > 0)
    loop_run_once(loop, 1);
  err = (struct error)ERROR_INIT;
  ck_assert_int_eq(workers_submit(workers, &refused->job, NULL, false, &err), 0);
  run_until_done(1);
  free(refused);
}
END_TEST

/* ---- the end ---- */

static int64_t real_now(void) {
  return clock_monotonic();
}

static void count_jobs(void *arg, uint32_t jobs) {
  unsigned *counts = arg;
  counts[0] += jobs;
}

static void count_leaving(void *arg) {
  unsigned *counts = arg;
  counts[1]++;
}

/* No thread at rest: they end 10 s after the last job. */
START_TEST(test_idle_threads_end) {
  unsigned counts[2] = {0, 0};
  const struct workers_observer observer = {.jobs_done = count_jobs, .all_left = count_leaving, .arg = counts};
  workers_observe(workers, &observer);
  struct test_job *test = submit(1, JOB_FILE, -1, NULL, false);
  run_until_done(1);
  free(test);
  ck_assert_uint_ge(workers_stats(workers).threads, 1);
  ck_assert_uint_eq(counts[1], 0);
  while (counts[1] == 0)
    loop_run_once(loop, 1000);
  ck_assert_uint_eq(workers_stats(workers).threads, 0);
  ck_assert_uint_eq(counts[0], 1);
  test = submit(2, JOB_FILE, -1, NULL, false);
  run_until_done(2);
  free(test);
}
END_TEST

/* Work is still under way in every state when the pool ends: each job is freed exactly once. */
START_TEST(test_free_with_work_under_way) {
  struct job_queue *queue = job_queue_new();
  for (int i = 0; i < 6; i++)
    submit(i, JOB_FILE, i < 3 ? 0 : 1, NULL, false);
  wait_for_works(6);
  for (int i = 6; i < 9; i++)
    submit(i, JOB_FILE, -1, NULL, false); /* ready */
  for (int i = 9; i < 12; i++)
    submit(i, JOB_FILE, -1, queue, true); /* one ready, two waiting */
  struct test_job *finished = submit(12, JOB_SPAWN, -1, NULL, false);
  while (finished->job.state != JOB_FINISHED)
    usleep(100);
  job_queue_abandon(queue);
  open_gate(0); /* three come back in time, three stay stuck */
  int64_t begin = real_now();
  static struct workers *left_behind; /* on purpose, since threads are stuck in it */
  left_behind = workers;
  workers_free(workers);
  ck_assert_ptr_nonnull(left_behind);
  ck_assert_int_lt(real_now() - begin, 10 * CLOCK_SECOND);
  ck_assert_int_eq(n_abandoned, 10);
  ck_assert_int_eq(n_done, 0);
  ck_assert_int_eq(n_timed_out, 0);
  open_gate(1);
  while (n_abandoned < 13)
    usleep(1000);
  struct error err = ERROR_INIT;
  workers = workers_new(loop, TIMEOUT, &err);
  ck_assert_ptr_nonnull(workers);
}
END_TEST

START_TEST(test_free_at_rest_gives_all_back) {
  for (int i = 0; i < 50; i++) {
    struct error err = ERROR_INIT;
    tear_down();
    set_up();
    struct test_job *test = submit(1, JOB_SPAWN, -1, NULL, false);
    run_until_done(1);
    free(test);
    workers_free(workers);
    int fd = dup(0);
    close(fd);
    ck_assert_int_lt(fd, 30);
    workers = workers_new(loop, TIMEOUT, &err);
  }
}
END_TEST

/* A limit of processes: no thread can be made. An error now, and no wait for a minute. */
START_TEST(test_no_thread_can_be_made) {
  struct error err = ERROR_INIT;
  struct test_job *test = new_job(1, JOB_FILE, -1);
  struct rlimit none = {0, 0}, before;
  ck_assert_int_eq(getrlimit(RLIMIT_NPROC, &before), 0);
  /* root is not bound by it */
  if (geteuid() == 0)
    ck_assert_int_eq(setresuid(65534, 65534, 65534), 0);
  none.rlim_max = before.rlim_max;
  ck_assert_int_eq(setrlimit(RLIMIT_NPROC, &none), 0);
  ck_assert_int_eq(workers_submit(workers, &test->job, NULL, false, &err), -1);
  ck_assert_int_eq(err.kind, ERROR_BUSY);
  ck_assert_int_eq(setrlimit(RLIMIT_NPROC, &before), 0);
  ck_assert_int_eq(workers_submit(workers, &test->job, NULL, false, &err), 0);
  run_until_done(1);
  free(test);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("worker");
  TCase *tcase = tcase_create("worker");
  tcase_set_timeout(tcase, 60);
  tcase_add_checked_fixture(tcase, set_up, tear_down);
  tcase_add_test(tcase, test_many_jobs);
  tcase_add_test(tcase, test_idle_thread_is_not_counted_twice);
  tcase_add_test(tcase, test_one_class_never_takes_all_threads);
  tcase_add_test(tcase, test_the_other_way_round);
  tcase_add_test(tcase, test_spawn_jobs_go_ahead);
  tcase_add_test(tcase, test_waiting_jobs_have_a_limit);
  tcase_add_test(tcase, test_readers_together_changes_alone);
  tcase_add_test(tcase, test_queues_do_not_wait_for_each_other);
  tcase_add_test(tcase, test_abandoned_queue);
  tcase_add_test(tcase, test_queues_keep_order);
  tcase_add_test(tcase, test_written_off_and_back);
  tcase_add_test(tcase, test_a_job_that_gets_on);
  tcase_add_test(tcase, test_back_at_the_last_moment);
  tcase_add_test(tcase, test_waiting_job_times_out);
  tcase_add_test(tcase, test_queue_goes_on_behind_a_written_off_job);
  tcase_add_test(tcase, test_eight_written_off_are_the_end);
  tcase_add_test(tcase, test_idle_threads_end);
  tcase_add_test(tcase, test_free_with_work_under_way);
  tcase_add_test(tcase, test_free_at_rest_gives_all_back);
  tcase_add_test(tcase, test_no_thread_can_be_made);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
