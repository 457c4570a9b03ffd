/* files.h - what the agent does with files: plain blocking code for worker threads. It knows no loop, no JSON and no
 * network. docs/protocol.md, 4.6 and 4.7, is the contract.
 *
 * Every function may take as long as the file system does, and may hang with it (NFS, FUSE): call them on a worker
 * only. All of them may run on several threads at once. A failure is told with the path in the message.
 *
 * `path` is what files_path() made: absolute, NUL-terminated bytes in no particular encoding. The kernel resolves it;
 * nothing here takes a path apart to decide what may be touched, since the container is the wall and not the agent.
 *
 * New files and directories get 0666 and 0777 less the process's umask, which main() sets from --umask; a default ACL
 * of the directory comes before it, as everywhere in Linux. A `mode` that a client gives is set exactly.
 *
 * Threads should have SIGPIPE and SIGXFSZ blocked or ignored; the agent blocks all signals but the synchronous ones.
 *
 * What a worker gives up changes nothing any more: files_cancel.h.
 *
 * Globals: the table of inodes that are being changed in place (files_lock.h), the record of temporary files
 * (files_leftovers.h), each thread's flag (files_cancel.h), and libmagic's key (image_type.h). */
#ifndef SANDKEEPER_CORE_FILES_H
#define SANDKEEPER_CORE_FILES_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/image_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define FILES_TEXT_MAX 204800u                /* bytes of a text that one read gives */
#define FILES_IMAGE_MAX (20u * 1024u * 1024u) /* bytes of the largest image that one read gives */
#define FILES_EDIT_MAX (64u * 1024u * 1024u)  /* bytes of the largest file that edit takes, before and after */
#define FILES_LIST_MAX (64u * 1024u * 1024u)  /* bytes of names that one list_files holds in memory */

/* ---- Paths (files_path.c) ---- */

/* Makes the absolute path of what a client sent: any bytes, relative to `workdir` (absolute) unless they begin with a
 * slash. The result is the caller's to free. NULL: empty, longer than the kernel takes, or with a NUL inside
 * (ERROR_INVALID, ERROR_IO with ENAMETOOLONG); `name` is the parameter's, for the message. Does not block. */
char *files_path(const char *workdir, const char *bytes, size_t len, const char *name, struct error *err);

/* ---- A file opened for reading (files_open.c) ---- */

struct files_source {
  int fd;         /* -1 when closed */
  struct stat st; /* of the descriptor, when it was opened */
  bool local;     /* on a file system of this machine, as far as fstatfs(2) tells: sendfile does not wait for long */
  bool sized;     /* st_size is true; false in /proc, /sys and the like, which make their content when it is read */
};

/* Opens a regular file for reading, without waiting: a FIFO, a socket or a device is ERROR_WRONG_TYPE and is not even
 * touched, a directory too. */
int files_open(const char *path, struct files_source *source, struct error *err);
void files_close(struct files_source *source);

/* Up to `len` bytes from `offset`. Fewer only at the end of the file, as it is now. The bytes read, or -1. */
ssize_t files_read_at(const struct files_source *source, const char *path, uint64_t offset, void *bytes, size_t len,
                      struct error *err);

/* What it is, by its first 64 KiB. */
int files_type(const struct files_source *source, const char *path, struct image_type *type, struct error *err);

/* ---- read (files_read.c) ---- */

struct files_content {
  struct image_type type;
  uint8_t *bytes; /* the caller's: files_content_free() */
  size_t len;
  uint64_t size;   /* of the file: what fstat said, or what was read when the end came earlier or later */
  uint64_t offset; /* of bytes[0]; behind the offset asked for when that was in the middle of a character */
  bool truncated;  /* a text: the file goes on behind these bytes */
  bool lossy;      /* a text: not all of it is UTF-8 */
};

/* A text: up to `limit` (<= FILES_TEXT_MAX) bytes from `offset`, cut at the border of a character. An image: all of it,
 * offset and limit play no part; one longer than `image_max` is ERROR_TOO_LARGE with that limit, and so is one longer
 * than FILES_IMAGE_MAX. Files of /proc and /sys, which say they have 0 or 4096 bytes, are read until their end. */
int files_read(const char *path, uint64_t offset, size_t limit, uint64_t image_max, struct files_content *content,
               struct error *err);
void files_content_free(struct files_content *content);

/* ---- write, append, upload (files_write.c) ---- */

/* How a file is written. All zero: the content replaces the file. */
struct files_write_how {
  bool append;     /* behind the old content */
  bool at_offset;  /* over the old content at `offset`; the rest stays */
  uint64_t offset; /* at most INT64_MAX less the length */
  bool has_mode;
  mode_t mode; /* 0 to 07777 */
  bool sync;   /* fsync before the answer */
};

struct files_written {
  uint64_t bytes;
  bool atomic;  /* one rename did it; false: written in place */
  bool created; /* the file did not exist before */
};

/* The whole content at once. Parent directories are made. A link is followed and stays. See files_replace.h for what is
 * kept of the old file, and what cannot be replaced: that is written in place. On a failure the old content stands, as
 * far as that is possible in place: the space is reserved before the first byte is changed. */
int files_write(const char *path, const void *bytes, size_t len, const struct files_write_how *how,
                struct files_written *written, struct error *err);

/* The same piece by piece, in constant memory. Each call may come from another thread, one at a time. The pieces go to
 * the temporary file (or to the device itself); files_upload_commit() makes it the file. */
struct files_upload;
struct files_upload *files_upload_begin(const char *path, const struct files_write_how *how, struct error *err);
int files_upload_bytes(struct files_upload *upload, const void *bytes, size_t len, struct error *err);
int files_upload_commit(struct files_upload *upload, struct files_written *written, struct error *err);
/* Ends it, after commit or instead of it: then the old file is as it was. Takes NULL. */
void files_upload_free(struct files_upload *upload);

/* ---- edit (files_edit.c) ---- */

struct files_edited {
  uint64_t line;  /* of the first replacement, from 1 */
  uint64_t count; /* replacements made */
  bool atomic;
};

/* Replaces the one place where old_text stands, or all of them; every other byte stays. None, or several without
 * replace_all: ERROR_EDIT_CONFLICT with count and lines. Edits of one file never lose each other. */
int files_edit(const char *path, const void *old_text, size_t old_len, const void *new_text, size_t new_len,
               bool replace_all, struct files_edited *edited, struct error *err);

/* ---- list_files (files_list.c) ---- */

#define FILES_TIME_UNKNOWN INT64_MIN

struct files_entry {
  const char *name; /* any bytes but '/' and NUL */
  uint64_t size;
  int64_t modified; /* ns since 1970, or FILES_TIME_UNKNOWN: it could not be looked at */
  mode_t mode;
  bool is_dir, is_symlink; /* is_dir, size, modified and mode are the target's, or the link's own when it dangles */
};
struct files_list {
  struct files_entry *entries; /* sorted by name, byte by byte */
  size_t n;
  bool more;   /* `limit` left some out */
  char *names; /* what the entries point into */
};

/* Entries of a directory behind the name `after` (NULL: from the first), at most `limit` (SIZE_MAX: all). "." and ".."
 * are left out. ERROR_TOO_LARGE: more than FILES_LIST_MAX bytes of names. */
int files_list(const char *path, const char *after, size_t limit, struct files_list *list, struct error *err);
void files_list_free(struct files_list *list);

/* ---- stat (files_stat.c) ---- */

struct files_info {
  bool exists;     /* false also for a link that dangles, and for a path that goes through a file */
  bool is_symlink; /* the path itself is one */
  struct stat st;  /* of the target; only if it exists */
  char
      mime[IMAGE_TYPE_MIME_SIZE]; /* by content; "inode/directory" and the like for what is no file; "" if unreadable */
};
int files_stat(const char *path, struct files_info *info, struct error *err);

/* Nanoseconds since 1970 of the last change of the content. */
static inline int64_t files_modified(const struct stat *st) {
  return (int64_t)st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

/* ---- mkdir, remove, move (files_mkdir.c, files_remove.c, files_move.c) ---- */

/* With parents. One that is there is fine, and its mode stays. *mode (NULL: as the umask says) is for the last one. */
int files_mkdir(const char *path, const mode_t *mode, struct error *err);

/* A file, a link (not what it points to), or an empty directory; with `recursive` a directory and all in it, without
 * following links. "/" and paths that end in "." or ".." are refused. */
int files_remove(const char *path, bool recursive, struct error *err);

/* The destination is the new name itself, also when a directory has that name. One that exists is ERROR_EXISTS, unless
 * `overwrite`: then it is replaced, whatever it was, and stands until the moment when the new one is whole. Files and
 * links also move between file systems; directories do not, nor do those of a lower layer of overlayfs, for which
 * rename(2) says the same. Of two names of one file the source goes. */
int files_move(const char *source, const char *destination, bool overwrite, struct error *err);

#endif
