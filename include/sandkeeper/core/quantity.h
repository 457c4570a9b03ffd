/* quantity.h - Kubernetes' resource quantities: "2", "500m", "4Gi", "1.5G", "12e6". Pure.
 * https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/ is the grammar. */
#ifndef SANDKEEPER_CORE_QUANTITY_H
#define SANDKEEPER_CORE_QUANTITY_H

#include "sandkeeper/base/error.h"

#include <stdint.h>

/* The quantity times `scale` (1000: in thousandths), rounded up as Kubernetes does. 0, or -1 with ERROR_INVALID, when
 * it is no quantity, zero, negative, or over INT64_MAX; the message begins with `name`, the field it came from. */
int quantity_parse(const char *name, const char *text, uint32_t scale, int64_t *value, struct error *err);

#endif
