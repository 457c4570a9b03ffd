/* The file blocks of a prompt: decoded, looked at, and laid into a directory of their own. Blocking. */
#include "sandkeeper/api/prompt_request.h"
#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/log.h"
#include "sandkeeper/core/files.h"
#include "sandkeeper/core/user.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the directory ---- */

/* Who the handler runs as. */
struct owner {
  bool other; /* than the agent */
  uid_t uid;
  gid_t gid;
};

static int find_owner(const char *user, struct owner *owner, struct error *err) {
  struct user found;
  if (!user)
    return 0;
  if (user_lookup(user, &found, err) < 0)
    return -1;
  *owner = (struct owner){true, found.uid, found.gid};
  user_free(&found);
  return 0;
}

static char *make_in(const char *parent) {
  char path[PATH_MAX];
  int len = snprintf(path, sizeof path, "%s/sandkeeper-prompt-XXXXXX", parent);
  if (len < 0 || (size_t)len >= sizeof path || !mkdtemp(path)) /* mkdtemp(3): mode 0700 */
    return NULL;
  return strdup(path);
}

/* A read-only root may leave few places. */
static int make_directory(struct prompt_request *request, struct error *err) {
  cleanup_free char *here = getcwd(NULL, 0);
  const char *const parents[] = {getenv("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", here};
  for (size_t i = 0; i < sizeof parents / sizeof *parents && !request->directory; i++)
    if (parents[i] && parents[i][0] == '/')
      request->directory = make_in(parents[i]);
  if (!request->directory)
    return error_set_errno(err, errno, "a directory for the prompt's files, in $TMPDIR, /tmp, /var/tmp, /dev/shm or %s",
                           here ? here : ".");
  return 0;
}

/* Last of all: as long as it is the agent's own, nobody can put a link in the place of a file. */
static int give_directory(const struct prompt_request *request, const struct owner *owner, struct error *err) {
  if (owner->other && request->directory && lchown(request->directory, owner->uid, owner->gid) < 0)
    return error_set_errno(err, errno, "%s", request->directory);
  return 0;
}

void prompt_files_remove(const char *directory) {
  struct error err = ERROR_INIT;
  if (directory && files_remove(directory, true, &err) < 0)
    LOG(LOG_WARN, "prompt", "files not removed", LOG_S("directory", directory), LOG_S("error", err.message));
}

/* ---- one file ---- */

/* Programs that look at names get one for the common types. */
static const char *suffix_of(const char *mime) {
  static const struct {
    const char *mime, *suffix;
  } known[] = {
      {"image/png", ".png"},       {"image/jpeg", ".jpg"}, {"image/gif", ".gif"},         {"image/webp", ".webp"},
      {"application/pdf", ".pdf"}, {"text/plain", ".txt"}, {"application/json", ".json"}, {"image/svg+xml", ".svg"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strcmp(mime, known[i].mime) == 0)
      return known[i].suffix;
  return "";
}

static int write_file(const char *path, const void *bytes, size_t len, const struct owner *owner, struct error *err) {
  cleanup_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0 || fd_write_all(fd, bytes, len) < 0 || (owner->other && fchown(fd, owner->uid, owner->gid) < 0))
    return error_set_errno(err, errno, "%s", path);
  return 0;
}

static int write_block(struct prompt_request *request, struct prompt_file *file, const void *bytes,
                       const struct owner *owner, struct error *err) {
  if (asprintf(&file->path, "%s/%zu%s", request->directory, file->index, suffix_of(file->found)) < 0) {
    file->path = NULL;
    return error_set_errno(err, ENOMEM, "prompt[%zu]", file->index);
  }
  return write_file(file->path, bytes, file->size, owner, err);
}

/* The content of a block: its text, or its data decoded into *decoded (to be freed). NULL: an error. */
static const void *content_of(struct prompt_file *file, json_object *block, char **decoded, struct error *err) {
  json_object *text = json_object_object_get(block, "text"), *data = json_object_object_get(block, "data");
  if (text) {
    file->size = (size_t)json_object_get_string_len(text);
    return json_object_get_string(text);
  }
  size_t len = (size_t)json_object_get_string_len(data), bad_at = 0;
  *decoded = malloc(base64_decoded_length(len) + 1);
  if (!*decoded) {
    error_set_errno(err, ENOMEM, "prompt[%zu].data", file->index);
    return NULL;
  }
  ssize_t size = base64_decode(*decoded, json_object_get_string(data), len, &bad_at);
  if (size < 0) {
    error_set(err, ERROR_INVALID, 0, "prompt[%zu].data: it is no base64 at offset %zu", file->index, bad_at);
    return NULL;
  }
  file->size = (size_t)size;
  return *decoded;
}

static int decode_block(struct prompt_request *request, struct prompt_file *file, bool write, const struct owner *owner,
                        struct error *err) {
  cleanup_free char *decoded = NULL;
  struct image_type type;
  const void *bytes = content_of(file, json_object_array_get_idx(request->prompt, file->index), &decoded, err);
  if (!bytes || image_type_detect(bytes, file->size < IMAGE_TYPE_LOOK ? file->size : IMAGE_TYPE_LOOK,
                                  file->size <= IMAGE_TYPE_LOOK, &type, err) < 0)
    return -1;
  memcpy(file->found, type.mime, sizeof file->found);
  return write ? write_block(request, file, bytes, owner, err) : 0;
}

int prompt_files_decode(struct prompt_request *request, bool write, const char *user, struct error *err) {
  struct owner owner = {0};
  int status = find_owner(user, &owner, err);
  if (status == 0 && write && request->n_files > 0)
    status = make_directory(request, err);
  for (size_t i = 0; status == 0 && i < request->n_files; i++)
    status = decode_block(request, &request->files[i], write, &owner, err);
  if (status == 0)
    status = give_directory(request, &owner, err);
  if (status < 0 && request->directory) {
    prompt_files_remove(request->directory);
    free(request->directory);
    request->directory = NULL;
  }
  return status;
}
