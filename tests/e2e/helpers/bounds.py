"""What a bound may give away, because the machine is shared and noisy, or because the build is slow on purpose."""

from .agent import SANITIZED

# Added to a promised time. A hang, or a forgotten deadline, is many times longer.
TIME_MARGIN = 2.0 if SANITIZED else 1.0


def memory_kib(kib):
    """A bound on resident memory; ASAN's shadow, red zones and quarantine come on top of it."""
    return kib * 4 if SANITIZED else kib
