/* Tables of what is JSON and what is not; then json-c is asked about each cut of a text. */
#include "sandkeeper/base/json_check.h"

#include "run.h"

#include <check.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_object(const char *text) {
  struct json_member type = {.name = "type"};
  return json_check_object(text, strlen(text), &type);
}

START_TEST(test_objects) {
  static const char *const good[] = {
      "{}",
      " \t\r\n{ \t\r\n} \t\r\n",
      "{\"a\":1}",
      "{ \"a\" : 1 , \"b\" : [ ] , \"c\" : { } }",
      "{\"a\":[1,-0,0.5,1e9,1E-9,2.5e+3,true,false,null,\"\",{}]}",
      "{\"\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0000\\u00e9\\uFFFF\"}",
      "{\"pair\":\"\\ud83d\\ude00\"}",
      "{\"\xc3\xa9\":\"\xf0\x9f\x98\x80\"}",
      "{\"a\":1,\"a\":2}",
  };
  ck_assert_msg(is_object(good[_i]), "%s", good[_i]);
}
END_TEST

START_TEST(test_no_objects) {
  static const char *const bad[] = {
      "",
      " ",
      "[]",
      "1",
      "\"{}\"",
      "null",
      "{",
      "}",
      "{}}",
      "{}{}",
      "{} x",
      "{,}",
      "{\"a\"}",
      "{\"a\":}",
      "{\"a\":1,}",
      "{\"a\":1 \"b\":2}",
      "{a:1}",
      "{'a':1}",
      "{\"a\":'b'}",
      "{\"a\":NaN}",
      "{\"a\":Infinity}",
      "{\"a\":+1}",
      "{\"a\":.5}",
      "{\"a\":1.}",
      "{\"a\":-}",
      "{\"a\":1e}",
      "{\"a\":1e+}",
      "{\"a\":01}",
      "{\"a\":0x1}",
      "{\"a\":tru}",
      "{\"a\":TRUE}",
      "{\"a\":[1,]}",
      "{\"a\":[1 2]}",
      "{\"a\":[}",
      "{\"a\":\"b}",
      "{\"a\":\"\\x41\"}",
      "{\"a\":\"\\u12g4\"}",
      "{\"a\":\"\\u123\"}",
      "{\"a\":\"\\\"}",
      "{\"a\":\"\t\"}",
      "{\"a\":\"\n\"}",
      "{\"a\":\"\\ud83d\"}",
      "{\"a\":\"\\ude00\"}",
      "{\"a\":\"\\ud83dx\\ude00\"}",
      "{\"a\":\"\\ud83d\\ud83d\"}",
      "{\"a\":\"\xff\"}",
      "{\"a\":\"\xe2\x98\"}",
      "{\"a\xc3\":1}",
      "\xef\xbb\xbf{}",
      "{}\xff",
      "{/* */}",
  };
  ck_assert_msg(!is_object(bad[_i]), "%s", bad[_i]);
}
END_TEST

START_TEST(test_nul_is_no_end) {
  struct json_member type = {.name = "type"};
  static const char behind[] = "{}\0", inside[] = "{\"a\":\"\0\"}";
  ck_assert(!json_check_object(behind, sizeof behind, &type));
  ck_assert(!json_check_object(inside, sizeof inside - 1, &type));
}
END_TEST

static bool nested(unsigned levels) {
  char text[512] = "{\"a\":";
  size_t at = strlen(text);
  for (unsigned i = 1; i < levels; i++)
    text[at++] = '[';
  text[at++] = '1';
  for (unsigned i = 1; i < levels; i++)
    text[at++] = ']';
  text[at++] = '}';
  struct json_member type = {.name = "type"};
  return json_check_object(text, at, &type);
}

START_TEST(test_depth) {
  ck_assert(nested(1));
  ck_assert(nested(JSON_CHECK_DEPTH));
  ck_assert(!nested(JSON_CHECK_DEPTH + 1));
  char *deep = malloc(1000000);
  memset(deep, '[', 1000000);
  memcpy(deep, "{\"a\":", 5);
  struct json_member type = {.name = "type"};
  ck_assert(!json_check_object(deep, 1000000, &type));
  free(deep);
}
END_TEST

static void expect_type(const char *text, const char *value) {
  struct json_member type = {.name = "type"};
  ck_assert_msg(json_check_object(text, strlen(text), &type), "%s", text);
  if (!value) {
    ck_assert_msg(type.at == NULL, "%s", text);
    return;
  }
  ck_assert_msg(type.at != NULL, "%s", text);
  ck_assert_uint_eq(type.len, strlen(value));
  ck_assert_int_eq(memcmp(type.at, value, type.len), 0);
}

START_TEST(test_member) {
  expect_type("{}", NULL);
  expect_type("{\"a\":{\"type\":\"no\"},\"b\":[{\"type\":1}]}", NULL);
  expect_type("{\"types\":1,\"typ\":2,\"Type\":3}", NULL);
  expect_type("{\"a\":1, \"type\" : \"x y\" ,\"b\":2}", "\"x y\"");
  expect_type("{\"type\":5}", "5");
  expect_type("{\"type\":{\"type\":1} }", "{\"type\":1}");
  expect_type("{\"type\":1,\"type\":\"last\"}", "\"last\"");
  expect_type("{\"\\u0074y\\u0070e\":true}", "true");
}
END_TEST

START_TEST(test_string_is) {
  static const struct {
    const char *text, *string;
    bool same;
  } rows[] = {
      {"\"\"", "", true},
      {"\"done\"", "done", true},
      {"\"d\\u006fne\"", "done", true},
      {"\"a\\/b\\n\"", "a/b\n", true},
      {"\"done \"", "done", false},
      {"\"don\"", "done", false},
      {"\"\"", "done", false},
      {"\"done\"", "", false},
      {"5", "5", false},
      {"done", "done", false},
      {"\"don\\u0165\"", "done", false}, /* its low byte is that of an 'e' */
      {"\"\\ud83d\\ude00\"", "done", false},
  };
  ck_assert_msg(json_string_is(rows[_i].text, strlen(rows[_i].text), rows[_i].string) == rows[_i].same, "%s",
                rows[_i].text);
}
END_TEST

/* Every prefix, and every text with one byte changed: what is accepted here json-c accepts too. */
START_TEST(test_mutations_against_json_c) {
  static const char text[] = "{\"type\":\"te\\u0041x\xc3\xa9\",\"n\":[-1.5e+3,true,null,{\"k\":\"\\ud83d\\ude00\"}]}";
  char changed[sizeof text];
  size_t accepted = 0;
  for (size_t at = 0; at < sizeof text - 1; at++) {
    struct json_member type = {.name = "type"};
    ck_assert(!json_check_object(text, at, &type));
    for (int c = 0; c < 256; c++) {
      memcpy(changed, text, sizeof text);
      changed[at] = (char)c;
      if (!json_check_object(changed, sizeof text - 1, &type))
        continue;
      accepted++;
      json_tokener *tokener = json_tokener_new_ex(JSON_CHECK_DEPTH);
      json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
      json_object *value = json_tokener_parse_ex(tokener, changed, (int)sizeof text - 1);
      ck_assert_msg(value && json_object_is_type(value, json_type_object), "byte %zu is %d: %s", at, c, changed);
      json_object *member = json_object_object_get(value, "type");
      ck_assert((type.at != NULL) == (member != NULL));
      if (type.at && *type.at == '"' && !json_object_is_type(member, json_type_string))
        ck_abort_msg("type of %s", changed);
      json_object_put(value);
      json_tokener_free(tokener);
    }
  }
  ck_assert_uint_gt(accepted, 1000);
}
END_TEST

START_TEST(test_is_number) {
  static const char *const good[] = {"0", "-0", "10", "-1.5", "0.5e1", "1E+5", "1e-05"};
  static const char *const bad[] = {"", "-", "00", "01", "1.", "-.5", ".5", "1.e5", "1e", "+1", " 1", "1 ", "NaN"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    ck_assert_msg(json_is_number(good[i], strlen(good[i])), "%s", good[i]);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    ck_assert_msg(!json_is_number(bad[i], strlen(bad[i])), "%s", bad[i]);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("json_check");
  TCase *cases = tcase_create("all");
  tcase_add_loop_test(cases, test_objects, 0, 9);
  tcase_add_loop_test(cases, test_no_objects, 0, 51);
  tcase_add_test(cases, test_nul_is_no_end);
  tcase_add_test(cases, test_depth);
  tcase_add_test(cases, test_member);
  tcase_add_loop_test(cases, test_string_is, 0, 12);
  tcase_add_test(cases, test_is_number);
  tcase_add_test(cases, test_mutations_against_json_c);
  suite_add_tcase(suite, cases);
  return run_suite(suite);
}
