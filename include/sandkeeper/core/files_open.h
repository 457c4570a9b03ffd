/* files_open.h - the whole of an open file, for what needs it in memory. Part of core/files.h's work. */
#ifndef SANDKEEPER_CORE_FILES_OPEN_H
#define SANDKEEPER_CORE_FILES_OPEN_H

#include "sandkeeper/core/files.h"

/* Reads until the end, whatever size fstat told. 0 with *bytes, the caller's to free; 1 when there are more than `max`
 * bytes; -1 on an error. */
int files_read_whole(const struct files_source *source, const char *path, size_t max, uint8_t **bytes, size_t *len,
                     struct error *err);

#endif
