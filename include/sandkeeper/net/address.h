/* address.h - socket addresses as text. */
#ifndef SANDKEEPER_NET_ADDRESS_H
#define SANDKEEPER_NET_ADDRESS_H

#include <stdint.h>
#include <sys/socket.h>

#define ADDRESS_TEXT_SIZE 128 /* the longest is "unix:" and a path of 107 bytes */

/* "127.0.0.1:4001", "[::1]:4001", "unix:/path", "unix" for a client without a name. Returns `out`. */
const char *address_text(const struct sockaddr *address, socklen_t length, char out[static ADDRESS_TEXT_SIZE]);

/* 0 for an address without one. */
uint16_t address_port(const struct sockaddr *address);
void address_set_port(struct sockaddr *address, uint16_t port);

#endif
