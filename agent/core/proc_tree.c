#include "sandkeeper/core/proc_tree.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* In execve(2) a process has no environment for a moment. So often it is looked at again. */
#define EXEC_LOOKS 10
#define EXEC_MOMENT (1 * CLOCK_MS)

/* A look is taken again while processes come and go too fast for it. */
#define LOOKS_MOST 20

/* One line of the process table. */
struct process {
  struct proc_stat stat; /* must be first, and the id first in it: rows and members are looked up alike */
  bool belongs;
  bool in_exec; /* whether it has the mark cannot be said yet */
};

struct table {
  struct process *rows;
  size_t count, capacity;
  bool is_stale;    /* some had ended when they were looked at: what they started meanwhile is not in it */
  uint64_t zombies; /* which there were, in a word */
};

void proc_tree_init(struct proc_tree *tree) {
  *tree = (struct proc_tree){0};
}

void proc_tree_free(struct proc_tree *tree) {
  free(tree->members);
  tree->members = NULL;
  tree->n_members = tree->capacity = 0;
}

static struct process *add_row(struct table *table) {
  if (table->count == table->capacity) {
    size_t capacity = table->capacity ? table->capacity * 2 : 256;
    struct process *rows = reallocarray(table->rows, capacity, sizeof(struct process));
    if (!rows)
      return NULL;
    table->rows = rows;
    table->capacity = capacity;
  }
  table->rows[table->count] = (struct process){.belongs = false};
  return &table->rows[table->count];
}

static int by_number(const void *a, const void *b) {
  const struct proc_id *one = a, *other = b;
  return (one->pid > other->pid) - (one->pid < other->pid);
}

static const struct process *find_row(const struct table *table, pid_t pid) {
  const struct proc_id key = {.pid = pid};
  return table->count ? bsearch(&key, table->rows, table->count, sizeof *table->rows, by_number) : NULL;
}

static void count_ended(struct table *table, const struct proc_id *id) {
  if (id->start == 0)
    table->is_stale = true;
  else
    table->zombies = (table->zombies + id->start) * 31 + (uint64_t)id->pid;
}

static int read_table(struct table *table) {
  DIR *proc = opendir("/proc");
  if (!proc)
    return -1;
  int status = 0;
  struct dirent *entry;
  while (status >= 0 && (entry = readdir(proc))) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
      continue;
    struct process *row = add_row(table);
    if (!row)
      errno = ENOMEM;
    status = row ? proc_read((pid_t)strtol(entry->d_name, NULL, 10), &row->stat) : -1;
    table->count += status > 0;
    if (status == 0)
      count_ended(table, &row->stat.id);
  }
  int number = errno;
  closedir(proc);
  if (table->count > 0) /* in order already, as Linux gives them */
    qsort(table->rows, table->count, sizeof *table->rows, by_number);
  errno = number;
  return status < 0 ? -1 : 0;
}

/* Members are in the order of the table that they were taken from. */
static bool was_member(const struct proc_tree *tree, const struct process *process) {
  const struct proc_id *found =
      tree->n_members ? bsearch(&process->stat.id, tree->members, tree->n_members, sizeof *tree->members, by_number)
                      : NULL;
  return found && found->start == process->stat.id.start;
}

static bool is_own_child(const struct proc_tree *tree, const struct process *process) {
  return tree->own_children && process->stat.parent == getpid();
}

static int carries_mark(const struct proc_tree *tree, struct table *table, struct process *process) {
  const struct proc_id *id = &process->stat.id;
  bool empty;
  int found = proc_has_variable(id->pid, tree->mark, tree->mark_is_prefix, &empty);
  process->in_exec = found == 0 && empty && proc_is_in_exec(id->pid);
  if (found == 0 && empty && !process->in_exec && proc_start_of(id->pid) != id->start)
    table->is_stale = true;
  return found;
}

/* Those that were in execve(2) once more: nobody else may know of them. */
static int mark_late(const struct proc_tree *tree, struct table *table) {
  const struct timespec moment = {.tv_nsec = EXEC_MOMENT};
  bool again = true;
  for (int i = 0; again && i < EXEC_LOOKS; i++) {
    again = false;
    for (size_t k = 0; k < table->count; k++) {
      struct process *process = &table->rows[k];
      if (!process->in_exec || process->belongs)
        continue;
      if (!again)
        nanosleep(&moment, NULL);
      again = true;
      int marked = carries_mark(tree, table, process);
      if (marked < 0)
        return -1;
      process->belongs = marked > 0;
    }
  }
  return 0;
}

/* 0: there is none, or its number is another's by now. */
static pid_t leader_in(const struct proc_tree *tree, const struct table *table) {
  const struct process *row = tree->leader ? find_row(table, tree->leader) : NULL;
  return row && tree->leader_start && row->stat.id.start != tree->leader_start ? 0 : tree->leader;
}

static int mark_members(const struct proc_tree *tree, struct table *table) {
  pid_t self = getpid(), leader = leader_in(tree, table);
  /* What is older than the agent is not of its making: a shell may have started children before it became the agent by
   * exec. And it spares the reading of every environment on a machine with much else. */
  uint64_t since = proc_start_of(self);
  for (size_t i = 0; i < table->count; i++) {
    struct process *process = &table->rows[i];
    if (process->stat.id.pid == self)
      continue;
    bool young = process->stat.id.start >= since;
    process->belongs = was_member(tree, process) || (young && is_own_child(tree, process)) ||
                       (leader && (process->stat.id.pid == leader || process->stat.session == leader));
    int marked = process->belongs || !young ? 0 : carries_mark(tree, table, process);
    if (marked < 0)
      return -1;
    process->belongs |= marked > 0;
  }
  return mark_late(tree, table);
}

/* A child of a member is a member; again until nothing changes, since a child's number may be below its parent's. */
static void mark_children(struct table *table) {
  pid_t self = getpid();
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < table->count; i++) {
      struct process *process = &table->rows[i];
      if (process->belongs || process->stat.id.pid == self)
        continue;
      const struct process *parent = find_row(table, process->stat.parent);
      if (parent && parent->belongs)
        process->belongs = changed = true;
    }
  }
}

/* 0, or -1 with errno: the leader lives and is not to be seen. /proc hides it (hidepid in proc(5)), and may hide others
 * too; or its first thread has ended before the others, which looks like a zombie. */
static int check_leader(const struct proc_tree *tree, const struct table *table) {
  siginfo_t info = {.si_pid = 0};
  if (!tree->leader || find_row(table, tree->leader) ||
      waitid(P_PID, (id_t)tree->leader, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid != 0)
    return 0;
  errno = EACCES;
  return -1;
}

static int keep_members(struct proc_tree *tree, const struct table *table) {
  tree->n_members = 0;
  for (size_t i = 0; i < table->count; i++) {
    if (!table->rows[i].belongs)
      continue;
    if (tree->n_members == tree->capacity) {
      size_t capacity = tree->capacity ? tree->capacity * 2 : 16;
      struct proc_id *members = reallocarray(tree->members, capacity, sizeof(struct proc_id));
      if (!members) {
        errno = ENOMEM;
        return -1;
      }
      tree->members = members;
      tree->capacity = capacity;
    }
    tree->members[tree->n_members++] = table->rows[i].stat.id;
  }
  return 0;
}

static bool has_got(const struct proc_tree *tree, pid_t group, int signal) {
  for (size_t i = 0; signal != SIGKILL && i < tree->n_signaled; i++)
    if (tree->signaled[i] == group)
      return true;
  return false;
}

/* pidfd_open(2) first, then the start time again: from here on the descriptor cannot become another process. */
static void send_signal(const struct proc_id *id, int signal) {
  cleanup_close int pidfd = (int)syscall(SYS_pidfd_open, id->pid, 0);
  if (pidfd < 0 || proc_start_of(id->pid) != id->start)
    return;
  syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
  if (signal == SIGTERM)
    syscall(SYS_pidfd_send_signal, pidfd, SIGCONT, NULL, 0);
}

/* Known without /proc too, and then nothing of ours is left: whatever lost its parent has become our child. */
static bool has_no_child(void) {
  siginfo_t info;
  int number = errno;
  bool none = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD;
  errno = number;
  return none;
}

/* *zombies: those of the look before, which had started nothing that this list has not; then those of this one. */
static int find_members(struct proc_tree *tree, uint64_t *zombies, bool *is_stale) {
  struct table table = {0};
  int status = read_table(&table);
  if (status == 0)
    status = mark_members(tree, &table);
  if (status == 0) {
    mark_children(&table);
    status = keep_members(tree, &table);
  }
  if (status == 0)
    status = check_leader(tree, &table);
  int number = errno;
  *is_stale = table.is_stale || table.zombies != *zombies;
  *zombies = table.zombies;
  free(table.rows);
  errno = number;
  return status;
}

static void signal_members(const struct proc_tree *tree, int signal) {
  for (size_t i = 0; i < tree->n_members; i++)
    if (!has_got(tree, tree->members[i].group, signal))
      send_signal(&tree->members[i], signal);
}

int proc_tree_scan(struct proc_tree *tree, int signal) {
  int status = 0, number = 0;
  uint64_t zombies = 0;
  bool is_stale = true;
  /* A list of /proc is older than what is then read of each: a process may have had a child in between, and died. So
   * that nothing is left is believed only of a list whose processes all lived on; and after a KILL, which leaves
   * nothing of what it hits, it is looked for what those that were hit had just started. */
  for (int i = 0; i < LOOKS_MOST && status == 0 && is_stale && (i == 0 || tree->n_members == 0 || signal == SIGKILL);
       i++) {
    status = find_members(tree, &zombies, &is_stale);
    number = errno;
    if (signal)
      signal_members(tree, signal);
    is_stale |= signal == SIGKILL && tree->n_members > 0;
  }
  errno = number;
  if (status == 0)
    return (int)tree->n_members;
  return tree->own_children && has_no_child() ? 0 : -1;
}
