/* Memory runs out at the n-th allocation, for every n: once, or from there on. What a client asks for is answered, with
 * an error too, or its connection is cut off; nothing crashes, hangs or leaks (the sanitizers see that), and when there
 * is memory again everything works. */
#include "rpc_fixture.h"
#include "run.h"

#include <search.h>
#include <stdatomic.h>

/* The linker sends the library's calls here (-Wl,--wrap). */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_reallocarray(void *old, size_t n, size_t size);
char *__real_strdup(const char *string);
char *__real_strndup(const char *string, size_t n);
void *__real_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_reallocarray(void *old, size_t n, size_t size);
char *__wrap_strdup(const char *string);
char *__wrap_strndup(const char *string, size_t n);
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));

/* The next to fail; 0: none. Workers allocate too. */
static _Atomic long fails_at, n_allocations;
static _Atomic bool fails_on; /* also all behind it */
static _Atomic bool paused;   /* while the test, or check, which is linked in too, allocates itself */
static _Atomic long n_failed;

static bool fails(void) {
  if (fails_at == 0 || paused)
    return false;
  long n = ++n_allocations;
  if (n != fails_at && !(fails_on && n > fails_at))
    return false;
  n_failed++;
  return true;
}

void *__wrap_malloc(size_t size) {
  return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
  return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size) {
  return fails() ? NULL : __real_realloc(old, size);
}

void *__wrap_reallocarray(void *old, size_t n, size_t size) {
  return fails() ? NULL : __real_reallocarray(old, n, size);
}

char *__wrap_strdup(const char *string) {
  return fails() ? NULL : __real_strdup(string);
}

char *__wrap_strndup(const char *string, size_t n) {
  return fails() ? NULL : __real_strndup(string, n);
}

void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *)) {
  return fails() ? NULL : __real_tsearch(key, root, compare);
}

static void fail_at(long n, bool on) {
  n_allocations = 0;
  n_failed = 0;
  fails_on = on;
  fails_at = n;
}

/* ---- scenarios: what one client sends; %d is a number of its own for each round ---- */

static const char *const scenarios[][6] = {
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"cat; echo err "
     ">&2\",\"stdin_data\":\"in\","
     "\"env\":{\"A\":\"1\",\"PATH\":\"/bin:/usr/bin\"},\"timeout\":20,\"working_dir\":\"/\"}}"},
    {"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"exec\",\"params\":{\"argv\":[\"head\",\"-c\",\"100000\",\"/dev/"
     "zero\"],"
     "\"cmd_id\":\"job-%d\",\"output\":\"split\",\"encoding\":\"base64\"}}"},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"argv\":[\"/no/such\",\"x\"]}}"},
    {"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"echo x\",\"detached\":true}},"
     "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"exec_list\"},{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"nope\"},"
     "{\"jsonrpc\":\"2.0\",\"method\":\"exec\",\"params\":{\"command\":\"true\"}}]"},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"cat >/dev/null; sleep "
     "774.500\",\"stdin\":true,"
     "\"cmd_id\":\"tree-%d\",\"stream\":false}}",
     "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"exec_input\",\"params\":{\"cmd_id\":\"tree-%d\",\"data\":\"abc\","
     "\"eof\":true}}",
     "{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"exec_logs\",\"params\":{\"cmd_id\":\"tree-%d\"}}",
     "{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"kill\",\"params\":{\"cmd_id\":\"tree-%d\",\"scope\":\"tree\"}}"},
    {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"trap '' TERM; sleep "
     "774.500\",\"timeout\":0.01}}"},
};
enum { N_SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* Takes what there is. False: the client has to be cut off. */
static bool pull_all(struct client *client) {
  while (rpc_session_pull(client->session, &client->out)) {
    if (client->out.failed)
      return false;
    paused = true;
    check_message(client);
    paused = false;
  }
  return true;
}

static void play(struct client *client, int scenario, int round) {
  bool alive = true;
  for (int i = 0; alive && i < 6 && scenarios[scenario][i]; i++) {
    char message[1000];
    const char *text = scenarios[scenario][i], *number = strstr(text, "%d");
    if (number)
      snprintf(message, sizeof message, "%.*s%d%s", (int)(number - text), text, round, number + 2);
    else
      snprintf(message, sizeof message, "%s", text);
    rpc_session_receive(client->session, message, strlen(message));
    loop_run_once(sandbox.loop, 0);
    alive = pull_all(client);
  }
  /* While there is no memory nothing may come of it; with memory it must end. */
  for (int turn = 0; alive && turn < 20 && !rpc_session_idle(client->session); turn++) {
    loop_run_once(sandbox.loop, 2);
    alive = pull_all(client);
  }
  fails_at = 0;
  int64_t give_up = clock_monotonic() + LONGEST;
  while (alive && !rpc_session_idle(client->session)) {
    if (clock_monotonic() > give_up)
      ck_abort_msg("scenario %d, round %d: not answered", scenario, round);
    signal_processes("sleep 774.500", SIGKILL);
    loop_run_once(sandbox.loop, 5);
    alive = pull_all(client);
  }
}

static void forget_all(void) {
  RUN_UNTIL((signal_processes("sleep 774.500", SIGKILL), list_is_empty(&sandbox.commands.live)));
  while (!list_is_empty(&sandbox.commands.finished))
    ck_assert_int_eq(
        commands_remove(&sandbox.commands, LIST_FIRST(&sandbox.commands.finished, struct command, node), NULL), 0);
  ck_assert_uint_eq(sandbox.commands.counts.running, 0);
  ck_assert_uint_eq(sandbox.commands.counts.finished, 0);
  RUN_UNTIL(sandbox.commands.counts.log_memory == 0);
  ck_assert_ptr_null(sandbox.commands.by_id);
}

static int spare_fds;

static void play_until_it_fits(int scenario, bool on) {
  int round = 0;
  long n = 1;
  for (;; n++, round++) {
    struct client client;
    client_open(&client, 64 << 20);
    fail_at(n, on);
    play(&client, scenario, round);
    long failed = n_failed;
    client_close(&client);
    forget_all();
    if (failed == 0 && n_allocations < n)
      break;
    ck_assert_int_lt(n, 3000);
  }
  ck_assert_int_gt(n, 10);
  RUN_UNTIL(count_fds() <= spare_fds);
  /* As if nothing had been. */
  struct client client;
  client_open(&client, 64 << 20);
  json_object *answer = client_call(&client, "\"method\":\"exec\",\"params\":{\"command\":\"echo fine\"}");
  ck_assert_str_eq(text_of(answer, "result.output"), "fine\n");
  json_object_put(answer);
  client_close(&client);
  forget_all();
}

START_TEST(test_once) {
  play_until_it_fits(_i, false);
}
END_TEST

START_TEST(test_from_there_on) {
  play_until_it_fits(_i, true);
}
END_TEST

/* A message that a worker parses. */
START_TEST(test_long_message) {
  size_t len = RPC_PARSE_INLINE_MAX + 100;
  for (long n = 1; n < 200; n++) {
    struct client client;
    struct buf message;
    client_open(&client, 64 << 20);
    buf_init(&message, len, 0);
    buf_append_string(
        &message,
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exec\",\"params\":{\"command\":\"cat | wc -c\",\"stdin_data\":\"");
    while (message.len < len - 3)
      buf_append_string(&message, "x");
    buf_append_string(&message, "\"}}");
    ck_assert(!message.failed);
    fail_at(n, _i);
    if (n % 2)
      rpc_session_receive(client.session, message.data, message.len);
    else
      rpc_session_take(client.session, &message);
    bool alive = true;
    for (int turn = 0; alive && turn < 50 && !rpc_session_idle(client.session); turn++) {
      loop_run_once(sandbox.loop, 2);
      alive = pull_all(&client);
    }
    fails_at = 0;
    RUN_UNTIL(!alive || rpc_session_idle(client.session) || !(alive = pull_all(&client)));
    buf_free(&message);
    client_close(&client);
    forget_all();
    if (n_failed == 0)
      return;
  }
  ck_abort_msg("it always needs more");
}
END_TEST

/* The parts of the core that main() makes. */
START_TEST(test_sandbox_init) {
  for (long n = 1;; n++) {
    struct error err = ERROR_INIT;
    struct sandbox_options options = core_options();
    static struct sandbox other;
    fail_at(n, false);
    int status = sandbox_init(&other, &options, environ, &err);
    fails_at = 0;
    ck_assert(status == 0 || err.kind == ERROR_INTERNAL);
    sandbox_free(&other);
    if (status == 0)
      break;
  }
}
END_TEST

static void begin(void) {
  static char path[] = "PATH=/usr/local/bin:/usr/bin:/bin", *few[] = {path, NULL};
  environ = few; /* each of them is an allocation */
  core_begin();
  struct client client;
  client_open(&client, 64 << 20);
  json_object_put(client_call(&client, "\"method\":\"exec\",\"params\":{\"command\":\"true\"}"));
  client_close(&client);
  spare_fds = count_fds();
}

int main(void) {
  Suite *suite = suite_create("out of memory");
  TCase *tcase = tcase_create("out of memory");
  tcase_set_timeout(tcase, 300);
  tcase_add_checked_fixture(tcase, begin, core_end);
  tcase_add_loop_test(tcase, test_once, 0, N_SCENARIOS);
  tcase_add_loop_test(tcase, test_from_there_on, 0, N_SCENARIOS);
  tcase_add_loop_test(tcase, test_long_message, 0, 2);
  tcase_add_test(tcase, test_sandbox_init);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
