/* The loop: what callbacks may do to each other, in every order that has bitten such loops before. */
#include "sandkeeper/core/loop.h"

#include "sandkeeper/base/clock.h"

#include "run.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/poll.h>
#include <unistd.h>

static int64_t fake_now;

static int64_t fake_clock(void) {
  return fake_now;
}

static struct loop *loop;

static void set_up(void) {
  struct error err = ERROR_INIT;
  fake_now = 1000 * CLOCK_SECOND;
  loop = loop_new(fake_clock, &err);
  ck_assert_ptr_nonnull(loop);
}

static void set_up_real(void) {
  struct error err = ERROR_INIT;
  loop = loop_new(NULL, &err);
  ck_assert_ptr_nonnull(loop);
}

static void tear_down(void) {
  loop_free(loop);
}

/* True when the libraries that wait for the loop's descriptor would call it. */
static bool has_something_to_do(void) {
  struct pollfd entry = {.fd = loop_fd(loop), .events = POLLIN};
  return poll(&entry, 1, 0) == 1;
}

static int readable_fd(void) {
  int fd = eventfd(1, EFD_CLOEXEC);
  ck_assert_int_ge(fd, 0);
  return fd;
}

/* ---- watches ---- */

struct watched {
  struct loop_watch watch;
  int fd, calls;
  uint32_t events;
  struct watched *stops; /* in its callback */
  bool frees_itself;
};

static int freed;

static void on_event(struct loop_watch *watch, uint32_t events) {
  struct watched *watched = watch->arg;
  watched->calls++;
  watched->events = events;
  if (watched->stops)
    loop_watch_stop(loop, &watched->stops->watch);
  if (watched->frees_itself) {
    loop_watch_stop(loop, watch);
    close(watched->fd);
    free(watched);
    freed++;
  }
}

static void begin_watch(struct watched *watched, int fd, uint32_t events) {
  *watched = (struct watched){.fd = fd};
  loop_watch_init(&watched->watch);
  ck_assert_int_eq(watched->watch.fd, -1);
  ck_assert_int_eq(loop_watch_start(loop, &watched->watch, fd, events, on_event, watched), 0);
}

static void end_watch(struct watched *watched) {
  loop_watch_stop(loop, &watched->watch);
  loop_watch_stop(loop, &watched->watch); /* fine when not started */
  close(watched->fd);
}

START_TEST(test_level_triggered) {
  struct watched watched;
  begin_watch(&watched, readable_fd(), EPOLLIN);
  ck_assert(has_something_to_do());
  loop_dispatch(loop);
  loop_dispatch(loop);
  ck_assert_int_eq(watched.calls, 2);
  ck_assert_uint_eq(watched.events, EPOLLIN);
  uint64_t count;
  ck_assert_int_eq(read(watched.fd, &count, sizeof count), sizeof count);
  ck_assert(!has_something_to_do());
  loop_dispatch(loop);
  ck_assert_int_eq(watched.calls, 2);
  end_watch(&watched);
}
END_TEST

START_TEST(test_change) {
  struct watched watched;
  begin_watch(&watched, readable_fd(), EPOLLIN);
  loop_watch_change(loop, &watched.watch, 0);
  loop_dispatch(loop);
  ck_assert_int_eq(watched.calls, 0);
  loop_watch_change(loop, &watched.watch, EPOLLIN | EPOLLOUT);
  loop_dispatch(loop);
  ck_assert_int_eq(watched.calls, 1);
  ck_assert_uint_eq(watched.events, EPOLLIN | EPOLLOUT);
  end_watch(&watched);
  loop_watch_change(loop, &watched.watch, EPOLLIN); /* not started: nothing */
  loop_dispatch(loop);
  ck_assert_int_eq(watched.calls, 1);
}
END_TEST

/* With events 0 a hung-up pipe is still told of. */
START_TEST(test_hangup_without_events) {
  int ends[2];
  struct watched watched;
  ck_assert_int_eq(pipe(ends), 0);
  begin_watch(&watched, ends[0], 0);
  close(ends[1]);
  loop_dispatch(loop);
  ck_assert_int_eq(watched.calls, 1);
  ck_assert(watched.events & EPOLLHUP);
  end_watch(&watched);
}
END_TEST

START_TEST(test_regular_file_is_refused) {
  struct loop_watch watch;
  char path[] = "/tmp/test-loop-XXXXXX";
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  unlink(path);
  loop_watch_init(&watch);
  ck_assert_int_eq(loop_watch_start(loop, &watch, fd, EPOLLIN, on_event, NULL), -1);
  ck_assert_int_eq(errno, EPERM);
  ck_assert_int_eq(watch.fd, -1);
  close(fd);
}
END_TEST

/* Both are in one batch of events, and whichever comes first stops the other. */
START_TEST(test_stop_another_in_the_same_batch) {
  struct watched a, b;
  begin_watch(&a, readable_fd(), EPOLLIN);
  begin_watch(&b, readable_fd(), EPOLLIN);
  a.stops = &b;
  b.stops = &a;
  loop_dispatch(loop);
  ck_assert_int_eq(a.calls + b.calls, 1);
  loop_dispatch(loop);
  loop_dispatch(loop);
  ck_assert_int_eq(a.calls + b.calls, 3); /* the one that is left goes on */
  ck_assert(a.calls == 0 || b.calls == 0);
  end_watch(&a);
  end_watch(&b);
}
END_TEST

static struct watched reused_by;

/* Stops the other, and starts its struct anew on a descriptor that is not readable. */
static void on_reuse(struct loop_watch *watch, uint32_t events) {
  (void)events;
  struct watched *self = watch->arg, *other = self->stops;
  self->calls++;
  loop_watch_stop(loop, &other->watch);
  loop_watch_stop(loop, watch);
  int quiet = eventfd(0, EFD_CLOEXEC);
  reused_by.fd = quiet;
  ck_assert_int_eq(loop_watch_start(loop, &other->watch, quiet, EPOLLIN, on_event, other), 0);
}

START_TEST(test_restarted_watch_gets_no_old_event) {
  struct watched watched[2];
  for (int i = 0; i < 2; i++) {
    watched[i] = (struct watched){.fd = readable_fd(), .stops = &watched[1 - i]};
    loop_watch_init(&watched[i].watch);
    ck_assert_int_eq(loop_watch_start(loop, &watched[i].watch, watched[i].fd, EPOLLIN, on_reuse, &watched[i]), 0);
  }
  loop_dispatch(loop);
  ck_assert_int_eq(watched[0].calls + watched[1].calls, 1);
  loop_dispatch(loop);
  ck_assert_int_eq(watched[0].calls + watched[1].calls, 1);
  for (int i = 0; i < 2; i++)
    end_watch(&watched[i]);
  close(reused_by.fd);
}
END_TEST

START_TEST(test_callback_frees_its_own_struct) {
  enum { N = 200 }; /* more than one batch */
  freed = 0;
  for (int i = 0; i < N; i++) {
    struct watched *watched = malloc(sizeof *watched);
    ck_assert_ptr_nonnull(watched);
    begin_watch(watched, readable_fd(), EPOLLIN);
    watched->frees_itself = true;
  }
  int dispatches = 0;
  while (freed < N) {
    loop_dispatch(loop);
    ck_assert_int_lt(++dispatches, N);
  }
  ck_assert_int_gt(dispatches, 1); /* a dispatch does a bounded amount of work */
  ck_assert(!has_something_to_do());
}
END_TEST

/* ---- timers ---- */

struct timed {
  struct loop_timer timer;
  int number;
  int64_t again; /* restarts itself this much after now; INT64_MIN: no */
  struct timed *stops, *starts;
};

static int order[64], n_fired;

static void on_timer(struct loop_timer *timer) {
  struct timed *timed = timer->arg;
  ck_assert(!loop_timer_is_started(timer));
  ck_assert_int_le(timer->deadline, loop_now(loop));
  if (n_fired < 64)
    order[n_fired] = timed->number;
  n_fired++;
  if (timed->stops)
    loop_timer_stop(loop, &timed->stops->timer);
  if (timed->starts)
    ck_assert_int_eq(loop_timer_start(loop, &timed->starts->timer, loop_now(loop), on_timer, timed->starts), 0);
  if (timed->again != INT64_MIN)
    ck_assert_int_eq(loop_timer_start(loop, timer, loop_now(loop) + timed->again, on_timer, timed), 0);
}

static void begin_timer(struct timed *timed, int number, int64_t after) {
  *timed = (struct timed){.number = number, .again = INT64_MIN};
  loop_timer_init(&timed->timer);
  ck_assert(!loop_timer_is_started(&timed->timer));
  ck_assert_int_eq(loop_timer_start(loop, &timed->timer, fake_now + after, on_timer, timed), 0);
  ck_assert(loop_timer_is_started(&timed->timer));
}

static void expect_order(int n, const int *numbers) {
  ck_assert_int_eq(n_fired, n);
  for (int i = 0; i < n; i++)
    ck_assert_int_eq(order[i], numbers[i]);
  n_fired = 0;
}

START_TEST(test_timers_in_order) {
  static const int after[] = {50, 10, 40, 20, 30, 10, 0};
  struct timed timed[7];
  n_fired = 0;
  for (int i = 0; i < 7; i++)
    begin_timer(&timed[i], i, after[i]);
  loop_dispatch(loop);
  expect_order(1, (int[]){6});
  fake_now += 9;
  loop_dispatch(loop);
  expect_order(0, NULL);
  fake_now += 1;
  loop_dispatch(loop);
  ck_assert_int_eq(n_fired, 2);
  n_fired = 0;
  fake_now += 100;
  loop_dispatch(loop);
  expect_order(4, (int[]){3, 4, 2, 0});
}
END_TEST

START_TEST(test_timer_moved_and_stopped) {
  struct timed a, b, c;
  n_fired = 0;
  begin_timer(&a, 1, 10);
  begin_timer(&b, 2, 20);
  begin_timer(&c, 3, 30);
  ck_assert_int_eq(loop_timer_start(loop, &a.timer, fake_now + 40, on_timer, &a), 0);
  ck_assert_int_eq(loop_timer_start(loop, &c.timer, fake_now + 5, on_timer, &c), 0);
  loop_timer_stop(loop, &b.timer);
  loop_timer_stop(loop, &b.timer);
  ck_assert(!loop_timer_is_started(&b.timer));
  fake_now += 100;
  loop_dispatch(loop);
  expect_order(2, (int[]){3, 1});
  loop_dispatch(loop);
  expect_order(0, NULL);
}
END_TEST

/* Two are due; the first stops the second. Another starts one that is due at once: it comes, but later. */
START_TEST(test_timers_stop_and_start_each_other) {
  struct timed a, b, c, d;
  n_fired = 0;
  begin_timer(&a, 1, 1);
  begin_timer(&b, 2, 2);
  begin_timer(&c, 3, 3);
  begin_timer(&d, 4, 1000);
  loop_timer_stop(loop, &d.timer);
  a.stops = &b;
  c.starts = &d;
  fake_now += 10;
  for (int i = 0; i < 2; i++)
    loop_dispatch(loop);
  expect_order(3, (int[]){1, 3, 4});
}
END_TEST

/* One that restarts itself as due does not hold the loop; it comes again with the next dispatch, and says so. */
START_TEST(test_timer_restarted_in_its_callback) {
  struct timed a, b;
  n_fired = 0;
  begin_timer(&a, 1, 0);
  begin_timer(&b, 2, 0);
  a.again = 0;
  loop_dispatch(loop);
  ck_assert_int_ge(n_fired, 2);
  ck_assert_int_le(n_fired, 3);
  int before = n_fired;
  /* The timerfd is set to the least there is, so the descriptor becomes ready by itself. */
  struct pollfd entry = {.fd = loop_fd(loop), .events = POLLIN};
  ck_assert_int_eq(poll(&entry, 1, 5000), 1);
  loop_dispatch(loop);
  ck_assert_int_gt(n_fired, before);
  a.again = INT64_MIN;
  loop_dispatch(loop);
  ck_assert(!loop_timer_is_started(&a.timer));
}
END_TEST

static void free_timer(struct loop_timer *timer) {
  free(timer->arg);
  freed++;
}

START_TEST(test_timer_frees_its_own_struct) {
  freed = 0;
  for (int i = 0; i < 100; i++) {
    struct timed *timed = calloc(1, sizeof *timed);
    ck_assert_ptr_nonnull(timed);
    ck_assert_int_eq(loop_timer_start(loop, &timed->timer, fake_now - i, free_timer, timed), 0);
  }
  for (int i = 0; i < 100 && freed < 100; i++)
    loop_dispatch(loop);
  ck_assert_int_eq(freed, 100);
}
END_TEST

static uint32_t seed = 2463534242u;

static uint32_t pick(uint32_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 17;
  seed ^= seed << 5;
  return seed % below;
}

static int64_t last_deadline;
static int n_random;

static void on_random(struct loop_timer *timer) {
  if (timer->deadline < last_deadline || timer->deadline > fake_now)
    ck_abort_msg("out of order");
  last_deadline = timer->deadline;
  n_random++;
}

/* The heap under random starts, moves and stops: all that are due fire, in order, and nothing else. */
START_TEST(test_many_timers) {
  enum { N = 500 };
  static struct loop_timer timers[N];
  for (int i = 0; i < N; i++)
    loop_timer_init(&timers[i]);
  for (int round = 0; round < 300; round++) {
    for (int i = 0; i < 100; i++) {
      struct loop_timer *timer = &timers[pick(N)];
      if (pick(3) == 0)
        loop_timer_stop(loop, timer);
      else
        loop_timer_start(loop, timer, fake_now + 1 + pick(1000), on_random, NULL);
    }
    fake_now += pick(300);
    int due = 0;
    for (int i = 0; i < N; i++)
      due += loop_timer_is_started(&timers[i]) && timers[i].deadline <= fake_now;
    n_random = 0;
    last_deadline = 0;
    loop_dispatch(loop);
    ck_assert_int_eq(n_random, due);
    for (int i = 0; i < N; i++)
      if (loop_timer_is_started(&timers[i]) && timers[i].deadline <= fake_now)
        ck_abort_msg("one was left");
  }
}
END_TEST

/* With the real clock: the descriptor wakes up for a timer, and no earlier. */
START_TEST(test_real_timer) {
  struct timed timed = {.number = 1, .again = INT64_MIN}, sooner = {.number = 2, .again = INT64_MIN};
  n_fired = 0;
  int64_t begin = clock_monotonic();
  loop_timer_start(loop, &timed.timer, begin + 60 * CLOCK_MS, on_timer, &timed);
  loop_timer_start(loop, &sooner.timer, begin + 10 * CLOCK_MS, on_timer, &sooner);
  while (n_fired < 2)
    loop_run_once(loop, -1);
  ck_assert_int_ge(clock_monotonic() - begin, 60 * CLOCK_MS);
  expect_order(2, (int[]){2, 1});
  ck_assert(!has_something_to_do());
}
END_TEST

/* A timer stopped in time costs at most one early wake-up, and then there is silence. */
START_TEST(test_stopped_timer_leaves_silence) {
  struct timed timed = {.number = 1, .again = INT64_MIN}, later = {.number = 2, .again = INT64_MIN};
  n_fired = 0;
  loop_timer_start(loop, &timed.timer, clock_monotonic() + 5 * CLOCK_MS, on_timer, &timed);
  loop_timer_start(loop, &later.timer, clock_monotonic() + 3600 * CLOCK_SECOND, on_timer, &later);
  loop_timer_stop(loop, &timed.timer);
  int wakes = 0;
  int64_t until = clock_monotonic() + 50 * CLOCK_MS;
  while (clock_monotonic() < until) {
    struct pollfd entry = {.fd = loop_fd(loop), .events = POLLIN};
    wakes += poll(&entry, 1, 20) == 1;
    loop_dispatch(loop);
  }
  ck_assert_int_le(wakes, 1);
  ck_assert_int_eq(n_fired, 0);
  loop_timer_stop(loop, &later.timer);
}
END_TEST

/* ---- tasks ---- */

struct tasked {
  struct loop_task task;
  int calls;
  struct tasked *cancels;
  bool again;
};

static void on_task(struct loop_task *task) {
  struct tasked *tasked = task->arg;
  tasked->calls++;
  if (tasked->cancels)
    loop_task_cancel(&tasked->cancels->task);
  if (tasked->again)
    loop_defer(loop, task, on_task, tasked);
}

static void defer(struct tasked *tasked) {
  loop_defer(loop, &tasked->task, on_task, tasked);
}

START_TEST(test_defer_outside_of_a_dispatch) {
  struct tasked tasked = {0};
  loop_task_init(&tasked.task);
  ck_assert(!has_something_to_do());
  defer(&tasked);
  defer(&tasked); /* again: no effect */
  ck_assert_int_eq(tasked.calls, 0);
  ck_assert(has_something_to_do());
  loop_dispatch(loop);
  ck_assert_int_eq(tasked.calls, 1);
  loop_dispatch(loop);
  ck_assert_int_eq(tasked.calls, 1);
  ck_assert(!has_something_to_do());
}
END_TEST

static void defer_from_timer(struct loop_timer *timer) {
  struct tasked *tasked = timer->arg;
  defer(tasked);
  ck_assert_int_eq(tasked->calls, 0); /* never inside */
}

START_TEST(test_defer_inside_a_dispatch_runs_at_its_end) {
  struct tasked tasked = {0};
  struct loop_timer timer;
  loop_task_init(&tasked.task);
  loop_timer_init(&timer);
  loop_timer_start(loop, &timer, fake_now, defer_from_timer, &tasked);
  loop_dispatch(loop);
  ck_assert_int_eq(tasked.calls, 1);
}
END_TEST

/* One that defers itself does not hold the loop, and is not forgotten. */
START_TEST(test_task_defers_itself) {
  struct tasked tasked = {.again = true};
  loop_task_init(&tasked.task);
  defer(&tasked);
  for (int i = 1; i <= 5; i++) {
    ck_assert(has_something_to_do());
    loop_dispatch(loop);
    ck_assert_int_eq(tasked.calls, i);
  }
  loop_task_cancel(&tasked.task);
  loop_task_cancel(&tasked.task);
  loop_dispatch(loop);
  ck_assert_int_eq(tasked.calls, 5);
}
END_TEST

START_TEST(test_task_cancels_another) {
  struct tasked a = {0}, b = {0}, c = {0};
  loop_task_init(&a.task);
  loop_task_init(&b.task);
  loop_task_init(&c.task);
  a.cancels = &b;
  defer(&a);
  defer(&b);
  defer(&c);
  loop_dispatch(loop);
  ck_assert_int_eq(a.calls, 1);
  ck_assert_int_eq(b.calls, 0);
  ck_assert_int_eq(c.calls, 1);
  defer(&b); /* it may be deferred again */
  loop_dispatch(loop);
  ck_assert_int_eq(b.calls, 1);
}
END_TEST

static void free_task(struct loop_task *task) {
  free(task->arg);
  freed++;
}

START_TEST(test_task_frees_its_own_struct) {
  freed = 0;
  for (int i = 0; i < 3; i++) {
    struct tasked *tasked = calloc(1, sizeof *tasked);
    ck_assert_ptr_nonnull(tasked);
    loop_task_init(&tasked->task);
    loop_defer(loop, &tasked->task, free_task, tasked);
  }
  loop_dispatch(loop);
  ck_assert_int_eq(freed, 3);
}
END_TEST

/* ---- the clock ---- */

static int64_t seen_first, seen_last;

static void on_clock(struct loop_watch *watch, uint32_t events) {
  (void)watch;
  (void)events;
  if (!seen_first)
    seen_first = loop_now(loop);
  fake_now += 5;
  seen_last = loop_now(loop);
}

START_TEST(test_now_stands_still_in_a_dispatch) {
  struct loop_watch watches[3];
  int fds[3];
  seen_first = seen_last = 0;
  for (int i = 0; i < 3; i++) {
    fds[i] = readable_fd();
    loop_watch_init(&watches[i]);
    ck_assert_int_eq(loop_watch_start(loop, &watches[i], fds[i], EPOLLIN, on_clock, NULL), 0);
  }
  loop_dispatch(loop);
  ck_assert_int_eq(seen_first, seen_last);
  ck_assert_int_eq(loop_now(loop), seen_first + 15); /* fresh outside */
  for (int i = 0; i < 3; i++) {
    loop_watch_stop(loop, &watches[i]);
    close(fds[i]);
  }
}
END_TEST

START_TEST(test_descriptors_are_given_back) {
  tear_down();
  int before = dup(0);
  close(before);
  for (int i = 0; i < 100; i++) {
    struct error err = ERROR_INIT;
    loop = loop_new(NULL, &err);
    ck_assert_ptr_nonnull(loop);
    ck_assert(fcntl(loop_fd(loop), F_GETFD) & FD_CLOEXEC);
    loop_free(loop);
  }
  int after = dup(0);
  close(after);
  ck_assert_int_eq(after, before);
  loop = NULL;
  loop_free(NULL);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("loop");
  TCase *fake = tcase_create("fake clock");
  tcase_set_timeout(fake, 20);
  tcase_add_checked_fixture(fake, set_up, tear_down);
  tcase_add_test(fake, test_level_triggered);
  tcase_add_test(fake, test_change);
  tcase_add_test(fake, test_hangup_without_events);
  tcase_add_test(fake, test_regular_file_is_refused);
  tcase_add_test(fake, test_stop_another_in_the_same_batch);
  tcase_add_test(fake, test_restarted_watch_gets_no_old_event);
  tcase_add_test(fake, test_callback_frees_its_own_struct);
  tcase_add_test(fake, test_timers_in_order);
  tcase_add_test(fake, test_timer_moved_and_stopped);
  tcase_add_test(fake, test_timers_stop_and_start_each_other);
  tcase_add_test(fake, test_timer_restarted_in_its_callback);
  tcase_add_test(fake, test_timer_frees_its_own_struct);
  tcase_add_test(fake, test_many_timers);
  tcase_add_test(fake, test_defer_outside_of_a_dispatch);
  tcase_add_test(fake, test_defer_inside_a_dispatch_runs_at_its_end);
  tcase_add_test(fake, test_task_defers_itself);
  tcase_add_test(fake, test_task_cancels_another);
  tcase_add_test(fake, test_task_frees_its_own_struct);
  tcase_add_test(fake, test_now_stands_still_in_a_dispatch);
  tcase_add_test(fake, test_descriptors_are_given_back);
  suite_add_tcase(suite, fake);
  TCase *real = tcase_create("real clock");
  tcase_set_timeout(real, 20);
  tcase_add_checked_fixture(real, set_up_real, tear_down);
  tcase_add_test(real, test_real_timer);
  tcase_add_test(real, test_stopped_timer_leaves_silence);
  suite_add_tcase(suite, real);
  return run_suite(suite);
}
