"""The arm64 program, cross-built, under qemu's user emulation. A smoke test: the emulator is no arm64 kernel."""

import os
import shutil
import subprocess
import tempfile

import podman as containers
import pytest
from helpers.client import Client
from helpers.wait import wait_until

PROGRAM = os.path.join(containers.ROOT, "build-static-arm64", "sandkeeper")
QEMU = shutil.which("qemu-aarch64-static")


@pytest.fixture(scope="module")
def agent():
    assert QEMU, "qemu-user-static is missing: scripts/test container installs it"
    with tempfile.TemporaryDirectory(prefix="sandkeeper-arm64-") as directory:
        path = os.path.join(directory, "sock")
        with open(os.path.join(directory, "log"), "w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                [QEMU, PROGRAM, "--listen", f"unix:{path}", "--workdir", directory],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
            try:
                wait_until(lambda: health(path).returncode == 0, 60, lambda: health(path).stdout)
                yield path
            finally:
                process.terminate()
                code = process.wait(60)
            assert code == 0


def health(path):
    return subprocess.run(
        [QEMU, PROGRAM, "health", "--url", f"unix:{path}"], capture_output=True, text=True, timeout=60, check=False
    )


def connect(path):
    return Client("ws://localhost/ws", unix=True, path=path)


def test_it_is_for_arm64():
    with open(PROGRAM, "rb") as file:
        head = file.read(20)
    assert head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == 183  # EM_AARCH64, elf.h


def test_health(agent):
    assert health(agent).stdout.startswith("healthy: ")


def test_files(agent):
    with connect(agent) as client:
        client.call("write", {"path": "file", "content": "text ☕\n"})
        assert client.call("read", {"path": "file"})["content"] == "text ☕\n"
        client.call("write_binary", {"path": "image", "data": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"})
        assert client.call("stat", {"path": "image"})["mime_type"] == "image/png"


def test_exec(agent):
    with connect(agent) as client:
        result = client.exec("echo hi; exit 3", timeout=60)
        assert (result["output"], result["exit_code"]) == ("hi\n", 3)
