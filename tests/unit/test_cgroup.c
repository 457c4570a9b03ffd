/* Limits, against files that look like a cgroup's. */
#include "sandkeeper/core/cgroup.h"

#include "scratch.h"

#define MI (INT64_C(1) << 20)

/* A mount with the cgroup at `path` in it. */
static void make(const char *self, const char *path) {
  scratch_begin();
  put(at("self"), self);
  REQUIRE(mkdir(at("cgroup"), 0755) == 0);
  if (path[0])
    REQUIRE(mkdir(at("cgroup/%s", path), 0755) == 0);
  put(at("cgroup/%s/cpu.max", path), "max 100000\n");
  put(at("cgroup/%s/memory.max", path), "max\n");
  put(at("cgroup/%s/memory.current", path), "10485760\n");
}

static int apply(int64_t cpu, int64_t memory, struct error *err) {
  const struct cgroup_limits limits = {.cpu = cpu, .memory = memory};
  *err = (struct error)ERROR_INIT;
  return cgroup_apply_at(at("self"), at("cgroup"), &limits, err);
}

static void require_kind(int status, const struct error *err, enum error_kind kind, const char *word) {
  ck_assert_int_eq(status, -1);
  ck_assert_msg(err->kind == kind, "%s: %s", error_kind_name(err->kind), err->message);
  ck_assert_msg(strstr(err->message, word), "%s", err->message);
}

static const struct {
  const char *self, *path;
} places[] = {
    {"0::/\n", ""},
    {"0::/own\n", "own"},
    {"4:memory:/x\n0::/own\n", "own"},
    {"0::/of/the/host/that/is/not/here\n", ""},
    {"0::/../other\n", ""},
};

START_TEST(test_finds_and_writes) {
  struct error err;
  make(places[_i].self, places[_i].path);
  ck_assert_msg(apply(1500, 64 * MI, &err) == 0, "%s", err.message);
  require_content(at("cgroup/%s/cpu.max", places[_i].path), "150000 100000");
  require_content(at("cgroup/%s/memory.max", places[_i].path), "67108864");
  scratch_end();
}
END_TEST

START_TEST(test_leaves_what_is_not_said) {
  struct error err;
  make("0::/\n", "");
  ck_assert_int_eq(apply(0, 64 * MI, &err), 0);
  require_content(at("cgroup/cpu.max"), "max 100000\n");
  ck_assert_int_eq(apply(10, 0, &err), 0);
  require_content(at("cgroup/memory.max"), "67108864");
  scratch_end();
}
END_TEST

START_TEST(test_less_memory_than_is_in_use) {
  struct error err;
  make("0::/\n", "");
  require_kind(apply(500, 5 * MI, &err), &err, ERROR_INVALID, "10485760 bytes are in use");
  require_kind(apply(500, 11 * MI, &err), &err, ERROR_INVALID, "too little");
  require_content(at("cgroup/cpu.max"), "max 100000\n"); /* both or none */
  require_content(at("cgroup/memory.max"), "max\n");
  scratch_end();
}
END_TEST

START_TEST(test_no_controller) {
  struct error err;
  make("0::/\n", "");
  REQUIRE(unlink(at("cgroup/memory.max")) == 0);
  require_kind(apply(500, 64 * MI, &err), &err, ERROR_NOT_FOUND, "memory.max");
  require_content(at("cgroup/cpu.max"), "max 100000\n");
  scratch_end();
}
END_TEST

START_TEST(test_no_v2) {
  struct error err;
  make("4:memory:/x\n1:cpu:/x\n", "");
  require_kind(apply(500, 0, &err), &err, ERROR_NOT_FOUND, "no cgroup v2");
  scratch_end();
}
END_TEST

START_TEST(test_not_writable) {
  struct error err;
  make("0::/\n", "");
  become_nobody();
  require_kind(apply(500, 64 * MI, &err), &err, ERROR_PERMISSION, "cannot be written");
}
END_TEST

/* The second one fails after the first is written: the first is put back. */
START_TEST(test_put_back) {
  struct error err;
  make("0::/\n", "");
  REQUIRE(unlink(at("cgroup/memory.max")) == 0);
  REQUIRE(symlink("/dev/full", at("cgroup/memory.max")) == 0);
  put(at("cgroup/cpu.max"), "200000 100000");
  require_kind(apply(1500, 64 * MI, &err), &err, ERROR_NO_SPACE, "memory.max");
  require_content(at("cgroup/cpu.max"), "200000 100000");
  scratch_end();
}
END_TEST

int main(void) {
  Suite *suite = suite_create("cgroup");
  TCase *tcase = tcase_create("cgroup");
  tcase_add_loop_test(tcase, test_finds_and_writes, 0, (int)(sizeof places / sizeof *places));
  tcase_add_test(tcase, test_leaves_what_is_not_said);
  tcase_add_test(tcase, test_less_memory_than_is_in_use);
  tcase_add_test(tcase, test_no_controller);
  tcase_add_test(tcase, test_no_v2);
  tcase_add_test(tcase, test_not_writable);
  tcase_add_test(tcase, test_put_back);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
