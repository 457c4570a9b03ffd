/* files_keep.h - gives a new file what the old one had: owner, mode, extended attributes and with them the ACL, as far
 * as this process may. Part of core/files.h's work. */
#ifndef SANDKEEPER_CORE_FILES_KEEP_H
#define SANDKEEPER_CORE_FILES_KEEP_H

#include <sys/stat.h>

/* `fd`: the new file, of this process, its content written. `old_fd`: the old one, opened in any way but O_PATH, or -1:
 * then there are no attributes to keep. `mode`: the old one's, or what a client wants instead (0 to 07777).
 *
 * What may not be kept is left out, on the safe side: without the owner no set-user-ID, without the group no
 * set-group-ID, and the new group gets what everybody has. */
void files_keep(int fd, const struct stat *old, int old_fd, mode_t mode);

#endif
