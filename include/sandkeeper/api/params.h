/* params.h - reads the parameters of a method. Every wrong one is ERROR_INVALID with a message that names the field and
 * says what it takes. null counts as absent; unknown fields are ignored. */
#ifndef SANDKEEPER_API_PARAMS_H
#define SANDKEEPER_API_PARAMS_H

#include "sandkeeper/base/error.h"

#include <json-c/json_object.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The field, or NULL when it is absent or null. Borrowed. */
json_object *params_get(json_object *params, const char *field);

/* True when the object has the field, also with null. For env_remove_if(). */
bool params_has(const char *field, void *object);

/* A string without NUL; borrowed from params. Absent: *value is NULL, and when it is required -1. */
int params_string(json_object *params, const char *field, bool required, const char **value, struct error *err);
/* Any string; *value is NULL when it is absent. */
int params_bytes(json_object *params, const char *field, bool required, const char **value, size_t *len,
                 struct error *err);
int params_bool(json_object *params, const char *field, bool fallback, bool *value, struct error *err);
/* A whole number between min and max. *present (may be NULL) tells of absence. */
int params_integer(json_object *params, const char *field, int64_t min, int64_t max, int64_t fallback, int64_t *value,
                   bool *present, struct error *err);
/* A number of seconds >= 0, fractions allowed, as ns; 0 when absent. What is beyond 292 years is cut to that. */
int params_seconds(json_object *params, const char *field, int64_t *ns, struct error *err);
/* One of the words (NULL-terminated); its index, or `fallback` when absent. */
int params_choice(json_object *params, const char *field, const char *const *words, int fallback, int *value,
                  struct error *err);
/* An object or array; *value is NULL when absent. */
int params_typed(json_object *params, const char *field, json_type type, bool required, json_object **value,
                 struct error *err);

/* A string that `value` holds without a NUL inside, or -1 that names `what`. */
int params_plain_string(json_object *value, const char *what, const char **string, struct error *err);

#endif
