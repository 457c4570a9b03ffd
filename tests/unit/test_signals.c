/* The agent's own signals: names, and what is done with each. */
#include "core_fixture.h"
#include "run.h"

START_TEST(test_parse) {
  const struct {
    const char *text;
    int number;
  } cases[] = {
      {"SIGTERM", SIGTERM},
      {"TERM", SIGTERM},
      {"term", SIGTERM},
      {"SigTerm", SIGTERM},
      {"15", 15},
      {"1", 1},
      {"64", 64},
      {"KILL", SIGKILL},
      {"SIGSTOP", SIGSTOP},
      {"IOT", SIGABRT},
      {"CLD", SIGCHLD},
      {"POLL", SIGIO},
      {"9", 9},
      {"RTMIN", SIGRTMIN},
      {"SIGRTMIN+0", SIGRTMIN},
      {"RTMIN+3", SIGRTMIN + 3},
      {"0015", 15},
      {"RTMAX", SIGRTMAX},
      {"SIGRTMAX-14", SIGRTMAX - 14},
      {"rtmax-30", SIGRTMAX - 30},
      /* none of these */
      {"", -1},
      {"SIG", -1},
      {"0", -1},
      {"65", -1},
      {"-1", -1},
      {"-9", -1},
      {"+9", -1},
      {" 9", -1},
      {"9 ", -1},
      {"9x", -1},
      {"TERMX", -1},
      {"SIGSIGTERM", -1},
      {"SIG15", -1},
      {"99999999999999999999999", -1},
      {"4294967305", -1},
      {"18446744073709551625", -1},
      {"RTMIN+", -1},
      {"RTMIN-1", -1},
      {"RTMIN+x", -1},
      {"RTMIN+1x", -1},
      {"RTMIN+31", -1},
      {"RTMIN+99999999999999999999", -1},
      {"RTMIN+ 1", -1},
      {"RTMIN+-1", -1},
      {"RTMAX+1", -1},
      {"RTMAX-", -1},
      {"RTMAX-31", -1},
      {"NULL", -1},
      {"EXIT", -1},
      {"ein \xff", -1},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    ck_assert_msg(signals_parse(cases[i].text) == cases[i].number, "\"%s\" is %d", cases[i].text,
                  signals_parse(cases[i].text));
}
END_TEST

/* Every name that is told can be given back. */
START_TEST(test_names) {
  for (int number = 1; number <= 64; number++) {
    const char *name = signals_name(number);
    ck_assert_int_eq(strncmp(name, "SIG", 3), 0);
    if (number < 32 || number >= SIGRTMIN)
      ck_assert_msg(signals_parse(name) == number, "%s", name);
  }
  ck_assert_str_eq(signals_name(SIGTERM), "SIGTERM");
  ck_assert_str_eq(signals_name(0), "SIG0");
  ck_assert_str_eq(signals_name(1000), "SIG1000");
}
END_TEST

static int children, stops, others, last_stop;
static int other_numbers[100];
static struct signals *signals;
static struct loop *loop;

static void on_child(void *arg) {
  ck_assert_ptr_eq(arg, &loop);
  children++;
}

static void on_stop(void *arg, int number) {
  (void)arg;
  stops++;
  last_stop = number;
}

static void on_other(void *arg, int number) {
  (void)arg;
  other_numbers[others++] = number;
}

START_TEST(test_what_each_means) {
  struct error err = ERROR_INIT;
  const struct signals_handler handler = {.child = on_child, .stop = on_stop, .other = on_other, .arg = &loop};
  signals_block();
  loop = loop_new(NULL, &err);
  signals = signals_new(loop, &handler, &err);
  ck_assert_ptr_nonnull(signals);
  static const int harmless[] = {SIGHUP,  SIGUSR1, SIGUSR2, SIGWINCH, SIGPWR,    SIGALRM,
                                 SIGTSTP, SIGTTIN, SIGTTOU, SIGIO,    SIGVTALRM, SIGXCPU};
  int n = (int)(sizeof harmless / sizeof *harmless);
  for (int i = 0; i < n; i++)
    ck_assert_int_eq(kill(getpid(), harmless[i]), 0);
  for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
    ck_assert_int_eq(kill(getpid(), number), 0);
  n += SIGRTMAX - SIGRTMIN + 1;
  while (others < n)
    loop_run_once(loop, 100);
  ck_assert_int_eq(stops + children, 0);
  for (int i = 0; i < (int)(sizeof harmless / sizeof *harmless); i++) {
    bool found = false;
    for (int j = 0; j < others; j++)
      found |= other_numbers[j] == harmless[i];
    ck_assert(found);
  }
  static const int stop_signals[] = {SIGTERM, SIGINT, SIGQUIT};
  for (int i = 0; i < 3; i++) {
    kill(getpid(), stop_signals[i]);
    while (stops < i + 1)
      loop_run_once(loop, 100);
    ck_assert_int_eq(last_stop, stop_signals[i]);
  }
  pid_t pid = fork();
  if (pid == 0)
    _exit(0);
  while (children < 1)
    loop_run_once(loop, 100);
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
  kill(getpid(), SIGPIPE); /* ignored: a write to one who has gone fails, no more */
  loop_dispatch(loop);
  ck_assert_int_eq(others, n);
  signals_free(signals);
  signals_free(NULL);
  loop_free(loop);
}
END_TEST

/* [10] A parent may have left SIGCHLD ignored: then exit codes would vanish. */
START_TEST(test_inherited_dispositions) {
  signal(SIGCHLD, SIG_IGN);
  signals_block();
  pid_t pid = fork();
  if (pid == 0)
    _exit(42);
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(WEXITSTATUS(status), 42);
  /* A fault of ours must be seen. */
  sigset_t mask;
  sigprocmask(SIG_SETMASK, NULL, &mask);
  static const int seen[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
  for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
    ck_assert_int_eq(sigismember(&mask, seen[i]), 0);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("signals");
  TCase *tcase = tcase_create("signals");
  tcase_set_timeout(tcase, 30);
  tcase_add_test(tcase, test_parse);
  tcase_add_test(tcase, test_names);
  tcase_add_test(tcase, test_what_each_means);
  tcase_add_test(tcase, test_inherited_dispositions);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
