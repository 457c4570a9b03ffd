/* turns.h - a number of bytes that many may use together, in turn: whoever finds too little left waits for those before
 * it. Pure bookkeeping, for the loop's thread. */
#ifndef SANDKEEPER_API_TURNS_H
#define SANDKEEPER_API_TURNS_H

#include "sandkeeper/base/list.h"

#include <stdbool.h>
#include <stddef.h>

struct turns {
  size_t max, used;
  struct list waiting; /* struct turn */
};

struct turn {
  struct list node;
  size_t bytes; /* 0: it neither has nor wants any */
  void (*granted)(void *arg);
  void *arg;
};

void turns_init(struct turns *turns, size_t max);
void turn_init(struct turn *turn);

/* Takes so many bytes. True: it has them. False: it waits, and granted() is called inside another's turns_give(). What
 * is more than all is granted when nobody else has any. */
bool turns_take(struct turns *turns, struct turn *turn, size_t bytes, void (*granted)(void *arg), void *arg);

/* Gives back what it has, or waits no longer; fine when it does neither. Grants those who wait what is free now. */
void turns_give(struct turns *turns, struct turn *turn);

/* All will give back, and none of those who wait shall be granted anything any more. */
void turns_end(struct turns *turns);

#endif
