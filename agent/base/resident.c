#include "sandkeeper/base/resident.h"

#include <link.h>
#include <malloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* Code that the linker had to change when it was loaded (DT_TEXTREL) is lost when its pages are dropped. No library of
 * amd64 or arm64 is built so, but it costs little to look. */
static bool has_changed_code(const struct dl_phdr_info *object) {
  for (size_t i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type != PT_DYNAMIC)
      continue;
    for (const ElfW(Dyn) *entry = (const void *)(object->dlpi_addr + segment->p_vaddr); entry->d_tag != DT_NULL;
         entry++)
      if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && entry->d_un.d_val & DF_TEXTREL))
        return true;
  }
  return false;
}

#define RANGES_MAX 256 /* a library has two or three; the program loads some 25 */

struct ranges {
  uintptr_t page;
  size_t n;
  struct {
    uintptr_t start, end;
  } at[RANGES_MAX];
};

/* MADV_DONTNEED on a private mapping forgets what the process has written there, so only segments that were never
 * writable are taken. The linker's read-only-after-relocation data lies in a writable segment. */
static int collect(struct dl_phdr_info *object, size_t size, void *arg) {
  struct ranges *ranges = arg;
  (void)size;
  if (has_changed_code(object))
    return 0;
  for (size_t i = 0; i < object->dlpi_phnum && ranges->n < RANGES_MAX; i++) {
    const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
    if (segment->p_type != PT_LOAD || segment->p_flags & PF_W)
      continue;
    uintptr_t start = (object->dlpi_addr + segment->p_vaddr) & ~(ranges->page - 1);
    uintptr_t end = (object->dlpi_addr + segment->p_vaddr + segment->p_filesz + ranges->page - 1) & ~(ranges->page - 1);
    /* Segments are in the order of their addresses; data may begin on the page on which code ends. */
    if (i + 1 < object->dlpi_phnum && segment[1].p_type == PT_LOAD && segment[1].p_flags & PF_W) {
      uintptr_t data = (object->dlpi_addr + segment[1].p_vaddr) & ~(ranges->page - 1);
      end = end < data ? end : data;
    }
    ranges->at[ranges->n].start = start;
    ranges->at[ranges->n++].end = end;
  }
  return 0;
}

void resident_trim(void) {
  struct ranges ranges = {.page = (uintptr_t)sysconf(_SC_PAGESIZE)};
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  /* First all of them, then drop: reading the next library's headers would bring pages back. */
  dl_iterate_phdr(collect, &ranges);
  for (size_t i = 0; i < ranges.n; i++)
    (void)madvise((void *)ranges.at[i].start, ranges.at[i].end - ranges.at[i].start, MADV_DONTNEED);
}
