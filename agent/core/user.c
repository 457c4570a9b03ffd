#include "sandkeeper/core/user.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
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

/* The supplementary groups: those that name the user as a member. */
int user_read_groups(struct user *user, struct error *err) {
  if (add_group(user, user->gid) < 0)
    return no_memory(user, err);
  FILE *file = fopen("/etc/group", "re");
  if (!file)
    return 0; /* an image without /etc/group has none */
  int status = 0;
  struct group *group;
  while (status == 0 && (group = fgetgrent(file)))
    for (char **member = group->gr_mem; status == 0 && *member; member++)
      if (strcmp(*member, user->name) == 0)
        status = add_group(user, group->gr_gid);
  fclose(file);
  return status < 0 ? no_memory(user, err) : 0;
}

/* Fills *user from the entry with this name, or, when it is NULL, with this uid. False: there is none. */
static bool read_entry(const char *name, uid_t uid, struct user *user) {
  FILE *file = fopen("/etc/passwd", "re");
  if (!file)
    return false;
  struct passwd *entry;
  bool found = false;
  while (!found && (entry = fgetpwent(file))) {
    found = name ? strcmp(entry->pw_name, name) == 0 : entry->pw_uid == uid;
    if (found) {
      user->uid = entry->pw_uid;
      user->gid = entry->pw_gid;
      user->name = strdup(entry->pw_name);
      user->home = strdup(entry->pw_dir[0] ? entry->pw_dir : "/");
    }
  }
  fclose(file);
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
  char *end;
  errno = 0;
  unsigned long uid = strtoul(name_or_uid, &end, 10);
  /* (uid_t)-1 means "leave it" to setresuid(2). */
  if (name_or_uid[0] < '0' || name_or_uid[0] > '9' || *end || errno || uid >= (uid_t)-1)
    return error_set(err, ERROR_NOT_FOUND, 0, "user %s: not in /etc/passwd", name_or_uid);
  return user_of_uid((uid_t)uid, user, err);
}
