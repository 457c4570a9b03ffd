#include "sandkeeper/core/loop.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* Events taken from the kernel at once. What is left over comes with the next dispatch, after the libraries that share
 * the thread had their turn. */
#define EVENTS_PER_DISPATCH 64

struct loop {
  int epoll_fd;
  int timer_fd;
  int wake_fd; /* an eventfd: makes epoll_fd readable for a task deferred outside of a dispatch */
  int64_t (*clock)(void);

  int64_t now; /* valid while dispatching */
  bool dispatching;

  /* The events being handled: a watch that is stopped meanwhile is taken out of them. */
  struct epoll_event *events;
  int n_events;

  struct loop_timer **heap; /* by deadline */
  uint32_t n_timers, heap_capacity;
  int64_t armed; /* what timer_fd is set to */

  struct list tasks;
};

/* Markers for the loop's own descriptors in epoll_event.data. */
static char timer_marker, wake_marker;

static int add_own(struct loop *loop, int fd, void *marker) {
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = marker};
  return epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

struct loop *loop_new(int64_t (*clock)(void), struct error *err) {
  struct loop *loop = calloc(1, sizeof *loop);
  if (!loop) {
    error_set_errno(err, ENOMEM, "event loop");
    return NULL;
  }
  loop->clock = clock ? clock : clock_monotonic;
  loop->armed = CLOCK_NEVER;
  list_init(&loop->tasks);
  loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  loop->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (loop->epoll_fd < 0 || loop->timer_fd < 0 || loop->wake_fd < 0 ||
      add_own(loop, loop->timer_fd, &timer_marker) < 0 || add_own(loop, loop->wake_fd, &wake_marker) < 0) {
    error_set_errno(err, errno, "event loop");
    loop_free(loop);
    return NULL;
  }
  return loop;
}

void loop_free(struct loop *loop) {
  if (!loop)
    return;
  fd_close(&loop->epoll_fd);
  fd_close(&loop->timer_fd);
  fd_close(&loop->wake_fd);
  free(loop->heap);
  free(loop);
}

int loop_fd(const struct loop *loop) {
  return loop->epoll_fd;
}

int64_t loop_now(const struct loop *loop) {
  return loop->dispatching ? loop->now : loop->clock();
}

/* ---- watched descriptors ---- */

void loop_watch_init(struct loop_watch *watch) {
  *watch = (struct loop_watch){.fd = -1};
}

int loop_watch_start(struct loop *loop, struct loop_watch *watch, int fd, uint32_t events, loop_watch_fn *fn,
                     void *arg) {
  struct epoll_event event = {.events = events, .data.ptr = watch};
  if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
    return -1;
  *watch = (struct loop_watch){.fd = fd, .events = events, .fn = fn, .arg = arg};
  return 0;
}

void loop_watch_change(struct loop *loop, struct loop_watch *watch, uint32_t events) {
  if (watch->fd < 0 || watch->events == events)
    return;
  struct epoll_event event = {.events = events, .data.ptr = watch};
  if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &event) == 0)
    watch->events = events;
}

void loop_watch_stop(struct loop *loop, struct loop_watch *watch) {
  if (watch->fd < 0)
    return;
  epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
  watch->fd = -1;
  for (int i = 0; i < loop->n_events; i++)
    if (loop->events[i].data.ptr == watch)
      loop->events[i].data.ptr = NULL;
}

/* ---- timers: a binary heap, and one timerfd set to its root ---- */

static void heap_put(struct loop *loop, uint32_t at, struct loop_timer *timer) {
  loop->heap[at] = timer;
  timer->index = at + 1;
}

static void heap_up(struct loop *loop, uint32_t at) {
  struct loop_timer *timer = loop->heap[at];
  while (at > 0) {
    uint32_t parent = (at - 1) / 2;
    if (loop->heap[parent]->deadline <= timer->deadline)
      break;
    heap_put(loop, at, loop->heap[parent]);
    at = parent;
  }
  heap_put(loop, at, timer);
}

static void heap_down(struct loop *loop, uint32_t at) {
  struct loop_timer *timer = loop->heap[at];
  for (;;) {
    uint32_t child = 2 * at + 1;
    if (child >= loop->n_timers)
      break;
    if (child + 1 < loop->n_timers && loop->heap[child + 1]->deadline < loop->heap[child]->deadline)
      child++;
    if (timer->deadline <= loop->heap[child]->deadline)
      break;
    heap_put(loop, at, loop->heap[child]);
    at = child;
  }
  heap_put(loop, at, timer);
}

/* Sets the timerfd only when the earliest deadline moved forward: one that fires too early finds nothing due and sets
 * it anew, which is cheaper than a system call for every timer that is stopped in time. */
static void arm(struct loop *loop) {
  int64_t earliest = loop->n_timers > 0 ? loop->heap[0]->deadline : CLOCK_NEVER;
  if (earliest >= loop->armed)
    return;
  int64_t wait = earliest - loop->clock();
  if (wait < 1)
    wait = 1; /* 0 would disarm it */
  struct itimerspec spec = {.it_value = {.tv_sec = wait / CLOCK_SECOND, .tv_nsec = wait % CLOCK_SECOND}};
  if (timerfd_settime(loop->timer_fd, 0, &spec, NULL) == 0)
    loop->armed = earliest;
}

void loop_timer_init(struct loop_timer *timer) {
  *timer = (struct loop_timer){0};
}

static int heap_grow(struct loop *loop) {
  if (loop->n_timers < loop->heap_capacity)
    return 0;
  uint32_t capacity = loop->heap_capacity ? loop->heap_capacity * 2 : 16;
  struct loop_timer **heap = reallocarray(loop->heap, capacity, sizeof(struct loop_timer *));
  if (!heap)
    return -1;
  loop->heap = heap;
  loop->heap_capacity = capacity;
  return 0;
}

int loop_timer_start(struct loop *loop, struct loop_timer *timer, int64_t deadline, loop_timer_fn *fn, void *arg) {
  if (timer->index == 0) {
    if (heap_grow(loop) < 0)
      return -1;
    heap_put(loop, loop->n_timers++, timer);
  }
  timer->deadline = deadline;
  timer->fn = fn;
  timer->arg = arg;
  heap_up(loop, timer->index - 1);
  heap_down(loop, timer->index - 1);
  if (!loop->dispatching)
    arm(loop);
  return 0;
}

void loop_timer_stop(struct loop *loop, struct loop_timer *timer) {
  if (timer->index == 0)
    return;
  uint32_t at = timer->index - 1;
  timer->index = 0;
  struct loop_timer *last = loop->heap[--loop->n_timers];
  if (last == timer)
    return;
  heap_put(loop, at, last);
  heap_up(loop, at);
  heap_down(loop, last->index - 1);
}

static void run_timers(struct loop *loop) {
  /* One started by a callback with a deadline that has passed waits for the next dispatch: else two that start each
   * other would hold the loop. */
  uint32_t budget = loop->n_timers;
  while (budget-- > 0 && loop->n_timers > 0 && loop->heap[0]->deadline <= loop->now) {
    struct loop_timer *timer = loop->heap[0];
    loop_timer_stop(loop, timer);
    timer->fn(timer);
  }
}

/* ---- tasks ---- */

void loop_task_init(struct loop_task *task) {
  list_init(&task->node);
  task->fn = NULL;
  task->arg = NULL;
}

void loop_defer(struct loop *loop, struct loop_task *task, loop_task_fn *fn, void *arg) {
  task->fn = fn;
  task->arg = arg;
  if (list_is_linked(&task->node))
    return;
  list_append(&loop->tasks, &task->node);
  if (!loop->dispatching) {
    uint64_t one = 1;
    (void)!write(loop->wake_fd, &one, sizeof one); /* fails only when it is readable already */
  }
}

void loop_task_cancel(struct loop_task *task) {
  list_remove(&task->node);
}

/* Runs the tasks that are there now; those deferred by them come with the next dispatch. */
static void run_tasks(struct loop *loop) {
  struct list due;
  list_init(&due);
  if (!list_is_empty(&loop->tasks)) {
    due = loop->tasks;
    due.next->prev = &due;
    due.prev->next = &due;
    list_init(&loop->tasks);
  }
  while (!list_is_empty(&due)) {
    struct loop_task *task = LIST_FIRST(&due, struct loop_task, node);
    list_remove(&task->node);
    task->fn(task);
  }
}

/* ---- dispatch ---- */

static void drain(int fd) {
  uint64_t count;
  (void)!read(fd, &count, sizeof count); /* EAGAIN: somebody read it before; nothing is lost */
}

static void handle_event(struct loop *loop, const struct epoll_event *event) {
  if (event->data.ptr == &timer_marker) {
    drain(loop->timer_fd);
    loop->armed = CLOCK_NEVER;
  } else if (event->data.ptr == &wake_marker) {
    drain(loop->wake_fd);
  } else if (event->data.ptr) {
    struct loop_watch *watch = event->data.ptr;
    watch->fn(watch, event->events);
  }
}

static void dispatch(struct loop *loop, int timeout_ms) {
  struct epoll_event events[EVENTS_PER_DISPATCH];
  int n = epoll_wait(loop->epoll_fd, events, EVENTS_PER_DISPATCH, timeout_ms);
  loop->now = loop->clock();
  loop->dispatching = true;
  loop->events = events;
  loop->n_events = n > 0 ? n : 0;
  for (int i = 0; i < loop->n_events; i++)
    handle_event(loop, &events[i]);
  loop->events = NULL;
  loop->n_events = 0;
  run_timers(loop);
  run_tasks(loop);
  loop->dispatching = false;
  if (!list_is_empty(&loop->tasks)) {
    uint64_t one = 1;
    (void)!write(loop->wake_fd, &one, sizeof one);
  }
  arm(loop);
}

void loop_dispatch(struct loop *loop) {
  dispatch(loop, 0);
}

void loop_run_once(struct loop *loop, int timeout_ms) {
  dispatch(loop, timeout_ms);
}
