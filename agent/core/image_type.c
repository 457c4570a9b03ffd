#include "sandkeeper/core/image_type.h"

#include "sandkeeper/base/utf8.h"

#include <errno.h>
#include <magic.h>
#include <pthread.h>
#include <stdalign.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Compiled from data/ by the Makefile. libmagic reads the entries where they lie, so they need a struct's alignment. */
static alignas(16) const uint8_t images[] = {
#include "magic_images.inc"
};
static alignas(16) const uint8_t types[] = {
#include "magic_types.inc"
};

/* Left out: what is slow, opens the file again, guesses too freely (CSV), or parses deep structures of a hostile file.
 */
#define FLAGS                                                                                                 \
  (MAGIC_MIME_TYPE | MAGIC_NO_CHECK_COMPRESS | MAGIC_NO_CHECK_ELF | MAGIC_NO_CHECK_CDF | MAGIC_NO_CHECK_CSV | \
   MAGIC_NO_CHECK_APPTYPE | MAGIC_NO_CHECK_TOKENS)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_status;

/* Bytes that libmagic looks at to tell text from data. It takes 14 times as much memory for that. */
static const size_t encoding_max = 8192;

static void free_handle(void *handle) {
  magic_close(handle);
}

static void make_key(void) {
  key_status = pthread_key_create(&key, free_handle);
}

static magic_t open_handle(struct error *err) {
  magic_t handle = magic_open(FLAGS);
  if (!handle) {
    error_set_errno(err, errno, "libmagic");
    return NULL;
  }
  magic_setparam(handle, MAGIC_PARAM_ENCODING_MAX, &encoding_max);
  /* In this order: the first database that knows the content has the word. */
  void *databases[] = {(void *)(uintptr_t)images, (void *)(uintptr_t)types};
  size_t sizes[] = {sizeof images, sizeof types};
  if (magic_load_buffers(handle, databases, sizes, 2) != 0) {
    const char *why = magic_error(handle);
    error_set(err, ERROR_INTERNAL, 0, "libmagic does not take the embedded database: %s",
              why ? why : "no reason given");
    magic_close(handle);
    return NULL;
  }
  return handle;
}

/* This thread's handle. */
static magic_t handle_of_thread(struct error *err) {
  pthread_once(&once, make_key);
  if (key_status != 0) {
    error_set_errno(err, key_status, "a thread's own libmagic handle");
    return NULL;
  }
  magic_t handle = pthread_getspecific(key);
  if (handle)
    return handle;
  handle = open_handle(err);
  if (!handle)
    return NULL;
  int status = pthread_setspecific(key, handle);
  if (status != 0) {
    error_set_errno(err, status, "a thread's own libmagic handle");
    magic_close(handle);
    return NULL;
  }
  return handle;
}

static void set_mime(struct image_type *type, const char *mime) {
  snprintf(type->mime, sizeof type->mime, "%s", mime);
}

static size_t skip_space(const char *bytes, size_t len, size_t at) {
  while (at < len && (bytes[at] == ' ' || bytes[at] == '\t' || bytes[at] == '\n' || bytes[at] == '\r'))
    at++;
  return at;
}

/* libmagic calls a content JSON after parsing it to its end. The start of a longer one can only look like it: an object
 * with a first key, or an array of strings, objects or arrays. "[section]" is no JSON. */
static bool looks_like_json(const char *bytes, size_t len) {
  size_t at = skip_space(bytes, len, 0);
  if (at >= len || (bytes[at] != '{' && bytes[at] != '['))
    return false;
  bool array = bytes[at] == '[';
  at = skip_space(bytes, len, at + 1);
  if (at >= len)
    return false;
  return bytes[at] == '"' || (array && (bytes[at] == '{' || bytes[at] == '['));
}

int image_type_detect(const void *bytes, size_t len, bool whole, struct image_type *type, struct error *err) {
  type->image = false;
  /* For nothing and for one byte libmagic only says that it is too little. */
  if (len <= 1) {
    bool text = len == 0 || (*(const uint8_t *)bytes < 0x7f && *(const uint8_t *)bytes >= '\t');
    set_mime(type, text ? "text/plain" : "application/octet-stream");
    return 0;
  }
  if (len > IMAGE_TYPE_LOOK) {
    len = IMAGE_TYPE_LOOK;
    whole = false;
  }
  magic_t handle = handle_of_thread(err);
  if (!handle)
    return -1;
  const char *mime = magic_buffer(handle, bytes, len);
  /* A search that fails is a content that it does not know, but for a lack of memory. */
  if (!mime && magic_errno(handle) == ENOMEM)
    return error_set_errno(err, ENOMEM, "libmagic");
  if (!mime || *mime == '\0')
    mime = utf8_valid_prefix(bytes, len) == len ? "text/plain" : "application/octet-stream";
  set_mime(type, mime);
  if (!whole && strcmp(type->mime, "text/plain") == 0 && looks_like_json(bytes, len))
    set_mime(type, "application/json");
  type->image = strncmp(type->mime, "image/", 6) == 0 && strcmp(type->mime, "image/svg+xml") != 0;
  return 0;
}
