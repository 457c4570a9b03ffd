#include "sandkeeper/core/files_cleaner.h"

#include "sandkeeper/base/log.h"
#include "sandkeeper/core/files_leftovers.h"

#include <stdlib.h>

struct cleaning {
  struct job job;
  int removed;
};

static void work(struct job *job) {
  ((struct cleaning *)job)->removed = files_leftovers_clean();
}

static void abandon(struct job *job) {
  free(job);
}

static void done(struct job *job, enum job_end end) {
  struct cleaning *cleaning = (struct cleaning *)job;
  if (end == JOB_TIMED_OUT) {
    LOG(LOG_WARN, "files", "temporary files of an earlier run are on a file system that does not answer");
    return;
  }
  if (cleaning->removed > 0)
    LOG(LOG_INFO, "files", "temporary files of an earlier run removed", LOG_I("count", cleaning->removed));
  free(job);
}

void files_cleaner_start(struct workers *workers) {
  if (!files_leftovers_exist())
    return;
  struct cleaning *cleaning = calloc(1, sizeof *cleaning);
  if (!cleaning)
    return;
  cleaning->job = (struct job){.class = JOB_FILE, .work = work, .done = done, .abandon = abandon};
  if (workers_submit(workers, &cleaning->job, NULL, false, NULL) < 0)
    free(cleaning);
}
