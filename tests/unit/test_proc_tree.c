/* Whose process is it? Real ones, by mark, session, ancestor and earlier scans; and never anybody else's. */
#include "core_fixture.h"
#include "run.h"

#include "sandkeeper/core/proc_tree.h"

#include <pthread.h>

static char mark[64], other_mark[64];

/* Starts a process in a session of its own with this text for sh(1), and a mark in its environment or none. It tells
 * that it runs by closing its stdout. */
static pid_t start(const char *text, const char *environment_mark) {
  int ends[2];
  ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    char *env[] = {(char *)"PATH=/usr/bin:/bin", (char *)environment_mark, NULL};
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)text, NULL};
    setsid();
    dup2(ends[1], 1);
    execve("/bin/sh", argv, env);
    _exit(99);
  }
  ck_assert_int_gt(pid, 0);
  close(ends[1]);
  char byte;
  ck_assert_int_eq(read(ends[0], &byte, 1), 0);
  close(ends[0]);
  return pid;
}

static void end(pid_t pid) {
  kill(-pid, SIGKILL);
  ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static struct proc_tree tree_of(const char *text, bool prefix) {
  struct proc_tree tree;
  proc_tree_init(&tree);
  tree.mark = text;
  tree.mark_is_prefix = prefix;
  return tree;
}

static bool has(const struct proc_tree *tree, pid_t pid) {
  for (size_t i = 0; i < tree->n_members; i++)
    if (tree->members[i].pid == pid)
      return true;
  return false;
}

/* Scans until as many are found: a child of a shell needs a moment to be there. */
static void scan_until(struct proc_tree *tree, int n) {
  int64_t give_up = clock_monotonic() + LONGEST;
  int found;
  while ((found = proc_tree_scan(tree, 0)) != n) {
    ck_assert_msg(clock_monotonic() < give_up, "%d processes, not %d", found, n);
    usleep(1000);
  }
}

static void set_up(void) {
  snprintf(mark, sizeof mark, "SANDKEEPER_RUN=unit-%d.12", getpid());
  snprintf(other_mark, sizeof other_mark, "SANDKEEPER_RUN=unit-%d.123", getpid());
}

START_TEST(test_by_mark) {
  pid_t ours = start("exec >&-; sleep 100 & setsid sleep 100 & wait", mark);
  pid_t other = start("exec sleep 100 >&-", other_mark); /* ours is a prefix of it */
  pid_t none = start("exec sleep 100 >&-", NULL);
  struct proc_tree tree = tree_of(mark, false);
  scan_until(&tree, 3);
  ck_assert(has(&tree, ours) && !has(&tree, other) && !has(&tree, none));
  struct proc_tree both = tree_of(mark, true);
  scan_until(&both, 4);
  ck_assert(has(&both, ours) && has(&both, other) && !has(&both, none));
  ck_assert_int_ge(proc_tree_scan(&both, SIGKILL), 0);
  scan_until(&both, 0); /* zombies are gone */
  ck_assert_int_eq(kill(none, 0), 0);
  end(ours);
  end(other);
  end(none);
  proc_tree_free(&tree);
  proc_tree_free(&both);
}
END_TEST

/* One that becomes another program again and again has an environment each time it is looked at. */
START_TEST(test_mark_in_exec) {
  char script[64];
  snprintf(script, sizeof script, "unit-exec-%d", getpid());
  FILE *file = fopen(script, "we");
  ck_assert_ptr_nonnull(file);
  fprintf(file, "kill -0 %d && exec /bin/sh ./%s\n", getpid(), script);
  fclose(file);
  char text[96];
  snprintf(text, sizeof text, "exec >&-; exec /bin/sh ./%s", script);
  pid_t pid = start(text, mark);
  for (int i = 0; i < 300; i++) {
    struct proc_tree tree = tree_of(mark, false);
    ck_assert_int_eq(proc_tree_scan(&tree, 0), 1);
    proc_tree_free(&tree);
  }
  end(pid);
  unlink(script);
}
END_TEST

/* The mark lies where a piece of the environment that is read ends, or behind megabytes of it. */
START_TEST(test_mark_in_a_large_environment) {
  struct proc_tree tree = tree_of(mark, false);
  for (int i = 0; i < 40; i++) {
    size_t size = i < 38 ? (size_t)(8192 - 20 + i) : 100000;
    char *large = malloc(size + 1);
    ck_assert_ptr_nonnull(large);
    memset(large, 'x', size);
    large[1] = '=';
    large[size] = '\0';
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
      char *env[] = {large, mark, large, NULL};
      char *argv[] = {(char *)"sleep", (char *)"100", NULL};
      execve("/bin/sleep", argv, env);
      _exit(99);
    }
    close(ends[1]);
    char byte;
    ck_assert_int_eq(read(ends[0], &byte, 1), 0);
    close(ends[0]);
    ck_assert_int_eq(proc_tree_scan(&tree, 0), 1);
    ck_assert(has(&tree, pid));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    free(large);
  }
  proc_tree_free(&tree);
}
END_TEST

/* The mark as a part of something else is none. */
START_TEST(test_no_mark_inside_a_variable) {
  char inside[100];
  snprintf(inside, sizeof inside, "X=%s", mark);
  pid_t pid = start("exec sleep 100 >&-", inside);
  struct proc_tree tree = tree_of(mark, false);
  ck_assert_int_eq(proc_tree_scan(&tree, SIGKILL), 0);
  ck_assert_int_eq(kill(pid, 0), 0);
  end(pid);
  proc_tree_free(&tree);
}
END_TEST

START_TEST(test_by_session_and_ancestor) {
  pid_t leader = start("exec >&-; env -i /bin/sh -c 'sleep 100 & setsid sleep 100 & wait' & wait", NULL);
  struct proc_tree tree = tree_of(mark, false);
  ck_assert_int_eq(proc_tree_scan(&tree, 0), 0);
  tree.leader = leader;
  tree.leader_start = 1; /* another had this number when the scan was asked for */
  ck_assert_int_eq(proc_tree_scan(&tree, 0), 0);
  tree.leader_start = proc_start_of(leader);
  scan_until(&tree, 4);
  tree.leader = 0; /* it was reaped: its number says nothing any more, but what was seen stays */
  ck_assert_int_eq(proc_tree_scan(&tree, 0), 4);
  /* The shells between die: what they leave is still known. */
  kill(leader, SIGKILL);
  ck_assert_int_eq(waitpid(leader, NULL, 0), leader);
  scan_until(&tree, 3);
  ck_assert_int_ge(proc_tree_scan(&tree, SIGKILL), 0);
  scan_until(&tree, 0);
  proc_tree_free(&tree);
}
END_TEST

/* [7] A number that was a member's and is another's now: the start time tells. */
START_TEST(test_recycled_number) {
  pid_t pid = start("exec sleep 100 >&-", NULL);
  struct proc_tree tree = tree_of(mark, false);
  tree.leader = pid;
  ck_assert_int_eq(proc_tree_scan(&tree, 0), 1);
  tree.leader = 0;
  ck_assert_uint_eq(tree.members[0].start, proc_start_of(pid));
  tree.members[0].start--; /* as if it had been another before */
  ck_assert_int_eq(proc_tree_scan(&tree, SIGKILL), 0);
  ck_assert_int_eq(kill(pid, 0), 0);
  ck_assert_int_eq(waitpid(pid, NULL, WNOHANG), 0);
  end(pid);
  ck_assert_uint_eq(proc_start_of(pid), 0);
  proc_tree_free(&tree);
}
END_TEST

/* A process may call itself anything. */
START_TEST(test_odd_names) {
  static const char *const names[] = {") R 1 1 1", "a b", "((", "x) Z 1"};
  struct proc_tree tree = tree_of(mark, false);
  for (size_t i = 0; i < 4; i++) {
    char text[200];
    snprintf(text, sizeof text, "printf '%s' >/proc/$$/comm; exec >&-; while :; do sleep 0.05; done", names[i]);
    pid_t pid = start(text, mark);
    ck_assert_int_ge(proc_tree_scan(&tree, 0), 1);
    ck_assert(has(&tree, pid));
    ck_assert_uint_gt(proc_start_of(pid), 0);
    end(pid);
  }
  proc_tree_free(&tree);
}
END_TEST

START_TEST(test_signals_reach_stopped_ones) {
  pid_t pid = start("exec >&-; trap 'exit 7' TERM; kill -STOP $$; while :; do sleep 0.05; done", mark);
  struct proc_tree tree = tree_of(mark, false);
  siginfo_t info = {0};
  ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
  ck_assert_int_eq(proc_tree_scan(&tree, SIGTERM), 1);
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  proc_tree_free(&tree);
}
END_TEST

/* Groups that have the signal already are left out, but not by a KILL. */
START_TEST(test_signaled_groups) {
  pid_t a = start("exec sleep 100 >&-", mark), b = start("exec sleep 100 >&-", mark);
  struct proc_tree tree = tree_of(mark, false);
  tree.signaled = &a;
  tree.n_signaled = 1;
  ck_assert_int_eq(proc_tree_scan(&tree, SIGTERM), 2);
  ck_assert_int_eq(waitpid(b, NULL, 0), b);
  ck_assert_int_eq(waitpid(a, NULL, WNOHANG), 0);
  ck_assert_int_ge(proc_tree_scan(&tree, SIGKILL), 0);
  ck_assert_int_eq(waitpid(a, NULL, 0), a);
  proc_tree_free(&tree);
}
END_TEST

/* The agent itself is never a member, whatever it carries. */
START_TEST(test_never_ourselves) {
  pid_t pid = start("exec sleep 100 >&-", mark);
  struct proc_tree tree = tree_of(mark, false);
  tree.leader = getsid(0); /* a session that we are in */
  pid_t parent = fork();
  if (parent == 0) {
    /* Under a member, too. */
    tree.leader = getppid();
    tree.members = NULL;
    int n = proc_tree_scan(&tree, 0);
    _exit(n >= 1 && !has(&tree, getpid()) ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(parent, &status, 0), parent);
  ck_assert_int_eq(status, 0);
  end(pid);
  proc_tree_free(&tree);
}
END_TEST

/* No /proc: nothing can be told, but that there is nothing. In a process of its own, since sanitizers need it. */
static int without_proc(void) {
  struct proc_tree tree = tree_of(mark, false);
  pid_t child = fork();
  if (child == 0)
    for (;;)
      pause();
  if (child < 0)
    return 1;
  if (chroot("/dev") < 0) {
    kill(child, SIGKILL);
    return 1;
  }
  tree.own_children = true;
  if (proc_tree_scan(&tree, 0) != -1)
    return 2;
  kill(child, SIGKILL);
  if (waitpid(child, NULL, 0) != child || proc_tree_scan(&tree, 0) != 0)
    return 3;
  tree.own_children = false;
  return proc_tree_scan(&tree, 0) == -1 ? 0 : 4;
}

START_TEST(test_without_proc) {
  if (geteuid() != 0)
    return;
  int status;
  pid_t pid = fork();
  if (pid == 0)
    _exit(without_proc());
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_int_eq(status, 0);
}
END_TEST

/* What cannot be looked at for want of a descriptor is not gone. */
START_TEST(test_without_descriptors) {
  pid_t child = start("exec sleep 774.041 >&-", mark);
  struct proc_tree tree = tree_of(mark, false);
  struct rlimit limit, lowered;
  int found[3];
  ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
  lowered = limit;
  int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(lowest);
  for (int more = 0; more < 3; more++) { /* one for the folder, one for a file in it */
    lowered.rlim_cur = (rlim_t)(lowest + more);
    setrlimit(RLIMIT_NOFILE, &lowered);
    found[more] = proc_tree_scan(&tree, 0);
  }
  setrlimit(RLIMIT_NOFILE, &limit);
  end(child);
  ck_assert_int_eq(found[0], -1);
  ck_assert_int_eq(found[1], -1);
  ck_assert_int_eq(found[2], 1);
  proc_tree_free(&tree);
}
END_TEST

static void *sleep_on(void *arg) {
  for (;;)
    pause();
  return arg;
}

/* In /proc it looks like a zombie, but it has not ended. */
START_TEST(test_leader_whose_first_thread_has_ended) {
  struct proc_tree tree = tree_of("NEVER=there", false);
  tree.leader = fork();
  if (tree.leader == 0) {
    pthread_t thread;
    setsid();
    pthread_create(&thread, NULL, sleep_on, NULL);
    pthread_exit(NULL);
  }
  scan_until(&tree, -1);
  ck_assert_int_eq(kill(tree.leader, SIGKILL), 0);
  scan_until(&tree, 0); /* a zombie now, ours to reap */
  end(tree.leader);
  ck_assert_int_eq(proc_tree_scan(&tree, 0), 0);
  proc_tree_free(&tree);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("proc_tree");
  TCase *tcase = tcase_create("proc_tree");
  tcase_set_timeout(tcase, 60);
  tcase_add_checked_fixture(tcase, set_up, NULL);
  tcase_add_test(tcase, test_by_mark);
  tcase_add_test(tcase, test_mark_in_exec);
  tcase_add_test(tcase, test_mark_in_a_large_environment);
  tcase_add_test(tcase, test_no_mark_inside_a_variable);
  tcase_add_test(tcase, test_by_session_and_ancestor);
  tcase_add_test(tcase, test_recycled_number);
  tcase_add_test(tcase, test_odd_names);
  tcase_add_test(tcase, test_signals_reach_stopped_ones);
  tcase_add_test(tcase, test_signaled_groups);
  tcase_add_test(tcase, test_never_ourselves);
  tcase_add_test(tcase, test_without_proc);
  tcase_add_test(tcase, test_without_descriptors);
  tcase_add_test(tcase, test_leader_whose_first_thread_has_ended);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
