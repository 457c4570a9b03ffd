/* files_route.h - /files: raw bytes over HTTP. docs/protocol.md, 4.7. */
#ifndef SANDKEEPER_API_FILES_ROUTE_H
#define SANDKEEPER_API_FILES_ROUTE_H

#include "sandkeeper/api/exchange.h"
#include "sandkeeper/base/error.h"

#include <stdbool.h>

/* The handlers of the routes' table: GET and HEAD, DELETE; and PUT, whose body is a sink. */
void files_get_handle(struct exchange *x);
void files_delete_handle(struct exchange *x);
void files_put_handle(struct exchange *x);
size_t files_put_body(struct exchange *x, const char *bytes, size_t len, bool last);

/* ---- what their files share (files_http.c) ---- */

/* The file that the query names; NULL: the exchange was answered with the reason. */
char *files_http_path(struct exchange *x);

/* A switch in the query: 1, true or nothing behind the name; 0, false, or absent. -1 and *err for another value. */
int files_http_switch(struct exchange *x, const char *name, bool *value, struct error *err);

/* {"error":{...}} with the status that belongs to the kind. */
void files_http_fail(struct exchange *x, const struct error *error);

#endif
