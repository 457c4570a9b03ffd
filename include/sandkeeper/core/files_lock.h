/* files_lock.h - one change in place of a file at a time, within this process. Two writers that open the same inode
 * would mix their bytes, and two edits would lose one. Part of core/files.h's work.
 *
 * The table of locked inodes is global. It is no lock against other processes: theirs may be held for ever. */
#ifndef SANDKEEPER_CORE_FILES_LOCK_H
#define SANDKEEPER_CORE_FILES_LOCK_H

#include <sys/types.h>

/* Waits until the inode is free, at most 30 s: who holds it may hang in its file system. 0, or -1 with errno ETIMEDOUT,
 * or ENOLCK when too many are locked. A thread must not lock one twice. */
int files_lock(dev_t device, ino_t inode);
void files_unlock(dev_t device, ino_t inode);

#endif
