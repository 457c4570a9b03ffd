#include "sandkeeper/net/route.h"

#include <stdio.h>
#include <string.h>

enum fit { FIT_NONE, FIT_PREFIX, FIT_EXACT };

static enum fit path_fit(const char *pattern, struct text path) {
  size_t len = strlen(pattern);
  if (text_is(path, pattern))
    return FIT_EXACT;
  if (len >= 2 && strcmp(pattern + len - 2, "/*") == 0 && path.len >= len - 1 && memcmp(path.at, pattern, len - 1) == 0)
    return FIT_PREFIX;
  return FIT_NONE;
}

/* Takes the next of the words of "GET HEAD". */
static bool next_word(const char **words, struct text *word) {
  *words += strspn(*words, " ");
  *word = (struct text){*words, strcspn(*words, " ")};
  *words += word->len;
  return word->len > 0;
}

static bool has_word(const char *words, struct text wanted) {
  struct text word;
  while (next_word(&words, &word))
    if (word.len == wanted.len && memcmp(word.at, wanted.at, word.len) == 0)
      return true;
  return false;
}

/* Appends to "GET, HEAD" unless it is there. */
static void add_allowed(struct route_match *match, struct text method) {
  struct text list = text_of(match->allow), element;
  size_t len = list.len;
  while (text_list_next(&list, &element))
    if (element.len == method.len && memcmp(element.at, method.at, method.len) == 0)
      return;
  snprintf(match->allow + len, sizeof match->allow - len, "%s%.*s", len > 0 ? ", " : "", (int)method.len, method.at);
}

static void add_methods(struct route_match *match, const char *methods) {
  struct text word;
  while (next_word(&methods, &word))
    add_allowed(match, word);
}

struct route_match route_find(const struct route *routes, size_t n_routes, struct text path, struct text method) {
  struct route_match match = {0};
  enum fit found = FIT_NONE;
  for (size_t i = 0; i < n_routes; i++) {
    enum fit fit = path_fit(routes[i].path, path);
    if (fit == FIT_NONE)
      continue;
    match.known = true;
    add_methods(&match, routes[i].methods);
    if (fit > found && has_word(routes[i].methods, method)) {
      match.route = &routes[i];
      found = fit;
    }
  }
  if (match.known)
    add_allowed(&match, text_of("OPTIONS"));
  return match;
}
