"""Words that no other process on the machine uses, so that a look into /proc finds only ours."""

import random

_random = random.SystemRandom()


def unique_seconds(whole=700):
    """An argument for sleep(1)."""
    return f"{whole}.{_random.randrange(10**9):09d}"


def unique_cmd_id(start="e2e"):
    return f"{start}-{_random.randrange(10**12)}"
