/* prompt_events.c and json_check.c: whatever a handler prints and however it is cut, every line that comes out is JSON
 * in UTF-8 for json-c too, has a string type, and the cuts make no difference. The first byte of the input says how to
 * cut.
 */
#include "sandkeeper/api/prompt_events.h"
#include "sandkeeper/base/json_check.h"

#include <json-c/json.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void require(bool condition) {
  if (!condition)
    abort();
}

static void run(struct buf *out, const char *bytes, size_t len, size_t piece, const char *text_type) {
  struct prompt_events events;
  prompt_events_init(&events, text_type);
  for (size_t at = 0; at < len; at += piece)
    prompt_events_feed(&events, bytes + at, piece < len - at ? piece : len - at, out);
  prompt_events_finish(&events, out);
  prompt_events_free(&events);
}

static void check_line(const char *line, size_t len) {
  struct json_member type = {.name = "type"};
  require(json_check_object(line, len, &type));
  require(type.at != NULL && *type.at == '"');
  struct json_tokener *tokener = json_tokener_new_ex(JSON_CHECK_DEPTH + 1);
  json_tokener_set_flags(tokener, JSON_TOKENER_STRICT | JSON_TOKENER_VALIDATE_UTF8);
  struct json_object *event = json_tokener_parse_ex(tokener, line, (int)len);
  require(json_object_is_type(event, json_type_object));
  require(json_object_is_type(json_object_object_get(event, "type"), json_type_string));
  json_object_put(event);
  json_tokener_free(tokener);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
  if (len < 2)
    return 0;
  size_t piece = bytes[0] % 32 + (size_t)1;
  const char *text_type = bytes[0] & 32 ? "text" : "text_chunk";
  struct buf whole, pieces;
  buf_init(&whole, 1 << 24, 0);
  buf_init(&pieces, 1 << 24, 0);
  run(&whole, (const char *)bytes + 1, len - 1, len - 1, text_type);
  run(&pieces, (const char *)bytes + 1, len - 1, piece, text_type);
  require(!whole.failed && whole.len == pieces.len && memcmp(whole.data, pieces.data, whole.len) == 0);
  char *at = whole.data, *end = whole.data + whole.len;
  while (at < end) {
    char *newline = memchr(at, '\n', (size_t)(end - at));
    require(newline != NULL);
    check_line(at, (size_t)(newline - at));
    at = newline + 1;
  }
  buf_free(&whole);
  buf_free(&pieces);
  return 0;
}
