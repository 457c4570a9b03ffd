/* probe.h - "sandkeeper health": asks a running agent whether it is well, for a HEALTHCHECK line or an exec probe in
 * images that have no curl. Small on purpose: it runs every few seconds, and starts nothing of the agent itself. */
#ifndef SANDKEEPER_PROBE_H
#define SANDKEEPER_PROBE_H

/* argv[0] is "health". Options: --url URL, --timeout TIME, --help. URL is http://HOST[:PORT][/PATH] with a numeric
 * address or "localhost", or unix:/PATH/OF/SOCKET. Without --url it looks where the agent listens by SANDKEEPER_LISTEN
 * and SANDKEEPER_PORT, as an agent in the same container would: the probe of a container has its environment.
 *
 * Prints one line and returns the exit code: 0 when the answer was 200 within the timeout (default 3 s), 1 when not,
 * 2 for a wrong option. */
int probe_main(int argc, char **argv);

#endif
