#include "sandkeeper/net/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

uint16_t address_port(const struct sockaddr *address) {
  if (address->sa_family == AF_INET)
    return ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
  if (address->sa_family == AF_INET6)
    return ntohs(((const struct sockaddr_in6 *)(const void *)address)->sin6_port);
  return 0;
}

void address_set_port(struct sockaddr *address, uint16_t port) {
  if (address->sa_family == AF_INET)
    ((struct sockaddr_in *)(void *)address)->sin_port = htons(port);
  else if (address->sa_family == AF_INET6)
    ((struct sockaddr_in6 *)(void *)address)->sin6_port = htons(port);
}

/* An abstract name (its first byte is NUL) and a missing one are shown as "unix". */
static void unix_text(const struct sockaddr_un *address, socklen_t length, char *out) {
  size_t at = offsetof(struct sockaddr_un, sun_path);
  size_t len = length > at ? strnlen(address->sun_path, length - at) : 0;
  if (len == 0)
    snprintf(out, ADDRESS_TEXT_SIZE, "unix");
  else
    snprintf(out, ADDRESS_TEXT_SIZE, "unix:%.*s", (int)len, address->sun_path);
}

const char *address_text(const struct sockaddr *address, socklen_t length, char out[static ADDRESS_TEXT_SIZE]) {
  char host[INET6_ADDRSTRLEN] = "?";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, host, sizeof host);
    snprintf(out, ADDRESS_TEXT_SIZE, "%s:%u", host, address_port(address));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, host, sizeof host);
    snprintf(out, ADDRESS_TEXT_SIZE, "[%s]:%u", host, address_port(address));
  } else {
    unix_text((const struct sockaddr_un *)(const void *)address, length, out);
  }
  return out;
}
