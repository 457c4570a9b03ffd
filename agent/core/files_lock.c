#include "sandkeeper/core/files_lock.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define WAIT_SECONDS 30
#define LOCKED_MAX 64 /* more than there can be workers, those written off included */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unlocked;
/* Under the mutex. */
static struct {
  dev_t device;
  ino_t inode;
  bool used;
} table[LOCKED_MAX];

static void make_condition(void) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&unlocked, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

/* The place of an inode, or of a free entry, or LOCKED_MAX. */
static size_t place_of(dev_t device, ino_t inode, bool *locked) {
  size_t free_place = LOCKED_MAX;
  *locked = false;
  for (size_t i = 0; i < LOCKED_MAX; i++) {
    if (!table[i].used) {
      free_place = i;
    } else if (table[i].device == device && table[i].inode == inode) {
      *locked = true;
      return i;
    }
  }
  return free_place;
}

int files_lock(dev_t device, ino_t inode) {
  pthread_once(&once, make_condition);
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += WAIT_SECONDS;
  pthread_mutex_lock(&mutex);
  bool locked;
  int status = 0;
  size_t place = place_of(device, inode, &locked);
  while (locked && status == 0) {
    status = pthread_cond_timedwait(&unlocked, &mutex, &until);
    place = place_of(device, inode, &locked);
  }
  if (!locked && place < LOCKED_MAX) {
    table[place].device = device;
    table[place].inode = inode;
    table[place].used = true;
    status = 0;
  } else if (!locked) {
    status = ENOLCK;
  }
  pthread_mutex_unlock(&mutex);
  if (status == 0)
    return 0;
  errno = status;
  return -1;
}

void files_unlock(dev_t device, ino_t inode) {
  pthread_mutex_lock(&mutex);
  bool locked;
  size_t place = place_of(device, inode, &locked);
  if (locked)
    table[place].used = false;
  pthread_cond_broadcast(&unlocked);
  pthread_mutex_unlock(&mutex);
}
