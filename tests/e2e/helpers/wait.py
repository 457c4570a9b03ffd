"""Waiting for a condition, instead of sleeping and hoping."""

import time


def wait_until(condition, timeout=10.0, what=None, interval=0.01):
    """Calls `condition` until it returns something true, and returns that. Fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            said = what() if callable(what) else what
            raise AssertionError(f"waited {timeout} s for {said or condition}, in vain; last value: {value!r}")
        time.sleep(interval)
