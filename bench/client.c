/* client.c - placeholder until the bench client is here. */
#include "measure.h"

int main(void) {
  return 2;
}
