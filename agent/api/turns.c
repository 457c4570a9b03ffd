#include "sandkeeper/api/turns.h"

void turns_init(struct turns *turns, size_t max) {
  *turns = (struct turns){.max = max};
  list_init(&turns->waiting);
}

void turn_init(struct turn *turn) {
  *turn = (struct turn){.bytes = 0};
  list_init(&turn->node);
}

static bool fits(const struct turns *turns, size_t bytes) {
  return turns->used == 0 || (turns->used < turns->max && bytes <= turns->max - turns->used);
}

bool turns_take(struct turns *turns, struct turn *turn, size_t bytes, void (*granted)(void *arg), void *arg) {
  turn->bytes = bytes;
  turn->granted = granted;
  turn->arg = arg;
  if (list_is_empty(&turns->waiting) && fits(turns, bytes)) {
    turns->used += bytes;
    return true;
  }
  list_append(&turns->waiting, &turn->node);
  return false;
}

void turns_give(struct turns *turns, struct turn *turn) {
  if (list_is_linked(&turn->node))
    list_remove(&turn->node);
  else
    turns->used -= turn->bytes;
  turn->bytes = 0;
  while (!list_is_empty(&turns->waiting)) {
    struct turn *next = LIST_FIRST(&turns->waiting, struct turn, node);
    if (!fits(turns, next->bytes))
      return;
    list_remove(&next->node);
    turns->used += next->bytes;
    next->granted(next->arg);
  }
}

void turns_end(struct turns *turns) {
  LIST_FOREACH (&turns->waiting, node) {
    struct turn *turn = LIST_OWNER(node, struct turn, node);
    list_remove(node);
    turn->bytes = 0;
  }
}
