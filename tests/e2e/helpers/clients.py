"""Test clients in other languages: scripts/build-clients makes them, and a test runs them to their end."""

import json
import os
import subprocess

from .agent import ROOT

BUILT = os.path.join(ROOT, "build-aux", "clients")


def build(client):
    done = subprocess.run(
        [os.path.join(ROOT, "scripts", "build-clients"), client], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"scripts/build-clients {client}: {done.stdout}{done.stderr}"


def run(*words, timeout=100):
    """What the client prints, which is one JSON object."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-4000:]}"
    return json.loads(done.stdout)
