/* files_cleaner.h - at the start: lets a worker remove what earlier runs left behind (files_leftovers.h). */
#ifndef SANDKEEPER_CORE_FILES_CLEANER_H
#define SANDKEEPER_CORE_FILES_CLEANER_H

#include "sandkeeper/core/worker.h"

/* Does nothing, and starts no thread, when there is nothing to look at. */
void files_cleaner_start(struct workers *workers);

#endif
