/* life.h - the sandbox's life as a control plane would see it: its state, its owner, its times. Pure: it is told the
 * time and what has happened, and says what to do; core/sandbox_life.h does it.
 *
 *                 stop, restart            all commands are gone
 *      ACTIVE ----------------> STOPPING ------------------------> STOPPED
 *        ^                          |    (or back, as asked last)     |
 *        '--------------------------'                                 |
 *        '------------------------------------------------------------'  start, restart
 *      any of them -- delete, or the end of its time --> DESTROYING --> the agent ends
 *
 * Calls that come while the commands are being ended are not refused: the last wish counts when they are gone.
 *
 * Owner of the strings: the struct. Times are nanoseconds of wall time since 1970; 0: not set.
 */
#ifndef SANDKEEPER_CORE_LIFE_H
#define SANDKEEPER_CORE_LIFE_H

#include "sandkeeper/base/clock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum life_state { LIFE_ACTIVE, LIFE_STOPPING, LIFE_STOPPED, LIFE_DESTROYING };

/* What the caller has to do after a change. */
enum life_action {
  LIFE_NOTHING,
  LIFE_END,   /* take no new commands, end those there are, then say life_ended() */
  LIFE_ADMIT, /* take commands again */
  LIFE_LEAVE, /* end the agent */
};

/* What a create finds. */
enum life_claim {
  LIFE_UNCLAIMED, /* nobody has it */
  LIFE_OWN,       /* the same user */
  LIFE_TAKEN,     /* another one */
};

/* The SDKs' extend without a time means 12 hours; their server takes at most a day in seconds. */
#define LIFE_EXTEND_DEFAULT (12 * 3600 * CLOCK_SECOND)
#define LIFE_EXTEND_SECONDS_MAX (24 * 3600)
#define LIFE_HOURS_MAX (10 * 366 * 24) /* ours: ten years, so that no sum of times overflows a date */

struct life_label {
  char *name, *value;
};

/* What was asked for, as it was written; NULL: nothing. */
struct life_spec {
  char *cpu, *memory, *image;
};

struct life {
  enum life_state state;
  enum life_state wanted; /* STOPPING: what comes when the commands are gone, STOPPED or ACTIVE */
  char *user_id;          /* NULL: nobody has claimed it */
  struct life_label *labels;
  size_t n_labels;
  struct life_spec spec;
  int64_t created, allocated, expires, last_active;
};

/* ttl: ns until it expires; 0: never. */
void life_init(struct life *life, int64_t now, int64_t ttl);
void life_free(struct life *life);

/* "active", "stopping", "stopped", "destroying". */
const char *life_status(const struct life *life);

enum life_action life_stop(struct life *life);
enum life_action life_start(struct life *life);
enum life_action life_restart(struct life *life);
enum life_action life_destroy(struct life *life);
/* What LIFE_END asked for is done. */
enum life_action life_ended(struct life *life);

enum life_claim life_claim_of(const struct life *life, const char *user_id);
/* It is this user's from now on. 0, or -1 when there is no memory. */
int life_claim(struct life *life, const char *user_id, int64_t now);
/* Nobody's again: what was asked for with the claim could not be done. */
void life_unclaim(struct life *life);

/* Takes the labels over. */
void life_set_labels(struct life *life, struct life_label *labels, size_t n_labels);
void life_labels_free(struct life_label *labels, size_t n_labels);

/* Notes the fields that are not NULL. 0, or -1 when there is no memory; then nothing has changed. */
int life_note_spec(struct life *life, const char *cpu, const char *memory, const char *image);

/* Moves the end: `by` ns behind what it was, or behind now when it has none. */
void life_extend(struct life *life, int64_t now, int64_t by);

#endif
