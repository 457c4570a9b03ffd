/* install.c - see install.h. */
#include "sandkeeper/install.h"

#include "sandkeeper/base/error.h"
#include "sandkeeper/base/fdutil.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

static const char program_name[] = "sandkeeper";

static int fail(const char *what, const char *path, int number) {
  error_say("sandkeeper install: %s %s: %s", what, path, strerror(number));
  return 1;
}

/* A dynamic build asks for an interpreter in its program headers; in an image without those libraries it cannot run. */
static bool is_dynamic(void) {
  const ElfW(Phdr) *headers =
      (const ElfW(Phdr) *)getauxval(AT_PHDR); /* NOLINT: the kernel gives an address as a number */
  unsigned long n = getauxval(AT_PHNUM);
  for (unsigned long i = 0; headers && i < n; i++)
    if (headers[i].p_type == PT_INTERP)
      return true;
  return false;
}

/* /proc/self/exe is the very file that runs, also when it was replaced since; without /proc the kernel still says what
 * it was started as. */
static int open_self(void) {
  int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  const char *started_as = (const char *)getauxval(AT_EXECFN); /* NOLINT: as above */
  if (fd < 0 && started_as)
    fd = open(started_as, O_RDONLY | O_CLOEXEC);
  return fd;
}

static int copy(int from, int to) {
  static char buffer[64 * 1024];
  for (;;) {
    ssize_t n = read(from, buffer, sizeof buffer);
    if (n == 0)
      return 0;
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0 || fd_write_all(to, buffer, (size_t)n) < 0)
      return -1;
  }
}

static int install_into(const char *directory) {
  char target[PATH_MAX], temporary[PATH_MAX];
  int target_length = snprintf(target, sizeof target, "%s/%s", directory, program_name);
  int length = snprintf(temporary, sizeof temporary, "%s/.%s.XXXXXX", directory, program_name);
  if (target_length < 0 || length < 0 || (size_t)length >= sizeof temporary)
    return fail("the path is too long:", directory, ENAMETOOLONG);

  cleanup_close int from = open_self();
  if (from < 0)
    return fail("cannot open the program's own file", "/proc/self/exe", errno);
  if (mkdir(directory, 0755) < 0 && errno != EEXIST)
    return fail("cannot make the directory", directory, errno);
  cleanup_close int to = mkostemp(temporary, O_CLOEXEC);
  if (to < 0)
    return fail("cannot write into", directory, errno);

  /* Closed before the rename: a program that is still open for writing cannot be started (ETXTBSY). */
  int number = 0;
  if (copy(from, to) < 0 || fchmod(to, 0755) < 0 || fsync(to) < 0)
    number = errno;
  fd_close(&to);
  if (!number && rename(temporary, target) < 0)
    number = errno;
  if (number) {
    unlink(temporary);
    return fail("cannot write", target, number);
  }
  printf("installed %s%s\n", target,
         is_dynamic() ? " (a dynamic build: it needs its libraries there; the static one needs nothing)" : "");
  return 0;
}

int install_main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "--help")) {
    puts("usage: sandkeeper install DIR\nCopies this program to DIR/sandkeeper.");
    return 0;
  }
  if (argc != 2 || argv[1][0] == '-' || argv[1][0] == '\0') {
    error_say("sandkeeper install: it takes one argument, the directory to copy the program to");
    return 2;
  }
  return install_into(argv[1]);
}
