/* user.h - who a command runs as, from /etc/passwd and /etc/group.
 *
 * Not by getpwnam(3): in a static glibc it loads a second libc when nsswitch.conf says so, and NSS may ask a network.
 * Not by fgetpwent(3) either: it has one static buffer for all threads. Blocking: called on workers only. */
#ifndef SANDKEEPER_CORE_USER_H
#define SANDKEEPER_CORE_USER_H

#include "sandkeeper/base/error.h"

#include <stddef.h>
#include <sys/types.h>

struct user {
  uid_t uid;
  gid_t gid;
  gid_t *groups; /* supplementary, the primary one included; empty before user_read_groups() */
  size_t n_groups;
  char *name; /* the uid in digits when /etc/passwd does not know it */
  char *home; /* "/" when unknown */
};

/* A name or a uid in digits; a name that is unknown is ERROR_NOT_FOUND. A uid without an entry is fine (containers run
 * under random uids): its group is the same number. 0, or -1 with *user empty. */
int user_lookup(const char *name_or_uid, struct user *user, struct error *err);

/* The entry of a uid, as above; never ERROR_NOT_FOUND. */
int user_of_uid(uid_t uid, struct user *user, struct error *err);

/* Fills in the groups, which only somebody who becomes the user needs: /etc/group is read line by line. 0 or -1. */
int user_read_groups(struct user *user, struct error *err);

void user_free(struct user *user);

#endif
