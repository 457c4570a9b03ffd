/* Images are told by content (docs/protocol.md, 4.6). */
#include "sandkeeper/core/image_type.h"

#include "scratch.h"

#include <pthread.h>
#include <stdint.h>

static const struct {
  const char *file, *mime;
} images[] = {
    {"sample.png", "image/png"},    {"sample.jpeg", "image/jpeg"},
    {"sample.gif", "image/gif"},    {"sample.webp", "image/webp"},
    {"sample.bmp", "image/bmp"},    {"sample.tiff", "image/tiff"},
    {"big.tiff", "image/tiff"},     {"sample.ico", "image/vnd.microsoft.icon"},
    {"sample.avif", "image/avif"},  {"mif1.avif", "image/avif"},
    {"sample.heic", "image/heic"},  {"sample.jxl", "image/jxl"},
    {"container.jxl", "image/jxl"}, {"sample.psd", "image/vnd.adobe.photoshop"},
};

static char *sample(const char *name, size_t *len) {
  char path[PATH_MAX];
  const char *top = getenv("top_srcdir");
  snprintf(path, sizeof path, "%s/tests/data/images/%s", top ? top : ".", name);
  return get(path, len);
}

static struct image_type detect(const void *bytes, size_t len) {
  struct image_type type;
  struct error err = ERROR_INIT;
  if (image_type_detect(bytes, len, true, &type, &err) < 0)
    ck_abort_msg("%s", err.message);
  return type;
}

START_TEST(test_image) {
  size_t len;
  char *bytes = sample(images[_i].file, &len);
  struct image_type type = detect(bytes, len);
  ck_assert_str_eq(type.mime, images[_i].mime);
  REQUIRE(type.image);
  free(bytes);
}
END_TEST

/* Cut anywhere it must not crash, and never become another kind of image. */
START_TEST(test_truncated_image) {
  size_t len;
  char *bytes = sample(images[_i].file, &len);
  for (size_t n = 0; n < len; n++) {
    char *exact = malloc(n + 1); /* so that a sanitizer sees a read behind it */
    REQUIRE(exact);
    memcpy(exact, bytes, n);
    struct image_type type = detect(exact, n);
    if (type.image)
      ck_assert_msg(strcmp(type.mime, images[_i].mime) == 0 || strcmp(type.mime, "image/heif") == 0, "%zu bytes: %s", n,
                    type.mime);
    free(exact);
  }
  free(bytes);
}
END_TEST

static const struct {
  const char *bytes, *mime;
} texts[] = {
    {"", "text/plain"},
    {"a", "text/plain"},
    {"\n", "text/plain"},
    {"plain \xe2\x98\x95 text\n", "text/plain"},
    {"BMW is a car, and this line is long enough to look like a header\n", "text/plain"},
    {"GIF is a format\n", "text/plain"},
    {"II* is no header, MM too\n", "text/plain"},
    {"RIFF1234WEBPages are texts\n", "text/plain"},
    {"8BPS\n", "text/plain"},
    {"    ftyping is hard\n", "text/plain"},
    {"<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>", "image/svg+xml"},
    {"\xef\xbb\xbf<svg width=\"1\"/>", "image/svg+xml"},
    {"\n  <svg width=\"1\"/>", "image/svg+xml"},
    {"<?xml version=\"1.0\"?>\n<svg/>", "image/svg+xml"},
    {"<!-- drawn by hand -->\n<svg/>", "image/svg+xml"},
    {"<!DOCTYPE svg PUBLIC \"-//W3C//DTD SVG 1.1//EN\">\n<svg/>", "image/svg+xml"},
    {"<?xml version=\"1.0\"?>\n<root/>", "text/xml"},
    {"<!doctype html>\n<p>", "text/html"},
    {"{\"a\": [1, 2]}\n", "application/json"},
    {"[section]\nkey = value\n", "text/plain"},
    {"#!/usr/bin/env python3\nprint()\n", "text/x-python"},
    {"#!/bin/sh\necho\n", "text/x-shellscript"},
    {"%PDF-1.7\n", "application/pdf"},
    {"PK\3\4\24", "application/zip"},
    {"SQLite format 3", "text/plain"},
};

START_TEST(test_text) {
  struct image_type type = detect(texts[_i].bytes, strlen(texts[_i].bytes));
  ck_assert_str_eq(type.mime, texts[_i].mime);
  REQUIRE(!type.image);
}
END_TEST

START_TEST(test_zeros) {
  char *zeros = calloc(1, IMAGE_TYPE_LOOK);
  REQUIRE(zeros);
  for (size_t len = IMAGE_TYPE_LOOK; len > 0; len /= 2) {
    struct image_type type = detect(zeros, len);
    ck_assert_str_eq(type.mime, "application/octet-stream");
    REQUIRE(!type.image);
  }
  free(zeros);
}
END_TEST

/* The first kind decides, whatever follows. */
START_TEST(test_polyglot) {
  size_t len;
  char *png = sample("sample.png", &len);
  char *both = malloc(len + 64);
  REQUIRE(both);
  memcpy(both, png, len);
  memcpy(both + len, "PK\3\4<svg/>%PDF-1.7", 19);
  ck_assert_str_eq(detect(both, len + 19).mime, "image/png");
  memcpy(both, "%PDF-1.7\n", 9);
  memcpy(both + 9, png, len);
  struct image_type type = detect(both, len + 9);
  ck_assert_str_eq(type.mime, "application/pdf");
  REQUIRE(!type.image);
  free(both);
  free(png);
}
END_TEST

/* The start of a JSON text that is longer than what is looked at. */
START_TEST(test_long_json) {
  struct image_type type;
  const char text[] = " {\n  \"key\": [\"value\", ";
  REQUIRE(image_type_detect(text, strlen(text), false, &type, NULL) == 0);
  ck_assert_str_eq(type.mime, "application/json");
  REQUIRE(image_type_detect(text, strlen(text), true, &type, NULL) == 0);
  ck_assert_str_eq(type.mime, "text/plain");
}
END_TEST

static uint64_t seed = 11;
static uint8_t random_byte(void) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (uint8_t)(seed >> 56);
}

/* Damaged headers: every sample with random bytes changed. Anything may come out, as long as something does. */
START_TEST(test_damaged) {
  size_t len;
  char *bytes = sample(images[_i].file, &len);
  char *damaged = malloc(len);
  REQUIRE(damaged);
  for (int round = 0; round < 300; round++) {
    memcpy(damaged, bytes, len);
    for (int n = 0; n < 4; n++)
      damaged[random_byte() % (len < 64 ? len : 64)] = (char)random_byte();
    REQUIRE(*detect(damaged, len).mime != '\0');
  }
  free(damaged);
  free(bytes);
}
END_TEST

static void *detect_many(void *arg) {
  size_t len;
  char *bytes = sample(images[0].file, &len);
  for (int i = 0; i < 200; i++)
    if (!detect(bytes, len).image)
      *(bool *)arg = false;
  free(bytes);
  return NULL;
}

START_TEST(test_threads) {
  pthread_t threads[4];
  bool fine[4] = {true, true, true, true};
  for (int i = 0; i < 4; i++)
    REQUIRE(pthread_create(&threads[i], NULL, detect_many, &fine[i]) == 0);
  for (int i = 0; i < 4; i++)
    REQUIRE(pthread_join(threads[i], NULL) == 0 && fine[i]);
}
END_TEST

/* MAGIC names databases for file(1) and for magic_load(NULL); it must mean nothing here. */
START_TEST(test_environment) {
  setenv("MAGIC", "/nonexistent", 1);
  size_t len;
  char *bytes = sample("sample.png", &len);
  REQUIRE(detect(bytes, len).image);
  free(bytes);
}
END_TEST

int main(void) {
  Suite *suite = suite_create("image_type");
  TCase *tests = tcase_create("all");
  tcase_set_timeout(tests, 60);
  int n_images = (int)(sizeof images / sizeof *images);
  tcase_add_loop_test(tests, test_image, 0, n_images);
  tcase_add_loop_test(tests, test_truncated_image, 0, n_images);
  tcase_add_loop_test(tests, test_text, 0, (int)(sizeof texts / sizeof *texts));
  tcase_add_test(tests, test_zeros);
  tcase_add_test(tests, test_polyglot);
  tcase_add_test(tests, test_long_json);
  tcase_add_loop_test(tests, test_damaged, 0, n_images);
  tcase_add_test(tests, test_threads);
  tcase_add_test(tests, test_environment);
  suite_add_tcase(suite, tests);
  return run_suite(suite);
}
