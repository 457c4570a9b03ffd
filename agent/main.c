/* main.c - early state, options, build the parts, run, exit code: nothing else. */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/sandbox_api.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/base/resident.h"
#include "sandkeeper/config.h"
#include "sandkeeper/core/init_command.h"
#include "sandkeeper/core/sandbox.h"
#include "sandkeeper/core/shutdown.h"
#include "sandkeeper/core/user.h"
#include "sandkeeper/install.h"
#include "sandkeeper/net/gate.h"
#include "sandkeeper/net/http.h"
#include "sandkeeper/net/options.h"
#include "sandkeeper/net/ws.h"
#include "sandkeeper/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXIT_USAGE 2

/* Added to our own badness for commands: when memory runs out the kernel takes them and not the agent. */
#define OOM_SCORE_ADD 100
#define OOM_SCORE_MAX 1000

/* How long clients may take for their close frames at the end. */
#define CLOSE_PATIENCE (1 * CLOCK_SECOND)

/* And for the answers that the end of the commands has just made: those who wait for them take them at once. */
#define ANSWER_PATIENCE (250 * CLOCK_MS)

struct agent {
  struct config config;
  struct sandbox sandbox;
  struct api api;
  struct net_options net;
  struct ws *ws;
  struct http *http;
  struct gate *gate;
  struct init_command init;
  bool sessions_closed, stopped;
};

extern char **environ;

/* ---- early state ---- */

/* Pipes and sockets must never land on 0, 1 or 2, where a command's stdio is put. */
static void open_stdio(void) {
  int fd;
  do
    fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0)
    close(fd);
}

/* Thousands of idle clients are ours to hold; commands get the old limit back. */
static struct rlimit raise_nofile(void) {
  struct rlimit before, raised;
  if (getrlimit(RLIMIT_NOFILE, &before) < 0)
    return (struct rlimit){1024, 1024};
  raised = (struct rlimit){before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

static int child_oom_score(void) {
  char text[32];
  int own = fd_read_file("/proc/self/oom_score_adj", text, sizeof text) > 0 ? atoi(text) : 0;
  return own > OOM_SCORE_MAX - OOM_SCORE_ADD ? OOM_SCORE_MAX : own + OOM_SCORE_ADD;
}

/* Memory that was big once must go back: glibc would raise these bounds by itself, and give each thread an arena. */
static void tame_malloc(void) {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  mallopt(M_TRIM_THRESHOLD, 128 * 1024);
#endif
}

/* ---- parts ---- */

static int make_sandbox(struct agent *agent, struct rlimit nofile, struct error *err) {
  const struct config *config = &agent->config;
  mode_t inherited = umask(022);
  mode_t mask = config->umask >= 0 ? (mode_t)config->umask : inherited;
  umask(mask);
  if (config->workdir && chdir(config->workdir) < 0)
    return error_set_errno(err, errno, "--workdir %s", config->workdir);
  const struct sandbox_options options = {
      .id = config->sandbox_id,
      .ttl = config->ttl,
      .file_timeout = config->file_timeout,
      .grace = config->grace,
      .commands =
          {
              .shell = config->shell,
              .user = config->user,
              .umask = mask,
              .max_running = config->max_commands,
              .keep_finished = config->keep_finished,
              .log_memory = config->log_memory,
              .stall_timeout = config->stall_timeout,
              .nofile = nofile,
              .oom_score_adj = child_oom_score(),
          },
  };
  return sandbox_init(&agent->sandbox, &options, environ, err);
}

static void net_metrics(void *arg, struct metrics_net *out) {
  const struct agent *agent = arg;
  struct ws_stats ws = ws_stats(agent->ws);
  struct http_stats http = http_stats(agent->http);
  *out = (struct metrics_net){.sessions = ws.sessions,
                              .session_buffered = ws.buffered,
                              .connections = http.connections,
                              .exchanges = http.exchanges};
}

static int make_net(struct agent *agent, struct error *err) {
  const struct config *config = &agent->config;
  struct loop *loop = agent->sandbox.loop;
  agent->net = (struct net_options){
      .sandbox_id = config->sandbox_id,
      .token = config->token,
      .allow_origins = config->allow_origin,
      .n_allow_origins = config->n_allow_origin,
      .max_message = config->max_message,
      .max_buffered = config->max_buffered,
  };
  if (!(agent->ws = ws_new(loop, &agent->net, &agent->api, err)) ||
      !(agent->http = http_new(loop, &agent->net, api_routes, api_n_routes, &agent->api, err)) ||
      !(agent->gate = gate_new(loop, &agent->net, agent->ws, agent->http, err)))
    return -1;
  http_observe(agent->http, metrics_on_request, &agent->api.metrics);
  for (size_t i = 0; i < config->n_listen; i++) {
    const struct config_listen *listen = &config->listen[i];
    if (gate_listen(agent->gate, (const struct sockaddr *)&listen->address, listen->length, listen->optional, err) < 0)
      return -1;
  }
  if (gate_listening(agent->gate) == 0)
    return error_set(err, ERROR_IO, 0, "port %u: no address could be listened on", config->port);
  agent->api.control.options.port = (int)gate_port(agent->gate);
  return 0;
}

/* ---- the end ---- */

static void on_answered(void *arg) {
  struct agent *agent = arg;
  ws_stop(agent->ws);
}

static void leave_when_done(struct agent *agent) {
  if (agent->sessions_closed && agent->stopped)
    http_finish(agent->http, loop_now(agent->sandbox.loop) + ANSWER_PATIENCE, on_answered, agent);
}

static void on_sessions_closed(void *arg) {
  struct agent *agent = arg;
  agent->sessions_closed = true;
  leave_when_done(agent);
}

static void on_stopping(void *arg) {
  struct agent *agent = arg;
  gate_set_stopping(agent->gate);
  http_set_stopping(agent->http);
  ws_close_all(agent->ws, 1001, "the agent shuts down", loop_now(agent->sandbox.loop) + CLOSE_PATIENCE,
               on_sessions_closed, agent);
}

static void on_stopped(void *arg) {
  struct agent *agent = arg;
  agent->stopped = true;
  leave_when_done(agent);
}

static void free_agent(struct agent *agent) {
  init_command_stop(&agent->init);
  gate_free(agent->gate);
  http_free(agent->http);
  ws_free(agent->ws);
  sandbox_api_free(&agent->api);
  sandbox_free(&agent->sandbox);
}

static int run(struct agent *agent, struct rlimit nofile) {
  const struct config *config = &agent->config;
  struct error err = ERROR_INIT;
  agent->api = (struct api){
      .sandbox = &agent->sandbox,
      .options = {.version = PACKAGE_VERSION, .max_message = config->max_message},
      .bodies = {.max = config->max_buffered},
      .prompts.options = {.handler = config->prompt_handler,
                          .timeout = config->prompt_timeout,
                          .concurrency = config->prompt_concurrency,
                          .text_type = config->prompt_text_type},
      .metrics = {.net = net_metrics, .net_arg = agent},
  };
  const struct sandbox_api_options control = {.preview_url = config->preview_url, .preview_host = config->preview_host};
  sandbox_api_init(&agent->api, &control);
  int status = make_sandbox(agent, nofile, &err);
  agent->sandbox.on_stopping = on_stopping;
  agent->sandbox.on_stopped = on_stopped;
  agent->sandbox.arg = agent;
  if (status == 0)
    status = make_net(agent, &err);
  if (status == 0 && config->command)
    status = init_command_start(&agent->init, &agent->sandbox, config->command, config->keep_alive,
                                config->restart_command, &err);
  if (status < 0) {
    LOG(LOG_ERROR, "agent", "cannot start", LOG_S("error", err.message));
    return EXIT_FAILURE;
  }
  LOG(LOG_INFO, "agent", "started", LOG_S("version", PACKAGE_VERSION), LOG_S("sandbox_id", config->sandbox_id),
      LOG_S("token", config->token ? "required" : "none"));
  resident_trim();
  ws_run(agent->ws);
  LOG(LOG_INFO, "agent", "stopped");
  return agent->init.exit_code;
}

/* access(2) alone would take a directory. */
static int check_program(const char *path) {
  struct stat file;
  if (stat(path, &file) < 0)
    return -1;
  if (!S_ISREG(file.st_mode)) {
    errno = S_ISDIR(file.st_mode) ? EISDIR : EACCES;
    return -1;
  }
  return access(path, X_OK);
}

/* What is wrong from the start is said at once, not to the first client. */
static int check_options(const struct config *config, struct error *err) {
  struct stat directory;
  struct user user;
  if (config->workdir && stat(config->workdir, &directory) < 0)
    return error_set_errno(err, errno, "--workdir %s", config->workdir);
  if (config->workdir && !S_ISDIR(directory.st_mode))
    return error_set_errno(err, ENOTDIR, "--workdir %s", config->workdir);
  /* Without a slash it is looked for in each command's PATH. */
  if (config->shell && strchr(config->shell, '/') && check_program(config->shell) < 0)
    return error_set_errno(err, errno, "--shell %s", config->shell);
  if (!config->user)
    return 0;
  if (user_lookup(config->user, &user, err) < 0)
    return error_wrap(err, "--user");
  uid_t uid = user.uid;
  user_free(&user);
  if (geteuid() != 0 && uid != geteuid())
    return error_set(err, ERROR_PERMISSION, EPERM, "--user %s: the agent is not root and cannot become another user",
                     config->user);
  return 0;
}

static int parse_options(struct config *config, int argc, char **argv) {
  struct error err = ERROR_INIT;
  if (config_parse(config, argc, argv, &err) < 0 || (config->action == CONFIG_RUN && check_options(config, &err) < 0)) {
    error_say("sandkeeper: %s", err.message);
    return EXIT_USAGE;
  }
  if (config->action != CONFIG_RUN)
    fputs(config->action == CONFIG_HELP ? config_help() : config_version(), stdout);
  return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "health") == 0)
    return probe_main(argc - 1, argv + 1);
  if (argc > 1 && strcmp(argv[1], "install") == 0)
    return install_main(argc - 1, argv + 1);

  static struct agent agent;
  int status = parse_options(&agent.config, argc, argv);
  if (status == EXIT_SUCCESS && agent.config.action == CONFIG_RUN) {
    signals_block();
    open_stdio();
    fd_cloexec_from(STDERR_FILENO + 1);
    tame_malloc();
    log_setup(STDERR_FILENO, agent.config.log_format, agent.config.log_level);
    if (agent.config.token)
      prctl(PR_SET_DUMPABLE, 0L, 0L, 0L, 0L); /* no core dump with the token in it */
    status = run(&agent, raise_nofile());
    free_agent(&agent);
  }
  config_free(&agent.config);
  return status;
}
