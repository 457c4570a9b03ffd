#include "sandkeeper/core/life.h"

#include "sandkeeper/base/fdutil.h"

#include <stdlib.h>
#include <string.h>

void life_init(struct life *life, int64_t now, int64_t ttl) {
  *life = (struct life){.state = LIFE_ACTIVE, .created = now, .last_active = now, .expires = ttl > 0 ? now + ttl : 0};
}

void life_free(struct life *life) {
  life_unclaim(life);
}

const char *life_status(const struct life *life) {
  static const char *const names[] = {
      [LIFE_ACTIVE] = "active",
      [LIFE_STOPPING] = "stopping",
      [LIFE_STOPPED] = "stopped",
      [LIFE_DESTROYING] = "destroying",
  };
  return names[life->state];
}

/* ---- states ---- */

static enum life_action begin_stop(struct life *life, enum life_state wanted) {
  life->state = LIFE_STOPPING;
  life->wanted = wanted;
  return LIFE_END;
}

enum life_action life_stop(struct life *life) {
  if (life->state == LIFE_ACTIVE)
    return begin_stop(life, LIFE_STOPPED);
  if (life->state == LIFE_STOPPING)
    life->wanted = LIFE_STOPPED;
  return LIFE_NOTHING;
}

enum life_action life_start(struct life *life) {
  if (life->state == LIFE_STOPPING)
    life->wanted = LIFE_ACTIVE;
  if (life->state != LIFE_STOPPED)
    return LIFE_NOTHING;
  life->state = LIFE_ACTIVE;
  return LIFE_ADMIT;
}

enum life_action life_restart(struct life *life) {
  return life->state == LIFE_ACTIVE ? begin_stop(life, LIFE_ACTIVE) : life_start(life);
}

enum life_action life_destroy(struct life *life) {
  enum life_state before = life->state;
  life->state = LIFE_DESTROYING;
  /* While it stops, the end under way serves. */
  return before == LIFE_ACTIVE || before == LIFE_STOPPED ? LIFE_END : LIFE_NOTHING;
}

enum life_action life_ended(struct life *life) {
  if (life->state == LIFE_DESTROYING)
    return LIFE_LEAVE;
  if (life->state != LIFE_STOPPING)
    return LIFE_NOTHING;
  life->state = life->wanted;
  return life->state == LIFE_ACTIVE ? LIFE_ADMIT : LIFE_NOTHING;
}

/* ---- the owner ---- */

enum life_claim life_claim_of(const struct life *life, const char *user_id) {
  if (!life->user_id)
    return LIFE_UNCLAIMED;
  return strcmp(life->user_id, user_id) == 0 ? LIFE_OWN : LIFE_TAKEN;
}

int life_claim(struct life *life, const char *user_id, int64_t now) {
  char *copy = strdup(user_id);
  if (!copy)
    return -1;
  free(life->user_id);
  life->user_id = copy;
  life->allocated = now;
  return 0;
}

static void free_spec(struct life_spec *spec) {
  free(spec->cpu);
  free(spec->memory);
  free(spec->image);
  *spec = (struct life_spec){0};
}

void life_unclaim(struct life *life) {
  free(steal_pointer(&life->user_id));
  life_set_labels(life, NULL, 0);
  free_spec(&life->spec);
  life->allocated = 0;
}

void life_labels_free(struct life_label *labels, size_t n_labels) {
  for (size_t i = 0; i < n_labels; i++) {
    free(labels[i].name);
    free(labels[i].value);
  }
  free(labels);
}

void life_set_labels(struct life *life, struct life_label *labels, size_t n_labels) {
  life_labels_free(life->labels, life->n_labels);
  life->labels = labels;
  life->n_labels = n_labels;
}

/* 0, or -1 without memory. */
static int copy_field(char **to, const char *from) {
  *to = from ? strdup(from) : NULL;
  return from && !*to ? -1 : 0;
}

static void take_field(char **field, char **from) {
  if (!*from)
    return;
  free(*field);
  *field = steal_pointer(from);
}

int life_note_spec(struct life *life, const char *cpu, const char *memory, const char *image) {
  struct life_spec spec = {0};
  if (copy_field(&spec.cpu, cpu) < 0 || copy_field(&spec.memory, memory) < 0 || copy_field(&spec.image, image) < 0) {
    free_spec(&spec);
    return -1;
  }
  take_field(&life->spec.cpu, &spec.cpu);
  take_field(&life->spec.memory, &spec.memory);
  take_field(&life->spec.image, &spec.image);
  return 0;
}

/* ---- times ---- */

void life_extend(struct life *life, int64_t now, int64_t by) {
  int64_t from = life->expires > now ? life->expires : now;
  life->expires = from > INT64_MAX - by ? INT64_MAX : from + by;
}
