/* image_type.h - what a content is: an image that is sent as one, or something else, and its mime type.
 *
 * Names play no part. libmagic looks at the first 64 KiB, with two small databases that are compiled from data/ at
 * build time and embedded (magic_load_buffers). It never loads one by itself: magic_load(NULL) would let the
 * environment variable MAGIC choose the file.
 *
 * libmagic's handle is not for two threads at once, so each thread gets its own at its first call, and it is freed when
 * the thread ends (pthread_key_create). The key is the file's only global. A handle holds about 20 KiB.
 */
#ifndef SANDKEEPER_CORE_IMAGE_TYPE_H
#define SANDKEEPER_CORE_IMAGE_TYPE_H

#include "sandkeeper/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define IMAGE_TYPE_LOOK 65536u /* the first bytes of a content that are enough */
#define IMAGE_TYPE_MIME_SIZE 96

struct image_type {
  bool image;                      /* png, jpeg, gif, webp, bmp, tiff, ico, avif, heic, jxl, psd; SVG is text */
  char mime[IMAGE_TYPE_MIME_SIZE]; /* "image/png", "text/plain", "application/octet-stream" ... */
};

/* Looks at the start of a content, at most IMAGE_TYPE_LOOK bytes of it. `whole`: there is no more. An empty content is
 * text/plain. Any bytes will do. -1 with ERROR_INTERNAL only when there is no memory for the handle or the search. */
int image_type_detect(const void *bytes, size_t len, bool whole, struct image_type *type, struct error *err);

#endif
