/* read, write, write_binary, edit, list_files, stat, mkdir, remove, move: docs/protocol.md 4.6. Each has a start, on
 * the loop, that reads the parameters, and a run, on a worker, that does it and writes the result. */
#include "sandkeeper/api/file_job.h"

#include "sandkeeper/api/params.h"
#include "sandkeeper/base/base64.h"
#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"
#include "sandkeeper/base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What stands in an answer beside its content: the other fields, with the longest mime type. */
#define ENVELOPE 512

/* Ends the start of a method: its parameters are read. */
static void start(struct file_job *file, int status, bool changes, const struct error *error) {
  if (status < 0)
    file_job_fail(file, error);
  else
    file_job_start(file, changes);
}

static int parse_path(struct file_job *file, struct error *err) {
  file->path = file_params_path(file->params, "path", err);
  return file->path ? 0 : -1;
}

static void write_empty(struct json_out *out) {
  json_out_object(out);
  json_out_object_end(out);
}

static void write_time(struct json_out *out, int64_t modified) {
  char text[CLOCK_RFC3339_SIZE];
  json_out_key(out, "modified_at");
  if (modified == FILES_TIME_UNKNOWN)
    json_out_null(out);
  else
    json_out_string(out, clock_rfc3339(modified, text));
}

/* ---- read ---- */

/* Writes as much of the text as there is room for; a character of it may take six bytes. */
static void write_text(struct json_out *out, struct files_content *content, size_t room) {
  struct json_text_limit limit = {.encoded = room > ENVELOPE ? room - ENVELOPE : 0, .decoded = SIZE_MAX};
  struct utf8_carry carry = {.len = 0};
  json_out_key(out, "content");
  json_out_text_begin(out);
  size_t taken = json_text_append(out->buf, &carry, content->bytes, content->len, &limit);
  json_text_finish(out->buf, &carry);
  json_out_text_end(out);
  if (taken < content->len) {
    content->truncated = true;
    content->lossy = utf8_valid_prefix(content->bytes, taken) < taken;
  }
  json_out_key(out, "truncated");
  json_out_bool(out, content->truncated);
  if (content->truncated) {
    json_out_key(out, "next_offset");
    json_out_uint(out, content->offset + taken);
  }
  if (content->lossy) {
    json_out_key(out, "lossy");
    json_out_bool(out, true);
  }
}

static int read_run(struct file_job *file, struct json_out *out, struct error *err) {
  size_t budget = file_job_budget(file);
  uint64_t image_max = budget > ENVELOPE ? (budget - ENVELOPE) / 4 * 3 : 0;
  struct files_content content;
  if (files_read(file->path, file->offset, file->limit, image_max, &content, err) < 0)
    return -1;
  json_out_object(out);
  json_out_key(out, "type");
  json_out_string(out, content.type.image ? "image" : "text");
  if (content.type.image) {
    json_out_key(out, "data");
    json_out_base64(out, content.bytes, content.len);
  } else {
    write_text(out, &content, budget);
  }
  json_out_key(out, "size");
  json_out_uint(out, content.size);
  json_out_key(out, "mime_type");
  json_out_string(out, content.type.mime);
  json_out_object_end(out);
  files_content_free(&content);
  return 0;
}

static void read_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, read_run);
  int64_t offset, limit;
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = params_integer(params, "offset", 0, INT64_MAX, 0, &offset, NULL, &error);
  if (status == 0)
    status = params_integer(params, "limit", 1, FILES_TEXT_MAX, FILES_TEXT_MAX, &limit, NULL, &error);
  if (status == 0) {
    file->offset = (uint64_t)offset;
    file->limit = (size_t)limit;
    file->hint = "use read_stream";
  }
  start(file, status, false, &error);
}

/* ---- write, write_binary ---- */

static void write_written(struct json_out *out, const struct files_written *written) {
  json_out_object(out);
  json_out_key(out, "bytes_written");
  json_out_uint(out, written->bytes);
  if (!written->atomic) {
    json_out_key(out, "atomic");
    json_out_bool(out, false);
  }
  json_out_object_end(out);
}

static int write_run(struct file_job *file, struct json_out *out, struct error *err) {
  struct files_written written;
  if (files_write(file->path, file->bytes, file->len, &file->how, &written, err) < 0)
    return -1;
  write_written(out, &written);
  return 0;
}

static void write_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, write_run);
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = params_bytes(params, "content", true, &file->bytes, &file->len, &error);
  if (status == 0)
    status = file_params_how(params, false, &file->how, &error);
  start(file, status, true, &error);
}

static int write_binary_run(struct file_job *file, struct json_out *out, struct error *err) {
  size_t bad;
  cleanup_free char *bytes = malloc(base64_decoded_length(file->len) + 1);
  if (!bytes)
    return error_set_errno(err, ENOMEM, "data");
  ssize_t len = base64_decode(bytes, file->bytes, file->len, &bad);
  if (len < 0)
    return error_set(err, ERROR_INVALID, 0, "data: it is not base64 at character %zu", bad);
  struct files_written written;
  if (files_write(file->path, bytes, (size_t)len, &file->how, &written, err) < 0)
    return -1;
  write_written(out, &written);
  return 0;
}

static void write_binary_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, write_binary_run);
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = params_bytes(params, "data", true, &file->bytes, &file->len, &error);
  if (status == 0)
    status = file_params_how(params, true, &file->how, &error);
  start(file, status, true, &error);
}

/* ---- edit ---- */

static int edit_run(struct file_job *file, struct json_out *out, struct error *err) {
  struct files_edited edited;
  if (files_edit(file->path, file->old_bytes, file->old_len, file->bytes, file->len, file->flag, &edited, err) < 0)
    return -1;
  struct buf message;
  buf_init(&message, ERROR_MESSAGE_MAX + ENVELOPE, 0);
  buf_printf(&message, "edited %s: %llu replacement%s, the first in line %llu", file->path,
             (unsigned long long)edited.count, edited.count == 1 ? "" : "s", (unsigned long long)edited.line);
  json_out_object(out);
  json_out_key(out, "message");
  json_out_bytes(out, message.data, message.len);
  json_out_key(out, "line");
  json_out_uint(out, edited.line);
  json_out_key(out, "count");
  json_out_uint(out, edited.count);
  if (!edited.atomic) {
    json_out_key(out, "atomic");
    json_out_bool(out, false);
  }
  json_out_object_end(out);
  buf_free(&message);
  return 0;
}

static void edit_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, edit_run);
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = params_bytes(params, "old_text", true, &file->old_bytes, &file->old_len, &error);
  if (status == 0)
    status = params_bytes(params, "new_text", true, &file->bytes, &file->len, &error);
  if (status == 0)
    status = params_bool(params, "replace_all", false, &file->flag, &error);
  start(file, status, true, &error);
}

/* ---- list_files ---- */

/* "/" and "/w/" end in the slash that a name needs in front. */
static void write_path(struct json_out *out, const char *directory, const char *name) {
  size_t len = strlen(directory);
  struct utf8_carry carry = {.len = 0};
  json_out_key(out, "path");
  json_out_text_begin(out);
  json_text_append(out->buf, &carry, directory, len, NULL);
  if (len == 0 || directory[len - 1] != '/')
    json_text_append(out->buf, &carry, "/", 1, NULL);
  json_text_append(out->buf, &carry, name, strlen(name), NULL);
  json_text_finish(out->buf, &carry);
  json_out_text_end(out);
}

static void write_entry(struct json_out *out, const char *directory, const struct files_entry *entry) {
  size_t len = strlen(entry->name);
  json_out_object(out);
  json_out_key(out, "name");
  json_out_bytes(out, entry->name, len);
  if (utf8_valid_prefix((const uint8_t *)entry->name, len) < len) {
    json_out_key(out, "name_b64");
    json_out_base64(out, entry->name, len);
  }
  write_path(out, directory, entry->name);
  json_out_key(out, "size");
  json_out_uint(out, entry->size);
  json_out_key(out, "is_dir");
  json_out_bool(out, entry->is_dir);
  write_time(out, entry->modified);
  json_out_key(out, "is_symlink");
  json_out_bool(out, entry->is_symlink);
  json_out_key(out, "mode");
  json_out_uint(out, entry->mode & 07777);
  json_out_object_end(out);
}

static int write_entries(const struct file_job *file, struct json_out *out, const struct files_list *list,
                         struct error *err) {
  /* What stands behind the array: the end of the response. */
  size_t max = out->buf->max > ENVELOPE ? out->buf->max - ENVELOPE : 0;
  size_t i = 0;
  json_out_array(out);
  while (i < list->n && !out->buf->failed && out->buf->len <= max)
    write_entry(out, file->path, &list->entries[i++]);
  json_out_array_end(out);
  if (!out->buf->failed && out->buf->len <= max)
    return 0;
  size_t fit = i > 0 ? i - 1 : 0;
  err->limit = fit;
  return error_set(
      err, ERROR_TOO_LARGE, 0,
      "cannot list %s: %zu entries do not fit into the %zu bytes that this client takes; ask for pages with "
      "limit (%zu fit) and after (the last name of the page before)",
      file->path, list->n, out->buf->max, fit);
}

static int list_run(struct file_job *file, struct json_out *out, struct error *err) {
  struct files_list list;
  if (files_list(file->path, file->after, file->limit, &list, err) < 0)
    return -1;
  int status = write_entries(file, out, &list, err);
  files_list_free(&list);
  return status;
}

static void list_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, list_run);
  int64_t limit;
  bool limited;
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = file_params_name(params, "after", &file->after, &error);
  if (status == 0)
    status = params_integer(params, "limit", 1, INT32_MAX, 0, &limit, &limited, &error);
  if (status == 0)
    file->limit = limited ? (size_t)limit : SIZE_MAX;
  start(file, status, false, &error);
}

/* ---- stat ---- */

static void write_info(struct json_out *out, const struct files_info *info) {
  json_out_key(out, "mode");
  json_out_uint(out, info->st.st_mode & 07777);
  json_out_key(out, "uid");
  json_out_uint(out, info->st.st_uid);
  json_out_key(out, "gid");
  json_out_uint(out, info->st.st_gid);
  json_out_key(out, "mime_type");
  if (info->mime[0])
    json_out_string(out, info->mime);
  else
    json_out_null(out);
}

static int stat_run(struct file_job *file, struct json_out *out, struct error *err) {
  struct files_info info;
  if (files_stat(file->path, &info, err) < 0)
    return -1;
  json_out_object(out);
  json_out_key(out, "exists");
  json_out_bool(out, info.exists);
  json_out_key(out, "is_file");
  json_out_bool(out, info.exists && S_ISREG(info.st.st_mode));
  json_out_key(out, "is_dir");
  json_out_bool(out, info.exists && S_ISDIR(info.st.st_mode));
  json_out_key(out, "size");
  json_out_uint(out, info.exists ? (uint64_t)info.st.st_size : 0);
  write_time(out, info.exists ? files_modified(&info.st) : FILES_TIME_UNKNOWN);
  if (info.exists || info.is_symlink) {
    json_out_key(out, "is_symlink");
    json_out_bool(out, info.is_symlink);
  }
  if (info.exists)
    write_info(out, &info);
  json_out_object_end(out);
  return 0;
}

static void stat_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, stat_run);
  if (file)
    start(file, parse_path(file, &error), false, &error);
}

/* ---- mkdir, remove, move ---- */

static int mkdir_run(struct file_job *file, struct json_out *out, struct error *err) {
  if (files_mkdir(file->path, file->how.has_mode ? &file->how.mode : NULL, err) < 0)
    return -1;
  write_empty(out);
  return 0;
}

static void mkdir_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, mkdir_run);
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = file_params_how(params, false, &file->how, &error);
  start(file, status, true, &error);
}

static int remove_run(struct file_job *file, struct json_out *out, struct error *err) {
  if (files_remove(file->path, file->flag, err) < 0)
    return -1;
  write_empty(out);
  return 0;
}

static void remove_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, remove_run);
  if (!file)
    return;
  int status = parse_path(file, &error);
  if (status == 0)
    status = params_bool(params, "recursive", false, &file->flag, &error);
  start(file, status, true, &error);
}

static int move_run(struct file_job *file, struct json_out *out, struct error *err) {
  if (files_move(file->path, file->destination, file->flag, err) < 0)
    return -1;
  write_empty(out);
  return 0;
}

static void move_start(struct call *call, json_object *params) {
  struct error error = ERROR_INIT;
  struct file_job *file = file_job_new(call, params, move_run);
  if (!file)
    return;
  int status = params_bool(params, "overwrite", false, &file->flag, &error);
  if (status == 0 && !(file->path = file_params_path(params, "source", &error)))
    status = -1;
  if (status == 0 && !(file->destination = file_params_path(params, "destination", &error)))
    status = -1;
  start(file, status, true, &error);
}

const struct method file_methods[] = {
    {"read", read_start},   {"write", write_start},     {"write_binary", write_binary_start},
    {"edit", edit_start},   {"list_files", list_start}, {"stat", stat_start},
    {"mkdir", mkdir_start}, {"remove", remove_start},   {"move", move_start},
    {NULL, NULL},
};
