#include "sandkeeper/config.h"

extern int config_nothing;
int config_nothing;
