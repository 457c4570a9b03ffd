#include "sandkeeper/core/spawn.h"

#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/spawn_child.h"
#include "sandkeeper/core/user.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child's frames are small and it calls nothing but the kernel. */
#define CHILD_STACK_SIZE (32 * 1024)

/* What execvp(3) and Docker use where an environment has no PATH. */
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

void spawn_init(struct spawn *spawn) {
  *spawn = (struct spawn){.umask = 022, .in_fd = -1, .out_fd = -1, .err_fd = -1};
  env_init(&spawn->env);
}

static void free_strings(char **strings) {
  if (!strings)
    return;
  for (char **string = strings; *string; string++)
    free(*string);
  free(strings);
}

void spawn_free(struct spawn *spawn) {
  free(spawn->command);
  free_strings(spawn->argv);
  free(spawn->shell);
  free(spawn->working_dir);
  free(spawn->user);
  free(spawn->program);
  env_free(&spawn->env);
  fd_close(&spawn->in_fd);
  fd_close(&spawn->out_fd);
  fd_close(&spawn->err_fd);
  spawn_init(spawn);
}

static int no_memory(struct error *err) {
  return error_set_errno(err, ENOMEM, "starting a command");
}

/* ---- user ---- */

/* Who it runs as. *change: the agent must become somebody else. */
static int find_user(const struct spawn *spawn, struct user *user, bool *change, struct error *err) {
  uid_t self = geteuid();
  *change = false;
  if (spawn->sudo && self == 0) {
    if (user_of_uid(0, user, err) < 0)
      return -1;
    *change = true;
    return user_read_groups(user, err);
  }
  if (!spawn->user)
    return user_of_uid(self, user, err);
  if (user_lookup(spawn->user, user, err) < 0)
    return -1;
  *change = user->uid != self || self == 0;
  if (*change && self != 0) {
    user_free(user);
    return error_set(err, ERROR_PERMISSION, EPERM,
                     "user %s: the agent is not root and cannot run commands as another user", spawn->user);
  }
  return *change ? user_read_groups(user, err) : 0;
}

/* ---- program and environment ---- */

static const char *find_shell(const struct spawn *spawn) {
  if (spawn->shell)
    return spawn->shell;
  return access("/bin/bash", X_OK) == 0 ? "/bin/bash" : "/bin/sh";
}

static int fill_env(struct spawn *spawn, const struct user *user, const char *shell) {
  struct env *env = &spawn->env;
  int status = 0;
  if (!env_get(env, "PATH"))
    status |= env_set(env, "PATH", DEFAULT_PATH);
  if (!env_get(env, "HOME"))
    status |= env_set(env, "HOME", user->home);
  if (!env_get(env, "USER"))
    status |= env_set(env, "USER", user->name);
  if (!env_get(env, "LOGNAME"))
    status |= env_set(env, "LOGNAME", user->name);
  if (!env_get(env, "SHELL"))
    status |= env_set(env, "SHELL", shell);
  return status;
}

struct program {
  char *argv_for_shell[8];
  char *const *argv;
  char **paths; /* owned */
};

static void program_free(struct program *program) {
  free_strings(program->paths);
}

static int add_path(char **paths, size_t *count, const char *dir, size_t dir_len, const char *name) {
  size_t name_len = strlen(name);
  char *path = malloc(dir_len + name_len + 2);
  if (!path)
    return -1;
  memcpy(path, dir, dir_len);
  if (dir_len > 0)
    path[dir_len++] = '/';
  memcpy(path + dir_len, name, name_len + 1);
  paths[(*count)++] = path;
  return 0;
}

/* The places to look for a program: itself when it has a slash, else every folder of PATH. */
static char **candidates(const char *name, const char *path_variable) {
  size_t folders = 1;
  for (const char *c = path_variable; *c; c++)
    folders += *c == ':';
  char **paths = calloc(folders + 1, sizeof(char *));
  size_t count = 0;
  if (!paths)
    return NULL;
  int status = 0;
  if (strchr(name, '/')) {
    status = add_path(paths, &count, "", 0, name);
  } else if (*name) {
    for (const char *dir = path_variable; status == 0;) {
      size_t len = strcspn(dir, ":");
      /* An empty entry means the current directory, as in execvp(3). */
      status = add_path(paths, &count, len ? dir : ".", len ? len : 1, name);
      if (!dir[len])
        break;
      dir += len + 1;
    }
  }
  if (status < 0) {
    free_strings(paths);
    return NULL;
  }
  return paths;
}

static int find_program(struct spawn *spawn, const char *shell, struct program *program) {
  char **shell_argv = program->argv_for_shell;
  size_t n = 0;
  bool by_sudo = spawn->sudo && geteuid() != 0;
  *program = (struct program){0};
  if (by_sudo) {
    static char sudo[] = "sudo", keep_env[] = "-E", no_prompt[] = "-n", end[] = "--";
    shell_argv[n++] = sudo;
    shell_argv[n++] = keep_env;
    shell_argv[n++] = no_prompt;
    shell_argv[n++] = end;
  }
  if (spawn->command) {
    static char option[] = "-c";
    shell_argv[n++] = (char *)shell;
    shell_argv[n++] = option;
    shell_argv[n++] = spawn->command;
    program->argv = shell_argv;
  } else {
    program->argv = spawn->argv;
  }
  const char *name = by_sudo ? "sudo" : program->argv[0];
  spawn->program = strdup(name);
  program->paths = candidates(name, env_get(&spawn->env, "PATH"));
  return spawn->program && program->paths ? 0 : -1;
}

/* `argv` behind sudo: the words must be joined in one vector. */
static char **sudo_argv(struct program *program, char **argv) {
  size_t before = 0, behind = 0;
  while (program->argv_for_shell[before])
    before++;
  while (argv[behind])
    behind++;
  char **joined = calloc(before + behind + 1, sizeof(char *));
  if (!joined)
    return NULL;
  memcpy(joined, program->argv_for_shell, before * sizeof(char *));
  memcpy(joined + before, argv, behind * sizeof(char *));
  return joined;
}

/* ---- the new process ---- */

struct stdio {
  int child[3]; /* the child's ends; -1: the agent's own */
};

static void stdio_cleanup(struct stdio *stdio) {
  for (int i = 0; i < 3; i++)
    fd_close(&stdio->child[i]);
}

static int make_pipe(int *reader, int *writer) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0)
    return -1;
  *reader = ends[0];
  *writer = ends[1];
  return 0;
}

static int make_stdio(struct spawn *spawn, struct stdio *stdio, struct error *err) {
  if (spawn->inherit_stdio)
    return 0;
  int status;
  if (spawn->stdin_pipe) {
    status = make_pipe(&stdio->child[0], &spawn->in_fd);
    if (status == 0)
      status = fd_set_nonblock(spawn->in_fd);
  } else {
    stdio->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    status = stdio->child[0] < 0 ? -1 : 0;
  }
  if (status == 0)
    status = make_pipe(&spawn->out_fd, &stdio->child[1]);
  if (status == 0)
    status = make_pipe(&spawn->err_fd, &stdio->child[2]);
  if (status == 0)
    status = fd_set_nonblock(spawn->out_fd);
  if (status == 0)
    status = fd_set_nonblock(spawn->err_fd);
  if (status == 0)
    return 0;
  int number = errno;
  error_set_errno(err, number, "stdin, stdout and stderr of the command");
  if (err)
    err->kind = ERROR_SPAWN_FAILED;
  return -1;
}

/* A script may open its own output by name (echo >/dev/stderr), which asks for rights to the pipe. Without the right to
 * give it away all but that works. */
static void give_pipes(const struct spawn *spawn, const struct stdio *stdio, const struct user *user) {
  for (int fd = spawn->stdin_pipe ? 0 : 1; fd < 3; fd++)
    if (stdio->child[fd] >= 0)
      (void)!fchown(stdio->child[fd], user->uid, user->gid);
}

static int clone_child(struct spawn_child *child, pid_t *pid, int *pidfd) {
  char *stack = mmap(NULL, CHILD_STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED)
    return -1;
  /* No signal may arrive in the child while its handlers are the agent's. */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  *pid = clone(spawn_child_main, stack + CHILD_STACK_SIZE, flags | CLONE_PIDFD, child, pidfd);
  /* Linux before 5.2, and qemu-user, have no CLONE_PIDFD. */
  if (*pid < 0 && errno == EINVAL)
    *pid = clone(spawn_child_main, stack + CHILD_STACK_SIZE, flags, child);
  int number = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  munmap(stack, CHILD_STACK_SIZE);
  errno = number;
  return *pid < 0 ? -1 : 0;
}

/* execve(2) says ENOENT for a missing interpreter too, and EACCES for a directory: tell what it really was. */
static void report_exec(const struct program *program, const char *what, int number, struct error *err) {
  struct stat info;
  const char *path = program->paths[0];
  bool one = path && !program->paths[1] && stat(path, &info) == 0;
  if (number == ENOENT && one)
    error_set(err, ERROR_SPAWN_FAILED, number, "%s: the interpreter that it names does not exist", what);
  else if (number == EACCES && one && S_ISDIR(info.st_mode))
    error_set(err, ERROR_SPAWN_FAILED, number, "%s: it is a directory, not a program", what);
  else if (number == E2BIG)
    error_set(err, ERROR_SPAWN_FAILED, number,
              "%s: the arguments are too long; one may have 128 KiB (MAX_ARG_STRLEN), use stdin_data or a file", what);
  else if (number == ENOEXEC)
    error_set(err, ERROR_SPAWN_FAILED, number, "%s: it is no program that this machine can run, and has no #! line",
              what);
  else
    error_set_errno(err, number, "%s", what);
}

static int report_failure(const struct spawn *spawn, const struct program *program, const struct user *user,
                          enum spawn_step step, int number, struct error *err) {
  const char *what = program->argv[0] && *program->argv[0] ? program->argv[0] : "\"\"";
  switch (step) {
  case SPAWN_STEP_WORKING_DIR:
    return error_set_errno(err, number, "working_dir %s", spawn->working_dir);
  case SPAWN_STEP_USER:
    error_set_errno(err, number, "becoming user %s", user->name);
    break;
  case SPAWN_STEP_EXEC:
    if (spawn->sudo && geteuid() != 0 && number == ENOENT)
      error_set(err, ERROR_SPAWN_FAILED, number, "sudo: the agent is not root and the program sudo is not installed");
    else
      report_exec(program, what, number, err);
    break;
  case SPAWN_STEP_CLONE:
    error_set_errno(err, number, "no new process for %s", what);
    break;
  case SPAWN_STEP_SESSION:
  case SPAWN_STEP_STDIO:
  case SPAWN_STEP_LIMITS:
  case SPAWN_STEP_NONE:
    error_set_errno(err, number, "preparing the process for %s", what);
    break;
  }
  if (err) {
    err->kind = ERROR_SPAWN_FAILED;
    err->number = number;
  }
  return -1;
}

/* The child of a failed start is a zombie, or soon. By its pidfd: the reaper may have been faster, and the number may
 * be another's by now. */
static void reap_failed(int pidfd) {
  if (pidfd < 0)
    return; /* then the reaper takes it as it takes an orphan */
  siginfo_t info;
  while (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED) < 0 && errno == EINTR)
    ;
}

static int start(struct spawn *spawn, struct program *program, const struct user *user, bool change_user,
                 struct error *err) {
  __attribute__((cleanup(stdio_cleanup))) struct stdio stdio = {{-1, -1, -1}};
  if (make_stdio(spawn, &stdio, err) < 0)
    return -1;
  if (change_user)
    give_pipes(spawn, &stdio, user);
  char oom_score_adj[16];
  int oom_len = snprintf(oom_score_adj, sizeof oom_score_adj, "%d", spawn->oom_score_adj);
  struct spawn_child child = {
      .pid = &spawn->pid,
      .stdio = {stdio.child[0], stdio.child[1], stdio.child[2]},
      .new_session = !spawn->inherit_stdio,
      .change_user = change_user,
      .uid = user->uid,
      .gid = user->gid,
      .groups = user->groups,
      .n_groups = user->n_groups,
      .umask = spawn->umask,
      .oom_score_adj = oom_score_adj,
      .oom_score_adj_len = (size_t)oom_len,
      .nofile = spawn->nofile,
      .working_dir = spawn->working_dir,
      .programs = program->paths,
      .argv = program->argv,
      .envp = spawn->env.vars,
  };
  pid_t pid;
  cleanup_close int pidfd = -1;
  if (clone_child(&child, &pid, &pidfd) < 0)
    return report_failure(spawn, program, user, SPAWN_STEP_CLONE, errno, err);
  /* Known already, but where an emulator (qemu-user) makes a vfork of it that shares no memory. */
  atomic_store(&spawn->pid, pid);
  if (child.failed_step == SPAWN_STEP_NONE)
    return 0;
  reap_failed(pidfd);
  return report_failure(spawn, program, user, child.failed_step, child.failed_errno, err);
}

int spawn_run(struct spawn *spawn, struct error *err) {
  struct user user;
  bool change_user;
  if (find_user(spawn, &user, &change_user, err) < 0)
    return -1;
  const char *shell = find_shell(spawn);
  struct program program = {0};
  cleanup_free char **joined = NULL;
  int status = fill_env(spawn, &user, shell);
  if (status == 0)
    status = find_program(spawn, shell, &program);
  if (status == 0 && spawn->sudo && geteuid() != 0 && !spawn->command) {
    joined = sudo_argv(&program, spawn->argv);
    program.argv = joined;
    status = joined ? 0 : -1;
  }
  if (status < 0)
    no_memory(err);
  else
    status = start(spawn, &program, &user, change_user, err);
  if (status < 0) {
    fd_close(&spawn->in_fd);
    fd_close(&spawn->out_fd);
    fd_close(&spawn->err_fd);
  }
  program_free(&program);
  user_free(&user);
  return status;
}
