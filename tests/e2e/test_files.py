"""The file methods over JSON-RPC: docs/protocol.md 4.6, and cases 23 to 28 of docs/cases."""

import base64
import concurrent.futures
import datetime
import hashlib
import json
import os
import random
import shutil
import socket
import stat
import tempfile
import threading
import uuid

import pytest
from helpers.agent import SANITIZED
from helpers.client import RpcError
from helpers.wait import wait_until

IMAGES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "images")
TEXT_MAX = 204800
IMAGE_MAX = 20 * 1024 * 1024


@pytest.fixture
def work(agent):
    """A directory of this test's own, that the agent sees under the same path."""
    path = os.path.join(agent.workdir, f"files-{uuid.uuid4().hex[:12]}")
    os.mkdir(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def put(path, content, mode=None):
    with open(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    if mode is not None:
        os.chmod(path, mode)
    return path


def get(path):
    with open(path, "rb") as file:
        return file.read()


def b64(data):
    return base64.b64encode(data).decode()


def pattern(size, seed=1):
    return random.Random(seed).randbytes(size)


def read_stream(client, path, **params):
    """(bytes, result, sizes of the chunks); checks offsets and the order of what comes."""
    received, sizes, done = [], [], []

    def on_notification(method, fields):
        assert not done, f"{method} after read_stream.done"
        if method == "read_stream.done":
            done.append(fields)
            return
        assert method == "read_stream.chunk"
        data = base64.b64decode(fields["data"], validate=True)
        assert fields["offset"] == params.get("offset", 0) + sum(sizes)
        received.append(data)
        sizes.append(len(data))

    result = client.start("read_stream", {"path": path, **params}, on_notification=on_notification).result(60)
    data = b"".join(received)
    assert done and done[0]["total_bytes"] == len(data) == result["total_bytes"]
    return data, result, sizes


# read


def test_read_text(client, work):
    path = put(f"{work}/t.txt", "one\r\ntwo ☕\n")
    assert client.call("read", {"path": path}) == {
        "type": "text",
        "content": "one\r\ntwo ☕\n",
        "truncated": False,
        "size": 13,
        "mime_type": "text/plain",
    }


def test_read_relative_to_the_work_directory(client, agent, work):
    put(f"{work}/t.txt", "here")
    assert client.call("read", {"path": os.path.relpath(f"{work}/t.txt", agent.workdir)})["content"] == "here"


@pytest.mark.parametrize("size", [TEXT_MAX - 1, TEXT_MAX, TEXT_MAX + 1, TEXT_MAX * 3])
def test_read_text_limit(client, work, size):
    text = ("a" * (size % 3) + "☕" * (size // 3)).encode()
    result = client.call("read", {"path": put(f"{work}/t", text)})
    content = result["content"].encode()
    assert text.startswith(content) and "�" not in result["content"] and "lossy" not in result
    assert result["truncated"] == (size > TEXT_MAX) and result["size"] == size
    assert TEXT_MAX - 3 < len(content) <= TEXT_MAX or content == text


def test_read_in_pages(client, work):
    text = "".join(chr(random.Random(5).choice([0x61, 0xE4, 0x2615, 0x1F600])) for _ in range(5000))
    path = put(f"{work}/t", text)
    for limit in (1, 7, 1000, TEXT_MAX):
        content, offset, pages = "", 0, 0
        while True:
            page = client.call("read", {"path": path, "offset": offset, "limit": limit})
            content += page["content"]
            pages += 1
            if not page["truncated"] or pages >= 300:
                break
            offset = page["next_offset"]
        assert text.startswith(content) if limit < 100 else text == content


def test_read_what_is_no_utf8(client, work):
    result = client.call("read", {"path": put(f"{work}/t", b"a\xffb\0c")})
    assert result["content"] == "a�b\0c" and result["lossy"] is True and result["size"] == 5


def test_read_fits_the_client(agent, work):
    """Control characters take six bytes each in JSON: 200 KiB of them would be over the Python SDK's 1 MiB."""
    path = put(f"{work}/t", b"\1" * TEXT_MAX)
    with agent.connect(user_agent="Python/3.11 websockets/15.0.1") as client:
        result = client.call("read", {"path": path})
        assert client.largest_message <= 1 << 20
        assert result["truncated"] and set(result["content"]) == {"\1"} and len(result["content"]) > 170000
        rest = client.call("read", {"path": path, "offset": result["next_offset"]})
        assert len(result["content"]) + len(rest["content"]) == TEXT_MAX and not rest["truncated"]


IMAGE_TYPES = {
    "sample.png": "image/png",
    "sample.jpeg": "image/jpeg",
    "sample.gif": "image/gif",
    "sample.webp": "image/webp",
    "sample.bmp": "image/bmp",
    "sample.tiff": "image/tiff",
    "sample.ico": "image/vnd.microsoft.icon",
    "sample.avif": "image/avif",
    "sample.heic": "image/heic",
    "sample.jxl": "image/jxl",
    "sample.psd": "image/vnd.adobe.photoshop",
}


@pytest.mark.parametrize("name", IMAGE_TYPES)
def test_read_image(client, work, name):
    data = get(f"{IMAGES}/{name}")
    result = client.call("read", {"path": put(f"{work}/picture.txt", data)})
    assert result == {"type": "image", "data": b64(data), "size": len(data), "mime_type": IMAGE_TYPES[name]}


def test_content_and_not_the_name_tells(client, work):
    assert client.call("read", {"path": put(f"{work}/text.png", "no picture")})["type"] == "text"
    svg = '<svg xmlns="http://www.w3.org/2000/svg"/>'
    result = client.call("read", {"path": put(f"{work}/drawing.svg", svg)})
    assert result["type"] == "text" and result["content"] == svg and result["mime_type"] == "image/svg+xml"


def test_read_large_image(client, work):
    data = get(f"{IMAGES}/sample.png")
    data += bytes(IMAGE_MAX - len(data))
    path = put(f"{work}/large", data)
    assert base64.b64decode(client.call("read", {"path": path})["data"]) == data
    put(path, data + b"x")
    error = client.call_error("read", {"path": path})
    assert error.code == -32006 and error.data["limit"] == IMAGE_MAX and "read_stream" in error.message
    assert path in error.message


def test_image_over_the_message_limit(agent, work):
    data = get(f"{IMAGES}/sample.png") + bytes(1 << 20)
    path = put(f"{work}/large", data)
    with agent.connect("/ws?max_message=1048576") as client:
        error = client.call_error("read", {"path": path})
        assert error.code == -32006 and "read_stream" in error.message
        fits = error.data["limit"]
        put(path, data[:fits])
        assert base64.b64decode(client.call("read", {"path": path})["data"]) == data[:fits]
        assert client.largest_message <= 1 << 20
        put(path, data)
        streamed, result, _ = read_stream(client, path)
        assert streamed == data and result["type"] == "image" and result["mime_type"] == "image/png"
        assert client.largest_message <= 1 << 20


def test_kernel_files(client):
    """Their size is said to be 0 or 4096; they are read to their end."""
    for path in ("/proc/cpuinfo", "/proc/self/status", "/proc/mounts"):
        result = client.call("read", {"path": path})
        assert len(result["content"].encode()) == result["size"] > 0 and not result["truncated"]
    with open("/proc/version", encoding="utf-8") as file:
        assert client.call("read", {"path": "/proc/version"})["content"] == file.read()
    data, result, _ = read_stream(client, "/proc/version")
    assert data == get("/proc/version") and result["total_bytes"] == len(data)


# Case 27


@pytest.fixture
def strange_files(work):
    os.mkfifo(f"{work}/fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{work}/socket")
        yield {
            f"{work}/fifo": -32004,
            f"{work}/socket": -32004,
            "/dev/zero": -32004,
            "/dev/tty": -32004,
            work: -32004,
            "/proc/self/mem": -32000,
        }


@pytest.mark.parametrize("method", ["read", "read_stream"])
def test_case_27_nothing_hangs(client, strange_files, method):
    for path, code in strange_files.items():
        error = client.call_error(method, {"path": path}, timeout=5)
        assert error.code == code and path in error.message, f"{path}: {error}"


def test_case_27_write_and_edit(client, work, strange_files):
    error = client.call_error("write", {"path": f"{work}/fifo", "content": "x"}, timeout=5)
    assert error.code == -32000 and "FIFO" in error.message
    assert client.call_error("write", {"path": f"{work}/socket", "content": "x"}, timeout=5).code == -32004
    assert client.call_error("write", {"path": work, "content": "x"}, timeout=5).code == -32004
    assert client.call_error("write", {"path": "/dev/full", "content": "x"}, timeout=5).code == -32007
    result = client.call("write", {"path": "/dev/null", "content": "x"}, timeout=5)
    assert result == {"bytes_written": 1, "atomic": False}
    for path in strange_files:
        error = client.call_error("edit", {"path": path, "old_text": "a", "new_text": "b"}, timeout=5)
        assert error.code in (-32004, -32000), f"{path}: {error}"


def test_case_27_a_reader_takes_what_is_written_to_a_fifo(client, work):
    os.mkfifo(f"{work}/fifo")
    got = []
    reader = threading.Thread(target=lambda: got.append(get(f"{work}/fifo")))
    reader.start()
    data = pattern(300_000)
    # Until the reader is there the FIFO refuses.
    while True:
        answer = client.start("write_binary", {"path": f"{work}/fifo", "data": b64(data)}).wait()
        if "result" in answer:
            break
        assert answer["error"]["data"]["errno"] == 6
    reader.join(10)
    assert got == [data] and answer["result"] == {"bytes_written": len(data), "atomic": False}


def test_case_27_a_file_that_shrinks_while_streamed(agent, work):
    """The client stops reading, the file is cut, the client goes on: an honest end."""
    size = 64 << 20
    path = f"{work}/shrinking"
    with open(path, "wb") as file:
        file.truncate(size)
    with agent.connect() as client:
        call = client.start("read_stream", {"path": path, "chunk_size": 65536})
        call.wait_for("read_stream.chunk")
        os.truncate(path, 1000)
        result = call.result(60)
        sent = sum(len(base64.b64decode(p["data"])) for name, p in call.notifications if name == "read_stream.chunk")
        assert result["total_bytes"] == sent < size
        assert call.notifications[-1][1]["total_bytes"] == sent


# write, write_binary


def test_write(client, work):
    path = f"{work}/new/deep/t.txt"
    assert client.call("write", {"path": path, "content": "häy\0"}) == {"bytes_written": 5}
    assert get(path) == "häy\0".encode()
    assert stat.S_IMODE(os.stat(path).st_mode) & 0o111 == 0
    assert client.call("write", {"path": path, "content": ""}) == {"bytes_written": 0}
    assert get(path) == b""
    assert os.listdir(f"{work}/new/deep") == ["t.txt"]


def test_write_mode_append_and_offset(client, work):
    path = f"{work}/f"
    client.call("write", {"path": path, "content": "one", "mode": 0o4755})
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o4755
    client.call("write", {"path": path, "content": "two", "append": True})
    client.call("write_binary", {"path": path, "data": b64(b"\xff"), "append": True})
    assert get(path) == b"onetwo\xff"
    assert client.call("write_binary", {"path": path, "data": b64(b"TW"), "offset": 3})["bytes_written"] == 2
    assert get(path) == b"oneTWo\xff"
    client.call("write_binary", {"path": path, "data": b64(b"z"), "offset": 9})
    assert get(path) == b"oneTWo\xff\0\0z"
    client.call("write_binary", {"path": path, "data": "", "mode": 0o600, "fsync": True})
    assert get(path) == b"" and stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_case_28(client, work):
    path = put(f"{work}/f", "x" * 100, 0o640)
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    before = os.stat(path)
    os.symlink("f", f"{work}/link")
    for target in (path, f"{work}/link"):
        assert client.call("write", {"path": target, "content": "0123456789"}) == {"bytes_written": 10}
        assert get(path) == b"0123456789" and os.readlink(f"{work}/link") == "f"
        after = os.stat(path)
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert sorted(os.listdir(work)) == ["f", "link"]


def test_hard_links_stay(client, work):
    put(f"{work}/f", "old and long")
    os.link(f"{work}/f", f"{work}/twin")
    assert client.call("write", {"path": f"{work}/f", "content": "new"}) == {"bytes_written": 3, "atomic": False}
    assert get(f"{work}/twin") == b"new"
    client.call("edit", {"path": f"{work}/twin", "old_text": "new", "new_text": "newer"})
    assert get(f"{work}/f") == b"newer"


@pytest.mark.parametrize("data", ["a", "ab==cd", "YQ=", "YR==", "Y Q==", "YQ==\n", "ä", "-_=="])
def test_bad_base64_writes_nothing(client, work, data):
    put(f"{work}/f", "old")
    error = client.call_error("write_binary", {"path": f"{work}/f", "data": data})
    assert error.code == -32602 and error.message.startswith("data")
    assert get(f"{work}/f") == b"old"


@pytest.mark.parametrize(
    "size",
    [0, 1, 18 * 1024, 65535, 65536, 128 * 1024, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 16 << 20, 40 << 20],
)
def test_case_25_sizes(client, work, size):
    data = pattern(size, size)
    path = f"{work}/binary"
    assert client.call("write_binary", {"path": path, "data": b64(data)}, timeout=60) == {"bytes_written": size}
    assert hashlib.sha256(get(path)).digest() == hashlib.sha256(data).digest()
    streamed, _, _ = read_stream(client, path)
    assert hashlib.sha256(streamed).digest() == hashlib.sha256(data).digest()

    text = b64(data)[:size]
    assert client.call("write", {"path": path, "content": text}, timeout=60) == {"bytes_written": size}
    assert get(path) == text.encode()
    read = client.call("read", {"path": path})
    assert read["content"] == text[:TEXT_MAX] and read["truncated"] == (size > TEXT_MAX) and read["size"] == size


@pytest.mark.parametrize(
    "size, fragment",
    [(5_000, 1), (200_000, 7), (65535, 1000), (65536, 1000), ((1 << 20) + 1, 65536), (16 << 20, 65536), (40 << 20, 1 << 20)],
)
def test_case_25_fragments(agent, work, size, fragment):
    """The same message in one frame and in many."""
    data = pattern(size)
    with agent.connect() as client:
        message = '{"jsonrpc":"2.0","id":"w","method":"write_binary","params":{"path":"%s/f","data":"%s"}}' % (
            work,
            b64(data),
        )
        client.send_raw(message[i : i + fragment] for i in range(0, len(message), fragment))
        answer = client.next_unrouted(60)
        assert answer["result"] == {"bytes_written": len(data)}
    assert get(f"{work}/f") == data


def test_two_writers(agent, work):
    """One of the two contents, never a mixture."""
    path = f"{work}/f"
    with agent.connect() as one, agent.connect() as two:
        for _ in range(20):
            calls = [
                client.start("write", {"path": path, "content": letter * 300_000})
                for client, letter in ((one, "a"), (two, "b"))
            ]
            for call in calls:
                call.result()
            content = get(path)
            assert len(content) == 300_000 and len(set(content)) == 1
    assert os.listdir(work) == ["f"]


def from_each(clients, work):
    """Runs work(client, number) on a thread for each client; raises what one of them raised."""
    with concurrent.futures.ThreadPoolExecutor(len(clients)) as pool:
        for result in [pool.submit(work, client, number) for number, client in enumerate(clients)]:
            result.result(60)


def test_many_writers_stay_atomic(agent, work):
    """A file that another writer replaces at this moment is no reason to write in place."""
    path = f"{work}/f"
    clients = [agent.connect() for _ in range(4)]
    try:

        def write(client, number):
            for _ in range(100 if SANITIZED else 400):
                assert client.call("write", {"path": path, "content": str(number) * 5000}) == {"bytes_written": 5000}

        from_each(clients, write)
    finally:
        for client in clients:
            client.close()


def test_appends_beside_removals(agent, work):
    """An append makes the file, also when it is removed between the look and the open."""
    path = f"{work}/f"
    clients = [agent.connect() for _ in range(4)]
    try:

        def change(client, number):
            for _ in range(100 if SANITIZED else 400):
                if number % 2 == 0:
                    client.call("write", {"path": path, "content": "x", "append": True})
                else:
                    try:
                        client.call("remove", {"path": path})
                    except RpcError as error:
                        assert error.code == -32001

        from_each(clients, change)
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("kind", ["append", "offset"])
def test_a_new_file_extended_by_several_at_once(agent, work, kind):
    """None of them knows that another one makes the file: every part of it is there in the end."""
    clients = [agent.connect() for _ in range(4)]
    try:
        for i in range(20):
            path, calls = f"{work}/f{i}", []
            for n, client in enumerate(clients):
                how = {"append": True} if kind == "append" else {"offset": 10 * n}
                calls.append(client.start("write_binary", {"path": path, "data": b64(b"%d" % n * 10), **how}))
            for call in calls:
                call.result()
            assert sorted(get(path)) == sorted(b"0123" * 10)
    finally:
        for client in clients:
            client.close()


def test_appends_beside_edits_are_kept(agent, work):
    """An append that waits for an edit goes to the file that the edit made, not to the one that it replaced."""
    path = put(f"{work}/f", "count 0\n" + "text\n" * 20_000)
    with agent.connect() as one, agent.connect() as two:
        for i in range(100):
            edit = one.start("edit", {"path": path, "old_text": f"count {i}\n", "new_text": f"count {i + 1}\n"})
            appends = [two.start("write", {"path": path, "content": "+", "append": True}) for _ in range(3)]
            for call in (edit, *appends):
                call.result()
    assert get(path).count(b"+") == 300 and get(path).startswith(b"count 100\n")


def test_order_within_a_connection(client, work):
    """File methods take effect in the order sent, also without waiting for an answer."""
    path = f"{work}/f"
    calls = []
    for i in range(100):
        calls.append(client.start("write", {"path": path, "content": str(i) * (20_000 if i % 7 == 0 else 1)}))
        calls.append(client.start("read", {"path": path, "limit": 10}))
    for i in range(100):
        calls[2 * i].result()
        assert calls[2 * i + 1].result()["content"].startswith(str(i)[0])
    assert get(path) == b"99"


# edit


@pytest.mark.parametrize(
    "before, old, new, after, line",
    [
        (b"a\r\nb\nc\r\n", "b", "B", b"a\r\nB\nc\r\n", 2),
        (b"\xef\xbb\xbfone\ntwo", "two", "2", b"\xef\xbb\xbfone\n2", 2),
        (b"x\n\ny", "\n\n", "\n", b"x\ny", 1),
        (b"\xff tail \xfe", "tail", "\u2615", b"\xff \xe2\x98\x95 \xfe", 1),
        (b"a\0b", "a\0", "", b"b", 1),
    ],
)
def test_case_23(client, work, before, old, new, after, line):
    path = put(f"{work}/f", before, 0o751)
    result = client.call("edit", {"path": path, "old_text": old, "new_text": new})
    assert get(path) == after and result["line"] == line and path in result["message"]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o751 and os.listdir(work) == ["f"]


def test_case_23_conflicts(client, work):
    path = put(f"{work}/f", "one\ntwo\none\n")
    error = client.call_error("edit", {"path": path, "old_text": "one", "new_text": "1"})
    assert error.code == -32005 and error.data["count"] == 2 and error.data["lines"] == [1, 3] and path in error.message
    error = client.call_error("edit", {"path": path, "old_text": "three", "new_text": "3"})
    assert error.code == -32005 and error.data["count"] == 0 and error.data["lines"] == []
    assert client.call_error("edit", {"path": path, "old_text": "", "new_text": "3"}).code == -32602
    assert client.call_error("edit", {"path": f"{work}/no", "old_text": "a", "new_text": "3"}).code == -32001
    assert get(path) == b"one\ntwo\none\n"
    result = client.call("edit", {"path": path, "old_text": "one", "new_text": "1", "replace_all": True})
    assert get(path) == b"1\ntwo\n1\n" and result["count"] == 2


def test_edits_from_several_clients_lose_none(agent, work):
    path = put(f"{work}/f", "a0\nb0\nc0\n")
    clients = {letter: agent.connect() for letter in "abc"}
    for i in range(30):
        calls = [
            client.start("edit", {"path": path, "old_text": f"{letter}{i}\n", "new_text": f"{letter}{i + 1}\n"})
            for letter, client in clients.items()
        ]
        for call in calls:
            call.result()
    for client in clients.values():
        client.close()
    assert get(path) == b"a30\nb30\nc30\n"


# read_stream


@pytest.mark.parametrize("chunk", [1, 7, 65535, 65536, 1 << 20, 4 << 20])
def test_read_stream_chunks(client, work, chunk):
    data = pattern(3000 if chunk < 100 else 9_000_001)
    streamed, result, sizes = read_stream(client, put(f"{work}/f", data), chunk_size=chunk)
    assert streamed == data and result == {
        "type": "text",
        "total_bytes": len(data),
        "mime_type": "application/octet-stream",
    }
    assert set(sizes[:-1]) <= {chunk} and sizes[-1] <= chunk


def test_read_stream_parts(client, work):
    data = pattern(200_000)
    path = put(f"{work}/f", data)
    for offset, length in ((0, 0), (0, 1), (100, 65536), (199_999, 5), (200_000, 5), (10**15, 5), (1, 10**18)):
        streamed, _, _ = read_stream(client, path, offset=offset, length=length)
        assert streamed == data[offset : offset + length], (offset, length)
    streamed, _, _ = read_stream(client, path, offset=123_456)
    assert streamed == data[123_456:]


def test_read_stream_fits_the_client(agent, work):
    data = pattern(5_000_000)
    path = put(f"{work}/f", data)
    with agent.connect(user_agent="Python/3.11 websockets/15.0.1") as client:
        streamed, _, sizes = read_stream(client, path, chunk_size=4 << 20)
        assert streamed == data and client.largest_message <= 1 << 20 and max(sizes) > 700_000


def test_read_stream_to_a_client_that_does_not_read(agent, work):
    """Memory stays flat, and others are served meanwhile."""
    path = f"{work}/f"
    with open(path, "wb") as file:
        file.truncate(400 << 20)
    with agent.connect() as warm:
        read_stream(warm, path, length=10 << 20)
        base = agent.rss_kib()
        with agent.connect() as idle:
            calls = [idle.start("read_stream", {"path": path}) for _ in range(4)]
            calls[0].wait_for("read_stream.chunk")
            for _ in range(50):
                assert warm.call("stat", {"path": path})["size"] == 400 << 20
            limit = 60_000 if SANITIZED else 8_000
            assert agent.rss_kib() < base + limit
            idle.abort()
        assert warm.call("stat", {"path": path})["exists"]


def test_read_streams_share_the_memory(start_agent, work):
    """Thirty large streams of a client that does not read cost what a few do; each comes whole when it reads."""
    agent = start_agent()
    path = f"{work}/f"
    with open(path, "wb") as file:
        file.truncate(5 << 20)
    with agent.connect() as warm, agent.raw(receive_buffer=4096) as slow:
        base = agent.rss_kib()
        for call_id in range(30):
            slow.send_request("read_stream", {"path": path, "chunk_size": 4 << 20}, call_id)
        for _ in range(50):
            assert warm.call("stat", {"path": path})["size"] == 5 << 20
        limit = 400_000 if SANITIZED else 64_000
        assert agent.rss_kib() < base + limit
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        results = {}
        while len(results) < 30:
            message = slow.recv_json()
            if "id" in message:
                results[message["id"]] = message["result"]["total_bytes"]
        assert set(results.values()) == {5 << 20}


def test_read_stream_as_a_notification_sends_nothing(client, work):
    put(f"{work}/f", "x")
    client.notify("read_stream", {"path": f"{work}/f"})
    client.notify("write", {"path": f"{work}/g", "content": "by a notification"})
    assert client.call("read", {"path": f"{work}/g"})["content"] == "by a notification"
    assert client.unrouted == []


# list_files


def test_list_files(client, work):
    put(f"{work}/file", "12345", 0o640)
    os.mkdir(f"{work}/dir", 0o750)
    put(f"{work}/.hidden", "")
    os.symlink("file", f"{work}/to_file")
    os.symlink("dir", f"{work}/to_dir")
    os.symlink("nowhere", f"{work}/dangling")
    os.utime(f"{work}/file", ns=(0, 1_000_000_000_123_456_789))
    entries = client.call("list_files", {"path": work})
    assert [entry["name"] for entry in entries] == [".hidden", "dangling", "dir", "file", "to_dir", "to_file"]
    by_name = {entry["name"]: entry for entry in entries}
    assert by_name["file"] == {
        "name": "file",
        "path": f"{work}/file",
        "size": 5,
        "is_dir": False,
        "modified_at": "2001-09-09T01:46:40.123Z",
        "is_symlink": False,
        "mode": 0o640,
    }
    assert by_name["dir"]["is_dir"] and by_name["dir"]["mode"] == 0o750
    assert by_name["to_file"]["is_symlink"] and by_name["to_file"]["size"] == 5 and not by_name["to_file"]["is_dir"]
    assert by_name["to_dir"]["is_symlink"] and by_name["to_dir"]["is_dir"]
    assert by_name["dangling"]["is_symlink"] and by_name["dangling"]["size"] == 7
    assert client.call("list_files", {"path": f"{work}/dir"}) == []
    assert client.call("list_files", {"path": f"{work}/"})[2]["path"] == f"{work}/dir"


NAMES = [b" ", b"\n", b'"', b"\\", "😀".encode(), b"\xff\x01", b"l" * 255, b"-rf", b"a b\tc", "ä".encode(), b"~"]


def test_case_26(client, work):
    for name in NAMES:
        path = os.path.join(work.encode(), name)
        result = client.call("write", {"path_b64": b64(path), "content": "x" * len(name)})
        assert result["bytes_written"] == len(name)
    assert sorted(os.listdir(work.encode())) == sorted(NAMES)
    entries = client.call("list_files", {"path": work})
    listed = [base64.b64decode(e["name_b64"]) if "name_b64" in e else e["name"].encode() for e in entries]
    assert listed == sorted(NAMES)
    assert [e["name"] for e in entries if "name_b64" in e] == ["�\x01"]
    for entry, name in zip(entries, listed):
        where = {"path_b64": b64(os.path.join(work.encode(), name))}
        if "name_b64" not in entry:
            where = {"path": entry["path"]}
        assert client.call("read", where)["content"] == "x" * len(name)
        assert client.call("stat", where)["size"] == len(name)
        assert read_stream_b64(client, where) == b"x" * len(name)
        client.call("edit", {**where, "old_text": "x" * len(name), "new_text": "y"})
        client.call("remove", where)
    assert os.listdir(work) == []


def read_stream_b64(client, where):
    call = client.start("read_stream", where)
    call.result()
    return b"".join(base64.b64decode(p["data"]) for name, p in call.notifications if name == "read_stream.chunk")


def test_list_files_pages(client, work):
    names = sorted(f"{i}" for i in range(250))
    for name in names:
        put(f"{work}/{name}", "")
    seen, after = [], None
    while True:
        params = {"path": work, "limit": 60} if after is None else {"path": work, "limit": 60, "after": after}
        page = client.call("list_files", params)
        seen += [entry["name"] for entry in page]
        if len(page) < 60:
            break
        after = page[-1]["name"]
    assert seen == names


@pytest.fixture
def in_memory(work):
    """A directory where 200,000 files are made in seconds; a disk may take minutes."""
    path = tempfile.mkdtemp(prefix="sandkeeper-e2e-", dir="/dev/shm") if os.access("/dev/shm", os.W_OK) else work
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_list_files_of_200000_entries(agent, in_memory):
    work = in_memory
    count = 20_000 if SANITIZED else 200_000
    os.mkdir(f"{work}/many")
    directory = os.open(f"{work}/many", os.O_RDONLY)
    for i in range(count):
        os.close(os.open(f"{i:06}", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)
    with agent.connect() as client:
        client.call("list_files", {"path": work})
        base = agent.rss_kib()
        everything = client.start("list_files", {"path": f"{work}/many"})
        slowest = 0.0
        while everything.response is None:
            began = datetime.datetime.now()
            assert agent.http("GET", "/health")[0] == 200
            slowest = max(slowest, (datetime.datetime.now() - began).total_seconds())
            client.take(0.01)
        assert slowest < 1.0, "the loop was held"
        names = [entry["name"] for entry in everything.result()]
        assert names == [f"{i:06}" for i in range(count)]

        page = client.call("list_files", {"path": f"{work}/many", "limit": 5, "after": "012344"})
        assert [entry["name"] for entry in page] == ["012345", "012346", "012347", "012348", "012349"]
        if not SANITIZED:
            assert agent.rss_kib() < base + 4_000, "the memory of the listing did not go back"
    with agent.connect("/ws?max_message=1048576") as small:
        error = small.call_error("list_files", {"path": f"{work}/many"})
        assert error.code == -32006 and "limit" in error.message and "after" in error.message
        page = small.call("list_files", {"path": f"{work}/many", "limit": error.data["limit"]})
        assert len(page) == error.data["limit"] > 1000


# stat


def test_stat(client, work):
    path = put(f"{work}/f.txt", '{"a": 1}', 0o640)
    os.symlink("f.txt", f"{work}/link")
    info = client.call("stat", {"path": path})
    st = os.stat(path)
    modified = datetime.datetime.fromisoformat(info.pop("modified_at").replace("Z", "+00:00")).timestamp()
    assert abs(modified - st.st_mtime) < 0.002
    assert info == {
        "exists": True,
        "is_file": True,
        "is_dir": False,
        "size": 8,
        "is_symlink": False,
        "mode": 0o640,
        "uid": st.st_uid,
        "gid": st.st_gid,
        "mime_type": "application/json",
    }
    link = client.call("stat", {"path": f"{work}/link"})
    assert link["is_symlink"] and link["is_file"] and link["size"] == 8
    directory = client.call("stat", {"path": work})
    assert directory["is_dir"] and not directory["is_file"] and directory["mime_type"] == "inode/directory"
    missing = {"exists": False, "is_file": False, "is_dir": False, "size": 0, "modified_at": None}
    assert client.call("stat", {"path": f"{work}/no"}) == missing
    assert client.call("stat", {"path": f"{path}/below"}) == missing
    os.symlink("nowhere", f"{work}/dangling")
    assert client.call("stat", {"path": f"{work}/dangling"}) == {**missing, "is_symlink": True}
    os.mkfifo(f"{work}/fifo")
    assert client.call("stat", {"path": f"{work}/fifo"}, timeout=5)["mime_type"] == "inode/fifo"


# mkdir, remove, move


def test_mkdir(client, work):
    assert client.call("mkdir", {"path": f"{work}/a/b/c", "mode": 0o700}) == {}
    assert stat.S_IMODE(os.stat(f"{work}/a/b/c").st_mode) == 0o700
    assert client.call("mkdir", {"path": f"{work}/a/b/c"}) == {}
    put(f"{work}/f", "")
    assert client.call_error("mkdir", {"path": f"{work}/f"}).code == -32011
    assert client.call_error("mkdir", {"path": f"{work}/f/g"}).code == -32004


def test_remove(client, work):
    os.makedirs(f"{work}/d/e")
    put(f"{work}/d/e/f", "x")
    put(f"{work}/keep", "x")
    os.symlink(work, f"{work}/d/up")
    error = client.call_error("remove", {"path": f"{work}/d"})
    assert error.code == -32004 and "recursive" in error.message
    assert client.call("remove", {"path": f"{work}/d", "recursive": True}) == {}
    assert os.listdir(work) == ["keep"]
    assert client.call("remove", {"path": f"{work}/keep"}) == {}
    assert client.call_error("remove", {"path": f"{work}/keep"}).code == -32001
    for path in ("/", f"{work}/.", f"{work}/.."):
        assert client.call_error("remove", {"path": path, "recursive": True}).code == -32602
    assert os.path.isdir(work)


def test_move(client, work):
    put(f"{work}/a", "a")
    put(f"{work}/b", "b")
    assert client.call("move", {"source": f"{work}/a", "destination": f"{work}/c"}) == {}
    error = client.call_error("move", {"source": f"{work}/c", "destination": f"{work}/b"})
    assert error.code == -32011 and get(f"{work}/b") == b"b"
    client.call("move", {"source": f"{work}/c", "destination": f"{work}/b", "overwrite": True})
    assert get(f"{work}/b") == b"a" and os.listdir(work) == ["b"]
    assert client.call_error("move", {"source": f"{work}/no", "destination": f"{work}/x"}).code == -32001
    assert client.call_error("move", {"source": f"{work}/b", "destination": f"{work}/no/x"}).code == -32001
    odd = os.path.join(work.encode(), b"\xff")
    client.call("move", {"source": f"{work}/b", "destination_b64": b64(odd)})
    assert get(odd) == b"a"


# Wrong parameters and errors, the same for every method


METHODS = {
    "read": {},
    "write": {"content": "x"},
    "write_binary": {"data": "eA=="},
    "edit": {"old_text": "a", "new_text": "b"},
    "read_stream": {},
    "list_files": {},
    "stat": {},
    "mkdir": {},
    "remove": {},
}


@pytest.mark.parametrize("method", METHODS)
def test_wrong_paths(client, work, method):
    for where, field in (
        ({}, "path"),
        ({"path": 5}, "path"),
        ({"path": ["a"]}, "path"),
        ({"path": ""}, "path"),
        ({"path": "a\0b"}, "path"),
        ({"path_b64": "?"}, "path_b64"),
        ({"path_b64": ""}, "path"),
        ({"path": "a", "path_b64": "YQ=="}, "path"),
    ):
        error = client.call_error(method, {**METHODS[method], **where})
        assert error.code == -32602 and field in error.message, f"{where}: {error}"
    error = client.call_error(method, {**METHODS[method], "path": f"{work}/{'n' * 256}"})
    assert error.code == -32000 and error.data["errno"] == 36 and "nnn" in error.message
    error = client.call_error(method, {**METHODS[method], "path": "/" + "d/" * 3000})
    assert error.code == -32000 and error.data["errno"] == 36


@pytest.mark.parametrize("method", METHODS)
def test_path_errors(client, work, method):
    os.symlink("loop", f"{work}/loop")
    put(f"{work}/file", "a")
    loop = client.start(method, {**METHODS[method], "path": f"{work}/loop/x"}).wait()
    assert loop["error"]["data"]["errno"] == 40 and f"{work}/loop" in loop["error"]["message"]
    below = client.start(method, {**METHODS[method], "path": f"{work}/file/x"}).wait()
    if method == "stat":
        assert below["result"]["exists"] is False
    else:
        assert below["error"]["code"] == -32004 and f"{work}/file" in below["error"]["message"]


@pytest.mark.parametrize(
    "method, params, field",
    [
        ("read", {"offset": -1}, "offset"),
        ("read", {"offset": 0.5}, "offset"),
        ("read", {"limit": 0}, "limit"),
        ("read", {"limit": TEXT_MAX + 1}, "limit"),
        ("read", {"limit": "5"}, "limit"),
        ("write", {}, "content"),
        ("write", {"content": 5}, "content"),
        ("write", {"content": "x", "mode": "0755"}, "mode"),
        ("write", {"content": "x", "mode": 0o10000}, "mode"),
        ("write", {"content": "x", "mode": -1}, "mode"),
        ("write", {"content": "x", "append": 1}, "append"),
        ("write_binary", {}, "data"),
        ("write_binary", {"data": "eA==", "offset": 1.5}, "offset"),
        ("read", {"offset": 1 << 63}, "offset"),
        ("read_stream", {"length": 1 << 63}, "length"),
        ("write_binary", {"data": "eA==", "offset": 0, "append": True}, "append"),
        ("edit", {"old_text": "a"}, "new_text"),
        ("edit", {"new_text": "a"}, "old_text"),
        ("edit", {"old_text": "a", "new_text": "b", "replace_all": "yes"}, "replace_all"),
        ("read_stream", {"chunk_size": 0}, "chunk_size"),
        ("read_stream", {"chunk_size": (4 << 20) + 1}, "chunk_size"),
        ("read_stream", {"length": -1}, "length"),
        ("list_files", {"limit": 0}, "limit"),
        ("list_files", {"after": 5}, "after"),
        ("mkdir", {"mode": "x"}, "mode"),
        ("remove", {"recursive": 1}, "recursive"),
    ],
)
def test_wrong_parameters(client, work, method, params, field):
    put(f"{work}/f", "a")
    error = client.call_error(method, {"path": f"{work}/f", **params})
    assert error.code == -32602 and field in error.message
    assert get(f"{work}/f") == b"a"


def test_unknown_fields_are_ignored(client, work):
    assert client.call("write", {"path": f"{work}/f", "content": "x", "colour": "red"})["bytes_written"] == 1


def test_batch_of_file_methods(client, work):
    put(f"{work}/f", "content")
    requests = [
        {"jsonrpc": "2.0", "id": i, "method": "read", "params": {"path": f"{work}/{'f' if i % 2 else 'none'}"}}
        for i in range(6)
    ]
    answers = {answer["id"]: answer for answer in client.answer_to(json.dumps(requests))}
    assert len(answers) == 6
    for i in range(6):
        if i % 2:
            assert answers[i]["result"]["content"] == "content"
        else:
            assert answers[i]["error"]["code"] == -32001


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads everything only as root")
def test_files_of_another_user(start_agent):
    """An agent without rights: -32003 with the path, and never 'missing'."""
    agent = start_agent("--listen", "127.0.0.1:0", user=65534, group=65534, extra_groups=[])
    closed = f"{agent.workdir}/closed"
    os.mkdir(closed, 0o700)
    put(f"{closed}/f", "secret", 0o600)
    put(f"{agent.workdir}/readonly", "old", 0o444)
    with agent.connect() as client:
        for method, params in METHODS.items():
            error = client.call_error(method, {**params, "path": f"{closed}/f"})
            assert error.code == -32003 and f"{closed}/f" in error.message, method
        error = client.call_error("write", {"path": f"{agent.workdir}/readonly", "content": "new"})
        assert error.code == -32003 and get(f"{agent.workdir}/readonly") == b"old"
        put(f"{closed}/open", "old", 0o666)
        os.chmod(closed, 0o755)
        assert client.call("write", {"path": f"{closed}/open", "content": "new"}) == {
            "bytes_written": 3,
            "atomic": False,
        }
        assert get(f"{closed}/open") == b"new"
        assert client.call_error("write", {"path": f"{closed}/new", "content": "new"}).code == -32003


def test_memory_goes_back_after_a_burst(start_agent):
    """Two seconds after the last job the heap is trimmed; what libmagic needed goes with the worker threads."""
    agent = start_agent()
    agent.http("GET", "/health")
    base = agent.rss_kib()
    with agent.connect() as client:
        for name in IMAGE_TYPES:
            client.call("read", {"path": f"{IMAGES}/{name}"})
        path = put(f"{agent.workdir}/f", "x" * 100_000)
        for call in [client.start("read", {"path": path}) for _ in range(200)]:
            call.result()
        client.call("write", {"path": path, "content": "x" * 10_000_000})
        client.call("read", {"path": put(path, get(f"{IMAGES}/sample.png") + bytes(10_000_000))})
    limit = 30_000 if SANITIZED else 500
    wait_until(lambda: agent.rss_kib() <= base + limit, 20, lambda: f"{base} KiB at rest, now {agent.rss_kib()}")
