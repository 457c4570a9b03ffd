/* files_leftovers.h - the record of temporary files that have a name, so that the next start can remove those that a
 * kill -9 or a crash left behind.
 *
 * Each run of the agent has one small file, "run-" and 32 hex digits, in a directory of its own: sandkeeper-UID, mode
 * 0700, in the first of /var/tmp, /tmp, /run, /dev/shm and / that can be written. Nothing is made before the first name
 * is noted. The run holds a lock (flock) on its file: a record without one belongs to a run that has ended. So several
 * agents of one machine do not take each other's files. Where no directory can be written nothing is noted, and a
 * leftover stays.
 *
 * A record is believed only if its directory belongs to this user and to nobody else, and only for names of our own
 * kind (files_temp.h): whoever writes one cannot have another file removed.
 *
 * Its state is global: one record a process. All of it may be called from several threads. */
#ifndef SANDKEEPER_CORE_FILES_LEFTOVERS_H
#define SANDKEEPER_CORE_FILES_LEFTOVERS_H

#include <stdbool.h>

/* Notes a name that is about to be made. Returns its place in the record, or -1: not noted. */
int files_leftovers_note(const char *dir_path, const char *name);
void files_leftovers_forget(int place); /* takes -1 */

/* True when an earlier run may have left something: one look at the directories, cheap enough for the start. */
bool files_leftovers_exist(void);

/* Removes what ended runs have left, and their records. May block with the file systems named there: on a worker.
 * Returns the number of files removed. */
int files_leftovers_clean(void);

/* Removes this run's record, if it notes nothing any more. At the end of the process. */
void files_leftovers_end(void);

/* For tests: the directories to use instead, NULL-terminated and kept by the caller; NULL: those above. */
void files_leftovers_use(const char *const *directories);

#endif
