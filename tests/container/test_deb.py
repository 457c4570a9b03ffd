"""The Debian package: made by scripts/build-deb, without a complaint from lintian, installed and removed."""

import os
import subprocess

import podman as containers
import pytest


@pytest.fixture(scope="module")
def package():
    done = subprocess.run(
        [os.path.join(containers.ROOT, "scripts", "build-deb")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return os.path.join(containers.ROOT, done.stdout.strip().splitlines()[-1])


def test_lintian_finds_no_error(package):
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error", package], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(300)
def test_it_installs_runs_and_goes(package):
    script = """
        set -e
        apt-get -qq update
        apt-get -qq install -y --no-install-recommends /package.deb >/dev/null
        sandkeeper --version
        dpkg -L sandkeeper | sort > /listed
        sandkeeper --listen unix:/tmp/sock & agent=$!
        for i in $(seq 100); do sandkeeper health --url unix:/tmp/sock && break || sleep 0.1; done
        kill $agent; wait $agent
        apt-get -qq purge -y sandkeeper >/dev/null
        for path in $(cat /listed); do [ -d $path ] || [ ! -e $path ] || { echo "left: $path"; exit 1; }; done
        ! command -v sandkeeper
        echo gone
    """
    done = containers.podman(
        "run", "--rm", "--network", "host", "--label", containers.LABEL, "-v", f"{package}:/package.deb:ro",
        "debian:bookworm-slim", "sh", "-c", script, timeout=280,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0].startswith("sandkeeper ")
    assert any(line.startswith("healthy: unix:/tmp/sock") for line in lines), done.stdout + done.stderr
    assert lines[-1] == "gone"
