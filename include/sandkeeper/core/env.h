/* env.h - an environment for a command: NAME=VALUE strings that are added, replaced and removed. Pure.
 *
 * Owner of the strings: the struct. `vars` is NULL-terminated when it is not NULL, as execve(2) wants it.
 * Lookups are linear: an environment has some dozen entries. For many at once there are env_remove_if() and env_add().
 */
#ifndef SANDKEEPER_CORE_ENV_H
#define SANDKEEPER_CORE_ENV_H

#include <stdbool.h>
#include <stddef.h>

struct env {
  char **vars;
  size_t count, capacity;
};

void env_init(struct env *env);
void env_free(struct env *env);

/* Replaces or adds; 0, or -1 when there is no memory. `name` is not empty and has no '='. */
int env_set(struct env *env, const char *name, const char *value);
void env_unset(struct env *env, const char *name);

/* Removes all that `is_meant` says yes to, in one pass. */
void env_remove_if(struct env *env, bool (*is_meant)(const char *name, void *arg), void *arg);
/* As env_set(), of one that is not there: nothing is looked up. */
int env_add(struct env *env, const char *name, const char *value);

/* NULL when absent; valid until the variable changes. */
const char *env_get(const struct env *env, const char *name);

/* Copies all of `from` into the empty `to`. 0 or -1. */
int env_copy(struct env *to, const struct env *from);

/* What the agent hands on from its own environment: all but its own settings (SANDKEEPER_*, the token among them) and
 * entries without '='. */
int env_inherit(struct env *to, char **environment);

#endif
