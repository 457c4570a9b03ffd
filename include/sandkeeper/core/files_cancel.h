/* files_cancel.h - a job that was given up must change nothing any more. Part of core/files.h's work.
 *
 * A thread that hangs in a file system comes back some day. By then its client has been told that the call timed out,
 * and may have done something else: a write that goes on then would put old content over new. So everything here that
 * changes something asks first. What hangs in the very call that changes something cannot be called back. */
#ifndef SANDKEEPER_CORE_FILES_CANCEL_H
#define SANDKEEPER_CORE_FILES_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>

/* What this thread does from now on is given up once *given_up is true. NULL: it is not. The flag must live until the
 * next call. It is kept for each thread apart. */
void files_cancel_watch(const atomic_bool *given_up);

/* True, with errno ECANCELED, when it was given up. */
bool files_cancelled(void);

#endif
