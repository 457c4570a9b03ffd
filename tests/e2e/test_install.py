"""`sandkeeper install DIR`."""

import os
import stat
import subprocess

import pytest
from helpers.agent import BINARY


def install(*arguments, **options):
    return subprocess.run(
        [BINARY, "install", *arguments], capture_output=True, text=True, timeout=60, check=False, **options
    )


@pytest.mark.parametrize("before", ["nothing", "a directory", "an older one", "a read-only one"])
def test_it_puts_itself_there(tmp_path, before):
    directory = tmp_path / "agent"
    target = directory / "sandkeeper"
    if before != "nothing":
        directory.mkdir()
    if before in ("an older one", "a read-only one"):
        target.write_text("old")
        target.chmod(0o400)
    done = install(str(directory))
    assert done.returncode == 0
    assert done.stdout.startswith(f"installed {target}")
    with open(BINARY, "rb") as file:
        assert target.read_bytes() == file.read()
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert os.listdir(directory) == ["sandkeeper"]
    assert subprocess.run([target, "--version"], capture_output=True, timeout=60, check=True).stdout


def test_one_that_runs_is_replaced(tmp_path):
    assert install(str(tmp_path)).returncode == 0
    command = [str(tmp_path / "sandkeeper"), "--listen", f"unix:{tmp_path}/sock", "--log-format", "text"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert "listening" in running.stderr.readline()
            assert install(str(tmp_path)).returncode == 0
        finally:
            running.terminate()
    assert running.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [([], 2), (["a", "b"], 2), (["--force"], 2), ([""], 2), (["missing/deep"], 1), (["/dev/null"], 1), (["x" * 5000], 1)],
)
def test_what_is_wrong_is_said(tmp_path, arguments, code):
    done = install(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_nothing(tmp_path):
    if os.geteuid() != 0:
        pytest.fail("this test mounts a small file system and must run as root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], check=True)
    try:
        done = install(str(tmp_path))
        assert done.returncode == 1
        assert "No space left" in done.stderr
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)
