#include "sandkeeper/api/prompt_request.h"

#include "sandkeeper/api/params.h"
#include "sandkeeper/api/prompt.h"
#include "sandkeeper/api/rpc_parse.h"
#include "sandkeeper/base/json_check.h"
#include "sandkeeper/base/json_out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The words of strider-sandbox's server; docs/protocol.md, section 5. */
#define NO_PROMPT "Missing or invalid 'prompt' field"

/* The body's limit, and what escapes and the list of files add. */
#define LINE_BYTES_MAX (PROMPT_BODY_MAX * (size_t)3)

static int invalid_block(struct error *err, size_t index, const char *field, const char *takes) {
  return error_set(err, ERROR_INVALID, 0, "prompt[%zu]%s%s: %s", index, *field ? "." : "", field, takes);
}

static const char *string_of(json_object *block, const char *field) {
  json_object *value = json_object_object_get(block, field);
  return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : NULL;
}

static int add_file(struct prompt_request *request, size_t index, const char *media_type, struct error *err) {
  if (request->n_files == PROMPT_FILES_MAX)
    return error_set(err, ERROR_INVALID, 0, "prompt: it takes at most %d file blocks", PROMPT_FILES_MAX);
  if (!request->files && !(request->files = calloc(PROMPT_FILES_MAX, sizeof *request->files)))
    return error_set_errno(err, ENOMEM, "prompt");
  request->files[request->n_files++] = (struct prompt_file){.index = index, .media_type = media_type};
  return 0;
}

static int check_file_block(struct prompt_request *request, size_t index, json_object *block, struct error *err) {
  const char *media_type = string_of(block, "media_type");
  json_object *data = json_object_object_get(block, "data"), *text = json_object_object_get(block, "text");
  if (!media_type || !*media_type)
    return invalid_block(err, index, "media_type", "it takes a media type, such as \"image/png\"");
  if (data && text)
    return invalid_block(err, index, "", "it takes data or text, not both");
  if (!data && !text)
    return invalid_block(err, index, "data", "it is missing; a file block has data (base64) or text");
  if (data && !json_object_is_type(data, json_type_string))
    return invalid_block(err, index, "data", "it takes a string in base64");
  if (text && !json_object_is_type(text, json_type_string))
    return invalid_block(err, index, "text", "it takes a string");
  return add_file(request, index, media_type, err);
}

static int check_block(struct prompt_request *request, size_t index, json_object *block, struct error *err) {
  if (!json_object_is_type(block, json_type_object))
    return invalid_block(err, index, "", "it takes an object");
  const char *type = string_of(block, "type");
  if (type && strcmp(type, "file") == 0)
    return check_file_block(request, index, block, err);
  if (!type || strcmp(type, "text") != 0)
    return invalid_block(err, index, "type", "it takes \"text\" or \"file\"");
  if (!string_of(block, "text"))
    return invalid_block(err, index, "text", "it takes a string");
  return 0;
}

static int check_prompt(struct prompt_request *request, struct error *err) {
  json_object *prompt = json_object_object_get(request->root, "prompt");
  request->prompt = prompt;
  if (json_object_is_type(prompt, json_type_string) && json_object_get_string_len(prompt) > 0)
    return 0;
  if (!json_object_is_type(prompt, json_type_array) || json_object_array_length(prompt) == 0)
    return error_set(err, ERROR_INVALID, 0, NO_PROMPT);
  for (size_t i = 0; i < json_object_array_length(prompt); i++)
    if (check_block(request, i, json_object_array_get_idx(prompt, i), err) < 0)
      return -1;
  return 0;
}

/* As the client sent it, but for whole numbers beyond 64 bits. NULL: no memory. */
static const char *text_of(json_object *value) {
  return json_object_to_json_string_ext(value, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
}

/* json-c takes NaN and "1." and would hand them on; the handler could not read its line. */
static int check_options_text(json_object *options, struct error *err) {
  struct json_member none = {.name = ""};
  const char *text = text_of(options);
  if (!text)
    return error_set_errno(err, ENOMEM, "options");
  if (!json_check_object(text, strlen(text), &none))
    return error_set(err, ERROR_INVALID, 0, "options: a number in it is none of JSON's, such as NaN or Infinity");
  return 0;
}

static int check_options(struct prompt_request *request, struct error *err) {
  if (params_typed(request->root, "options", json_type_object, false, &request->options, err) < 0 ||
      (request->options && check_options_text(request->options, err) < 0))
    return -1;
  if (request->options && params_seconds(request->options, "timeout", &request->timeout, err) < 0)
    return error_wrap(err, "options");
  return 0;
}

int prompt_request_parse(struct prompt_request *request, const char *text, size_t len, struct error *err) {
  *request = (struct prompt_request){0};
  if (rpc_parse(text, len, &request->root, err) < 0)
    return -1;
  if (!json_object_is_type(request->root, json_type_object))
    return error_set(err, ERROR_INVALID, 0, NO_PROMPT);
  if (check_prompt(request, err) < 0)
    return -1;
  return check_options(request, err);
}

void prompt_request_free(struct prompt_request *request) {
  for (size_t i = 0; i < request->n_files; i++)
    free(request->files[i].path);
  free(request->files);
  free(request->directory);
  json_object_put(request->root);
  *request = (struct prompt_request){0};
}

/* ---- the handler's line ---- */

/* Without a value an empty object. */
static void write_value(struct json_out *out, const char *key, json_object *value) {
  const char *text = value ? text_of(value) : "{}";
  json_out_key(out, key);
  if (text)
    json_out_raw(out, text, strlen(text));
  else
    out->buf->failed = true;
}

static void write_file(struct json_out *out, const struct prompt_file *file) {
  json_out_object(out);
  json_out_key(out, "index");
  json_out_uint(out, file->index);
  json_out_key(out, "path");
  json_out_string(out, file->path);
  json_out_key(out, "media_type");
  json_out_string(out, file->media_type);
  json_out_key(out, "found_type");
  json_out_string(out, file->found);
  json_out_key(out, "size");
  json_out_uint(out, file->size);
  json_out_object_end(out);
}

char *prompt_request_line(const struct prompt_request *request, size_t *len) {
  struct buf line;
  struct json_out out;
  buf_init(&line, LINE_BYTES_MAX, 0);
  json_out_begin(&out, &line);
  json_out_object(&out);
  write_value(&out, "prompt", request->prompt);
  write_value(&out, "options", request->options);
  json_out_key(&out, "files");
  json_out_array(&out);
  for (size_t i = 0; i < request->n_files; i++)
    write_file(&out, &request->files[i]);
  json_out_array_end(&out);
  json_out_object_end(&out);
  buf_append(&line, "\n", 1);
  if (json_out_end(&out) < 0) {
    buf_free(&line);
    return NULL;
  }
  *len = line.len;
  return line.data; /* without headroom the data is the allocation */
}
