/* main.c - options, build the parts, run, exit code: nothing else. */
#include "sandkeeper/config.h"

int main(int argc, char **argv) {
  (void)argc;
  (void)argv;
  return 0;
}
