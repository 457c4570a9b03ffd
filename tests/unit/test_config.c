/* Options: every one of them from its flag and from its variable, every range at both ends, every error's line. */
#include "sandkeeper/config.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include "run.h"

#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static struct config config;
static struct error err;

#define ARGV_MAX 80

/* config_parse with these arguments behind the program's name. */
static int parse(const char *first, ...) {
  static char *argv[ARGV_MAX];
  int argc = 0;
  va_list list;
  argv[argc++] = (char *)(uintptr_t) "sandkeeper";
  va_start(list, first);
  for (const char *argument = first; argument; argument = va_arg(list, const char *)) {
    ck_assert_int_lt(argc, ARGV_MAX - 1);
    argv[argc++] = (char *)(uintptr_t)argument;
  }
  va_end(list);
  argv[argc] = NULL;
  config_free(&config);
  err = (struct error)ERROR_INIT;
  return config_parse(&config, argc, argv, &err);
}

#define PARSE(...) parse(__VA_ARGS__, (const char *)NULL)

/* The line must name the flag or variable and the value, say what is taken, and be one line. */
#define ASSERT_REFUSED(source, value, takes)                                                           \
  do {                                                                                                 \
    ck_assert_int_eq(err.kind, ERROR_INVALID);                                                         \
    ck_assert_msg(!strncmp(err.message, source, strlen(source)), "no %s in: %s", source, err.message); \
    ck_assert_msg(strstr(err.message, value) != NULL, "no %s in: %s", value, err.message);             \
    ck_assert_msg(strstr(err.message, takes) != NULL, "no %s in: %s", takes, err.message);             \
    ck_assert_ptr_null(strchr(err.message, '\n'));                                                     \
  } while (0)

static void setup(void) {
  char *sources = getenv("top_srcdir");
  cleanup_free char *kept = sources ? strdup(sources) : NULL;
  clearenv();
  if (kept)
    setenv("TEST_CONFIG_SOURCES", kept, 1);
  memset(&config, 0, sizeof config);
}

static void teardown(void) {
  config_free(&config);
}

/* A file with this content, removed by the caller. */
static void temporary_file(char path[static 32], const char *content, size_t length) {
  strcpy(path, "/tmp/test_config.XXXXXX");
  int fd = mkstemp(path);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(write(fd, content, length), (ssize_t)length);
  close(fd);
}

static const char *listen_text(size_t index, char out[static 80]) {
  const struct sockaddr_storage *address = &config.listen[index].address;
  char host[INET6_ADDRSTRLEN];
  if (address->ss_family == AF_INET) {
    const struct sockaddr_in *v4 = (const void *)address;
    ck_assert_uint_eq(config.listen[index].length, sizeof *v4);
    snprintf(out, 80, "%s:%u", inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host), ntohs(v4->sin_port));
  } else if (address->ss_family == AF_INET6) {
    const struct sockaddr_in6 *v6 = (const void *)address;
    ck_assert_uint_eq(config.listen[index].length, sizeof *v6);
    snprintf(out, 80, "[%s]:%u", inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host), ntohs(v6->sin6_port));
  } else {
    ck_assert_int_eq(address->ss_family, AF_UNIX);
    snprintf(out, 80, "unix:%.70s", ((const struct sockaddr_un *)(const void *)address)->sun_path);
  }
  return out;
}

START_TEST(test_defaults) {
  char text[80], host[256] = "";
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_int_eq(config.action, CONFIG_RUN);
  ck_assert_uint_eq(config.port, 4001);
  ck_assert_uint_eq(config.n_listen, 2);
  ck_assert_str_eq(listen_text(0, text), "0.0.0.0:4001");
  ck_assert_str_eq(listen_text(1, text), "[::]:4001");
  ck_assert(config.listen[0].optional && config.listen[1].optional);
  ck_assert_ptr_null(config.token);
  ck_assert_uint_eq(config.n_allow_origin, 0);
  ck_assert_uint_eq(config.max_message, 67108864);
  ck_assert_uint_eq(config.max_buffered, 268435456);
  ck_assert_ptr_null(config.workdir);
  ck_assert_ptr_null(config.shell);
  ck_assert_ptr_null(config.user);
  ck_assert_int_eq(config.umask, -1);
  ck_assert_uint_eq(config.max_commands, 1024);
  ck_assert_uint_eq(config.keep_finished, 256);
  ck_assert_uint_eq(config.log_memory, 67108864);
  ck_assert_int_eq(config.stall_timeout, 10 * CLOCK_SECOND);
  ck_assert_int_eq(config.file_timeout, 60 * CLOCK_SECOND);
  ck_assert_int_eq(config.grace, 5 * CLOCK_SECOND);
  ck_assert_str_eq(config.prompt_handler, "echo");
  ck_assert_int_eq(config.prompt_timeout, 600 * CLOCK_SECOND);
  ck_assert_uint_eq(config.prompt_concurrency, 4);
  ck_assert_str_eq(config.prompt_text_type, "text");
  ck_assert_int_eq(gethostname(host, sizeof host - 1), 0);
  ck_assert_str_eq(config.sandbox_id, host);
  ck_assert_int_eq(config.ttl, 0);
  ck_assert_ptr_null(config.preview_url);
  ck_assert_ptr_null(config.preview_host);
  ck_assert(!config.keep_alive && !config.restart_command);
  ck_assert_int_eq(config.log_format, LOG_FORMAT_AUTO);
  ck_assert_int_eq(config.log_level, LOG_INFO);
  ck_assert_ptr_null(config.command);
}
END_TEST

/* One value of every option, with what it must become. */
static const char *const all_options[][2] = {
    {"port", "4002"},
    {"allow-origin", "https://example.org"},
    {"max-message", "1M"},
    {"max-buffered", "2G"},
    {"workdir", "/w"},
    {"shell", "/bin/dash"},
    {"user", "nobody"},
    {"umask", "027"},
    {"max-commands", "7"},
    {"keep-finished", "0"},
    {"log-memory", "1G"},
    {"stall-timeout", "0.25"},
    {"file-timeout", "2m"},
    {"grace", "1s"},
    {"prompt-handler", "cd /app\n./handler --fast\n"},
    {"prompt-timeout", "1h"},
    {"prompt-concurrency", "16"},
    {"prompt-text-type", "text_chunk"},
    {"sandbox-id", "box 7"},
    {"ttl", "48h"},
    {"preview-url", "http://example.org/p"},
    {"preview-host", "p.example.org"},
    {"log-format", "json"},
    {"log-level", "debug"},
};
#define N_ALL (sizeof all_options / sizeof *all_options)

static void assert_all(void) {
  char text[80];
  ck_assert_uint_eq(config.port, 4002);
  ck_assert_str_eq(listen_text(0, text), "0.0.0.0:4002");
  ck_assert_str_eq(listen_text(1, text), "[::]:4002");
  ck_assert_uint_eq(config.n_allow_origin, 1);
  ck_assert_str_eq(config.allow_origin[0], "https://example.org");
  ck_assert_uint_eq(config.max_message, 1 << 20);
  ck_assert_uint_eq(config.max_buffered, UINT64_C(2) << 30);
  ck_assert_str_eq(config.workdir, "/w");
  ck_assert_str_eq(config.shell, "/bin/dash");
  ck_assert_str_eq(config.user, "nobody");
  ck_assert_int_eq(config.umask, 027);
  ck_assert_uint_eq(config.max_commands, 7);
  ck_assert_uint_eq(config.keep_finished, 0);
  ck_assert_uint_eq(config.log_memory, 1 << 30);
  ck_assert_int_eq(config.stall_timeout, 250 * CLOCK_MS);
  ck_assert_int_eq(config.file_timeout, 120 * CLOCK_SECOND);
  ck_assert_int_eq(config.grace, CLOCK_SECOND);
  ck_assert_str_eq(config.prompt_handler, "cd /app\n./handler --fast\n");
  ck_assert_int_eq(config.prompt_timeout, 3600 * CLOCK_SECOND);
  ck_assert_uint_eq(config.prompt_concurrency, 16);
  ck_assert_str_eq(config.prompt_text_type, "text_chunk");
  ck_assert_str_eq(config.sandbox_id, "box 7");
  ck_assert_int_eq(config.ttl, 48 * 3600 * CLOCK_SECOND);
  ck_assert_str_eq(config.preview_url, "http://example.org/p");
  ck_assert_str_eq(config.preview_host, "p.example.org");
  ck_assert_int_eq(config.log_format, LOG_FORMAT_JSON);
  ck_assert_int_eq(config.log_level, LOG_DEBUG);
  ck_assert(config.keep_alive && config.restart_command);
}

START_TEST(test_all_by_flag) {
  /* "--name value" and "--name=value" are the same. */
  for (int joined = 0; joined < 2; joined++) {
    char texts[N_ALL][64];
    char *argv[2 * N_ALL + 4];
    int argc = 0;
    argv[argc++] = (char *)(uintptr_t) "sandkeeper";
    for (size_t i = 0; i < N_ALL; i++) {
      snprintf(texts[i], sizeof texts[i], joined ? "--%s=%s" : "--%s", all_options[i][0], all_options[i][1]);
      argv[argc++] = texts[i];
      if (!joined)
        argv[argc++] = (char *)(uintptr_t)all_options[i][1];
    }
    argv[argc++] = (char *)(uintptr_t) "--keep-alive";
    argv[argc++] = (char *)(uintptr_t) "--restart-command";
    argv[argc] = NULL;
    config_free(&config);
    ck_assert_msg(config_parse(&config, argc, argv, &err) == 0, "%s", err.message);
    assert_all();
  }
}
END_TEST

static void variable_name(const char *option, char out[static 64]) {
  snprintf(out, 64, "SANDKEEPER_%s", option);
  for (char *p = out + strlen("SANDKEEPER_"); *p; p++)
    *p = *p == '-' ? '_' : (char)(*p - 'a' + 'A');
}

START_TEST(test_all_by_variable) {
  for (size_t i = 0; i < N_ALL; i++) {
    char name[64];
    variable_name(all_options[i][0], name);
    setenv(name, all_options[i][1], 1);
  }
  setenv("SANDKEEPER_KEEP_ALIVE", "1", 1);
  setenv("SANDKEEPER_RESTART_COMMAND", "yes", 1);
  ck_assert_msg(PARSE(NULL) == 0, "%s", err.message);
  assert_all();
}
END_TEST

START_TEST(test_flag_wins) {
  setenv("SANDKEEPER_PORT", "1", 1);
  setenv("SANDKEEPER_GRACE", "nonsense", 1);
  setenv("SANDKEEPER_LISTEN", "127.0.0.1:1,127.0.0.1:2", 1);
  setenv("SANDKEEPER_KEEP_ALIVE", "0", 1);
  char text[80];
  ck_assert_int_eq(PARSE("--port", "2", "--grace", "3", "--listen", "[::1]:3", "--keep-alive"), 0);
  ck_assert_uint_eq(config.port, 2);
  ck_assert_int_eq(config.grace, 3 * CLOCK_SECOND);
  ck_assert_uint_eq(config.n_listen, 1);
  ck_assert_str_eq(listen_text(0, text), "[::1]:3");
  ck_assert(config.keep_alive);
}
END_TEST

START_TEST(test_last_flag_wins) {
  ck_assert_int_eq(PARSE("--port", "1", "--port=2", "--shell", "/a", "--shell", "/b"), 0);
  ck_assert_uint_eq(config.port, 2);
  ck_assert_str_eq(config.shell, "/b");
}
END_TEST

START_TEST(test_empty_variable_is_unset) {
  setenv("SANDKEEPER_PORT", "", 1);
  setenv("SANDKEEPER_LISTEN", "", 1);
  setenv("SANDKEEPER_KEEP_ALIVE", "", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_uint_eq(config.port, 4001);
}
END_TEST

/* Kubernetes puts SANDKEEPER_PORT=tcp://... into pods beside a service of that name. */
START_TEST(test_kubernetes_port) {
  setenv("SANDKEEPER_PORT", "tcp://10.96.0.12:4001", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_uint_eq(config.port, 4001);
  ck_assert_int_eq(PARSE("--port", "tcp://10.96.0.12:4001"), -1);
  ASSERT_REFUSED("--port", "tcp://10.96.0.12:4001", "0 to 65535");
}
END_TEST

START_TEST(test_listen) {
  char text[80];
  ck_assert_int_eq(PARSE("--listen", "127.0.0.1:0", "--listen", "[2001:db8::1]:65535", "--listen=unix:/run/s.sock"), 0);
  ck_assert_uint_eq(config.n_listen, 3);
  ck_assert_str_eq(listen_text(0, text), "127.0.0.1:0");
  ck_assert_str_eq(listen_text(1, text), "[2001:db8::1]:65535");
  ck_assert_str_eq(listen_text(2, text), "unix:/run/s.sock");
  ck_assert_uint_eq(config.listen[2].length, offsetof(struct sockaddr_un, sun_path) + sizeof "/run/s.sock");
  ck_assert(!config.listen[0].optional);
  ck_assert_str_eq(config.listen[1].text, "[2001:db8::1]:65535");

  setenv("SANDKEEPER_LISTEN", "127.0.0.1:1, [::1]:2", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_uint_eq(config.n_listen, 2);
  ck_assert_str_eq(listen_text(0, text), "127.0.0.1:1");
  ck_assert_str_eq(listen_text(1, text), "[::1]:2");
}
END_TEST

START_TEST(test_listen_refused) {
  static const char *const wrong[] = {"",        "127.0.0.1",     "127.0.0.1:",    "127.0.0.1:65536", "127.0.0.1:-1",
                                      ":4001",   "localhost:80",  "::1:4001",      "[::1]",           "[::1]4001",
                                      "[::1:80", "[127.0.0.1]:1", "127.0.0.1:80x", "unix:",           "unix:relative",
                                      "1.2.3:4", "[]:1",          "0x7f000001:1",  "127.0.0.1 :80",   "unix:/a\nb"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_assert_msg(PARSE("--listen", wrong[i]) == -1, "%s was taken", wrong[i]);
    if (!strchr(wrong[i], '\n'))
      ASSERT_REFUSED("--listen", wrong[i], "unix:/PATH");
  }
  char path[200] = "unix:/";
  memset(path + 6, 'x', 107); /* sun_path holds 108 with the NUL */
  ck_assert_int_eq(PARSE("--listen", path), -1);
  path[6 + 106] = '\0';
  ck_assert_int_eq(PARSE("--listen", path), 0);

  char seventeen[17 * 12 + 1] = "";
  for (int i = 0; i < 17; i++)
    strcat(seventeen, i ? ",127.0.0.1:1" : "127.0.0.1:1");
  setenv("SANDKEEPER_LISTEN", seventeen, 1);
  ck_assert_int_eq(PARSE(NULL), -1);
  ASSERT_REFUSED("SANDKEEPER_LISTEN", "127.0.0.1:1", "at most 16");
}
END_TEST

START_TEST(test_origin) {
  ck_assert_int_eq(PARSE("--allow-origin", "http://localhost:3000", "--allow-origin", "*"), 0);
  ck_assert_uint_eq(config.n_allow_origin, 2);
  ck_assert_str_eq(config.allow_origin[1], "*");
  setenv("SANDKEEPER_ALLOW_ORIGIN", "http://a,https://b:1", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_uint_eq(config.n_allow_origin, 2);
  ck_assert_str_eq(config.allow_origin[1], "https://b:1");
  static const char *const wrong[] = {"",     "example.org", "http://",   "http://a/path",
                                      "://a", "http://a b",  "http://a,b"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_assert_msg(PARSE("--allow-origin", wrong[i]) == -1, "%s was taken", wrong[i]);
    ASSERT_REFUSED("--allow-origin", wrong[i], "SCHEME://HOST");
  }
}
END_TEST

/* Both ends of each range, and one step behind them. */
START_TEST(test_ranges) {
  static const struct {
    const char *option, *low, *high, *below, *above, *takes;
  } ranges[] = {
      {"--port", "0", "65535", "-1", "65536", "0 to 65535"},
      {"--max-message", "1024", "1G", "1023", "1073741825", "1K to 1G"},
      {"--max-buffered", "64M", "64G", "1023", "68719476737", "1K to 64G"},
      {"--umask", "0", "777", "-1", "1000", "octal"},
      {"--max-commands", "1", "100000", "0", "100001", "1 to 100000"},
      {"--keep-finished", "0", "100000", "-1", "100001", "0 to 100000"},
      {"--log-memory", "512K", "64G", "524287", "65G", "512K to 64G"},
      {"--stall-timeout", "0", "24h", "-1", "86400.000000001", "0 to 24h"},
      {"--file-timeout", "0.1", "24h", "0.099999999", "1441m", "0.1 to 24h"},
      {"--grace", "0", "24h", "-0.1", "25h", "0 to 24h"},
      {"--prompt-timeout", "0", "720h", "-1", "721h", "720h"},
      {"--prompt-concurrency", "1", "1024", "0", "1025", "1 to 1024"},
      {"--ttl", "0", "87600h", "-1", "87601h", "87600h"},
  };
  for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
    /* max-buffered must hold a message. */
    setenv("SANDKEEPER_MAX_BUFFERED", "64G", 1);
    ck_assert_msg(PARSE(ranges[i].option, ranges[i].low) == 0, "%s", err.message);
    ck_assert_msg(PARSE(ranges[i].option, ranges[i].high) == 0, "%s", err.message);
    ck_assert_msg(PARSE(ranges[i].option, ranges[i].below) == -1, "%s %s was taken", ranges[i].option, ranges[i].below);
    ASSERT_REFUSED(ranges[i].option, ranges[i].below, ranges[i].takes);
    ck_assert_msg(PARSE(ranges[i].option, ranges[i].above) == -1, "%s %s was taken", ranges[i].option, ranges[i].above);
    ASSERT_REFUSED(ranges[i].option, ranges[i].above, ranges[i].takes);
  }
}
END_TEST

START_TEST(test_times) {
  static const struct {
    const char *text;
    int64_t ns;
  } times[] = {
      {"0", 0},
      {"1", CLOCK_SECOND},
      {"1.5", 1500 * CLOCK_MS},
      {"0.000000001", 1},
      {"0.0000000019", 1},
      {"90s", 90 * CLOCK_SECOND},
      {"1.5m", 90 * CLOCK_SECOND},
      {"0.5h", 1800 * CLOCK_SECOND},
      {"0.000000001h", 3600},
  };
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    ck_assert_msg(PARSE("--grace", times[i].text) == 0, "%s", err.message);
    ck_assert_int_eq(config.grace, times[i].ns);
  }
  static const char *const wrong[] = {"",   ".5",  "1.",  "1..5", "1,5", "1d",   "1ms", "1 s", " 1",
                                      "+1", "inf", "nan", "1e3",  "0x1", "1s s", "s",   "--",  "99999999999999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_assert_msg(PARSE("--grace", wrong[i]) == -1, "'%s' was taken", wrong[i]);
    ASSERT_REFUSED("--grace", wrong[i], "s, m or h");
  }
}
END_TEST

START_TEST(test_sizes) {
  static const struct {
    const char *text;
    uint64_t bytes;
  } sizes[] = {{"2000", 2000}, {"2K", 2048}, {"3k", 3072}, {"5M", 5 << 20}, {"1G", 1 << 30}, {"0064K", 65536}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    ck_assert_msg(PARSE("--max-message", sizes[i].text, "--max-buffered", "64G") == 0, "%s", err.message);
    ck_assert_uint_eq(config.max_message, sizes[i].bytes);
  }
  static const char *const wrong[] = {"", "K", "1.5M", "1KB", "1KiB", "1T", "-1K", "0x1", "1 K", "M1", " 1K", "1K ",
                                      "1_000_000",
                                      /* 2^64 + 2048, and 2^64 after the unit */
                                      "18446744073709553664", "17179869184G"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_assert_msg(PARSE("--max-message", wrong[i]) == -1, "'%s' was taken", wrong[i]);
    ASSERT_REFUSED("--max-message", wrong[i], "K, M or G");
  }
}
END_TEST

START_TEST(test_buffered_holds_a_message) {
  ck_assert_int_eq(PARSE("--max-message", "2M", "--max-buffered", "1M"), -1);
  ASSERT_REFUSED("--max-buffered", "1048576", "2097152");
}
END_TEST

START_TEST(test_words) {
  static const struct {
    const char *option, *value, *takes;
  } wrong[] = {
      {"--log-format", "xml", "auto text json"},
      {"--log-format", "", "auto text json"},
      {"--log-format", "text json", "auto text json"},
      {"--log-level", "INFO", "debug info warn error"},
      {"--prompt-text-type", "tex", "text text_chunk"},
      {"--shell", "", "path of a shell"},
      {"--workdir", "a\tb", "a directory"},
      {"--user", "", "name or number"},
      {"--sandbox-id", "", "without control"},
      {"--prompt-handler", "", "echo or none"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    ck_assert_msg(PARSE(wrong[i].option, wrong[i].value) == -1, "%s %s was taken", wrong[i].option, wrong[i].value);
    ASSERT_REFUSED(wrong[i].option, wrong[i].value, wrong[i].takes);
  }
  setenv("SANDKEEPER_KEEP_ALIVE", "maybe", 1);
  ck_assert_int_eq(PARSE(NULL), -1);
  ASSERT_REFUSED("SANDKEEPER_KEEP_ALIVE", "maybe", "yes");
  setenv("SANDKEEPER_KEEP_ALIVE", "false", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert(!config.keep_alive);
}
END_TEST

START_TEST(test_wrong_flags) {
  ck_assert_int_eq(PARSE("--prot", "1"), -1);
  ASSERT_REFUSED("'--prot'", "--prot", "--help");
  ck_assert_int_eq(PARSE("--prot=1"), -1);
  ASSERT_REFUSED("'--prot'", "--prot", "--help");
  ck_assert_int_eq(PARSE("--max-c", "1"), -1); /* no abbreviations */
  ASSERT_REFUSED("'--max-c'", "--max-c", "--help");
  ck_assert_int_eq(PARSE("-p", "1"), -1);
  ASSERT_REFUSED("'-p'", "-p", "--");
  ck_assert_int_eq(PARSE("sleep", "1"), -1);
  ASSERT_REFUSED("'sleep'", "sleep", "behind --");
  ck_assert_int_eq(PARSE(""), -1);
  ck_assert_int_eq(PARSE("--port"), -1);
  ASSERT_REFUSED("--port", "value", "missing");
  ck_assert_int_eq(PARSE("--keep-alive=1"), -1);
  ASSERT_REFUSED("--keep-alive", "'1'", "no value");
  setenv("SANDKEEPER_MAX_COMMANDS", "many", 1);
  ck_assert_int_eq(PARSE(NULL), -1);
  ASSERT_REFUSED("SANDKEEPER_MAX_COMMANDS", "many", "1 to 100000");
}
END_TEST

START_TEST(test_command) {
  ck_assert_int_eq(PARSE("--port", "1", "--", "nginx", "--port", "x", "--"), 0);
  ck_assert_ptr_nonnull(config.command);
  ck_assert_str_eq(config.command[0], "nginx");
  ck_assert_str_eq(config.command[1], "--port");
  ck_assert_str_eq(config.command[2], "x");
  ck_assert_str_eq(config.command[3], "--");
  ck_assert_ptr_null(config.command[4]);
  ck_assert_int_eq(PARSE("--"), 0);
  ck_assert_ptr_null(config.command);
}
END_TEST

START_TEST(test_help) {
  setenv("SANDKEEPER_PORT", "wrong", 1); /* help works in a wrong environment */
  setenv("SANDKEEPER_TOKEN", "", 1);
  ck_assert_int_eq(PARSE("--help"), 0);
  ck_assert_int_eq(config.action, CONFIG_HELP);
  ck_assert_int_eq(PARSE("--version"), 0);
  ck_assert_int_eq(config.action, CONFIG_VERSION);
  ck_assert_str_eq(config_version(), "sandkeeper 0.1.0\n");

  const char *help = config_help();
  int lines = 0;
  for (const char *line = help; *line; lines++) {
    size_t length = strcspn(line, "\n");
    ck_assert_msg(length <= 100, "too wide: %.*s", (int)length, line);
    ck_assert_int_eq(line[length], '\n');
    line += length + 1;
  }
  ck_assert_int_le(lines, 40);
  for (size_t i = 0; i < N_ALL; i++) {
    char flag[64];
    snprintf(flag, sizeof flag, "--%s ", all_options[i][0]);
    ck_assert_msg(strstr(help, flag) != NULL, "%s is not in --help", flag);
  }
  static const char *const others[] = {"--listen ", "--token-file ", "--keep-alive ", "--restart-command ",
                                       "--version\n"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    ck_assert_msg(strstr(help, others[i]) != NULL, "%s is not in --help", others[i]);
}
END_TEST

/* The manual has a paragraph for each option. "make check" says where the sources are. */
START_TEST(test_manual) {
  static char manual[65536];
  const char *top = getenv("TEST_CONFIG_SOURCES");
  char path[4096];
  snprintf(path, sizeof path, "%s/docs/sandkeeper.1", top ? top : ".");
  ck_assert_msg(fd_read_file(path, manual, sizeof manual) > 0, "cannot read %s", path);
  static const char *const others[] = {"listen", "token-file", "keep-alive", "restart-command", "help", "version"};
  for (size_t i = 0; i < N_ALL + sizeof others / sizeof *others; i++) {
    char flag[64] = "\\-\\-", *end = flag + 4;
    for (const char *p = i < N_ALL ? all_options[i][0] : others[i - N_ALL]; *p; p++) {
      if (*p == '-')
        *end++ = '\\';
      *end++ = *p;
    }
    *end = '\0';
    ck_assert_msg(strstr(manual, flag) != NULL, "%s is not in the manual", flag);
  }
}
END_TEST

START_TEST(test_sandbox_id) {
  setenv("SANDBOX_ID", "sb-7", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_str_eq(config.sandbox_id, "sb-7");
  setenv("SANDKEEPER_SANDBOX_ID", "sb-8", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_str_eq(config.sandbox_id, "sb-8");
  ck_assert_int_eq(PARSE("--sandbox-id", "sb-9"), 0);
  ck_assert_str_eq(config.sandbox_id, "sb-9");
}
END_TEST

START_TEST(test_token_file) {
  static const struct {
    const char *content, *token; /* NULL: refused */
  } files[] = {
      {"secret\n", "secret"}, {"secret", "secret"},  {"secret\r\n", "secret"}, {"", NULL},
      {"\n", NULL},           {"two words\n", NULL}, {"secret\n\n", NULL},     {"caf\303\251\n", NULL},
  };
  char path[32];
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    temporary_file(path, files[i].content, strlen(files[i].content));
    int result = PARSE("--token-file", path);
    unlink(path);
    ck_assert_int_eq(result, files[i].token ? 0 : -1);
    if (files[i].token)
      ck_assert_str_eq(config.token, files[i].token);
    else
      ASSERT_REFUSED("--token-file", path, "visible ASCII");
    ck_assert_ptr_null(strstr(err.message, "two"));
  }
}
END_TEST

START_TEST(test_token_file_borders) {
  char path[32], text[1100];
  memset(text, 'x', sizeof text);
  for (size_t length = 1022; length <= 1030; length++) {
    temporary_file(path, text, length);
    int result = PARSE("--token-file", path);
    unlink(path);
    ck_assert_msg(result == (length <= 1024 ? 0 : -1), "%zu bytes", length);
    if (result == 0)
      ck_assert_uint_eq(strlen(config.token), length);
  }
  temporary_file(path, "a\0b", 3);
  int result = PARSE("--token-file", path);
  unlink(path);
  ck_assert_int_eq(result, -1);

  ck_assert_int_eq(PARSE("--token-file", "/nonexistent/token"), -1);
  ck_assert_int_eq(err.number, ENOENT);
  ck_assert(strstr(err.message, "--token-file") && strstr(err.message, "/nonexistent/token"));
  ck_assert_int_eq(PARSE("--token-file", "/"), -1);
  ck_assert(strstr(err.message, "--token-file"));
}
END_TEST

START_TEST(test_token_variable) {
  setenv("SANDKEEPER_TOKEN", "from-variable", 1);
  ck_assert_int_eq(PARSE(NULL), 0);
  ck_assert_str_eq(config.token, "from-variable");
  ck_assert_ptr_null(getenv("SANDKEEPER_TOKEN"));

  /* A wrong one is refused without being shown, and gone all the same. */
  static const char *const wrong[] = {"", "pass word"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    setenv("SANDKEEPER_TOKEN", wrong[i], 1);
    ck_assert_int_eq(PARSE(NULL), -1);
    ASSERT_REFUSED("SANDKEEPER_TOKEN", "", "visible ASCII");
    ck_assert_ptr_null(strstr(err.message, "word"));
    ck_assert_ptr_null(getenv("SANDKEEPER_TOKEN"));
  }
  /* Gone also when something else is wrong. */
  setenv("SANDKEEPER_TOKEN", "secret", 1);
  ck_assert_int_eq(PARSE("--port", "x"), -1);
  ck_assert_ptr_null(getenv("SANDKEEPER_TOKEN"));
  /* The file wins. */
  char path[32];
  temporary_file(path, "from-file\n", 10);
  setenv("SANDKEEPER_TOKEN", "secret", 1);
  setenv("SANDKEEPER_TOKEN_FILE", path, 1);
  int result = PARSE(NULL);
  unlink(path);
  ck_assert_int_eq(result, 0);
  ck_assert_str_eq(config.token, "from-file");
  ck_assert_ptr_null(getenv("SANDKEEPER_TOKEN"));
}
END_TEST

/* The bytes that the kernel shows as /proc/self/environ. */
static size_t count_in_environ(const char *needle) {
  static char text[65536];
  FILE *file = fopen("/proc/self/environ", "r");
  if (!file)
    return SIZE_MAX;
  size_t length = fread(text, 1, sizeof text, file), found = 0;
  fclose(file);
  for (char *at = text; (at = memmem(at, length - (size_t)(at - text), needle, strlen(needle))); at++)
    found++;
  return found;
}

#define PROBE "--environ-probe"
#define PROBE_TOKEN "e7c1-probe-token"

/* Runs in a program of its own, started with the token in its environment. */
static int environ_probe(void) {
  if (count_in_environ(PROBE_TOKEN) != 1)
    return 10;
  char *argv[] = {(char *)(uintptr_t) "sandkeeper", NULL};
  if (config_parse(&config, 1, argv, &err) < 0 || !config.token || strcmp(config.token, PROBE_TOKEN) != 0)
    return 11;
  for (char **entry = environ; *entry; entry++)
    if (strstr(*entry, PROBE_TOKEN))
      return 12;
  /* The variable beside it is still there: only the token was wiped. */
  if (count_in_environ("KEEP=this") != 1)
    return 13;
  int result = count_in_environ(PROBE_TOKEN) == 0 ? 0 : 14;
  config_free(&config);
  return result;
}

START_TEST(test_token_leaves_proc_environ) {
  pid_t pid = fork();
  ck_assert_int_ge(pid, 0);
  if (pid == 0) {
    char *argv[] = {(char *)(uintptr_t) "test_config", (char *)(uintptr_t)PROBE, NULL};
    char *envp[] = {(char *)(uintptr_t) "SANDKEEPER_TOKEN=" PROBE_TOKEN, (char *)(uintptr_t) "KEEP=this", NULL};
    execve("/proc/self/exe", argv, envp);
    _exit(99);
  }
  int status;
  ck_assert_int_eq(waitpid(pid, &status, 0), pid);
  ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the probe ended with status %#x", (unsigned)status);
}
END_TEST

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], PROBE))
    return environ_probe();

  Suite *suite = suite_create("config");
  TCase *tcase = tcase_create("config");
  tcase_add_checked_fixture(tcase, setup, teardown);
  tcase_add_test(tcase, test_defaults);
  tcase_add_test(tcase, test_all_by_flag);
  tcase_add_test(tcase, test_all_by_variable);
  tcase_add_test(tcase, test_flag_wins);
  tcase_add_test(tcase, test_last_flag_wins);
  tcase_add_test(tcase, test_empty_variable_is_unset);
  tcase_add_test(tcase, test_kubernetes_port);
  tcase_add_test(tcase, test_listen);
  tcase_add_test(tcase, test_listen_refused);
  tcase_add_test(tcase, test_origin);
  tcase_add_test(tcase, test_ranges);
  tcase_add_test(tcase, test_times);
  tcase_add_test(tcase, test_sizes);
  tcase_add_test(tcase, test_buffered_holds_a_message);
  tcase_add_test(tcase, test_words);
  tcase_add_test(tcase, test_wrong_flags);
  tcase_add_test(tcase, test_command);
  tcase_add_test(tcase, test_help);
  tcase_add_test(tcase, test_manual);
  tcase_add_test(tcase, test_sandbox_id);
  tcase_add_test(tcase, test_token_file);
  tcase_add_test(tcase, test_token_file_borders);
  tcase_add_test(tcase, test_token_variable);
  tcase_add_test(tcase, test_token_leaves_proc_environ);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
