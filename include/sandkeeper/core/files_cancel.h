/* files_cancel.h - a job that was given up must change nothing any more, and one that gets on is not given up. Part of
 * core/files.h's work.
 *
 * A thread that hangs in a file system comes back some day. By then its client has been told that the call timed out,
 * and may have done something else: a write that goes on then would put old content over new. So everything here that
 * changes something asks first. What hangs in the very call that changes something cannot be called back. */
#ifndef SANDKEEPER_CORE_FILES_CANCEL_H
#define SANDKEEPER_CORE_FILES_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What this thread does from now on is given up once *given_up is true, and *moved is when it last got on (struct job).
 * NULL: neither. Both must live until the next call. They are kept for each thread apart. */
void files_cancel_watch(const atomic_bool *given_up, _Atomic int64_t *moved);

/* Says that the file system answers: what takes many calls (a large copy, a tree, a long list) may take its time. A
 * copy into a file that is written in place would be left half done. */
void files_moved(void);

/* True, with errno ECANCELED, when it was given up. */
bool files_cancelled(void);

#endif
