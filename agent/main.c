/* main.c - options, build the parts, run, exit code: nothing else. */
#include "sandkeeper/config.h"
#include "sandkeeper/install.h"
#include "sandkeeper/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "health"))
    return probe_main(argc - 1, argv + 1);
  if (argc > 1 && !strcmp(argv[1], "install"))
    return install_main(argc - 1, argv + 1);
  struct error err = ERROR_INIT;
  struct config config;

  if (config_parse(&config, argc, argv, &err) < 0) {
    fprintf(stderr, "sandkeeper: %s\n", err.message);
    config_free(&config);
    return EXIT_USAGE;
  }
  if (config.action != CONFIG_RUN)
    fputs(config.action == CONFIG_HELP ? config_help() : config_version(), stdout);
  config_free(&config);
  return EXIT_SUCCESS;
}
