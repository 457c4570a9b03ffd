/* install.h - "sandkeeper install DIR": puts a copy of this program into a directory, so that an init container or a
 * volume can bring the agent into any image. */
#ifndef SANDKEEPER_INSTALL_H
#define SANDKEEPER_INSTALL_H

/* argv[0] is "install", argv[1] the directory; it is made when only its last part is missing. The copy is called
 * "sandkeeper" (mode 0755) and appears in one rename: whoever starts it meanwhile gets the old or the new one, whole.
 * Prints one line and returns the exit code: 0, 1 on failure, 2 for wrong arguments. */
int install_main(int argc, char **argv);

#endif
