/* loop.h - one epoll instance with watched descriptors, timers and deferred tasks.
 *
 * The program waits in loop_run_once() and nowhere else (loop_fd() and loop_dispatch() let a test look); the libraries
 * are told what their descriptors are ready for (net/ws.c, net/http.c). All of it is for one thread; what another
 * thread has to say comes through core/worker.h.
 *
 * Callbacks may start and stop any watch, timer or task, also their own, and may free the struct they were called
 * for: the loop does not touch it again after the call. They must not block, and must not call loop_dispatch().
 */
#ifndef SANDKEEPER_CORE_LOOP_H
#define SANDKEEPER_CORE_LOOP_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/base/list.h"

#include <stdbool.h>
#include <stdint.h>

struct loop;

/* NULL and *err when epoll, timerfd or eventfd cannot be made. `clock` gives monotonic nanoseconds; NULL means
 * clock_monotonic (a test hands in its own). */
struct loop *loop_new(int64_t (*clock)(void), struct error *err);
void loop_free(struct loop *loop);

/* The epoll descriptor: readable when loop_dispatch() has something to do. Owned by the loop. */
int loop_fd(const struct loop *loop);

/* Handles what is ready, due timers and deferred tasks, without waiting. One call does a bounded amount of work, so
 * that the libraries beside it get their turn. */
void loop_dispatch(struct loop *loop);

/* Waits up to timeout_ms (-1: for ever) and dispatches once. */
void loop_run_once(struct loop *loop, int timeout_ms);

/* Monotonic nanoseconds, read once per dispatch (fresh outside of one). */
int64_t loop_now(const struct loop *loop);

/* A watched descriptor. The struct belongs to the caller and must stay where it is while started. */
struct loop_watch;
typedef void loop_watch_fn(struct loop_watch *watch, uint32_t events /* EPOLLIN | ... */);
struct loop_watch {
  int fd; /* -1 when not started; the caller closes it, after loop_watch_stop */
  uint32_t events;
  loop_watch_fn *fn;
  void *arg;
};
void loop_watch_init(struct loop_watch *watch);
/* 0, or -1 with errno (EPERM for a regular file, ENOSPC, ENOMEM). Level-triggered unless events says EPOLLET. */
int loop_watch_start(struct loop *loop, struct loop_watch *watch, int fd, uint32_t events, loop_watch_fn *fn,
                     void *arg);
/* Changes what is watched; 0 keeps the descriptor registered for EPOLLHUP and EPOLLERR only. */
void loop_watch_change(struct loop *loop, struct loop_watch *watch, uint32_t events);
void loop_watch_stop(struct loop *loop, struct loop_watch *watch); /* fine when not started */

/* A timer. The struct belongs to the caller. */
struct loop_timer;
typedef void loop_timer_fn(struct loop_timer *timer);
struct loop_timer {
  int64_t deadline; /* monotonic ns */
  loop_timer_fn *fn;
  void *arg;
  uint32_t index; /* place in the heap + 1; 0: not started */
};
void loop_timer_init(struct loop_timer *timer);
/* Starts it or moves it. Due at or after `deadline`; fires once. 0, or -1 with ENOMEM. */
int loop_timer_start(struct loop *loop, struct loop_timer *timer, int64_t deadline, loop_timer_fn *fn, void *arg);
void loop_timer_stop(struct loop *loop, struct loop_timer *timer); /* fine when not started */
static inline bool loop_timer_is_started(const struct loop_timer *timer) {
  return timer->index != 0;
}

/* A task: runs once, at the end of the dispatch under way or of the next one, never inside loop_defer(). */
struct loop_task;
typedef void loop_task_fn(struct loop_task *task);
struct loop_task {
  struct list node;
  loop_task_fn *fn;
  void *arg;
};
void loop_task_init(struct loop_task *task);
void loop_defer(struct loop *loop, struct loop_task *task, loop_task_fn *fn, void *arg); /* again: no effect */
void loop_task_cancel(struct loop_task *task);                                           /* fine when not deferred */

#endif
