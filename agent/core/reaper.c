#include "sandkeeper/core/reaper.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void reaper_become_subreaper(void) {
  if (getpid() != 1)
    prctl(PR_SET_CHILD_SUBREAPER, 1L, 0L, 0L, 0L);
}

void reaper_pass(struct commands *commands) {
  for (;;) {
    siginfo_t info = {0};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == EINTR)
      continue;
    if (info.si_pid == 0)
      return;
    if (!commands_child_died(commands, &info))
      commands->counts.orphans++;
    /* By number is safe: the zombie pins it. A worker may have taken its own failed start first (core/spawn.c). */
    siginfo_t reaped;
    waitid(P_PID, (id_t)info.si_pid, &reaped, WEXITED | WNOHANG);
    commands_child_reaped(commands, info.si_pid);
  }
}
