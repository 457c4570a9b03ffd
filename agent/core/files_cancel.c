#include "sandkeeper/core/files_cancel.h"

#include "sandkeeper/base/clock.h"

#include <errno.h>
#include <stddef.h>

static _Thread_local const atomic_bool *watched;
static _Thread_local _Atomic int64_t *last_move;

void files_cancel_watch(const atomic_bool *given_up, _Atomic int64_t *moved) {
  watched = given_up;
  last_move = moved;
}

void files_moved(void) {
  if (last_move)
    atomic_store(last_move, clock_monotonic());
}

bool files_cancelled(void) {
  if (!watched || !atomic_load(watched))
    return false;
  errno = ECANCELED;
  return true;
}
