#include "sandkeeper/core/env.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void env_init(struct env *env) {
  *env = (struct env){0};
}

void env_free(struct env *env) {
  for (size_t i = 0; i < env->count; i++)
    free(env->vars[i]);
  free(env->vars);
  env_init(env);
}

static size_t find(const struct env *env, const char *name) {
  size_t len = strlen(name);
  for (size_t i = 0; i < env->count; i++)
    if (strncmp(env->vars[i], name, len) == 0 && env->vars[i][len] == '=')
      return i;
  return SIZE_MAX;
}

/* Takes `variable` over, also when it fails. */
static int append(struct env *env, char *variable) {
  if (!variable)
    return -1;
  if (env->count + 1 >= env->capacity) {
    size_t capacity = env->capacity ? env->capacity * 2 : 32;
    char **vars = reallocarray(env->vars, capacity, sizeof(char *));
    if (!vars) {
      free(variable);
      return -1;
    }
    env->vars = vars;
    env->capacity = capacity;
  }
  env->vars[env->count++] = variable;
  env->vars[env->count] = NULL;
  return 0;
}

/* NULL without memory. */
static char *join(const char *name, const char *value) {
  size_t name_len = strlen(name), value_len = strlen(value);
  char *variable = malloc(name_len + value_len + 2);
  if (!variable)
    return NULL;
  memcpy(variable, name, name_len);
  variable[name_len] = '=';
  memcpy(variable + name_len + 1, value, value_len + 1);
  return variable;
}

int env_add(struct env *env, const char *name, const char *value) {
  return append(env, join(name, value));
}

int env_set(struct env *env, const char *name, const char *value) {
  size_t at = find(env, name);
  if (at == SIZE_MAX)
    return env_add(env, name, value);
  char *variable = join(name, value);
  if (!variable)
    return -1;
  free(env->vars[at]);
  env->vars[at] = variable;
  return 0;
}

void env_unset(struct env *env, const char *name) {
  size_t at;
  while ((at = find(env, name)) != SIZE_MAX) { /* an inherited one may be there twice */
    free(env->vars[at]);
    env->vars[at] = env->vars[--env->count];
    env->vars[env->count] = NULL;
  }
}

void env_remove_if(struct env *env, bool (*is_meant)(const char *name, void *arg), void *arg) {
  size_t kept = 0;
  for (size_t i = 0; i < env->count; i++) {
    char *variable = env->vars[i], *equals = strchr(variable, '='); /* each has one */
    *equals = '\0';
    bool meant = is_meant(variable, arg);
    *equals = '=';
    if (meant)
      free(variable);
    else
      env->vars[kept++] = variable;
  }
  env->count = kept;
  if (env->vars)
    env->vars[kept] = NULL;
}

const char *env_get(const struct env *env, const char *name) {
  size_t at = find(env, name);
  return at == SIZE_MAX ? NULL : env->vars[at] + strlen(name) + 1;
}

int env_copy(struct env *to, const struct env *from) {
  for (size_t i = 0; i < from->count; i++)
    if (append(to, strdup(from->vars[i])) < 0)
      return -1;
  return 0;
}

int env_inherit(struct env *to, char **environment) {
  static const char own[] = "SANDKEEPER_";
  for (char **variable = environment; *variable; variable++) {
    if (!strchr(*variable, '=') || strncmp(*variable, own, sizeof own - 1) == 0)
      continue;
    if (append(to, strdup(*variable)) < 0)
      return -1;
  }
  return 0;
}
