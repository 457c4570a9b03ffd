/* list.h - an intrusive doubly linked list; the node lives in its owner. An unlinked node points to itself.
 *
 * glibc's sys/queue.h would do, but musl has none, and the static build is musl's. */
#ifndef SANDKEEPER_BASE_LIST_H
#define SANDKEEPER_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
  struct list *prev, *next;
};

static inline void list_init(struct list *node) {
  node->prev = node;
  node->next = node;
}

static inline bool list_is_empty(const struct list *head) {
  return head->next == head;
}

/* True for a node that is in a list. Valid only after list_init. */
static inline bool list_is_linked(const struct list *node) {
  return node->next != node;
}

/* Links a node, which must be in no list, as the last one of the head's. */
static inline void list_append(struct list *head, struct list *node) {
  node->prev = head->prev;
  node->next = head;
  head->prev->next = node;
  head->prev = node;
}

/* Unlinks a node; does nothing for one that is in no list. */
static inline void list_remove(struct list *node) {
  node->prev->next = node->next;
  node->next->prev = node->prev;
  list_init(node);
}

#define LIST_OWNER(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

/* The first owner, or NULL when empty. */
#define LIST_FIRST(head, type, member) (list_is_empty(head) ? NULL : LIST_OWNER((head)->next, type, member))

/* Visits every node; the visited one may be unlinked or freed, its successor may not. */
#define LIST_FOREACH(head, node)                                                    \
  for (struct list *node = (head)->next, *node##_next = node->next; node != (head); \
       node = node##_next, node##_next = node->next)

#endif
