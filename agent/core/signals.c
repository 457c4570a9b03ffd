#include "sandkeeper/core/signals.h"

#include "sandkeeper/base/fdutil.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

/* sigabbrev_np(3) would do, but musl has none. */
static const char *const names[] = {
    [SIGHUP] = "SIGHUP",   [SIGINT] = "SIGINT",       [SIGQUIT] = "SIGQUIT", [SIGILL] = "SIGILL",
    [SIGTRAP] = "SIGTRAP", [SIGABRT] = "SIGABRT",     [SIGBUS] = "SIGBUS",   [SIGFPE] = "SIGFPE",
    [SIGKILL] = "SIGKILL", [SIGUSR1] = "SIGUSR1",     [SIGSEGV] = "SIGSEGV", [SIGUSR2] = "SIGUSR2",
    [SIGPIPE] = "SIGPIPE", [SIGALRM] = "SIGALRM",     [SIGTERM] = "SIGTERM", [SIGSTKFLT] = "SIGSTKFLT",
    [SIGCHLD] = "SIGCHLD", [SIGCONT] = "SIGCONT",     [SIGSTOP] = "SIGSTOP", [SIGTSTP] = "SIGTSTP",
    [SIGTTIN] = "SIGTTIN", [SIGTTOU] = "SIGTTOU",     [SIGURG] = "SIGURG",   [SIGXCPU] = "SIGXCPU",
    [SIGXFSZ] = "SIGXFSZ", [SIGVTALRM] = "SIGVTALRM", [SIGPROF] = "SIGPROF", [SIGWINCH] = "SIGWINCH",
    [SIGIO] = "SIGIO",     [SIGPWR] = "SIGPWR",       [SIGSYS] = "SIGSYS",
};
#define N_NAMES ((int)(sizeof names / sizeof *names))
/* The kernel's numbers; the C library keeps the first real-time ones for itself and renumbers SIGRTMIN. */
#define LAST_SIGNAL 64
#define FIRST_REALTIME 32
#define KERNEL_SIGSET_SIZE 8 /* _NSIG / 8 */

static const struct {
  const char *name;
  int number;
} aliases[] = {{"IOT", SIGABRT}, {"POLL", SIGIO}, {"CLD", SIGCHLD}};

struct signals {
  struct loop *loop;
  struct signals_handler handler;
  int fd;
  struct loop_watch watch;
};

/* SIGPIPE is ignored, and that counts only while it is not blocked: else each write to a client that has gone would
 * wake the loop once more. */
static void ours(sigset_t *set) {
  static const int others[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE};
  sigfillset(set);
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    sigdelset(set, others[i]);
}

/* The C library keeps the first real-time signals for itself (two in glibc, three in musl) and lets nobody block them;
 * the kernel's default for them is death. It needs none of them here: no thread is cancelled, and no set*id() is
 * called. */
static void ignore_reserved(void) {
  const uintptr_t ignored[8] = {(uintptr_t)SIG_IGN}; /* the kernel's own struct sigaction begins with the handler */
  for (int number = FIRST_REALTIME; number < SIGRTMIN; number++)
    syscall(SYS_rt_sigaction, number, ignored, NULL, KERNEL_SIGSET_SIZE);
}

void signals_block(void) {
  struct sigaction initial = {.sa_handler = SIG_DFL};
  sigaction(SIGCHLD, &initial, NULL);
  /* A client that has gone makes write(2) fail, not the agent end. Children get the default back. */
  struct sigaction ignored = {.sa_handler = SIG_IGN};
  sigaction(SIGPIPE, &ignored, NULL);
  ignore_reserved();
  sigset_t set;
  ours(&set);
  sigprocmask(SIG_SETMASK, &set, NULL);
}

static void on_readable(struct loop_watch *watch, uint32_t events) {
  (void)events;
  struct signals *signals = watch->arg;
  struct signalfd_siginfo infos[16];
  ssize_t n = read(signals->fd, infos, sizeof infos);
  struct signals_handler handler = signals->handler; /* a handler may free us */
  for (ssize_t i = 0; n > 0 && i < n / (ssize_t)sizeof *infos; i++) {
    int number = (int)infos[i].ssi_signo;
    if (number == SIGCHLD)
      handler.child(handler.arg);
    else if (number == SIGTERM || number == SIGINT || number == SIGQUIT)
      handler.stop(handler.arg, number);
    else
      handler.other(handler.arg, number);
  }
}

struct signals *signals_new(struct loop *loop, const struct signals_handler *handler, struct error *err) {
  struct signals *signals = calloc(1, sizeof *signals);
  if (!signals) {
    error_set_errno(err, ENOMEM, "signals");
    return NULL;
  }
  signals->loop = loop;
  signals->handler = *handler;
  loop_watch_init(&signals->watch);
  sigset_t set;
  ours(&set);
  signals->fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (signals->fd < 0 || loop_watch_start(loop, &signals->watch, signals->fd, EPOLLIN, on_readable, signals) < 0) {
    error_set_errno(err, errno, "signals");
    signals_free(signals);
    return NULL;
  }
  return signals;
}

void signals_free(struct signals *signals) {
  if (!signals)
    return;
  loop_watch_stop(signals->loop, &signals->watch);
  fd_close(&signals->fd);
  free(signals);
}

/* What follows RTMIN or RTMAX: nothing, or the sign and a number. -1: anything else. */
static int realtime_offset(const char *text, char sign) {
  char *end;
  if (*text == '\0')
    return 0;
  if (text[0] != sign || text[1] < '0' || text[1] > '9')
    return -1;
  unsigned long offset = strtoul(text + 1, &end, 10);
  return *end == '\0' && offset <= (unsigned long)(SIGRTMAX - SIGRTMIN) ? (int)offset : -1;
}

static int parse_realtime(const char *text) {
  bool from_max = strncasecmp(text, "RTMAX", 5) == 0;
  if (!from_max && strncasecmp(text, "RTMIN", 5) != 0)
    return -1;
  int offset = realtime_offset(text + 5, from_max ? '-' : '+');
  if (offset < 0)
    return -1;
  return from_max ? SIGRTMAX - offset : SIGRTMIN + offset;
}

int signals_parse(const char *text) {
  char *end;
  if (*text >= '0' && *text <= '9') {
    unsigned long number = strtoul(text, &end, 10);
    return *end == '\0' && number >= 1 && number <= LAST_SIGNAL ? (int)number : -1;
  }
  if (strncasecmp(text, "SIG", 3) == 0)
    text += 3;
  for (int number = 1; number < N_NAMES; number++)
    if (names[number] && strcasecmp(text, names[number] + 3) == 0)
      return number;
  for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
    if (strcasecmp(text, aliases[i].name) == 0)
      return aliases[i].number;
  return parse_realtime(text);
}

const char *signals_name(int number) {
  static char unnamed[16];
  if (number > 0 && number < N_NAMES && names[number])
    return names[number];
  if (number >= SIGRTMIN && number <= SIGRTMAX)
    snprintf(unnamed, sizeof unnamed, "SIGRTMIN+%d", number - SIGRTMIN);
  else
    snprintf(unnamed, sizeof unnamed, "SIG%d", number);
  return unnamed;
}
