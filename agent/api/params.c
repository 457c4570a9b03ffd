#include "sandkeeper/api/params.h"

#include "sandkeeper/base/clock.h"

#include <string.h>

json_object *params_get(json_object *params, const char *field) {
  return json_object_object_get(params, field);
}

bool params_has(const char *field, void *object) {
  return json_object_object_get_ex(object, field, NULL);
}

static const char *type_name(json_type type) {
  switch (type) {
  case json_type_string:
    return "a string";
  case json_type_object:
    return "an object";
  case json_type_array:
    return "an array";
  case json_type_boolean:
    return "true or false";
  case json_type_int:
    return "a whole number";
  case json_type_double:
    return "a number";
  case json_type_null:
    break;
  }
  return "null";
}

int params_typed(json_object *params, const char *field, json_type type, bool required, json_object **value,
                 struct error *err) {
  *value = params_get(params, field);
  if (!*value)
    return required ? error_set(err, ERROR_INVALID, 0, "%s: it is missing; it takes %s", field, type_name(type)) : 0;
  if (json_object_is_type(*value, type))
    return 0;
  const char *got = type_name(json_object_get_type(*value));
  return error_set(err, ERROR_INVALID, 0, "%s: it takes %s, not %s", field, type_name(type), got);
}

int params_bytes(json_object *params, const char *field, bool required, const char **value, size_t *len,
                 struct error *err) {
  json_object *string;
  *value = NULL;
  *len = 0;
  if (params_typed(params, field, json_type_string, required, &string, err) < 0)
    return -1;
  if (string) {
    *value = json_object_get_string(string);
    *len = (size_t)json_object_get_string_len(string);
  }
  return 0;
}

int params_plain_string(json_object *value, const char *what, const char **string, struct error *err) {
  if (!json_object_is_type(value, json_type_string))
    return error_set(err, ERROR_INVALID, 0, "%s: it takes a string, not %s", what,
                     type_name(json_object_get_type(value)));
  *string = json_object_get_string(value);
  if (strlen(*string) != (size_t)json_object_get_string_len(value))
    return error_set(err, ERROR_INVALID, 0, "%s: it takes a string without a NUL character", what);
  return 0;
}

int params_string(json_object *params, const char *field, bool required, const char **value, struct error *err) {
  json_object *string;
  *value = NULL;
  if (params_typed(params, field, json_type_string, required, &string, err) < 0)
    return -1;
  return string ? params_plain_string(string, field, value, err) : 0;
}

int params_bool(json_object *params, const char *field, bool fallback, bool *value, struct error *err) {
  json_object *boolean;
  *value = fallback;
  if (params_typed(params, field, json_type_boolean, false, &boolean, err) < 0)
    return -1;
  if (boolean)
    *value = json_object_get_boolean(boolean);
  return 0;
}

/* A number that is whole counts, also when it is written 493.0. */
static bool whole_number(json_object *number, int64_t *value) {
  if (json_object_is_type(number, json_type_int)) {
    *value = json_object_get_int64(number);
    return json_object_get_uint64(number) <= INT64_MAX; /* what is beyond has become the largest number */
  }
  double real = json_object_get_double(number);
  if (!json_object_is_type(number, json_type_double) || !(real >= -9007199254740992.0 && real <= 9007199254740992.0))
    return false;
  *value = (int64_t)real;
  return (double)*value == real;
}

int params_integer(json_object *params, const char *field, int64_t min, int64_t max, int64_t fallback, int64_t *value,
                   bool *present, struct error *err) {
  json_object *number = params_get(params, field);
  *value = fallback;
  if (present)
    *present = number != NULL;
  if (!number)
    return 0;
  if (!whole_number(number, value) || *value < min || *value > max)
    return error_set(err, ERROR_INVALID, 0, "%s: it takes a whole number from %lld to %lld", field, (long long)min,
                     (long long)max);
  return 0;
}

int params_seconds(json_object *params, const char *field, int64_t *ns, struct error *err) {
  json_object *number = params_get(params, field);
  *ns = 0;
  if (!number)
    return 0;
  bool is_number = json_object_is_type(number, json_type_int) || json_object_is_type(number, json_type_double);
  double seconds = is_number ? json_object_get_double(number) : -1;
  if (!(seconds >= 0))
    return error_set(err, ERROR_INVALID, 0, "%s: it takes a number of seconds, 0 or more", field);
  double most = (double)(INT64_MAX / 2);
  double exact = seconds * (double)CLOCK_SECOND;
  *ns = exact >= most ? INT64_MAX / 2 : (int64_t)exact;
  if (*ns == 0 && seconds > 0)
    *ns = 1; /* 0 means none, and that was not asked for */
  return 0;
}

int params_choice(json_object *params, const char *field, const char *const *words, int fallback, int *value,
                  struct error *err) {
  const char *word;
  *value = fallback;
  if (params_string(params, field, false, &word, err) < 0)
    return -1;
  if (!word)
    return 0;
  char list[128] = "";
  for (int i = 0; words[i]; i++) {
    if (strcmp(word, words[i]) == 0) {
      *value = i;
      return 0;
    }
    strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
    strncat(list, words[i], sizeof list - strlen(list) - 1);
  }
  return error_set(err, ERROR_INVALID, 0, "%s: it takes one of %s, not \"%.64s\"", field, list, word);
}
