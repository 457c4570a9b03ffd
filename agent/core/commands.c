#include "sandkeeper/core/commands.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/reader.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A log that is over the bound of all logs may still have this much: what a pipe holds. */
#define LOG_AT_LEAST (64u * 1024u)

const int64_t commands_spawn_bounds[SPAWN_BUCKETS] = {
    500000,   1000000,  2500000,   5000000,   10000000, /* 0.5 ms ... */
    25000000, 50000000, 100000000, 500000000, 2500000000,
};

int commands_init(struct commands *commands, struct loop *loop, struct workers *workers,
                  const struct commands_options *options, char **environment, struct error *err) {
  *commands = (struct commands){.loop = loop, .workers = workers, .options = *options};
  list_init(&commands->live);
  list_init(&commands->finished);
  list_init(&commands->unreaped);
  list_init(&commands->lingering);
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random)
    random = (uint64_t)clock_wall();
  snprintf(commands->run_id, sizeof commands->run_id, "%016llx", (unsigned long long)random);
  env_init(&commands->env);
  if (env_inherit(&commands->env, environment) < 0 ||
      (options->sandbox_id && env_set(&commands->env, "SANDBOX_ID", options->sandbox_id) < 0)) {
    commands_free(commands);
    return error_set_errno(err, ENOMEM, "environment for commands");
  }
  return 0;
}

/* ---- by id ---- */

static int compare_ids(const void *a, const void *b) {
  return strcmp(((const struct command *)a)->id, ((const struct command *)b)->id);
}

static struct command *find(const struct commands *commands, const char *id) {
  struct command key;
  if (strlen(id) > COMMAND_ID_MAX)
    return NULL;
  memcpy(key.id, id, strlen(id) + 1);
  struct command **found = tfind(&key, &commands->by_id, compare_ids);
  return found ? *found : NULL;
}

struct command *commands_find(struct commands *commands, const char *id, struct error *err) {
  struct command *command = find(commands, id);
  if (!command)
    error_set(err, ERROR_NOT_FOUND, 0, "cmd_id %.200s: there is no such command", id);
  return command;
}

/* ---- start ---- */

/* One that a client has chosen before us is passed over. */
static void make_id(struct commands *commands, struct command_spec *spec) {
  while (!spec->id[0] || find(commands, spec->id))
    snprintf(spec->id, sizeof spec->id, "cmd-%.8s-%llu", commands->run_id, (unsigned long long)++commands->sequence);
}

/* Makes it findable. A hidden one is not. */
static int make_known(struct commands *commands, struct command *command) {
  if (command->hidden)
    return 0;
  if (!tsearch(command, &commands->by_id, compare_ids))
    return -1;
  command->known = true;
  command_ref(command);
  return 0;
}

static void make_unknown(struct commands *commands, struct command *command) {
  if (!command->known)
    return;
  command->known = false;
  tdelete(command, &commands->by_id, compare_ids);
  command_unref(command);
}

/* What every command gets; what depends on its user is filled in when it starts (core/spawn.c). */
static int complete_spec(struct commands *commands, struct command *command, struct spawn *spawn) {
  const struct commands_options *options = &commands->options;
  char *mark = command->terminator.mark;
  snprintf(mark, TERMINATOR_MARK_MAX, COMMANDS_MARK "=%s.%s%llu", commands->run_id,
           command->of_image ? COMMANDS_MARK_IMAGE : COMMANDS_MARK_CLIENTS, (unsigned long long)commands->sequence);
  spawn->umask = options->umask;
  spawn->nofile = options->nofile;
  spawn->oom_score_adj = options->oom_score_adj;
  if (!spawn->shell && options->shell && !(spawn->shell = strdup(options->shell)))
    return -1;
  /* --user is who the clients' commands run as; the image's own runs as the image says, which is as the agent. */
  if (!spawn->user && options->user && !command->of_image && !(spawn->user = strdup(options->user)))
    return -1;
  if (!spawn->working_dir && options->working_dir && !(spawn->working_dir = strdup(options->working_dir)))
    return -1;
  if (!command->hidden && env_set(&spawn->env, "SANDKEEPER_CMD_ID", command->id) < 0)
    return -1;
  return env_set(&spawn->env, COMMANDS_MARK, mark + sizeof COMMANDS_MARK);
}

static int check_limits(const struct commands *commands, const struct command_spec *spec, struct error *err) {
  if (commands->refusing && !spec->of_image)
    return error_set(err, ERROR_STOPPED, 0, "the sandbox is stopped and starts no commands; start it first");
  if (spec->hidden || commands->counts.running < commands->options.max_running)
    return 0;
  error_set(err, ERROR_BUSY, 0, "%u commands run at once, which is the limit (--max-commands); nothing was started",
            commands->counts.running);
  if (err)
    err->limit = commands->options.max_running;
  return -1;
}

static int start(struct commands *commands, struct command *command, struct command_spec *spec, struct error *err) {
  if (complete_spec(commands, command, &spec->spawn) < 0 || make_known(commands, command) < 0)
    return error_set_errno(err, ENOMEM, "starting a command");
  if (command_start(command, &spec->spawn, err) < 0) {
    make_unknown(commands, command);
    return -1;
  }
  command->started = loop_now(commands->loop); /* until it is known better */
  list_append(&commands->live, &command_ref(command)->node);
  if (!command->hidden) {
    commands->counts.running++;
    commands->counts.started++;
  }
  return 0;
}

int commands_start(struct commands *commands, struct command_spec *spec, struct command **out, bool *existing,
                   struct error *err) {
  struct command *command = spec->id[0] ? find(commands, spec->id) : NULL;
  *existing = command != NULL;
  *out = NULL;
  int status = 0;
  if (command) {
    *out = command_ref(command);
  } else if ((status = check_limits(commands, spec, err)) == 0) {
    if (spec->id[0])
      commands->sequence++;
    else
      make_id(commands, spec);
    command = command_new(commands, spec);
    status = command ? start(commands, command, spec, err) : error_set_errno(err, ENOMEM, "starting a command");
    if (status == 0)
      *out = command;
    else if (command)
      command_unref(command);
  }
  command_spec_free(spec);
  return status;
}

/* ---- the end ---- */

void commands_drop_log(struct commands *commands, struct command *command) {
  size_t memory = command_log_memory(&command->log);
  uint64_t tail = command->log.tail;
  command_log_free(&command->log);
  commands->counts.dropped += command->log.tail - tail;
  commands->counts.log_memory -= memory;
}

static void forget(struct commands *commands, struct command *command) {
  command_ref(command);
  if (command->known && command->state == COMMAND_FINISHED)
    commands->counts.finished--;
  list_remove(&command->node);
  make_unknown(commands, command);
  command->log.limit = LOG_AT_LEAST;
  if (command->references > 1)
    list_append(&commands->lingering, &command->node);
  command_unref(command);
}

static void left_live(struct commands *commands, struct command *command) {
  list_remove(&command->node);
  if (!command->hidden)
    commands->counts.running--;
  if (list_is_empty(&commands->live) && commands->emptied)
    commands->emptied(commands->emptied_arg);
  if (commands->quiet && commands_is_quiet(commands))
    commands->quiet(commands->quiet_arg);
  command_unref(command);
}

void commands_on_started(struct commands *commands, int64_t took) {
  int bucket = 0;
  while (bucket < SPAWN_BUCKETS && took > commands_spawn_bounds[bucket])
    bucket++;
  commands->counts.spawn_buckets[bucket]++;
  commands->counts.spawn_sum += took;
}

void commands_on_failed(struct commands *commands, struct command *command) {
  LOG(LOG_DEBUG, "exec", "failed", LOG_S("cmd_id", command->id),
      LOG_S("error", command->error ? command->error->message : "no memory"));
  if (!command->hidden)
    commands->counts.failed++;
  left_live(commands, command);
  forget(commands, command);
}

static void forget_oldest(struct commands *commands) {
  while (commands->counts.finished > commands->options.keep_finished)
    forget(commands, LIST_FIRST(&commands->finished, struct command, node));
}

void commands_on_finished(struct commands *commands, struct command *command) {
  LOG(LOG_DEBUG, "exec", "ended", LOG_S("cmd_id", command->id), LOG_I("exit_code", command->exit_code),
      LOG_S("reason", command_reason_name(command->reason)));
  left_live(commands, command);
  if (command->hidden) {
    forget(commands, command);
    return;
  }
  commands->counts.ended[command->reason]++;
  list_append(&commands->finished, &command->node);
  commands->counts.finished++;
  size_t memory = command_log_memory(&command->log);
  command_log_shrink(&command->log);
  commands_account_log(commands, command, memory);
  forget_oldest(commands);
}

int commands_remove(struct commands *commands, struct command *command, struct error *err) {
  if (!command_is_over(command))
    return error_set(err, ERROR_BUSY, 0, "command %s still runs; end it first", command->id);
  forget(commands, command);
  return 0;
}

void commands_end_all(struct commands *commands, int64_t grace) {
  LIST_FOREACH (&commands->live, node) {
    struct command *command = LIST_OWNER(node, struct command, node);
    if (!command->of_image)
      command_end(command, REASON_EXITED, grace);
  }
}

bool commands_is_quiet(const struct commands *commands) {
  LIST_FOREACH (&commands->live, node)
    if (!LIST_OWNER(node, struct command, node)->of_image)
      return false;
  return true;
}

void commands_free(struct commands *commands) {
  struct list *const lists[] = {&commands->live, &commands->finished, &commands->lingering};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    while (lists[i]->next && !list_is_empty(lists[i])) {
      struct command *command = command_ref(LIST_FIRST(lists[i], struct command, node));
      command_let_go(command);
      forget(commands, command);
      list_remove(&command->node);
      if (lists[i] == &commands->live)
        command_unref(command);
      command_unref(command);
    }
  env_free(&commands->env);
}

/* ---- memory of all logs ---- */

static bool may_drop_log(struct commands *commands, struct command *command, bool awaited) {
  if (command_log_memory(&command->log) == 0 || list_is_empty(&command->observers) == awaited)
    return false;
  /* A live reader that is behind keeps its command's log, as it keeps a running command waiting, and no longer. */
  reader_stall(command, loop_now(commands->loop), commands->options.stall_timeout);
  return reader_keep_from(command) == command->log.head;
}

/* True when there is room enough. */
static bool drop_logs_of(struct commands *commands, const struct list *list, const struct command *spared, bool awaited,
                         size_t room) {
  LIST_FOREACH (list, node) {
    if (commands->counts.log_memory + room <= commands->options.log_memory)
      return true;
    struct command *command = LIST_OWNER(node, struct command, node);
    if (command != spared && may_drop_log(commands, command, awaited))
      commands_drop_log(commands, command);
  }
  return false;
}

/* The oldest commands that are over give up their logs first, until `room` more bytes fit; those whose result is not
 * sent yet only when that is over the bound: a client that does not read must not hold memory without one. */
static void drop_old_logs(struct commands *commands, const struct command *spared, size_t room) {
  if (commands->counts.log_memory + room <= commands->options.log_memory)
    return;
  struct list *const lists[] = {&commands->lingering, &commands->finished};
  for (int i = 0; i < 4; i++) {
    bool awaited = i >= 2;
    if (drop_logs_of(commands, lists[i % 2], spared, awaited, awaited ? 0 : room))
      return;
  }
}

void commands_account_log(struct commands *commands, struct command *command, size_t before) {
  commands->counts.log_memory += command_log_memory(&command->log);
  commands->counts.log_memory -= before;
  drop_old_logs(commands, command, 0);
}

void commands_limit_log(struct commands *commands, struct command *command, size_t want) {
  struct command_log *log = &command->log;
  if (!command->known || log->head - log->tail + want <= log->size || log->size >= COMMAND_LOG_CAPACITY)
    return;
  size_t room = command_log_memory(log); /* it doubles */
  drop_old_logs(commands, command, room);
  log->limit = COMMAND_LOG_CAPACITY;
  if (commands->counts.log_memory + room > commands->options.log_memory)
    log->limit = log->size > LOG_AT_LEAST ? log->size : LOG_AT_LEAST;
}

/* ---- children ---- */

/* A child whose start is still under way on a worker: its number is known from its first instruction on. */
static bool starting_child_died(struct commands *commands, const siginfo_t *info) {
  LIST_FOREACH (&commands->live, node) {
    struct command *command = LIST_OWNER(node, struct command, node);
    if (command_starting_pid(command) != info->si_pid)
      continue;
    command->has_early_exit = true;
    command->signal = info->si_code == CLD_EXITED ? 0 : info->si_status;
    command->exit_code = info->si_code == CLD_EXITED ? info->si_status : 128 + info->si_status;
    return true;
  }
  return false;
}

bool commands_child_died(struct commands *commands, const siginfo_t *info) {
  LIST_FOREACH (&commands->unreaped, node) {
    struct command *command = LIST_OWNER(node, struct command, unreaped_node);
    if (command->pid != info->si_pid)
      continue;
    command_leader_died(command, info->si_code, info->si_status);
    return true;
  }
  return starting_child_died(commands, info);
}

void commands_child_reaped(struct commands *commands, pid_t pid) {
  LIST_FOREACH (&commands->unreaped, node) {
    struct command *command = LIST_OWNER(node, struct command, unreaped_node);
    if (command->pid != pid)
      continue;
    command->reaped = true;
    list_remove(&command->unreaped_node);
    return;
  }
}
