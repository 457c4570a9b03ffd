"""The end-to-end tests of tests/e2e once more, inside a container: the shared agent of those tests is the static program as
process 1, and the tests themselves are the image's own command."""

import os
import subprocess
import tempfile
import uuid

import podman as containers
import pytest
from conftest import STATIC


@pytest.mark.timeout(3600)
def test_the_end_to_end_tests_against_process_1():
    directory = tempfile.mkdtemp(prefix="sandkeeper-container-")
    # The agent hands no SANDKEEPER_ variable of its own on to its command, but SANDBOX_ID, which the tests would hand on.
    # Left out is what needs kernel modules or programs that the image has not. What fails is run once more by itself, as
    # scripts/test does it.
    tests = f"""
        cd {containers.ROOT}
        unset SANDBOX_ID
        export SANDKEEPER_BINARY={STATIC} SANDKEEPER_ATTACH=/run/agent PYTHONDONTWRITEBYTECODE=1
        tests() {{
            .venv/bin/python -m pytest -o cache_dir=/run/agent/cache -c tests/pytest.ini tests/e2e --color=no -q \
                -m "not mount and not clients" -k "not promtool" $E2E_ARGUMENTS "$@"
        }}
        tests || {{ echo "once more, only what failed:"; tests --last-failed --last-failed-no-failures none; }}
    """
    script = f"""
        exec >/run/agent/stdout 2>/run/agent/stderr
        exec {STATIC} --log-format json --listen 127.0.0.1:0 --sandbox-id e2e-sandbox --workdir /work -- \
            sh /run/agent/run-tests
    """
    options = {
        "E2E_MARK": uuid.uuid4().hex,
        "E2E_ARGUMENTS": os.environ.get("E2E_ARGUMENTS", ""),
        "CI": os.environ.get("CI", ""),
    }
    with open(os.path.join(directory, "run-tests"), "w", encoding="utf-8") as file:
        file.write(tests)
    name = f"sandkeeper-test-{uuid.uuid4().hex[:12]}"
    os.makedirs(os.path.join(directory, "work"))
    os.chmod(directory, 0o755)
    os.chmod(os.path.join(directory, "work"), 0o777)
    try:
        done = containers.podman(
            "run", "--name", name, "--label", containers.LABEL, "--privileged",
            *containers.MANY_FILES, "--pids-limit", "0",
            "-v", f"{containers.ROOT}:{containers.ROOT}:ro", "-v", f"{STATIC}:{STATIC}:ro",
            "-v", f"{directory}:/run/agent", "-v", f"{directory}/work:/work", "--workdir", containers.ROOT,
            *(word for key, value in options.items() for word in ("--env", f"{key}={value}")),
            "--entrypoint", "/bin/sh", "test/e2e", "-c", script, check=False, timeout=3500,
        )  # fmt: skip
        said = {}
        for stream in ("stdout", "stderr"):
            path = os.path.join(directory, stream)
            if os.path.exists(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    said[stream] = file.read()[-20000:]
        assert done.returncode == 0, f"exit code {done.returncode} {done.stderr}\n{said}".replace("\\n", "\n")
    finally:
        containers.podman("rm", "--force", "--ignore", "--time", "0", name, check=False)
        subprocess.run(["rm", "-rf", directory], check=False)
