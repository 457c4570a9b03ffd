#include "sandkeeper/core/files_write.h"

#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/core/files_keep.h"
#include "sandkeeper/core/files_path.h"
#include "sandkeeper/core/files_place.h"
#include "sandkeeper/core/files_temp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* To extend a file that is replaced all the time. Each failed attempt means that somebody else's change went through.
 */
#define ATTEMPTS 1000

enum plan {
  REPLACE,  /* the temporary file takes the target's place */
  IN_PLACE, /* a regular file is written where it is */
  STREAM,   /* a device or a FIFO takes the bytes as they come */
};

struct files_upload {
  char *path;
  struct files_write_how how;
  struct files_target target;
  enum plan plan;
  struct files_temp temp; /* REPLACE: what will be the file. IN_PLACE: where pieces are kept until the commit */
  int stream;             /* STREAM */
  uint64_t bytes;         /* taken so far */
};

/* Links to a file would go on showing the old content after a rename; what is extended keeps its place. */
static int choose_plan(const struct files_upload *upload, enum plan *plan, struct error *err) {
  const struct files_target *target = &upload->target;
  *plan = REPLACE;
  if (!target->exists)
    return 0;
  mode_t mode = target->st.st_mode;
  if (S_ISDIR(mode))
    return error_set(err, ERROR_WRONG_TYPE, EISDIR, "cannot write %s: it is a directory", upload->path);
  if (S_ISSOCK(mode))
    return error_set(err, ERROR_WRONG_TYPE, 0, "cannot write %s: it is a socket", upload->path);
  if (!S_ISREG(mode)) {
    *plan = STREAM;
    return 0;
  }
  if (target->direct || target->st.st_nlink > 1 || upload->how.append || upload->how.at_offset)
    *plan = IN_PLACE;
  /* A rename would replace a file that must not be written. */
  if (!target->direct && faccessat(target->dir, target->name, W_OK, 0) < 0 && errno != ENOENT)
    return error_set_errno(err, errno, "cannot write %s", upload->path);
  return 0;
}

/* The directory does not let a file be made there, or the file system has no files of ours (proc, sysfs). */
static bool must_stay(int number) {
  switch (number) {
  case EACCES:
  case EPERM:
  case EROFS:
  case EBUSY: /* a mount point: /etc/hosts in a container */
  case EXDEV:
  case ENOENT:
  case ENOTSUP:
  case EINVAL:
  case ENOSYS:
  case ETXTBSY:
    return true;
  default:
    return false;
  }
}

static int open_temp(struct files_upload *upload, struct error *err) {
  const struct files_target *target = &upload->target;
  /* An old file may be nobody else's to read, so the new one starts that way. */
  mode_t mode = target->exists ? 0600 : 0666;
  if (files_temp_open(&upload->temp, target->dir, target->dir_path, mode) == 0)
    return 0;
  if (!target->exists || !must_stay(errno))
    return error_set_errno(err, errno, "cannot write %s", upload->path);
  upload->plan = IN_PLACE;
  return 0;
}

static int start(struct files_upload *upload, const char *path, const struct files_write_how *how, struct error *err) {
  *upload = (struct files_upload){.how = *how, .stream = -1, .temp = FILES_TEMP_INIT, .target = {.dir = -1}};
  upload->path = strdup(path);
  if (!upload->path)
    return error_set_errno(err, ENOMEM, "%s", path);
  if (how->at_offset && how->offset > INT64_MAX)
    return error_set_errno(err, EFBIG, "cannot write %s", path);
  if (files_target_find(path, true, &upload->target, err) < 0)
    return -1;
  if (choose_plan(upload, &upload->plan, err) < 0)
    return -1;
  if (upload->plan == REPLACE && open_temp(upload, err) < 0)
    return -1;
  if (upload->plan == STREAM) {
    upload->stream = files_place_open(path, &upload->target, how->append, err);
    return upload->stream < 0 ? -1 : 0;
  }
  return 0;
}

static void finish(struct files_upload *upload) {
  files_temp_drop(&upload->temp);
  files_target_free(&upload->target);
  fd_close(&upload->stream);
  free(upload->path);
  upload->path = NULL;
}

/* Where the content begins in the temporary file: a new file that begins at an offset has a hole before it. */
static uint64_t temp_start(const struct files_upload *upload) {
  return upload->plan == REPLACE && upload->how.at_offset ? upload->how.offset : 0;
}

static int put_temp(struct files_upload *upload, const void *bytes, size_t len, struct error *err) {
  uint64_t base = temp_start(upload);
  for (size_t done = 0; done < len;) {
    uint64_t at = base + upload->bytes;
    if (at > INT64_MAX - len)
      return error_set_errno(err, EFBIG, "cannot write %s", upload->path);
    ssize_t n = pwrite(upload->temp.fd, (const char *)bytes + done, len - done, (off_t)at);
    if (n < 0 && errno != EINTR)
      return error_set_errno(err, errno, "cannot write %s", upload->path);
    if (n > 0) {
      done += (size_t)n;
      upload->bytes += (uint64_t)n;
    }
  }
  return 0;
}

/* ---- the commit ---- */

static bool extends(const struct files_upload *upload) {
  return upload->how.append || upload->how.at_offset;
}

/* 0: done. 1: the target is another file by now. */
static int place_once(struct files_upload *upload, const struct files_bytes *content, bool locked, struct error *err) {
  struct error failure = ERROR_INIT;
  cleanup_close int fd = files_place_open(upload->path, &upload->target, upload->how.append, &failure);
  /* It was there a moment ago: somebody has removed it, or put a link in its place. An edit must not make it anew. */
  if (fd < 0 && !locked && upload->target.exists && !upload->target.direct &&
      (failure.number == ENOENT || failure.number == ELOOP))
    return 1;
  if (fd < 0) {
    if (err)
      *err = failure;
    return -1;
  }
  int status = files_place_write(fd, upload->path, &upload->target, content, &upload->how, locked, err);
  if (status != 0)
    return status;
  /* Network file systems tell of a full disk only now. */
  if (close(fd_steal(&fd)) < 0 && errno != EINTR)
    return error_set_errno(err, errno, "cannot write %s", upload->path);
  return 0;
}

static int look_again(struct files_upload *upload, struct error *err) {
  files_target_free(&upload->target);
  return files_target_find(upload->path, true, &upload->target, err);
}

static int place(struct files_upload *upload, const struct files_bytes *content, bool locked,
                 struct files_written *written, struct error *err) {
  for (int i = 0; i < ATTEMPTS; i++) {
    written->created = !upload->target.exists;
    int status = place_once(upload, content, locked, err);
    if (status <= 0)
      return status;
    if (look_again(upload, err) < 0)
      return -1;
  }
  return error_set(err, ERROR_BUSY, 0, "cannot write %s: other programs keep replacing it", upload->path);
}

static void keep_attributes(struct files_upload *upload) {
  const struct files_target *target = &upload->target;
  mode_t mode = upload->how.has_mode ? upload->how.mode : target->st.st_mode & 07777;
  if (target->exists) {
    int flags = O_NONBLOCK | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC;
    cleanup_close int old = openat(target->dir, target->name, O_RDONLY | flags);
    if (old < 0)
      old = openat(target->dir, target->name, O_WRONLY | flags);
    files_keep(upload->temp.fd, &target->st, old, mode);
  }
  if (upload->how.has_mode)
    (void)!fchmod(upload->temp.fd, mode);
}

static int sync_directory(int dir) {
  cleanup_close int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 || fsync(fd) < 0 ? -1 : 0;
}

/* A client may take minutes to send a file: what others did to the old one meanwhile (a chmod, a first content) counts.
 * False: what is there now must not be replaced. */
static bool can_replace(struct files_upload *upload) {
  struct files_target *target = &upload->target;
  struct stat now;
  if (fstatat(target->dir, target->name, &now, AT_SYMLINK_NOFOLLOW) < 0)
    return true;
  if (!S_ISREG(now.st_mode) || now.st_nlink > 1 || extends(upload))
    return false;
  target->exists = true;
  target->st = now;
  return true;
}

/* 0: done. 1: it cannot be replaced. */
static int replace(struct files_upload *upload, struct error *err) {
  struct files_target *target = &upload->target;
  if (!can_replace(upload))
    return 1;
  keep_attributes(upload);
  if ((upload->how.sync && fsync(upload->temp.fd) < 0) || files_temp_flush(&upload->temp) < 0)
    return error_set_errno(err, errno, "cannot write %s", upload->path);
  enum files_temp_over over = extends(upload) ? FILES_TEMP_NOTHING : target->exists ? FILES_TEMP_OLD : FILES_TEMP_FRESH;
  if (files_temp_install(&upload->temp, target->name, over) < 0) {
    if (must_stay(errno) || (errno == EEXIST && over == FILES_TEMP_NOTHING))
      return 1;
    return error_set_errno(err, errno, "cannot write %s", upload->path);
  }
  if (upload->how.sync && sync_directory(target->dir) < 0)
    return error_set_errno(err, errno, "cannot sync the directory of %s", upload->path);
  return 0;
}

/* `content`: all of it in memory; NULL: what the upload has taken. */
static int commit(struct files_upload *upload, const struct files_bytes *content, bool locked,
                  struct files_written *written, struct error *err) {
  struct files_bytes taken = {.fd = upload->temp.fd, .fd_start = temp_start(upload), .fd_len = upload->bytes};
  *written = (struct files_written){.bytes = content ? content->len : upload->bytes};
  if (upload->plan == STREAM)
    return 0;
  if (upload->plan == REPLACE) {
    int status = replace(upload, err);
    written->atomic = status == 0;
    written->created = !upload->target.exists;
    if (status <= 0)
      return status;
    files_temp_unname(&upload->temp); /* the directory is the target's, which is let go of now */
    if (look_again(upload, err) < 0)
      return -1;
  }
  return place(upload, content ? content : &taken, locked, written, err);
}

/* ---- what files.h offers ---- */

static int write_content(struct files_upload *upload, const void *bytes, size_t len, bool locked,
                         struct files_written *written, struct error *err) {
  struct files_bytes content = {.bytes = bytes, .len = len, .fd = -1};
  if (upload->plan == STREAM) {
    upload->bytes = len;
    if (files_place_stream(upload->stream, upload->path, bytes, len, err) < 0)
      return -1;
  }
  if (upload->plan == REPLACE && put_temp(upload, bytes, len, err) < 0)
    return -1;
  return commit(upload, upload->plan == IN_PLACE ? &content : NULL, locked, written, err);
}

int files_write(const char *path, const void *bytes, size_t len, const struct files_write_how *how,
                struct files_written *written, struct error *err) {
  struct files_upload upload;
  int status = start(&upload, path, how, err);
  if (status == 0)
    status = write_content(&upload, bytes, len, false, written, err);
  finish(&upload);
  return status;
}

static bool is_same(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
         files_modified(a) == files_modified(b) && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
         a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

int files_write_if_same(const char *path, const void *bytes, size_t len, const struct stat *seen,
                        struct files_written *written, bool *changed, struct error *err) {
  struct files_upload upload;
  struct files_write_how how = {.append = false};
  int status = start(&upload, path, &how, err);
  *changed = false;
  if (status == 0 && upload.plan == REPLACE)
    status = put_temp(&upload, bytes, len, err);
  if (status == 0) {
    struct stat now;
    *changed = stat(path, &now) < 0 || !is_same(seen, &now);
    struct files_bytes content = {.bytes = bytes, .len = len, .fd = -1};
    status = *changed ? -1 : commit(&upload, upload.plan == IN_PLACE ? &content : NULL, true, written, err);
  }
  finish(&upload);
  return status;
}

struct files_upload *files_upload_begin(const char *path, const struct files_write_how *how, struct error *err) {
  struct files_upload *upload = malloc(sizeof *upload);
  if (!upload) {
    error_set_errno(err, ENOMEM, "cannot write %s", path);
    return NULL;
  }
  int status = start(upload, path, how, err);
  if (status == 0 && upload->plan == IN_PLACE && files_temp_open_anonymous(&upload->temp, upload->target.dir) < 0)
    status = error_set_errno(err, errno, "cannot write %s: no place for a temporary file", path);
  if (status == 0)
    return upload;
  files_upload_free(upload);
  return NULL;
}

int files_upload_bytes(struct files_upload *upload, const void *bytes, size_t len, struct error *err) {
  if (upload->plan != STREAM)
    return put_temp(upload, bytes, len, err);
  if (files_place_stream(upload->stream, upload->path, bytes, len, err) < 0)
    return -1;
  upload->bytes += len;
  return 0;
}

int files_upload_commit(struct files_upload *upload, struct files_written *written, struct error *err) {
  return commit(upload, NULL, false, written, err);
}

void files_upload_free(struct files_upload *upload) {
  if (!upload)
    return;
  finish(upload);
  free(upload);
}
