"""The file calls of the Python SDK."""

import asyncio
import base64
import hashlib
import os
import random
import shutil
import stat
import uuid

import pytest
from helpers.sdk import with_sandbox
from src import SandboxError
from src.types import DownloadEntry, FileOptions, WriteFileEntry

IMAGES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "images")


@pytest.fixture
def work(agent):
    path = os.path.join(agent.workdir, f"sdk-{uuid.uuid4().hex[:12]}")
    os.mkdir(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def put(path, content):
    with open(path, "wb") as file:
        file.write(content)
    return path


def get(path):
    with open(path, "rb") as file:
        return file.read()


def test_write_read_edit(agent, work):
    async def calls(sandbox):
        path = f"{work}/new/t.txt"
        written = await sandbox.write(path, "one\r\ntwo ☕\n")
        assert written.bytes_written == 13
        read = await sandbox.read(path)
        assert (read.type, read.content, read.truncated) == ("text", "one\r\ntwo ☕\n", False)
        assert read.mime_type == "text/plain" and read.data == ""
        edited = await sandbox.edit(path, "two", "2")
        assert path in edited.message
        assert get(path) == "one\r\n2 ☕\n".encode()
        with pytest.raises(SandboxError) as failed:
            await sandbox.edit(path, "three", "3")
        assert failed.value.code == -32005
        with pytest.raises(SandboxError) as failed:
            await sandbox.read(f"{work}/none")
        assert failed.value.code == -32001

    with_sandbox(agent, calls)


def test_read_image(agent, work):
    data = get(f"{IMAGES}/sample.png")

    async def calls(sandbox):
        read = await sandbox.read(put(f"{work}/picture", data))
        assert (read.type, read.mime_type) == ("image", "image/png")
        assert base64.b64decode(read.data) == data
        assert await sandbox.read_to_buffer(f"{work}/picture") == data

    with_sandbox(agent, calls)


def test_an_image_over_1_mib_is_an_error_and_no_dead_connection(agent, work):
    data = get(f"{IMAGES}/sample.png") + bytes(1 << 20)

    async def calls(sandbox):
        path = put(f"{work}/picture", data)
        with pytest.raises(SandboxError) as failed:
            await sandbox.read(path)
        assert failed.value.code == -32006 and "read_stream" in str(failed.value)
        assert (await sandbox.stat(path)).size == len(data)
        assert b"".join([chunk async for chunk in sandbox.read_stream(path)]) == data

    with_sandbox(agent, calls)


def test_write_files_with_modes(agent, work):
    entries = [
        WriteFileEntry(path=f"{work}/a", content=b"\xff\x00binary"),
        WriteFileEntry(path=f"{work}/deep/er/run.sh", content=b"#!/bin/sh\necho run\n", mode=0o755),
        WriteFileEntry(path=f"{work}/secret", content=b"", mode=0o600),
    ]

    async def calls(sandbox):
        await sandbox.write_files(entries)
        for entry in entries:
            assert get(entry.path) == entry.content
            if entry.mode is not None:
                assert stat.S_IMODE(os.stat(entry.path).st_mode) == entry.mode
        done = await sandbox.run_command(f"{work}/deep/er/run.sh")
        assert done.output == "run\n"

    with_sandbox(agent, calls)


def test_read_to_buffer(agent, work):
    async def calls(sandbox):
        assert await sandbox.read_to_buffer(put(f"{work}/f", "häy".encode())) == "häy".encode()
        assert await sandbox.read_to_buffer(f"{work}/none") is None
        with pytest.raises(SandboxError) as failed:
            await sandbox.read_to_buffer(work)
        assert failed.value.code == -32004

    with_sandbox(agent, calls)


def test_upload_and_download(agent, work, tmp_path):
    data = random.Random(4).randbytes(300_000)
    local = put(str(tmp_path / "local"), data)
    text = put(str(tmp_path / "text"), b"some text\n")

    async def calls(sandbox):
        await sandbox.upload_file(local, f"{work}/up/load", FileOptions(mkdir_recursive=True))
        assert get(f"{work}/up/load") == data
        await sandbox.upload_file(text, f"{work}/text")
        saved = await sandbox.download_file(
            f"{work}/text", str(tmp_path / "down" / "text"), FileOptions(mkdir_recursive=True)
        )
        assert saved == str(tmp_path / "down" / "text") and get(saved) == b"some text\n"
        assert await sandbox.download_file(f"{work}/none", str(tmp_path / "x")) is None

    with_sandbox(agent, calls)


def test_download_files(agent, work, tmp_path):
    contents = {f"{work}/{i}": f"file {i}\n".encode() * (i + 1) for i in range(20)}
    for path, content in contents.items():
        put(path, content)

    async def calls(sandbox):
        entries = [DownloadEntry(path, str(tmp_path / os.path.basename(path))) for path in contents]
        saved = await sandbox.download_files(entries)
        assert set(saved) == set(contents)
        for path, content in contents.items():
            assert get(saved[path]) == content

    with_sandbox(agent, calls)


@pytest.mark.parametrize("chunk_size, size", [(1, 2000), (7, 10_000), (65536, 5_000_001), (1 << 20, 5_000_001)])
def test_read_stream(agent, work, chunk_size, size):
    data = random.Random(chunk_size).randbytes(size)

    async def calls(sandbox):
        sizes, digest = [], hashlib.sha256()
        async for chunk in sandbox.read_stream(put(f"{work}/f", data), chunk_size):
            sizes.append(len(chunk))
            digest.update(chunk)
        assert digest.digest() == hashlib.sha256(data).digest()
        assert max(sizes) <= chunk_size
        with pytest.raises(SandboxError) as failed:
            async for _ in sandbox.read_stream(f"{work}/none", chunk_size):
                pass
        assert failed.value.code == -32001

    with_sandbox(agent, calls)


def test_several_streams_at_once(agent, work):
    files = {f"{work}/{i}": random.Random(i).randbytes(1_000_000) for i in range(8)}
    for path, data in files.items():
        put(path, data)

    async def collect(sandbox, path):
        return b"".join([chunk async for chunk in sandbox.read_stream(path)])

    async def calls(sandbox):
        read = await asyncio.gather(*(collect(sandbox, path) for path in files))
        assert read == list(files.values())

    with_sandbox(agent, calls)


def test_mkdir_list_stat_exists(agent, work):
    async def calls(sandbox):
        await sandbox.mkdir(f"{work}/a b/c")
        put(f"{work}/a b/f", b"12345")
        os.symlink("f", f"{work}/a b/link")
        entries = await sandbox.list_files(f"{work}/a b")
        assert [(entry.name, entry.path, entry.size, entry.is_dir) for entry in entries if entry.name != "c"] == [
            ("f", f"{work}/a b/f", 5, False),
            ("link", f"{work}/a b/link", 5, False),
        ]
        assert entries[0].name == "c" and entries[0].is_dir and entries[0].modified_at.endswith("Z")
        info = await sandbox.stat(f"{work}/a b/f")
        assert (info.exists, info.is_file, info.is_dir, info.size) == (True, True, False, 5)
        info = await sandbox.stat(f"{work}/none")
        assert (info.exists, info.is_file, info.is_dir, info.size, info.modified_at) == (False, False, False, 0, None)
        assert await sandbox.exists(f"{work}/a b") and not await sandbox.exists(f"{work}/none")

    with_sandbox(agent, calls)
