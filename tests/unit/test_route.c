#include "sandkeeper/net/route.h"

#include "run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const struct route routes[] = {
    {.methods = "GET HEAD", .path = "/health"}, {.methods = "GET HEAD DELETE", .path = "/files"},
    {.methods = "PUT", .path = "/files"},       {.methods = "GET", .path = "/api/*"},
    {.methods = "POST", .path = "/api/create"},
};

/* The index of the route, -1: the path is known but not with this method, -2: unknown. */
static int find(const char *method, const char *path, const char *allow) {
  struct route_match match = route_find(routes, sizeof routes / sizeof *routes, text_of(path), text_of(method));
  if (strcmp(match.allow, allow) != 0)
    ck_abort_msg("%s %s allows %s", method, path, match.allow);
  if (match.route)
    return (int)(match.route - routes);
  return match.known ? -1 : -2;
}

START_TEST(test_routes) {
  ck_assert_int_eq(find("GET", "/health", "GET, HEAD, OPTIONS"), 0);
  ck_assert_int_eq(find("HEAD", "/health", "GET, HEAD, OPTIONS"), 0);
  ck_assert_int_eq(find("POST", "/health", "GET, HEAD, OPTIONS"), -1);
  ck_assert_int_eq(find("GE", "/health", "GET, HEAD, OPTIONS"), -1);
  ck_assert_int_eq(find("get", "/health", "GET, HEAD, OPTIONS"), -1);
  ck_assert_int_eq(find("GET", "/health/", ""), -2);
  ck_assert_int_eq(find("GET", "/", ""), -2);
}
END_TEST

START_TEST(test_routes_share_a_path) {
  ck_assert_int_eq(find("DELETE", "/files", "GET, HEAD, DELETE, PUT, OPTIONS"), 1);
  ck_assert_int_eq(find("PUT", "/files", "GET, HEAD, DELETE, PUT, OPTIONS"), 2);
}
END_TEST

START_TEST(test_stars) {
  ck_assert_int_eq(find("GET", "/api/x/y", "GET, OPTIONS"), 3);
  ck_assert_int_eq(find("GET", "/api/", "GET, OPTIONS"), 3);
  ck_assert_int_eq(find("GET", "/api", ""), -2);
  ck_assert_int_eq(find("POST", "/api/create", "GET, POST, OPTIONS"), 4);
  ck_assert_int_eq(find("GET", "/api/create", "GET, POST, OPTIONS"), 3);
  ck_assert_int_eq(find("PUT", "/api/create", "GET, POST, OPTIONS"), -1);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("route");
  TCase *tcase = tcase_create("route");
  tcase_add_test(tcase, test_routes);
  tcase_add_test(tcase, test_routes_share_a_path);
  tcase_add_test(tcase, test_stars);
  suite_add_tcase(suite, tcase);
  return run_suite(suite);
}
