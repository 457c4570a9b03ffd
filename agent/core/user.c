#include "sandkeeper/core/user.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void user_free(struct user *user) {
  free(user->groups);
  free(user->name);
  free(user->home);
  *user = (struct user){0};
}

static int no_memory(struct user *user, struct error *err) {
  user_free(user);
  return error_set_errno(err, ENOMEM, "looking up a user");
}

static int add_group(struct user *user, gid_t gid) {
  for (size_t i = 0; i < user->n_groups; i++)
    if (user->groups[i] == gid)
      return 0;
  gid_t *groups = reallocarray(user->groups, user->n_groups + 1, sizeof(gid_t));
  if (!groups)
    return -1;
  user->groups = groups;
  user->groups[user->n_groups++] = gid;
  return 0;
}

/* fgetpwent(3) and fgetgrent(3) answer from one static buffer for all threads, and several workers may ask at once;
 * musl has no other form of them. So the lines are cut up here: passwd(5), group(5). */
struct table {
  FILE *file;
  char *line;
  size_t size;
};

static bool table_open(struct table *table, const char *path) {
  *table = (struct table){.file = fopen(path, "re")};
  return table->file != NULL;
}

static void table_close(struct table *table) {
  fclose(table->file);
  free(table->line);
}

/* The fields of the next line that has at least `n`; the last one takes the rest. */
static bool table_next(struct table *table, char **fields, int n) {
  ssize_t len;
  while ((len = getline(&table->line, &table->size, table->file)) > 0) {
    if (table->line[len - 1] == '\n')
      table->line[len - 1] = '\0';
    char *rest = table->line;
    int found = 0;
    while (found < n - 1 && rest)
      fields[found++] = strsep(&rest, ":");
    if (rest) {
      fields[found] = rest;
      return true;
    }
  }
  return false;
}

static bool read_id(const char *text, uint32_t *id) {
  char *end;
  errno = 0;
  unsigned long number = strtoul(text, &end, 10);
  /* (uid_t)-1 means "leave it" to setresuid(2). */
  if (text[0] < '0' || text[0] > '9' || *end || errno || number >= UINT32_MAX)
    return false;
  *id = (uint32_t)number;
  return true;
}

static bool is_member(char *members, const char *name) {
  char *member;
  while ((member = strsep(&members, ",")))
    if (strcmp(member, name) == 0)
      return true;
  return false;
}

/* The supplementary groups: those that name the user as a member. */
int user_read_groups(struct user *user, struct error *err) {
  if (add_group(user, user->gid) < 0)
    return no_memory(user, err);
  struct table table;
  if (!table_open(&table, "/etc/group"))
    return 0;      /* an image without /etc/group has none */
  char *fields[4]; /* name, password, gid, members */
  uint32_t gid;
  int status = 0;
  while (status == 0 && table_next(&table, fields, 4))
    if (read_id(fields[2], &gid) && is_member(fields[3], user->name))
      status = add_group(user, gid);
  table_close(&table);
  return status < 0 ? no_memory(user, err) : 0;
}

/* Fills *user from the entry with this name, or, when it is NULL, with this uid. False: there is none. */
static bool read_entry(const char *name, uid_t uid, struct user *user) {
  struct table table;
  if (!table_open(&table, "/etc/passwd"))
    return false;
  char *fields[7]; /* name, password, uid, gid, gecos, home, shell */
  bool found = false;
  while (!found && table_next(&table, fields, 7)) {
    uint32_t its_uid, its_gid;
    if (!read_id(fields[2], &its_uid) || !read_id(fields[3], &its_gid))
      continue;
    found = name ? strcmp(fields[0], name) == 0 : its_uid == uid;
    if (found) {
      user->uid = its_uid;
      user->gid = its_gid;
      user->name = strdup(fields[0]);
      user->home = strdup(fields[5][0] ? fields[5] : "/");
    }
  }
  table_close(&table);
  return found;
}

int user_of_uid(uid_t uid, struct user *user, struct error *err) {
  *user = (struct user){0};
  if (!read_entry(NULL, uid, user)) {
    char digits[16];
    snprintf(digits, sizeof digits, "%u", uid);
    user->uid = uid;
    user->gid = uid;
    user->name = strdup(digits);
    user->home = strdup("/");
  }
  if (!user->name || !user->home)
    return no_memory(user, err);
  return 0;
}

int user_lookup(const char *name_or_uid, struct user *user, struct error *err) {
  *user = (struct user){0};
  if (read_entry(name_or_uid, 0, user)) {
    if (!user->name || !user->home)
      return no_memory(user, err);
    return 0;
  }
  uint32_t uid;
  if (!read_id(name_or_uid, &uid))
    return error_set(err, ERROR_NOT_FOUND, 0, "user %s: not in /etc/passwd", name_or_uid);
  return user_of_uid(uid, user, err);
}
