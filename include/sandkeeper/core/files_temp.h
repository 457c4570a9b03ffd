/* files_temp.h - a temporary file beside a target, and how it takes the target's place. Part of core/files.h's work.
 *
 * Where the file system can (ext4, xfs, btrfs, tmpfs, overlayfs since Linux 6.3) the file has no name while it is
 * written (O_TMPFILE): the kernel removes it with the process. linkat(2) gives it a name; it cannot replace one, so
 * over an old file it goes by a second, unguessable name and a rename. Elsewhere the file has that name from the start.
 * Whenever such a name exists, the record of leftovers says so (files_leftovers.h). */
#ifndef SANDKEEPER_CORE_FILES_TEMP_H
#define SANDKEEPER_CORE_FILES_TEMP_H

#include <stdbool.h>
#include <sys/types.h>

#define FILES_TEMP_PREFIX ".sandkeeper-"
#define FILES_TEMP_NAME_SIZE (sizeof FILES_TEMP_PREFIX + 32) /* 128 random bits in hex */

struct files_temp {
  int fd;               /* for reading and writing; owned */
  int dir;              /* O_PATH or not; borrowed */
  const char *dir_path; /* for the record; borrowed */
  bool named;
  char name[FILES_TEMP_NAME_SIZE];
  int leftover; /* place in the record; -1: none */
};

#define FILES_TEMP_INIT \
  { .fd = -1, .leftover = -1 }

/* Makes one in `dir`, with `mode` less the umask. 0, or -1 with errno. */
int files_temp_open(struct files_temp *temp, int dir, const char *dir_path, mode_t mode);

/* Makes one that never gets a name, wherever there is room for it. 0, or -1 with errno. */
int files_temp_open_anonymous(struct files_temp *temp, int dir);

/* What a close of the file would report: a network file system may only now find out that the disk is full. 0, or -1
 * with errno. */
int files_temp_flush(const struct files_temp *temp);

/* What may have the name that a temporary file gets. */
enum files_temp_over {
  FILES_TEMP_OLD,     /* an old file */
  FILES_TEMP_FRESH,   /* nothing had it a moment ago; what has it now is replaced */
  FILES_TEMP_NOTHING, /* nothing: EEXIST otherwise */
};

/* Makes it `name` in its directory, in the place of what has that name. 0, or -1 with errno; then it is what it was.
 * EBUSY, EXDEV, EPERM and EACCES can mean that the name may be written but not replaced. */
int files_temp_install(struct files_temp *temp, const char *name, enum files_temp_over over);

/* Removes its name, if it has one; its content can still be read. It needs its directory no more. */
void files_temp_unname(struct files_temp *temp);

/* Closes it and removes its name, if it still has one of its own. */
void files_temp_drop(struct files_temp *temp);

/* Renames what replaces nothing: EEXIST then, where the file system cannot promise it as far as a look can tell. */
int files_rename_fresh(int from_dir, const char *from, int to_dir, const char *to);

/* A random name of its kind. 0, or -1 with errno. */
int files_temp_name(char name[FILES_TEMP_NAME_SIZE]);

#endif
