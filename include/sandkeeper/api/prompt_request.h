/* prompt_request.h - the body of POST /prompt, read and checked, and what the handler gets of it. Blocking work, for a
 * worker when it is long; it touches nothing but the struct. */
#ifndef SANDKEEPER_API_PROMPT_REQUEST_H
#define SANDKEEPER_API_PROMPT_REQUEST_H

#include "sandkeeper/base/error.h"
#include "sandkeeper/core/image_type.h"

#include <json-c/json_object.h>
#include <stddef.h>
#include <stdint.h>

#define PROMPT_FILES_MAX 1000 /* file blocks of one prompt */

/* A file block. */
struct prompt_file {
  size_t index;                     /* of the block in the prompt */
  const char *media_type;           /* as the client says; in the tree */
  char found[IMAGE_TYPE_MIME_SIZE]; /* as its content says; empty before prompt_files_*() */
  size_t size;
  char *path; /* NULL: not written */
};

struct prompt_request {
  json_object *root;
  json_object *prompt;  /* a string or an array of blocks; in the tree */
  json_object *options; /* an object, or NULL; in the tree */
  int64_t timeout;      /* ns, of options; 0: none */
  struct prompt_file *files;
  size_t n_files;
  char *directory; /* the private one; NULL: none. The caller removes it: prompt_files_remove() */
};

/* 0, or -1 and ERROR_INVALID with the message for the client. Fine to free after both. */
int prompt_request_parse(struct prompt_request *request, const char *text, size_t len, struct error *err);
void prompt_request_free(struct prompt_request *request);

/* The line for the handler's stdin, with its newline, to be freed: {"prompt":...,"options":...,"files":[...]}. The
 * prompt and the options are as the client sent them. NULL: no memory. */
char *prompt_request_line(const struct prompt_request *request, size_t *len);

/* ---- prompt_files.c ---- */

/* Decodes every file block and looks at its content: `found` and `size` are set. With `write` it also writes them into
 * a new directory, mode 0700, that belongs to `user` (name or uid; NULL: the agent itself), for the handler to read; it
 * is made in $TMPDIR, /tmp, /var/tmp, /dev/shm or the work directory, the first that takes it. -1: ERROR_INVALID names
 * a block and its field; others are of the file system, and nothing is left. */
int prompt_files_decode(struct prompt_request *request, bool write, const char *user, struct error *err);

/* Removes the directory with all that the handler may have put into it. NULL is fine. */
void prompt_files_remove(const char *directory);

#endif
