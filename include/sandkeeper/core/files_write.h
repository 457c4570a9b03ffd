/* files_write.h - a write for an edit: only if the file is still what was read. Part of core/files.h's work. */
#ifndef SANDKEEPER_CORE_FILES_WRITE_H
#define SANDKEEPER_CORE_FILES_WRITE_H

#include "sandkeeper/core/files.h"

/* As files_write() of a whole content, but nothing is written, and *changed set, when the file is not the one of `seen`
 * any more (its inode, size or times). The caller holds files_lock() of that inode. */
int files_write_if_same(const char *path, const void *bytes, size_t len, const struct stat *seen,
                        struct files_written *written, bool *changed, struct error *err);

#endif
