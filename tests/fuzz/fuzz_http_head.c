/* http_head.c and access.c: whatever comes, the result is the same for a head that comes in two pieces, a whole head
 * lies within the bytes, and what is echoed to the client can stand in a header. */
#include "sandkeeper/net/access.h"
#include "sandkeeper/net/http_head.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void require_within(struct text text, const char *bytes, size_t len) {
  static const char root[] = "/"; /* the path of a target without one */
  if (text.at && !(text.len == 1 && strncmp(text.at, root, 1) == 0) &&
      (text.at < bytes || text.len > (size_t)(bytes + len - text.at)))
    abort();
}

static void check_whole(const struct http_head *head, const char *bytes, size_t len) {
  static const struct net_options options = {.sandbox_id = "box", .max_message = 1 << 20};
  struct upgrade upgrade;
  struct refusal refusal = {0};
  if (head->length == 0 || head->length > len || head->length > HTTP_HEAD_MAX)
    abort();
  if (memcmp(bytes + head->length - 4, "\r\n\r\n", 4) != 0)
    abort();
  require_within(head->path, bytes, head->length);
  require_within(head->query, bytes, head->length);
  require_within(head->host, bytes, head->length);
  if (!access_upgrade(&options, head, &upgrade, &refusal)) {
    if (refusal.status < 400 || refusal.message[0] == '\0')
      abort();
    return;
  }
  require_within(upgrade.protocol, bytes, head->length);
  for (size_t i = 0; i < upgrade.protocol.len; i++)
    if (upgrade.protocol.at[i] <= ' ' || upgrade.protocol.at[i] == 0x7f)
      abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  const char *bytes = (const char *)data;
  struct http_head head, shorter;
  enum http_head_state state = http_head_parse(&head, bytes, len);
  if (state == HTTP_HEAD_WHOLE)
    check_whole(&head, bytes, len);
  if (state == HTTP_HEAD_BAD && (head.status < 400 || !head.reason))
    abort();
  for (size_t cut = 0; cut < len; cut++) {
    enum http_head_state before = http_head_parse(&shorter, bytes, cut);
    if (before != HTTP_HEAD_MORE && before != state)
      abort();
    if (before == HTTP_HEAD_WHOLE && shorter.length != head.length)
      abort();
    if (before != HTTP_HEAD_MORE)
      break;
  }
  return 0;
}
