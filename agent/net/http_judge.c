#include "sandkeeper/net/http_exchange.h"

#include "sandkeeper/base/log.h"
#include "sandkeeper/net/access.h"
#include "sandkeeper/net/route.h"

#include <microhttpd.h>
#include <stdio.h>
#include <string.h>

static enum MHD_Result on_field(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
  struct http_exchange *x = arg;
  (void)kind;
  http_head_field(&x->head, text_of(name), text_of(value ? value : ""));
  return MHD_YES;
}

static bool is_encoded_right(struct text text) {
  char scratch[HTTP_HEAD_MAX];
  while (text.len > 0) {
    /* In slices that do not cut an escape; what is longer than a slice comes only from a kept-alive connection. */
    size_t n = text.len < sizeof scratch ? text.len : sizeof scratch;
    while (n < text.len && n > 1 && (text.at[n - 1] == '%' || text.at[n - 2] == '%'))
      n--;
    if (http_percent_decode(scratch, (struct text){text.at, n}, true) < 0)
      return false;
    text.at += n;
    text.len -= n;
  }
  return true;
}

static void read_head(struct http_exchange *x, const char *method, const char *version) {
  int minor = strlen(version) == 8 ? version[7] - '0' : 1;
  http_head_begin(&x->head, text_of(method), text_of(x->target), minor);
  MHD_get_connection_values(x->connection, MHD_HEADER_KIND, on_field, x);
  http_head_end(&x->head);
  if (x->head.status == 0 && !(is_encoded_right(x->head.query) && is_encoded_right(x->head.path))) {
    x->head.status = 400;
    x->head.reason = "a percent sign in the request's target is not followed by two hex digits";
  }
  x->public.method = method;
}

static void refuse(struct http_exchange *x, const struct refusal *refusal) {
  struct exchange *public = &x->public;
  if (refusal->status == 401)
  public->ops->add_header(public, "WWW-Authenticate", "Bearer");
  if (refusal->status == 405)
  public->ops->add_header(public, "Allow", "GET");
  if (refusal->status == 426) {
    public->ops->add_header(public, "Upgrade", "websocket");
    public->ops->add_header(public, "Connection", "Upgrade");
    public->ops->add_header(public, "Sec-WebSocket-Version", "13");
    x->close_early = true; /* so that the client tries again on a fresh connection, which the gate can hand over */
  }
  LOG(LOG_INFO, "http", "refused", LOG_I("status", refusal->status), LOG_S("reason", refusal->message),
      LOG_S("address", x->link->address));
  public->ops->fail(public, refusal->status, "%s", refusal->message);
}

/* An upgrade that is sound comes here only on a connection that was kept alive. */
static void answer_websocket_path(struct http_exchange *x) {
  struct upgrade upgrade;
  struct refusal refusal = {0};
  if (access_upgrade(x->http->options, &x->head, &upgrade, &refusal)) {
    refusal.status = 426;
    snprintf(refusal.message, sizeof refusal.message, "a WebSocket session needs a connection of its own");
  }
  refuse(x, &refusal);
}

/* Access-Control-Allow-Headers takes what was asked for: who has the allowed Origin may send any header. */
static void answer_options(struct http_exchange *x, const struct route_match *match) {
  struct exchange *public = &x->public;
  const char *asked = public->ops->header(public, "Access-Control-Request-Headers");
  public->ops->add_header(public, "Allow", match->allow);
  if (access_cross_origin(x->http->options, &x->head)) {
    public->ops->add_header(public, "Access-Control-Allow-Methods", match->allow);
    public->ops->add_header(public, "Access-Control-Max-Age", "600");
    if (asked)
    public->ops->add_header(public, "Access-Control-Allow-Headers", asked);
  }
  public->ops->reply(public, 204, NULL, NULL);
}

static bool is_preflight(struct http_exchange *x) {
  return text_is(x->head.method, "OPTIONS") && access_cross_origin(x->http->options, &x->head) &&
         x->public.ops->header(&x->public, "Access-Control-Request-Method");
}

void http_exchange_judge(struct http_exchange *x, const char *method, const char *version) {
  struct exchange *public = &x->public;
  struct refusal refusal = {0};
  read_head(x, method, version);
  struct route_match match = route_find(x->http->routes, x->http->n_routes, x->head.path, x->head.method);
  bool open = match.route && match.route->open;
  if (x->head.status) {
    x->close_early = true;
    public->ops->fail(public, x->head.status, "%s", x->head.reason);
  } else if (x->http->stopping && !open) {
    public->ops->fail(public, 503, "the agent is stopping");
  } else if (access_is_websocket_path(x->head.path)) {
    answer_websocket_path(x);
  } else if (!open && !is_preflight(x) && !access_allowed(x->http->options, &x->head, &refusal)) {
    refuse(x, &refusal);
  } else if (!match.known) {
    public->ops->fail(public, 404, "there is nothing at %.200s", x->path);
  } else if (x->head.upgrade_websocket && x->head.connection_upgrade) {
    public->ops->fail(public, 404, "%.200s is no WebSocket path; /ws is", x->path);
  } else if (text_is(x->head.method, "OPTIONS")) {
    answer_options(x, &match);
  } else if (!match.route) {
    public->ops->add_header(public, "Allow", match.allow);
    public->ops->fail(public, 405, "%.200s does not take %.20s", x->path, public->method);
  } else {
    x->route = match.route;
  }
}
