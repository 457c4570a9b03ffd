/* The killer's decisions with a clock of our own: every phase, late callers, looks that never come back. */
#include "sandkeeper/core/killer.h"

#include "run.h"

#include <check.h>
#include <stdlib.h>

#define S CLOCK_SECOND
#define MS CLOCK_MS

static struct killer begun(int64_t now, int64_t grace) {
  struct killer killer;
  killer_init(&killer);
  ck_assert_int_eq(killer_next(&killer, now), KILLER_WAIT);
  ck_assert_int_eq(killer.wake, CLOCK_NEVER);
  ck_assert(!killer_is_active(&killer));
  killer_start(&killer, now, grace);
  ck_assert(killer_is_active(&killer));
  ck_assert_int_eq(killer_next(&killer, now), KILLER_TERM);
  return killer;
}

static void expect_wait(struct killer *killer, int64_t now, int64_t wake) {
  ck_assert_int_eq(killer_next(killer, now), KILLER_WAIT);
  ck_assert_int_eq(killer->wake, wake);
}

static void expect_done(struct killer *killer, int64_t now, int survivors) {
  ck_assert_int_eq(killer_next(killer, now), KILLER_DONE);
  ck_assert(!killer_is_active(killer));
  ck_assert_int_eq(killer->survivors, survivors);
}

START_TEST(test_polite_process_goes_at_term) {
  struct killer killer = begun(100 * S, 1 * S);
  expect_wait(&killer, 100 * S, 101 * S); /* the look of TERM itself is outstanding */
  killer_saw(&killer, 100 * S + 5 * MS, 0);
  expect_done(&killer, 100 * S + 5 * MS, 0);
}
END_TEST

START_TEST(test_looks_become_rarer) {
  struct killer killer = begun(0, 100 * S);
  int64_t now = 0, interval = KILLER_LOOK_FIRST;
  for (int i = 0; i < 10; i++) {
    killer_saw(&killer, now, 1);
    expect_wait(&killer, now, now + interval);
    now += interval;
    ck_assert_int_eq(killer_next(&killer, now), KILLER_LOOK);
    interval = 2 * interval < KILLER_LOOK_MOST ? 2 * interval : KILLER_LOOK_MOST;
  }
  ck_assert_int_eq(interval, KILLER_LOOK_MOST);
}
END_TEST

START_TEST(test_stubborn_process_is_killed_and_what_cannot_die_is_told) {
  struct killer killer = begun(0, 1 * S);
  killer_saw(&killer, 0, 2);
  ck_assert_int_eq(killer_next(&killer, 1 * S - 1), KILLER_LOOK);
  killer_saw(&killer, 1 * S - 1, 2);
  ck_assert_int_eq(killer_next(&killer, 1 * S), KILLER_KILL);
  killer_saw(&killer, 1 * S, 2);
  ck_assert_int_eq(killer_next(&killer, 1 * S + KILLER_PATIENCE - 1), KILLER_LOOK);
  killer_saw(&killer, 1 * S + KILLER_PATIENCE - 1, 1);
  expect_done(&killer, 1 * S + KILLER_PATIENCE, 1);
}
END_TEST

/* A hung /proc: the look of TERM never comes back. KILL comes in time, and so does the end. */
START_TEST(test_look_never_comes_back) {
  struct killer killer = begun(0, 1 * S);
  expect_wait(&killer, 0, 1 * S);
  expect_wait(&killer, 1 * S - 1, 1 * S);
  ck_assert_int_eq(killer_next(&killer, 1 * S), KILLER_KILL);
  expect_wait(&killer, 1 * S, 1 * S + KILLER_PATIENCE);
  expect_done(&killer, 1 * S + KILLER_PATIENCE, -1);
}
END_TEST

/* The look of the KILL never comes back, or it is the last one: what was alive before is not what is alive. */
START_TEST(test_no_look_after_the_kill) {
  for (int answered = 0; answered < 2; answered++) {
    struct killer killer = begun(0, 1 * S);
    killer_saw(&killer, 0, 3);
    ck_assert_int_eq(killer_next(&killer, 500 * MS), KILLER_LOOK);
    killer_saw(&killer, 500 * MS, 3);
    ck_assert_int_eq(killer.survivors, 3);
    ck_assert_int_eq(killer_next(&killer, 1 * S), KILLER_KILL);
    if (answered)
      killer_saw(&killer, 1 * S + 1, 3);
    expect_done(&killer, 1 * S + KILLER_PATIENCE, -1);
  }
}
END_TEST

START_TEST(test_signal_in_a_watch) {
  struct killer killer;
  killer_init(&killer);
  killer_signaled(&killer, 0, 200 * MS);
  expect_wait(&killer, 0, 200 * MS);
  killer_saw(&killer, 1 * MS, 2);
  ck_assert_int_eq(killer.survivors, -1);
  ck_assert_int_eq(killer_next(&killer, 100 * MS), KILLER_LOOK);
  killer_saw(&killer, 101 * MS, 1);
  expect_done(&killer, 200 * MS, 1);
  /* Nothing left already while it was sent: that is certain. */
  killer_signaled(&killer, 300 * MS, 200 * MS);
  killer_saw(&killer, 301 * MS, 0);
  expect_done(&killer, 301 * MS, 0);
  /* Another one has its own time, and never less than what was promised before. */
  killer_signaled(&killer, 400 * MS, 200 * MS);
  killer_signaled(&killer, 600 * MS, 200 * MS);
  expect_wait(&killer, 600 * MS, 800 * MS);
  killer_signaled(&killer, 600 * MS, 100 * MS);
  expect_wait(&killer, 600 * MS, 800 * MS);
  killer_saw(&killer, 601 * MS, 0);
  expect_done(&killer, 601 * MS, 0);
}
END_TEST

/* /proc cannot be read: -1 is not "nothing alive". */
START_TEST(test_proc_unreadable_is_not_the_end) {
  struct killer killer = begun(0, 1 * S);
  killer_saw(&killer, 0, -1);
  expect_wait(&killer, 0, KILLER_LOOK_FIRST);
  ck_assert_int_eq(killer_next(&killer, 1 * S), KILLER_KILL);
  killer_saw(&killer, 1 * S, -1);
  expect_done(&killer, 1 * S + KILLER_PATIENCE, -1);
}
END_TEST

START_TEST(test_no_grace_kills_at_once) {
  struct killer killer = begun(7, 0);
  ck_assert_int_eq(killer_next(&killer, 7), KILLER_KILL);
  killer_saw(&killer, 8, 0);
  expect_done(&killer, 8, 0);
}
END_TEST

START_TEST(test_second_start_only_hurries) {
  struct killer killer = begun(0, 5 * S);
  killer_saw(&killer, 0, 1);
  killer_start(&killer, 1 * S, 10 * S); /* later than before: no effect */
  ck_assert_int_eq(killer.kill_at, 5 * S);
  killer_start(&killer, 1 * S, 0);
  ck_assert_int_eq(killer_next(&killer, 1 * S), KILLER_KILL);
  /* Once killed, no call makes the end later or sends TERM again. */
  killer_saw(&killer, 1 * S, 1);
  killer_start(&killer, 1 * S + 200 * MS, 0);
  ck_assert_int_ne(killer_next(&killer, 1 * S + 200 * MS), KILLER_TERM);
  killer_saw(&killer, 1 * S + 200 * MS, 1);
  expect_done(&killer, 1 * S + KILLER_PATIENCE, 1);
}
END_TEST

/* The container was frozen, or the agent was: it asks again long after everything. KILL is not left out. */
START_TEST(test_late_caller_still_kills) {
  struct killer killer = begun(0, 1 * S);
  killer_saw(&killer, 0, 3);
  ck_assert_int_eq(killer_next(&killer, 60 * S), KILLER_KILL);
  killer_saw(&killer, 60 * S, 3);
  expect_wait(&killer, 60 * S, 60 * S + KILLER_LOOK_FIRST);
  ck_assert_int_eq(killer_next(&killer, 60 * S + KILLER_LOOK_FIRST), KILLER_LOOK);
  killer_saw(&killer, 60 * S + 50 * MS, 0);
  expect_done(&killer, 60 * S + 50 * MS, 0);
}
END_TEST

START_TEST(test_watch_only_counts) {
  struct killer killer;
  killer_init(&killer);
  killer_watch(&killer, 0, 200 * MS);
  ck_assert_int_eq(killer_next(&killer, 0), KILLER_LOOK);
  killer_saw(&killer, 1 * MS, 1);
  expect_wait(&killer, 1 * MS, 1 * MS + KILLER_LOOK_FIRST);
  ck_assert_int_eq(killer_next(&killer, 30 * MS), KILLER_LOOK);
  killer_saw(&killer, 30 * MS, 1);
  expect_done(&killer, 200 * MS, 1);

  /* Again: the old answer does not count. */
  killer_watch(&killer, 300 * MS, 200 * MS);
  ck_assert_int_eq(killer.survivors, -1);
  ck_assert_int_eq(killer_next(&killer, 300 * MS), KILLER_LOOK);
  killer_saw(&killer, 301 * MS, 0);
  expect_done(&killer, 301 * MS, 0);
  killer_watch(&killer, 400 * MS, 200 * MS);
  ck_assert_int_eq(killer_next(&killer, 400 * MS), KILLER_LOOK);
}
END_TEST

START_TEST(test_watch_does_not_disturb_an_end_under_way) {
  struct killer killer = begun(0, 1 * S);
  killer_watch(&killer, 10 * MS, 1 * MS);
  killer_saw(&killer, 20 * MS, 1);
  ck_assert_int_ne(killer_next(&killer, 30 * MS), KILLER_DONE);
  ck_assert_int_eq(killer_next(&killer, 1 * S), KILLER_KILL);
}
END_TEST

/* A timeout may come while only a client's signal is watched: it must still end the command. */
START_TEST(test_start_out_of_a_watch) {
  struct killer killer;
  killer_init(&killer);
  killer_watch(&killer, 0, 200 * MS);
  ck_assert_int_eq(killer_next(&killer, 0), KILLER_LOOK);
  killer_start(&killer, 100 * MS, 1 * S);
  ck_assert_int_eq(killer_next(&killer, 100 * MS), KILLER_TERM);
  killer_saw(&killer, 101 * MS, 1);
  ck_assert_int_ne(killer_next(&killer, 300 * MS), KILLER_DONE);
  ck_assert_int_eq(killer_next(&killer, 1100 * MS), KILLER_KILL);
  killer_saw(&killer, 1100 * MS, 0);
  expect_done(&killer, 1100 * MS, 0);
}
END_TEST

START_TEST(test_hint_looks_at_once) {
  struct killer killer = begun(0, 10 * S);
  for (int i = 0; i < 6; i++) {
    killer_saw(&killer, i * S, 1);
    ck_assert_int_eq(killer_next(&killer, i * S + 500 * MS), KILLER_LOOK);
  }
  killer_saw(&killer, 6 * S, 1);
  expect_wait(&killer, 6 * S, 6 * S + KILLER_LOOK_MOST);
  killer_hint(&killer, 6 * S + 1);
  ck_assert_int_eq(killer_next(&killer, 6 * S + 1), KILLER_LOOK);
  /* While a look is out, what it tells may be older than the hint: one more, at once. */
  killer_hint(&killer, 6 * S + 2);
  ck_assert_int_eq(killer_next(&killer, 6 * S + 2), KILLER_WAIT);
  killer_saw(&killer, 6 * S + 3, 1);
  ck_assert_int_eq(killer_next(&killer, 6 * S + 3), KILLER_LOOK);
  killer_saw(&killer, 6 * S + 4, 1);
  expect_wait(&killer, 6 * S + 4, 6 * S + 4 + 2 * KILLER_LOOK_FIRST);
}
END_TEST

/* After the end: it stays ended until it is begun again, and then it begins anew. */
START_TEST(test_used_again) {
  struct killer killer = begun(0, 0);
  killer_next(&killer, 0);
  killer_saw(&killer, 0, 0);
  expect_done(&killer, 0, 0);
  expect_done(&killer, 1 * S, 0);
  killer_hint(&killer, 1 * S);
  expect_done(&killer, 1 * S, 0);
  killer_start(&killer, 2 * S, 1 * S);
  ck_assert_int_eq(killer_next(&killer, 2 * S), KILLER_TERM);
  expect_wait(&killer, 2 * S, 3 * S);
}
END_TEST

/* ---- any order of things ---- */

static uint64_t seed;

static int64_t pick(int64_t below) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return (int64_t)((seed >> 11) % (uint64_t)below);
}

/* check writes to a pipe at each assert: too slow for these many. */
#define REQUIRE(condition)            \
  do {                                \
    if (!(condition))                 \
      ck_abort_msg("%s", #condition); \
  } while (0)

struct world {
  int64_t now, begun, kill_due, killed;
  int64_t answer_at; /* of the look that is out; CLOCK_NEVER: it hangs */
  bool termed, looking, hurried;
  int alive;
};

static void look(struct world *world) {
  world->answer_at = pick(8) == 0 ? CLOCK_NEVER : world->now + pick(50 * MS);
  world->looking = true;
}

static void obey(struct world *world, enum killer_action action) {
  switch (action) {
  case KILLER_TERM:
    REQUIRE(!world->termed);
    world->termed = true;
    look(world);
    break;
  case KILLER_KILL:
    REQUIRE(world->termed && world->killed == CLOCK_NEVER && world->now >= world->kill_due);
    world->killed = world->now;
    look(world);
    break;
  case KILLER_LOOK:
    REQUIRE(world->termed && !world->looking);
    look(world);
    break;
  default:
    ck_abort();
  }
}

/* Asks until it is told to wait, as core/terminator.c does. Returns true at the end. */
static bool ask(struct killer *killer, struct world *world) {
  for (int i = 0; i < 5; i++) {
    enum killer_action action = killer_next(killer, world->now);
    if (action == KILLER_DONE)
      return true;
    if (action == KILLER_WAIT) {
      REQUIRE(killer->wake > world->now); /* else it would spin */
      REQUIRE(world->killed != CLOCK_NEVER || killer->wake <= world->kill_due);
      REQUIRE(world->killed == CLOCK_NEVER || killer->wake <= world->killed + KILLER_PATIENCE);
      return false;
    }
    obey(world, action);
  }
  ck_abort_msg("it never waits");
  return false;
}

static void step(struct killer *killer, struct world *world) {
  bool answered = world->looking && world->answer_at <= killer->wake;
  world->now = answered && world->answer_at > world->now ? world->answer_at : killer->wake;
  if (pick(20) == 0)
    world->now += pick(3 * S); /* frozen */
  if (world->alive > 0 && pick(world->killed == CLOCK_NEVER ? 10 : 2) == 0) {
    world->alive--;
    killer_hint(killer, world->now);
  }
  if (!world->hurried && pick(20) == 0) {
    int64_t grace = pick(2 * S);
    world->hurried = true;
    killer_start(killer, world->now, grace);
    if (world->now + grace < world->kill_due)
      world->kill_due = world->now + grace;
  }
  if (answered) {
    world->looking = false;
    killer_saw(killer, world->now, pick(10) == 0 ? -1 : world->alive);
  }
}

START_TEST(test_any_order) {
  seed = 88172645463325252u + (uint64_t)_i;
  for (int round = 0; round < 2000; round++) {
    struct killer killer;
    int64_t grace = pick(2) ? pick(2 * S) : 0;
    struct world world = {.begun = pick(100 * S), .killed = CLOCK_NEVER, .alive = (int)pick(4)};
    world.now = world.begun;
    world.kill_due = world.begun + grace;
    killer_init(&killer);
    killer_start(&killer, world.now, grace);
    int steps = 0;
    while (!ask(&killer, &world)) {
      step(&killer, &world);
      REQUIRE(++steps < 1000);
    }
    REQUIRE(world.termed);
    REQUIRE(killer.survivors == 0 || world.killed != CLOCK_NEVER);
    REQUIRE(killer.survivors != 0 || world.alive == 0);
  }
}
END_TEST

int main(void) {
  Suite *suite = suite_create("killer");
  TCase *tcase = tcase_create("killer");
  tcase_add_test(tcase, test_polite_process_goes_at_term);
  tcase_add_test(tcase, test_looks_become_rarer);
  tcase_add_test(tcase, test_stubborn_process_is_killed_and_what_cannot_die_is_told);
  tcase_add_test(tcase, test_look_never_comes_back);
  tcase_add_test(tcase, test_no_look_after_the_kill);
  tcase_add_test(tcase, test_signal_in_a_watch);
  tcase_add_test(tcase, test_proc_unreadable_is_not_the_end);
  tcase_add_test(tcase, test_no_grace_kills_at_once);
  tcase_add_test(tcase, test_second_start_only_hurries);
  tcase_add_test(tcase, test_late_caller_still_kills);
  tcase_add_test(tcase, test_watch_only_counts);
  tcase_add_test(tcase, test_watch_does_not_disturb_an_end_under_way);
  tcase_add_test(tcase, test_start_out_of_a_watch);
  tcase_add_test(tcase, test_hint_looks_at_once);
  tcase_add_test(tcase, test_used_again);
  tcase_add_loop_test(tcase, test_any_order, 0, 4);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
