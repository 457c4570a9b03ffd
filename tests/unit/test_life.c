/* The sandbox's life: every wish in every state. */
#include "sandkeeper/core/life.h"

#include "scratch.h"

enum wish { STOP, START, RESTART, DESTROY, ENDED };

static enum life_action apply(struct life *life, enum wish wish) {
  switch (wish) {
  case STOP:
    return life_stop(life);
  case START:
    return life_start(life);
  case RESTART:
    return life_restart(life);
  case DESTROY:
    return life_destroy(life);
  case ENDED:
    return life_ended(life);
  }
  return LIFE_NOTHING;
}

static const struct {
  enum life_state before, wanted;
  enum wish wish;
  enum life_action action;
  enum life_state after, wanted_after;
} rows[] = {
    {LIFE_ACTIVE, LIFE_ACTIVE, STOP, LIFE_END, LIFE_STOPPING, LIFE_STOPPED},
    {LIFE_ACTIVE, LIFE_ACTIVE, START, LIFE_NOTHING, LIFE_ACTIVE, LIFE_ACTIVE},
    {LIFE_ACTIVE, LIFE_ACTIVE, RESTART, LIFE_END, LIFE_STOPPING, LIFE_ACTIVE},
    {LIFE_ACTIVE, LIFE_ACTIVE, DESTROY, LIFE_END, LIFE_DESTROYING, LIFE_ACTIVE},
    {LIFE_ACTIVE, LIFE_ACTIVE, ENDED, LIFE_NOTHING, LIFE_ACTIVE, LIFE_ACTIVE},

    {LIFE_STOPPING, LIFE_STOPPED, STOP, LIFE_NOTHING, LIFE_STOPPING, LIFE_STOPPED},
    {LIFE_STOPPING, LIFE_STOPPED, START, LIFE_NOTHING, LIFE_STOPPING, LIFE_ACTIVE},
    {LIFE_STOPPING, LIFE_STOPPED, RESTART, LIFE_NOTHING, LIFE_STOPPING, LIFE_ACTIVE},
    {LIFE_STOPPING, LIFE_STOPPED, DESTROY, LIFE_NOTHING, LIFE_DESTROYING, LIFE_STOPPED},
    {LIFE_STOPPING, LIFE_STOPPED, ENDED, LIFE_NOTHING, LIFE_STOPPED, LIFE_STOPPED},
    {LIFE_STOPPING, LIFE_ACTIVE, STOP, LIFE_NOTHING, LIFE_STOPPING, LIFE_STOPPED},
    {LIFE_STOPPING, LIFE_ACTIVE, ENDED, LIFE_ADMIT, LIFE_ACTIVE, LIFE_ACTIVE},

    {LIFE_STOPPED, LIFE_STOPPED, STOP, LIFE_NOTHING, LIFE_STOPPED, LIFE_STOPPED},
    {LIFE_STOPPED, LIFE_STOPPED, START, LIFE_ADMIT, LIFE_ACTIVE, LIFE_STOPPED},
    {LIFE_STOPPED, LIFE_STOPPED, RESTART, LIFE_ADMIT, LIFE_ACTIVE, LIFE_STOPPED},
    {LIFE_STOPPED, LIFE_STOPPED, DESTROY, LIFE_END, LIFE_DESTROYING, LIFE_STOPPED},
    {LIFE_STOPPED, LIFE_STOPPED, ENDED, LIFE_NOTHING, LIFE_STOPPED, LIFE_STOPPED},

    {LIFE_DESTROYING, LIFE_STOPPED, STOP, LIFE_NOTHING, LIFE_DESTROYING, LIFE_STOPPED},
    {LIFE_DESTROYING, LIFE_STOPPED, START, LIFE_NOTHING, LIFE_DESTROYING, LIFE_STOPPED},
    {LIFE_DESTROYING, LIFE_STOPPED, RESTART, LIFE_NOTHING, LIFE_DESTROYING, LIFE_STOPPED},
    {LIFE_DESTROYING, LIFE_STOPPED, DESTROY, LIFE_NOTHING, LIFE_DESTROYING, LIFE_STOPPED},
    {LIFE_DESTROYING, LIFE_STOPPED, ENDED, LIFE_LEAVE, LIFE_DESTROYING, LIFE_STOPPED},
};

START_TEST(test_states) {
  struct life life;
  life_init(&life, 1000, 0);
  life.state = rows[_i].before;
  life.wanted = rows[_i].wanted;
  ck_assert_int_eq(apply(&life, rows[_i].wish), rows[_i].action);
  ck_assert_int_eq(life.state, rows[_i].after);
  if (life.state == LIFE_STOPPING)
    ck_assert_int_eq(life.wanted, rows[_i].wanted_after);
  life_free(&life);
}
END_TEST

START_TEST(test_status) {
  struct life life;
  life_init(&life, 1000, 0);
  ck_assert_str_eq(life_status(&life), "active");
  life_stop(&life);
  ck_assert_str_eq(life_status(&life), "stopping");
  life_ended(&life);
  ck_assert_str_eq(life_status(&life), "stopped");
  life_destroy(&life);
  ck_assert_str_eq(life_status(&life), "destroying");
  life_free(&life);
}
END_TEST

static struct life_label *one_label(void) {
  struct life_label *label = malloc(sizeof *label);
  *label = (struct life_label){strdup("team"), strdup("red")};
  return label;
}

START_TEST(test_claim) {
  struct life life;
  life_init(&life, 1000, 0);
  ck_assert_int_eq(life_claim_of(&life, "ann"), LIFE_UNCLAIMED);
  ck_assert_int_eq(life_claim(&life, "ann", 2000), 0);
  ck_assert_int_eq(life.allocated, 2000);
  ck_assert_int_eq(life_claim_of(&life, "ann"), LIFE_OWN);
  ck_assert_int_eq(life_claim_of(&life, "Ann"), LIFE_TAKEN);
  ck_assert_int_eq(life_claim_of(&life, ""), LIFE_TAKEN);
  life_set_labels(&life, one_label(), 1);
  life_set_labels(&life, one_label(), 1);
  ck_assert_str_eq(life.labels[0].value, "red");
  life_unclaim(&life);
  ck_assert_int_eq(life_claim_of(&life, "ann"), LIFE_UNCLAIMED);
  ck_assert_int_eq(life.allocated, 0);
  ck_assert_uint_eq(life.n_labels, 0);
  life_free(&life);
}
END_TEST

START_TEST(test_spec_keeps_what_is_not_said_again) {
  struct life life;
  life_init(&life, 1000, 0);
  ck_assert_int_eq(life_note_spec(&life, "2", NULL, "debian"), 0);
  ck_assert_int_eq(life_note_spec(&life, "500m", "1Gi", NULL), 0);
  ck_assert_str_eq(life.spec.cpu, "500m");
  ck_assert_str_eq(life.spec.memory, "1Gi");
  ck_assert_str_eq(life.spec.image, "debian");
  life_free(&life);
}
END_TEST

START_TEST(test_times) {
  const int64_t second = CLOCK_SECOND;
  struct life life;
  life_init(&life, 1000 * second, 0);
  ck_assert_int_eq(life.created, 1000 * second);
  ck_assert_int_eq(life.expires, 0);
  life_extend(&life, 1500 * second, 10 * second); /* none yet: from now on */
  ck_assert_int_eq(life.expires, 1510 * second);
  life_extend(&life, 1505 * second, 10 * second); /* from its end on */
  ck_assert_int_eq(life.expires, 1520 * second);
  life_extend(&life, 1600 * second, 10 * second); /* that has passed: from now on */
  ck_assert_int_eq(life.expires, 1610 * second);
  life_extend(&life, 1600 * second, INT64_MAX - 1);
  ck_assert_int_eq(life.expires, INT64_MAX);
  life_free(&life);
  life_init(&life, 1000 * second, 5 * second);
  ck_assert_int_eq(life.expires, 1005 * second);
  life_free(&life);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("life");
  TCase *tcase = tcase_create("life");
  tcase_add_loop_test(tcase, test_states, 0, (int)(sizeof rows / sizeof *rows));
  tcase_add_test(tcase, test_status);
  tcase_add_test(tcase, test_claim);
  tcase_add_test(tcase, test_spec_keeps_what_is_not_said_again);
  tcase_add_test(tcase, test_times);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
