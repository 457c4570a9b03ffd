#include "sandkeeper/core/files_cancel.h"

#include <errno.h>
#include <stddef.h>

static _Thread_local const atomic_bool *watched;

void files_cancel_watch(const atomic_bool *given_up) {
  watched = given_up;
}

bool files_cancelled(void) {
  if (!watched || !atomic_load(watched))
    return false;
  errno = ECANCELED;
  return true;
}
