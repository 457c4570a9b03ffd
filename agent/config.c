/* config.c - a table of options, and one loop over argv and one over the environment that fill struct config from it.
 *
 * Not getopt_long: it takes abbreviations ("--max-c"), which a later option would break, prints its own errors, and
 * differs between glibc and musl.
 */
#include "sandkeeper/config.h"

#include "sandkeeper/base/clock.h"
#include "sandkeeper/base/fdutil.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define K UINT64_C(1024)
#define M (1024 * K)
#define G (1024 * M)
#define HOURS (3600 * (uint64_t)CLOCK_SECOND)
#define YEAR (8760 * HOURS)
#define NAME_MAX_LENGTH 24 /* of an option, without the dashes */

enum option_type {
  OPTION_ACTION, /* no value: --help, --version; not in the environment */
  OPTION_BOOL,   /* no value; in the environment 1, 0, yes, no, true, false */
  OPTION_STRING,
  OPTION_SCRIPT, /* string that may have several lines */
  OPTION_PORT,
  OPTION_COUNT, /* uint32_t, min to max */
  OPTION_SIZE,  /* uint64_t bytes, min to max */
  OPTION_TIME,  /* int64_t ns, min to max */
  OPTION_UMASK,
  OPTION_CHOICE, /* int: the index in `choices` */
  OPTION_WORD,   /* string: one of `choices` */
  OPTION_ORIGIN, /* repeatable */
  OPTION_LISTEN, /* repeatable */
  OPTION_TOKEN_FILE,
};

struct option {
  const char *name;
  enum option_type type;
  size_t field; /* offset in struct config */
  uint64_t min, max;
  const char *takes;   /* NULL: said by the type */
  const char *choices; /* separated by spaces */
};

#define FIELD(name_) offsetof(struct config, name_)

/* In the order of --help. */
static const struct option options[] = {
    {"port", OPTION_PORT, FIELD(port), 0, 65535, NULL, NULL},
    {"listen", OPTION_LISTEN, FIELD(listen), 0, 0, NULL, NULL},
    {"token-file", OPTION_TOKEN_FILE, FIELD(token), 0, 0, NULL, NULL},
    {"allow-origin", OPTION_ORIGIN, FIELD(allow_origin), 0, 0, NULL, NULL},
    {"max-message", OPTION_SIZE, FIELD(max_message), K, G, "a size from 1K to 1G", NULL},
    {"max-buffered", OPTION_SIZE, FIELD(max_buffered), K, 64 * G, "a size from 1K to 64G", NULL},
    {"workdir", OPTION_STRING, FIELD(workdir), 0, 0, "a directory", NULL},
    {"shell", OPTION_STRING, FIELD(shell), 0, 0, "the path of a shell", NULL},
    {"user", OPTION_STRING, FIELD(user), 0, 0, "a user's name or number", NULL},
    {"umask", OPTION_UMASK, FIELD(umask), 0, 0777, NULL, NULL},
    {"max-commands", OPTION_COUNT, FIELD(max_commands), 1, 100000, NULL, NULL},
    {"keep-finished", OPTION_COUNT, FIELD(keep_finished), 0, 100000, NULL, NULL},
    {"log-memory", OPTION_SIZE, FIELD(log_memory), 512 * K, 64 * G, "a size from 512K to 64G", NULL},
    {"stall-timeout", OPTION_TIME, FIELD(stall_timeout), 0, 24 * HOURS, "a time from 0 to 24h", NULL},
    {"file-timeout", OPTION_TIME, FIELD(file_timeout), CLOCK_SECOND / 10, 24 * HOURS, "a time from 0.1 to 24h", NULL},
    {"grace", OPTION_TIME, FIELD(grace), 0, 24 * HOURS, "a time from 0 to 24h", NULL},
    {"prompt-handler", OPTION_SCRIPT, FIELD(prompt_handler), 0, 0, "a command, echo or none", NULL},
    {"prompt-timeout", OPTION_TIME, FIELD(prompt_timeout), 0, 720 * HOURS, "a time from 0 (none) to 720h", NULL},
    {"prompt-concurrency", OPTION_COUNT, FIELD(prompt_concurrency), 1, 1024, NULL, NULL},
    {"prompt-text-type", OPTION_WORD, FIELD(prompt_text_type), 0, 0, NULL, "text text_chunk"},
    {"sandbox-id", OPTION_STRING, FIELD(sandbox_id), 0, 0, "a name without control characters", NULL},
    {"ttl", OPTION_TIME, FIELD(ttl), 0, 10 * YEAR, "a time from 0 (no end) to 87600h", NULL},
    {"preview-url", OPTION_STRING, FIELD(preview_url), 0, 0, "a URL", NULL},
    {"preview-host", OPTION_STRING, FIELD(preview_host), 0, 0, "a host name", NULL},
    {"keep-alive", OPTION_BOOL, FIELD(keep_alive), 0, 0, NULL, NULL},
    {"restart-command", OPTION_BOOL, FIELD(restart_command), 0, 0, NULL, NULL},
    {"log-format", OPTION_CHOICE, FIELD(log_format), 0, 0, NULL, "auto text json"},
    {"log-level", OPTION_CHOICE, FIELD(log_level), 0, 0, NULL, "debug info warn error"},
    {"help", OPTION_ACTION, CONFIG_HELP, 0, 0, NULL, NULL},
    {"version", OPTION_ACTION, CONFIG_VERSION, 0, 0, NULL, NULL},
};
#define N_OPTIONS (sizeof options / sizeof *options)

/* OPTION_CHOICE writes an int; the enums of base/log.h are as wide, and in the order of `choices`. */
_Static_assert(sizeof(enum log_format) == sizeof(int) && sizeof(enum log_level) == sizeof(int), "enum is no int");
_Static_assert(LOG_FORMAT_AUTO == 0 && LOG_FORMAT_TEXT == 1 && LOG_FORMAT_JSON == 2, "order of --log-format");
_Static_assert(LOG_DEBUG == 0 && LOG_INFO == 1 && LOG_WARN == 2 && LOG_ERROR == 3, "order of --log-level");

const char *config_help(void) {
  return "Usage: sandkeeper [OPTION...] [-- COMMAND...]\n"
         "       sandkeeper health [--url URL] [--timeout TIME]\n"
         "       sandkeeper install DIR\n"
         "Runs a sandbox for remote clients; COMMAND is the image's own program, run beside it.\n"
         "\n"
         "Network\n"
         "  --port N                port of the default addresses 0.0.0.0 and [::]; 0 picks one (4001)\n"
         "  --listen ADDR           listen here instead: 127.0.0.1:N, [::1]:N or unix:/path; repeatable\n"
         "  --token-file FILE       clients must show this token (or set SANDKEEPER_TOKEN)\n"
         "  --allow-origin ORIGIN   let web pages from here in: https://example.org, or *; repeatable\n"
         "  --max-message SIZE      longest message of a client (64M)\n"
         "  --max-buffered SIZE     all half-received messages together (256M)\n"
         "Commands\n"
         "  --workdir DIR, --shell PATH, --user NAME, --umask OCTAL\n"
         "                          where and as whom commands run (here, bash or sh, the agent's own)\n"
         "  --max-commands N        commands running at once (1024)\n"
         "  --keep-finished N       ended commands whose output is kept (256)\n"
         "  --log-memory SIZE       memory for the output of all commands (64M)\n"
         "  --stall-timeout TIME    a reader that takes nothing for so long may lose output (10)\n"
         "  --file-timeout TIME     give up on a file operation that hangs (60)\n"
         "  --grace TIME            from SIGTERM to SIGKILL when the agent stops (5)\n"
         "Prompts\n"
         "  --prompt-handler CMD    program that answers POST /prompt, or echo, or none (echo)\n"
         "  --prompt-timeout TIME   longest answer (600)\n"
         "  --prompt-concurrency N  prompts at once (4)\n"
         "  --prompt-text-type T    type of text events: text or text_chunk (text)\n"
         "Sandbox\n"
         "  --sandbox-id ID         its name (SANDBOX_ID, or the host name)\n"
         "  --ttl TIME              stop after so long (0: never)\n"
         "  --preview-url URL, --preview-host HOST\n"
         "                          what clients are told about ports that they may open\n"
         "Agent\n"
         "  --keep-alive            stay when COMMAND ends\n"
         "  --restart-command       start COMMAND again when it ends\n"
         "  --log-format F, --log-level L\n"
         "                          auto, text or json (auto); debug, info, warn or error (info)\n"
         "  --help, --version\n"
         "\n"
         "TIME: seconds, or with s, m, h. SIZE: bytes, or with K, M, G. Each --name is also SANDKEEPER_NAME.\n";
}

const char *config_version(void) {
  return PACKAGE_NAME " " PACKAGE_VERSION "\n";
}

/* --- Values ---------------------------------------------------------------------------------------------------- */

/* Decimal digits from *text on; false when there is none or it overflows. */
static bool take_digits(const char **text, uint64_t *value) {
  const char *p = *text;
  uint64_t sum = 0;
  if (*p < '0' || *p > '9')
    return false;
  for (; *p >= '0' && *p <= '9'; p++)
    if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, (uint64_t)(*p - '0'), &sum))
      return false;
  *text = p;
  *value = sum;
  return true;
}

static bool parse_number(const char *text, uint64_t *value) {
  return take_digits(&text, value) && *text == '\0';
}

static bool parse_size(const char *text, uint64_t *value) {
  if (!take_digits(&text, value))
    return false;
  uint64_t unit = 1;
  if (*text == 'K' || *text == 'k')
    unit = K;
  else if (*text == 'M' || *text == 'm')
    unit = M;
  else if (*text == 'G' || *text == 'g')
    unit = G;
  if (unit != 1)
    text++;
  return *text == '\0' && !__builtin_mul_overflow(*value, unit, value);
}

/* "1.5", "90s", "0.5h" to ns. Digits below a nanosecond are dropped. */
static bool parse_time(const char *text, uint64_t *value) {
  uint64_t whole, fraction = 0, unit = 1;
  if (!take_digits(&text, &whole))
    return false;
  if (*text == '.') {
    uint64_t digit_value = (uint64_t)CLOCK_SECOND / 10;
    text++;
    if (*text < '0' || *text > '9')
      return false;
    for (; *text >= '0' && *text <= '9'; text++, digit_value /= 10)
      fraction += digit_value * (uint64_t)(*text - '0');
  }
  if (*text == 's' || *text == 'm' || *text == 'h') {
    unit = *text == 's' ? 1 : *text == 'm' ? 60 : 3600;
    text++;
  }
  return *text == '\0' && !__builtin_mul_overflow(whole, unit * (uint64_t)CLOCK_SECOND, value) &&
         !__builtin_add_overflow(*value, fraction * unit, value);
}

static bool parse_umask(const char *text, int *mask) {
  size_t length = strlen(text);
  if (length < 1 || length > 4 || strspn(text, "01234567") != length)
    return false;
  long value = strtol(text, NULL, 8);
  *mask = (int)value;
  return value <= 0777;
}

static bool parse_bool(const char *text, bool *value) {
  *value = !strcmp(text, "1") || !strcmp(text, "yes") || !strcmp(text, "true");
  return *value || !strcmp(text, "0") || !strcmp(text, "no") || !strcmp(text, "false");
}

/* The index of a word in a list that is separated by spaces, or -1. */
static int find_choice(const char *choices, const char *word) {
  size_t length = strlen(word);
  for (int index = 0;; index++) {
    size_t n = strcspn(choices, " ");
    if (length && n == length && !memcmp(choices, word, n))
      return index;
    if (choices[n] == '\0')
      return -1;
    choices += n + 1;
  }
}

static bool has_control_character(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 0x20 || *text == 0x7f)
      return true;
  return false;
}

/* "*", or scheme://host[:port] as a browser's Origin header says it: no path, no comma (RFC 6454 section 7). */
static bool is_origin(const char *text) {
  if (!strcmp(text, "*"))
    return true;
  const char *host = strstr(text, "://");
  return host && host != text && host[3] != '\0' && !strpbrk(host + 3, "/?#") && !strpbrk(text, " ,\"") &&
         !has_control_character(text);
}

/* Numeric addresses only: a resolver would bring in NSS, and a name can change. */
static bool parse_listen(const char *text, struct config_listen *listen) {
  struct sockaddr_un *local = (struct sockaddr_un *)&listen->address;
  struct sockaddr_in *v4 = (struct sockaddr_in *)&listen->address;
  struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&listen->address;
  char host[INET6_ADDRSTRLEN];
  uint64_t port;

  memset(&listen->address, 0, sizeof listen->address);
  if (!strncmp(text, "unix:", 5)) {
    const char *path = text + 5;
    size_t length = strlen(path);
    if (*path != '/' || length >= sizeof local->sun_path || has_control_character(path))
      return false;
    local->sun_family = AF_UNIX;
    memcpy(local->sun_path, path, length + 1);
    listen->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1);
    return true;
  }
  bool bracketed = *text == '[';
  const char *start = text + bracketed, *end = strchr(start, bracketed ? ']' : ':');
  const char *colon = end ? end + bracketed : NULL;
  if (!end || *colon != ':' || (size_t)(end - start) >= sizeof host || !parse_number(colon + 1, &port) || port > 65535)
    return false;
  memcpy(host, start, (size_t)(end - start));
  host[end - start] = '\0';
  if (bracketed) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons((uint16_t)port);
    listen->length = sizeof *v6;
    return inet_pton(AF_INET6, host, &v6->sin6_addr) == 1;
  }
  v4->sin_family = AF_INET;
  v4->sin_port = htons((uint16_t)port);
  listen->length = sizeof *v4;
  return inet_pton(AF_INET, host, &v4->sin_addr) == 1;
}

static int no_memory(struct error *err) {
  return error_set(err, ERROR_INTERNAL, ENOMEM, "no memory for the options");
}

/* Replaces an owned string. */
static int set_string(char **place, const char *value, struct error *err) {
  char *copy = strdup(value);
  if (!copy)
    return no_memory(err);
  free(*place);
  *place = copy;
  return 0;
}

/* --- The token --------------------------------------------------------------------------------------------------- */

/* A header's value, and a word behind "Bearer": visible ASCII. */
static bool is_token(const char *text) {
  size_t length = strlen(text);
  if (length == 0 || length > CONFIG_TOKEN_MAX)
    return false;
  for (; *text; text++)
    if (*text < 0x21 || *text > 0x7e)
      return false;
  return true;
}

#define TOKEN_TAKES "takes 1 to 1024 visible ASCII characters without spaces"

static void wipe(void *memory, size_t length) {
  explicit_bzero(memory, length);
}

static void drop_token(struct config *config) {
  if (config->token)
    wipe(config->token, strlen(config->token));
  free(config->token);
  config->token = NULL;
}

/* `source` is what the error names; the token itself is never in an error. */
static int set_token(struct config *config, const char *source, const char *token, struct error *err) {
  if (!is_token(token))
    return error_set(err, ERROR_INVALID, 0, "%s: the token is not usable; it " TOKEN_TAKES, source);
  drop_token(config);
  return set_string(&config->token, token, err);
}

static int read_token_file(struct config *config, const char *source, const char *path, struct error *err) {
  char text[CONFIG_TOKEN_MAX + 3]; /* "\r\n" and NUL */
  ssize_t length = fd_read_file(path, text, sizeof text);
  if (length < 0 && errno != EFBIG)
    return error_set_errno(err, errno, "%s: cannot read the token from '%s'", source, path);
  if (length < 0 || strlen(text) != (size_t)length)
    length = 0; /* too long, or with a NUL inside */
  text[length] = '\0';
  if (length > 0 && text[length - 1] == '\n')
    text[--length] = '\0';
  if (length > 0 && text[length - 1] == '\r')
    text[--length] = '\0';
  int result = 0;
  if (!is_token(text))
    result = error_set(err, ERROR_INVALID, 0, "%s: '%s' holds no usable token; it " TOKEN_TAKES, source, path);
  else
    result = set_token(config, source, text, err);
  wipe(text, sizeof text);
  return result;
}

/* Takes the token out of the environment: a copy, or NULL when there is none. The kernel shows /proc/PID/environ from
 * the process's own first pages, so the bytes are overwritten where they are. */
static int take_token_variable(char **token, struct error *err) {
  char *value = getenv("SANDKEEPER_TOKEN");
  int result = value ? set_string(token, value, err) : 0;
  if (value)
    wipe(value, strlen(value));
  unsetenv("SANDKEEPER_TOKEN");
  return result;
}

/* --- Options ----------------------------------------------------------------------------------------------------- */

static const struct option *find_option(const char *name, size_t length) {
  for (size_t i = 0; i < N_OPTIONS; i++)
    if (strlen(options[i].name) == length && !memcmp(options[i].name, name, length))
      return &options[i];
  return NULL;
}

/* Flags that take no value. */
static bool is_switch(const struct option *option) {
  return option->type == OPTION_ACTION || option->type == OPTION_BOOL;
}

/* The error for a value that an option does not take. `source` is the flag or the variable. */
static int refuse(const struct option *option, const char *source, const char *value, struct error *err) {
  switch (option->type) {
  case OPTION_PORT:
  case OPTION_COUNT:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes a number from %u to %u", source, value,
                     (unsigned)option->min, (unsigned)option->max);
  case OPTION_SIZE:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes %s, in bytes or with K, M or G", source,
                     value, option->takes);
  case OPTION_TIME:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes %s, in seconds or with s, m or h", source,
                     value, option->takes);
  case OPTION_UMASK:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes an octal number from 0 to 777", source,
                     value);
  case OPTION_BOOL:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes 1, yes, true, 0, no or false", source,
                     value);
  case OPTION_CHOICE:
  case OPTION_WORD:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes one of: %s", source, value,
                     option->choices);
  case OPTION_ORIGIN:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes SCHEME://HOST[:PORT] or *", source, value);
  case OPTION_LISTEN:
    return error_set(err, ERROR_INVALID, 0,
                     "%s: '%s' is not valid; it takes a numeric ADDRESS:PORT, [ADDRESS]:PORT or unix:/PATH", source,
                     value);
  default:
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes %s", source, value, option->takes);
  }
}

static int add_origin(struct config *config, const struct option *option, const char *source, const char *value,
                      struct error *err) {
  if (!is_origin(value))
    return refuse(option, source, value, err);
  if (config->n_allow_origin == CONFIG_ORIGIN_MAX)
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is one too many; at most %d are taken", source, value,
                     CONFIG_ORIGIN_MAX);
  if (set_string(&config->allow_origin[config->n_allow_origin], value, err) < 0)
    return -1;
  config->n_allow_origin++;
  return 0;
}

static int add_listen(struct config *config, const struct option *option, const char *source, const char *value,
                      struct error *err) {
  if (config->n_listen == CONFIG_LISTEN_MAX)
    return error_set(err, ERROR_INVALID, 0, "%s: '%s' is one too many; at most %d are taken", source, value,
                     CONFIG_LISTEN_MAX);
  struct config_listen *listen = &config->listen[config->n_listen];
  if (!parse_listen(value, listen))
    return refuse(option, source, value, err);
  if (set_string(&listen->text, value, err) < 0)
    return -1;
  config->n_listen++;
  return 0;
}

/* Puts one value into its field. */
static int apply(struct config *config, const struct option *option, const char *source, const char *value,
                 struct error *err) {
  char *place = (char *)config + option->field;
  uint64_t number = 0;
  bool good = false;

  switch (option->type) {
  case OPTION_PORT:
  case OPTION_COUNT:
    good = parse_number(value, &number);
    break;
  case OPTION_SIZE:
    good = parse_size(value, &number);
    break;
  case OPTION_TIME:
    good = parse_time(value, &number);
    break;
  case OPTION_UMASK:
    return parse_umask(value, (int *)(void *)place) ? 0 : refuse(option, source, value, err);
  case OPTION_BOOL:
    return parse_bool(value, (bool *)place) ? 0 : refuse(option, source, value, err);
  case OPTION_CHOICE: {
    int index = find_choice(option->choices, value);
    if (index < 0)
      return refuse(option, source, value, err);
    *(int *)(void *)place = index;
    return 0;
  }
  case OPTION_WORD:
    if (find_choice(option->choices, value) < 0)
      return refuse(option, source, value, err);
    return set_string((char **)(void *)place, value, err);
  case OPTION_STRING:
    if (*value == '\0' || has_control_character(value))
      return refuse(option, source, value, err);
    return set_string((char **)(void *)place, value, err);
  case OPTION_SCRIPT:
    if (*value == '\0')
      return refuse(option, source, value, err);
    return set_string((char **)(void *)place, value, err);
  case OPTION_ORIGIN:
    return add_origin(config, option, source, value, err);
  case OPTION_LISTEN:
    return add_listen(config, option, source, value, err);
  case OPTION_TOKEN_FILE:
    return read_token_file(config, source, value, err);
  case OPTION_ACTION:
    return 0;
  }
  if (!good || number < option->min || number > option->max)
    return refuse(option, source, value, err);
  if (option->type == OPTION_PORT)
    *(uint16_t *)(void *)place = (uint16_t)number;
  else if (option->type == OPTION_COUNT)
    *(uint32_t *)(void *)place = (uint32_t)number;
  else if (option->type == OPTION_SIZE)
    *(uint64_t *)(void *)place = number;
  else
    *(int64_t *)(void *)place = (int64_t)number;
  return 0;
}

/* argv up to "--". seen[i] is set for each option that was given. */
static int parse_flags(struct config *config, int argc, char **argv, bool seen[static N_OPTIONS], struct error *err) {
  for (int i = 1; i < argc; i++) {
    const char *argument = argv[i];
    if (!strcmp(argument, "--")) {
      if (i + 1 < argc)
        config->command = argv + i + 1;
      return 0;
    }
    if (strncmp(argument, "--", 2) != 0)
      return error_set(err, ERROR_INVALID, 0, "'%s' is not an option; the image's own command stands behind --",
                       argument);
    const char *name = argument + 2, *value = NULL;
    size_t length = strcspn(name, "=");
    const struct option *option = find_option(name, length);
    if (!option)
      return error_set(err, ERROR_INVALID, 0, "'%.*s' is not an option; --help lists them", (int)length + 2, argument);
    if (name[length] == '=')
      value = name + length + 1;
    char source[NAME_MAX_LENGTH + 3];
    memcpy(source, "--", 2);
    memcpy(source + 2, option->name, strlen(option->name) + 1);

    seen[option - options] = true;
    if (is_switch(option)) {
      if (value)
        return error_set(err, ERROR_INVALID, 0, "%s: '%s' is not valid; it takes no value", source, value);
      if (option->type == OPTION_BOOL)
        *(bool *)((char *)config + option->field) = true;
      else if (config->action == CONFIG_RUN)
        config->action = (enum config_action)option->field;
      continue;
    }
    if (!value)
      value = i + 1 < argc ? argv[++i] : NULL;
    if (!value)
      return error_set(err, ERROR_INVALID, 0, "%s: the value is missing", source);
    if (apply(config, option, source, value, err) < 0)
      return -1;
  }
  return 0;
}

/* Applies each part of a list that is separated by commas. */
static int apply_list(struct config *config, const struct option *option, const char *source, const char *list,
                      struct error *err) {
  cleanup_free char *copy = strdup(list);
  if (!copy)
    return no_memory(err);
  char *rest = copy, *item;
  while ((item = strsep(&rest, ",")))
    if (apply(config, option, source, item + strspn(item, " "), err) < 0)
      return -1;
  return 0;
}

/* The environment, for every option that argv left open. */
static int parse_environment(struct config *config, const bool seen[static N_OPTIONS], struct error *err) {
  for (size_t i = 0; i < N_OPTIONS; i++) {
    const struct option *option = &options[i];
    if (option->type == OPTION_ACTION || seen[i])
      continue;
    char name[sizeof "SANDKEEPER_" + NAME_MAX_LENGTH] = "SANDKEEPER_";
    char *end = name + strlen(name);
    for (const char *p = option->name; *p; p++)
      *end++ = *p == '-' ? '_' : (char)(*p - 'a' + 'A');
    *end = '\0';
    const char *value = getenv(name);
    if (!value || *value == '\0')
      continue;
    /* Kubernetes sets SANDKEEPER_PORT=tcp://10.0.0.1:4001 in every pod beside a service that is named sandkeeper. */
    if (option->type == OPTION_PORT && !strncmp(value, "tcp://", 6))
      continue;
    bool list = option->type == OPTION_LISTEN || option->type == OPTION_ORIGIN;
    if ((list ? apply_list : apply)(config, option, name, value, err) < 0)
      return -1;
  }
  return 0;
}

/* --- The whole --------------------------------------------------------------------------------------------------- */

static int set_defaults(struct config *config, struct error *err) {
  *config = (struct config){
      .action = CONFIG_RUN,
      .port = 4001,
      .max_message = 64 * M,
      .max_buffered = 256 * M,
      .umask = -1,
      .max_commands = 1024,
      .keep_finished = 256,
      .log_memory = 64 * M,
      .stall_timeout = 10 * CLOCK_SECOND,
      .file_timeout = 60 * CLOCK_SECOND,
      .grace = 5 * CLOCK_SECOND,
      .prompt_timeout = 600 * CLOCK_SECOND,
      .prompt_concurrency = 4,
      .log_format = LOG_FORMAT_AUTO,
      .log_level = LOG_INFO,
  };
  if (set_string(&config->prompt_handler, "echo", err) < 0 || set_string(&config->prompt_text_type, "text", err) < 0)
    return -1;
  return 0;
}

static int default_listen(struct config *config, struct error *err) {
  static const char *const hosts[] = {"0.0.0.0", "[::]"};
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    char text[sizeof "0.0.0.0:65535"];
    snprintf(text, sizeof text, "%s:%u", hosts[i], (unsigned)config->port);
    struct config_listen *listen = &config->listen[config->n_listen];
    if (!parse_listen(text, listen))
      return error_set(err, ERROR_INTERNAL, 0, "the default address '%s' is not understood", text);
    if (set_string(&listen->text, text, err) < 0)
      return -1;
    listen->optional = true;
    config->n_listen++;
  }
  return 0;
}

static int default_sandbox_id(struct config *config, struct error *err) {
  const char *given = getenv("SANDBOX_ID");
  char host[HOST_NAME_MAX + 1] = "";
  if (given && *given && !has_control_character(given))
    return set_string(&config->sandbox_id, given, err);
  if (gethostname(host, sizeof host - 1) == 0 && *host && !has_control_character(host))
    return set_string(&config->sandbox_id, host, err);
  return set_string(&config->sandbox_id, "sandbox", err);
}

/* What follows from the options together. */
static int complete(struct config *config, struct error *err) {
  if (config->max_buffered < config->max_message)
    return error_set(err, ERROR_INVALID, 0,
                     "--max-buffered: '%llu' is not valid; it takes at least --max-message, which is %llu",
                     (unsigned long long)config->max_buffered, (unsigned long long)config->max_message);
  if (config->n_listen == 0 && default_listen(config, err) < 0)
    return -1;
  if (!config->sandbox_id && default_sandbox_id(config, err) < 0)
    return -1;
  return 0;
}

int config_parse(struct config *config, int argc, char **argv, struct error *err) {
  bool seen[N_OPTIONS] = {false};
  char *token = NULL;
  int result = -1;
  /* The token first: it must be gone from the environment even when something else is wrong. */
  if (set_defaults(config, err) < 0 || take_token_variable(&token, err) < 0 ||
      parse_flags(config, argc, argv, seen, err) < 0)
    goto out;
  /* Help and version must work in a container whose environment is wrong. */
  if (config->action != CONFIG_RUN) {
    result = 0;
    goto out;
  }
  if (parse_environment(config, seen, err) < 0)
    goto out;
  if (token && !config->token && set_token(config, "SANDKEEPER_TOKEN", token, err) < 0)
    goto out;
  result = complete(config, err);
out:
  if (token)
    wipe(token, strlen(token));
  free(token);
  return result;
}

void config_free(struct config *config) {
  drop_token(config);
  for (size_t i = 0; i < config->n_listen; i++)
    free(config->listen[i].text);
  for (size_t i = 0; i < config->n_allow_origin; i++)
    free(config->allow_origin[i]);
  free(config->workdir);
  free(config->shell);
  free(config->user);
  free(config->prompt_handler);
  free(config->prompt_text_type);
  free(config->sandbox_id);
  free(config->preview_url);
  free(config->preview_host);
  *config = (struct config){.action = CONFIG_RUN};
}
