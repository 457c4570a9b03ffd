/* listener.h - opens the sockets that the gate accepts from. */
#ifndef SANDKEEPER_NET_LISTENER_H
#define SANDKEEPER_NET_LISTENER_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/net/address.h"

#include <sys/socket.h>

/* Binds and listens; non-blocking, close-on-exec. TCP: accepted sockets inherit TCP_NODELAY and keep-alive; an IPv6
 * socket takes IPv6 only, so that 0.0.0.0 and [::] go together whatever net.ipv6.bindv6only says. unix: the socket file
 * gets mode 0660; one that nobody listens on any more is replaced. Returns the descriptor, or -1 and *err; err->number
 * is the errno. `text` gets the bound address, with the port that the kernel picked for port 0. */
int listener_open(const struct sockaddr *address, socklen_t length, char text[static ADDRESS_TEXT_SIZE],
                  struct error *err);

/* Closes it, and removes the file of a unix socket. */
void listener_close(int *fd);

#endif
