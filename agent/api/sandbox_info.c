/* What a client is told of the sandbox. */
#include "sandkeeper/api/api.h"
#include "sandkeeper/api/sandbox_calls.h"
#include "sandkeeper/base/clock.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static void member(struct json_out *out, const char *name, const char *value) {
  json_out_key(out, name);
  json_out_string(out, value ? value : "");
}

/* RFC 3339, or an empty string for a time that is not set: the SDKs parse both. */
static void time_member(struct json_out *out, const char *name, int64_t wall) {
  char text[CLOCK_RFC3339_SIZE];
  member(out, name, wall > 0 ? clock_rfc3339(wall, text) : "");
}

/* An address by which others may reach the container: the first that is not loopback; IPv4 goes first. Asked for each
 * time, since a network may be attached later. */
static void ip_member(struct json_out *out) {
  char text[INET6_ADDRSTRLEN] = "";
  struct ifaddrs *all = NULL;
  int found = AF_UNSPEC;
  if (getifaddrs(&all) < 0)
    all = NULL;
  for (const struct ifaddrs *at = all; at; at = at->ifa_next) {
    int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
    if (!(at->ifa_flags & IFF_UP) || at->ifa_flags & IFF_LOOPBACK || found == AF_INET || found == family)
      continue;
    const struct sockaddr_in *v4 = (const void *)at->ifa_addr;
    const struct sockaddr_in6 *v6 = (const void *)at->ifa_addr;
    if (family == AF_INET && inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text))
      found = AF_INET;
    else if (family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) &&
             inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text))
      found = AF_INET6;
  }
  freeifaddrs(all);
  member(out, "ip", text);
}

/* By default the client is shown the way it has taken itself. */
static void preview_members(struct json_out *out, struct exchange *x) {
  const struct sandbox_api_options *options = &x->api->control.options;
  const char *host = x->ops->header(x, "Host");
  char url[1024] = "";
  if (!options->preview_url && host && host[0])
    snprintf(url, sizeof url, "http://%s", host);
  member(out, "preview_url", options->preview_url ? options->preview_url : url);
  member(out, "preview_host", options->preview_host);
}

static void spec_member(struct json_out *out, const struct life_spec *spec) {
  json_out_key(out, "spec");
  json_out_object(out);
  if (spec->cpu)
    member(out, "cpu", spec->cpu);
  if (spec->memory)
    member(out, "memory", spec->memory);
  if (spec->image)
    member(out, "image", spec->image);
  json_out_object_end(out);
}

/* A name that a client chose; json_out_key() takes only our own. */
static void any_key(struct json_out *out, const char *name) {
  json_out_string(out, name);
  buf_append(out->buf, ":", 1);
  out->comma = false;
}

static void labels_member(struct json_out *out, const struct life *life) {
  json_out_key(out, "labels");
  json_out_object(out);
  for (size_t i = 0; i < life->n_labels; i++) {
    any_key(out, life->labels[i].name);
    json_out_string(out, life->labels[i].value);
  }
  json_out_object_end(out);
}

void sandbox_info_write(struct json_out *out, struct exchange *x) {
  const struct sandbox *sandbox = x->api->sandbox;
  const struct life *life = &sandbox->life.life;
  json_out_object(out);
  member(out, "id", sandbox->options.id);
  member(out, "user_id", life->user_id);
  member(out, "namespace", "");
  member(out, "status", life_status(life));
  ip_member(out);
  preview_members(out, x);
  json_out_key(out, "port");
  json_out_int(out, x->api->control.options.port);
  member(out, "image_tag", "");
  spec_member(out, &life->spec);
  labels_member(out, life);
  time_member(out, "created_at", life->created);
  time_member(out, "allocated_at", life->allocated);
  time_member(out, "expire_at", life->expires);
  time_member(out, "last_active_at", sandbox_life_last_active(sandbox));
  json_out_object_end(out);
}

static bool fits(const struct exchange *x, const struct sandbox_filter *filter) {
  const struct life *life = &x->api->sandbox->life.life;
  return (!filter->user_id || strcmp(filter->user_id, life->user_id ? life->user_id : "") == 0) &&
         (!filter->status || strcmp(filter->status, life_status(life)) == 0);
}

void sandbox_info_write_list(struct json_out *out, struct exchange *x, const struct sandbox_filter *filter) {
  int total = fits(x, filter);
  bool shown = total > filter->offset && filter->limit > 0;
  json_out_key(out, "items");
  json_out_array(out);
  if (shown)
    sandbox_info_write(out, x);
  json_out_array_end(out);
  json_out_key(out, "pagination");
  json_out_object(out);
  json_out_key(out, "total");
  json_out_int(out, total);
  json_out_key(out, "limit");
  json_out_int(out, filter->limit);
  json_out_key(out, "offset");
  json_out_int(out, filter->offset);
  json_out_key(out, "has_more");
  json_out_bool(out, false); /* there is one sandbox: what comes behind an offset is never more than an item */
  json_out_object_end(out);
}
