"""/files: raw bytes over HTTP, docs/protocol.md 4.7."""

import base64
import email.utils
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import stat
import subprocess
import uuid
from urllib.parse import quote

import pytest
from helpers.agent import SANITIZED
from helpers.wait import wait_until


@pytest.fixture
def work(agent):
    path = os.path.join(agent.workdir, f"http-{uuid.uuid4().hex[:12]}")
    os.mkdir(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def put(path, content):
    with open(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def get(path):
    with open(path, "rb") as file:
        return file.read()


def url(path, **query):
    path = path if isinstance(path, bytes) else path.encode()
    return "/files?path=" + quote(path) + "".join(f"&{name}={value}" for name, value in query.items())


def error_of(answer, status, code, *words):
    assert answer[0] == status, answer
    error = json.loads(answer[2])["error"]
    assert error["code"] == code, error
    for word in words:
        assert word in error["message"], error
    return error


# GET and HEAD


def test_get(agent, work):
    data = "text ☕\n".encode()
    path = put(f"{work}/t.txt", data)
    status, headers, body = agent.http("GET", url(path))
    assert status == 200 and body == data
    assert headers["Content-Length"] == str(len(data)) and headers["Content-Type"] == "text/plain"
    assert headers["Accept-Ranges"] == "bytes" and headers["ETag"].startswith('"')
    modified = email.utils.parsedate_to_datetime(headers["Last-Modified"]).timestamp()
    assert modified == int(os.stat(path).st_mtime)
    # A page of the sandbox must not act with the agent's origin in a browser.
    assert headers["Content-Security-Policy"] == "sandbox" and headers["X-Content-Type-Options"] == "nosniff"

    head = agent.http("HEAD", url(path))
    assert head[0] == 200 and head[2] == b""
    for name in ("Content-Length", "Content-Type", "ETag", "Last-Modified", "Accept-Ranges"):
        assert head[1][name] == headers[name]


@pytest.mark.parametrize(
    "size",
    [0, 1, 18 * 1024, 65535, 65536, 128 * 1024, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 16 << 20, 40 << 20],
)
def test_case_25_sizes(agent, work, size):
    data = random.Random(size).randbytes(size)
    path = f"{work}/f"
    status, _, body = agent.http("PUT", url(path), body=data, timeout=60)
    assert status == 201 and json.loads(body) == {"bytes_written": size}
    assert hashlib.sha256(get(path)).digest() == hashlib.sha256(data).digest()
    status, headers, body = agent.http("GET", url(path), timeout=60)
    assert status == 200 and headers["Content-Length"] == str(size)
    assert hashlib.sha256(body).digest() == hashlib.sha256(data).digest()


RANGES = [
    ("bytes=0-", 206, 0, 999),
    ("bytes=0-0", 206, 0, 0),
    ("bytes=10-19", 206, 10, 19),
    ("bytes=990-2000", 206, 990, 999),
    ("bytes=-5", 206, 995, 999),
    ("bytes=-5000", 206, 0, 999),
    ("BYTES=1-2", 206, 1, 2),
    ("bytes= 1-2 ", 206, 1, 2),
    ("bytes=999-99999999999999999999999999", 206, 999, 999),
    ("bytes=1000-", 416, None, None),
    ("bytes=-0", 416, None, None),
    ("bytes=99999999999999999999999999-", 416, None, None),
    ("bytes=5-4", 200, 0, 999),
    ("bytes=", 200, 0, 999),
    ("bytes=-", 200, 0, 999),
    ("bytes=a-b", 200, 0, 999),
    ("bytes=0-1,5-6", 200, 0, 999),
    ("lines=0-1", 200, 0, 999),
]


@pytest.mark.parametrize("header, status, first, last", RANGES)
def test_range(agent, work, header, status, first, last):
    data = random.Random(3).randbytes(1000)
    path = put(f"{work}/f", data)
    got, headers, body = agent.http("GET", url(path), headers={"Range": header})
    assert got == status
    if status == 416:
        assert headers["Content-Range"] == "bytes */1000"
    else:
        assert body == data[first : last + 1] and headers["Content-Length"] == str(last + 1 - first)
        assert headers.get("Content-Range") == (f"bytes {first}-{last}/1000" if status == 206 else None)


def test_range_of_an_empty_file(agent, work):
    path = put(f"{work}/f", "")
    assert agent.http("GET", url(path), headers={"Range": "bytes=0-"})[0] == 416
    assert agent.http("GET", url(path))[0] == 200


def test_conditions(agent, work):
    path = put(f"{work}/f", "0123456789")
    os.utime(path, (0, 1_700_000_000))
    _, headers, _ = agent.http("GET", url(path))
    etag, modified = headers["ETag"], headers["Last-Modified"]

    def status(**conditions):
        return agent.http("GET", url(path), headers={k.replace("_", "-"): v for k, v in conditions.items()})[0]

    assert status(If_None_Match=etag) == 304
    assert status(If_None_Match=f'"other", W/{etag}') == 304
    assert status(If_None_Match="*") == 304
    assert status(If_None_Match='"other"') == 200
    assert status(If_None_Match="rubbish") == 200
    assert status(If_Modified_Since=modified) == 304
    assert status(If_Modified_Since="Wed, 15 Nov 2023 22:13:20 GMT") == 304
    assert status(If_Modified_Since="Mon, 13 Nov 2023 22:13:20 GMT") == 200
    assert status(If_Modified_Since="rubbish") == 200
    # The tag comes first: with one that differs the date does not count.
    assert status(If_None_Match='"other"', If_Modified_Since=modified) == 200
    assert status(Range="bytes=0-1", If_Range=etag) == 206
    assert status(Range="bytes=0-1", If_Range=modified) == 206
    assert status(Range="bytes=0-1", If_Range='"other"') == 200
    assert status(Range="bytes=0-1", If_Range=f"W/{etag}") == 200
    answer = agent.http("GET", url(path), headers={"If-None-Match": etag})
    assert answer[2] == b"" and answer[1]["ETag"] == etag

    # Every way of changing it changes the tag.
    put(path, "012345678X")
    os.utime(path, (0, 1_700_000_000))
    agent.http("PUT", url(path), body=b"012345678Y")
    assert status(If_None_Match=etag) == 200


def test_get_errors(agent, work):
    error_of(agent.http("GET", url(f"{work}/no")), 404, -32001, f"{work}/no")
    error_of(agent.http("GET", url(work)), 409, -32004, work)
    os.mkfifo(f"{work}/fifo")
    error_of(agent.http("GET", url(f"{work}/fifo")), 409, -32004, "FIFO")
    error_of(agent.http("GET", url("/dev/zero")), 409, -32004)
    error_of(agent.http("GET", "/files"), 400, -32602, "path")
    error_of(agent.http("GET", "/files?path="), 400, -32602, "path")
    error_of(agent.http("GET", "/files?path=a%00b"), 400, -32602, "NUL")
    error_of(agent.http("GET", "/files?path_b64=!"), 400, -32602, "path_b64")
    error_of(agent.http("GET", f"/files?path=a&path_b64=YQ=="), 400, -32602, "path_b64")
    error_of(agent.http("GET", url(f"{work}/{'n' * 256}")), 500, -32000, "nnn")
    assert agent.http("GET", "/files?path=%zz")[0] == 400
    status, headers, _ = agent.http("POST", url(work), body=b"")
    assert status == 405 and {word.strip(",") for word in headers["Allow"].split()} >= {"GET", "PUT", "DELETE"}


def test_kernel_files(agent):
    """Their size is made up; they come until their end."""
    assert agent.http("GET", url("/proc/version"))[2] == get("/proc/version")
    _, headers, body = agent.http("GET", url("/proc/self/status"))
    assert b"Name:" in body and "Content-Length" not in headers
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    if os.path.exists(path):
        assert agent.http("GET", url(path))[2] == get(path)
    assert agent.http("HEAD", url("/proc/version"))[0] == 200


def test_case_26_names(agent, work):
    for name in (b" ", b"\n", b'"', b"\\", "😀".encode(), b"\xff\x01", b"+", b"%41", b"a&b=c#d?"):
        path = os.path.join(work.encode(), name)
        assert agent.http("PUT", url(path), body=name)[0] == 201
        assert get(path) == name
        assert agent.http("GET", url(path))[2] == name
        encoded = quote(base64.b64encode(path).decode(), safe="")
        assert agent.http("GET", f"/files?path_b64={encoded}")[2] == name
        assert agent.http("DELETE", url(path))[0] == 204
    assert os.listdir(work) == []


def test_images_have_their_type(agent, work):
    png = b"\x89PNG\r\n\x1a\n" + bytes(100)
    assert agent.http("GET", url(put(f"{work}/f.txt", png)))[1]["Content-Type"] == "image/png"
    assert agent.http("GET", url(put(f"{work}/f.png", '{"a": 1}')))[1]["Content-Type"] == "application/json"
    assert agent.http("GET", url(put(f"{work}/f", b"%PDF-1.7\n")))[1]["Content-Type"] == "application/pdf"


# PUT


def test_put(agent, work):
    path = f"{work}/new/deep/f"
    status, _, body = agent.http("PUT", url(path, mode="0755"), body=b"one")
    assert status == 201 and json.loads(body) == {"bytes_written": 3}
    assert get(path) == b"one" and stat.S_IMODE(os.stat(path).st_mode) == 0o755
    status, _, body = agent.http("PUT", url(path), body=b"two")
    assert status == 200 and get(path) == b"two" and stat.S_IMODE(os.stat(path).st_mode) == 0o755
    status, _, body = agent.http("PUT", url(path, append=1), body=b"three")
    assert status == 200 and get(path) == b"twothree"
    status, _, body = agent.http("PUT", url(path), body=b"")
    assert status == 200 and json.loads(body) == {"bytes_written": 0} and get(path) == b""
    assert os.listdir(f"{work}/new/deep") == ["f"]


def test_put_chunked(agent, work):
    pieces = [random.Random(i).randbytes(size) for i, size in enumerate((1, 65536, 300_000, 7))]
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
    connection.request("PUT", url(f"{work}/f"), body=iter(pieces), encode_chunked=True,
                       headers={"Transfer-Encoding": "chunked"})  # fmt: skip
    assert connection.getresponse().status == 201
    connection.close()
    assert get(f"{work}/f") == b"".join(pieces)


def test_curl_is_the_whole_client(agent, work):
    data = random.Random(1).randbytes(3_000_000)
    put(f"{work}/local", data)
    base = f"http://127.0.0.1:{agent.port}"
    subprocess.run(["curl", "-fsS", "-T", f"{work}/local", base + url(f"{work}/f")], check=True, timeout=30)
    assert get(f"{work}/f") == data
    out = subprocess.run(["curl", "-fsS", base + url(f"{work}/f")], check=True, timeout=30, stdout=subprocess.PIPE)
    assert out.stdout == data
    put(f"{work}/part", data[:1_000_000])
    subprocess.run(["curl", "-fsS", "-C", "-", "-o", f"{work}/part", base + url(f"{work}/f")], check=True, timeout=30)
    assert get(f"{work}/part") == data


def test_put_keeps_what_the_old_file_had(agent, work):
    path = put(f"{work}/f", "x" * 1000)
    os.chmod(path, 0o640)
    os.symlink("f", f"{work}/link")
    os.link(path, f"{work}/twin")
    status, _, body = agent.http("PUT", url(f"{work}/link"), body=b"new")
    assert status == 200 and json.loads(body) == {"bytes_written": 3, "atomic": False}
    assert get(f"{work}/twin") == b"new" and os.readlink(f"{work}/link") == "f"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    os.unlink(f"{work}/twin")
    status, _, body = agent.http("PUT", url(f"{work}/link"), body=b"newer")
    assert json.loads(body) == {"bytes_written": 5} and get(path) == b"newer"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640


@pytest.mark.parametrize("append", [0, 1])
def test_put_cut_short_leaves_the_old_file(agent, work, append):
    path = put(f"{work}/f", "old")
    fds = agent.fd_count()
    with socket.create_connection(("127.0.0.1", agent.port), timeout=10) as client:
        client.sendall(f"PUT {url(path, append=append)} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n".encode())
        client.sendall(bytes(3_000_000))
    wait_until(lambda: agent.fd_count() <= fds, 10, "the upload to be given up")
    assert get(path) == b"old" and os.listdir(work) == ["f"]


def test_put_errors(agent, work):
    put(f"{work}/f", "old")
    for query in ("mode=9", "mode=", "mode=17777", "mode=0755x", "append=maybe", "fsync=2"):
        error_of(agent.http("PUT", url(f"{work}/f") + "&" + query, body=b"new"), 400, -32602, query.split("=")[0])
    error_of(agent.http("PUT", url(work), body=b"new"), 409, -32004, work)
    error_of(agent.http("PUT", url(f"{work}/f/below"), body=b"new"), 409, -32004, f"{work}/f")
    error_of(agent.http("PUT", "/files", body=b"new"), 400, -32602, "path")
    part = agent.http("PUT", url(f"{work}/f"), body=b"w", headers={"Content-Range": "bytes 2-2/3"})
    error_of(part, 400, -32602, "Content-Range")
    for condition in ("If-Match", "If-None-Match", "If-Unmodified-Since"):
        conditional = agent.http("PUT", url(f"{work}/f"), body=b"w", headers={condition: "*"})
        error_of(conditional, 400, -32602, condition)
    os.mkfifo(f"{work}/fifo")
    error_of(agent.http("PUT", url(f"{work}/fifo"), body=b"new"), 500, -32000, "FIFO")
    error_of(agent.http("PUT", url("/dev/full"), body=b"new"), 507, -32007, "/dev/full")
    assert get(f"{work}/f") == b"old"


def test_an_early_error_spares_the_upload(agent, work):
    """With Expect: 100-continue the client is told before it sends its body."""
    with socket.create_connection(("127.0.0.1", agent.port), timeout=10) as client:
        client.sendall(
            f"PUT {url(work)} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 409 "), answer


def test_put_and_get_of_much_in_constant_memory(agent, work):
    size = (64 if SANITIZED else 512) << 20
    path = f"{work}/large"
    piece = random.Random(9).randbytes(1 << 20)
    agent.http("PUT", url(path), body=piece)
    base = agent.rss_kib()
    peak = 0

    def pieces():
        nonlocal peak
        for i in range(size >> 20):
            if i % 16 == 0:
                peak = max(peak, agent.rss_kib())
            yield piece

    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=60)
    connection.request("PUT", url(path), body=pieces(), headers={"Content-Length": str(size)})
    assert connection.getresponse().status == 200
    connection.close()
    assert os.stat(path).st_size == size

    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=60)
    connection.request("GET", url(path))
    response = connection.getresponse()
    received = 0
    while block := response.read(1 << 20):
        assert block == piece
        received += len(block)
        if received % (16 << 20) == 0:
            peak = max(peak, agent.rss_kib())
    connection.close()
    assert received == size
    assert peak < base + (60_000 if SANITIZED else 4_000), "memory grew with the file"


def test_get_by_a_client_that_does_not_read(agent, work):
    path = f"{work}/large"
    with open(path, "wb") as file:
        file.truncate(1 << 30)
    fds, base = agent.fd_count(), agent.rss_kib()
    clients = []
    for _ in range(8):
        client = socket.create_connection(("127.0.0.1", agent.port), timeout=10)
        client.sendall(f"GET {url(path)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert client.recv(10)
        clients.append(client)
    for _ in range(20):
        assert agent.http("GET", "/health")[0] == 200
    assert agent.rss_kib() < base + (60_000 if SANITIZED else 4_000)
    for client in clients:
        client.close()
    wait_until(lambda: agent.fd_count() <= fds, 10, "the files to be closed")


def test_case_27_a_file_that_shrinks_while_sent(agent, work):
    """Fewer bytes than announced: the connection is cut, which a client can tell from a whole answer."""
    path = f"{work}/shrinking"
    with open(path, "wb") as file:
        file.truncate(256 << 20)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=20) as client:
        client.sendall(f"GET {url(path)} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        received = len(client.recv(1000))
        os.truncate(path, 1000)
        while block := client.recv(1 << 20):
            received += len(block)
        assert received < 256 << 20
    assert agent.http("GET", "/health")[0] == 200


# DELETE


def test_delete(agent, work):
    put(f"{work}/f", "x")
    status, _, body = agent.http("DELETE", url(f"{work}/f"))
    assert status == 204 and body == b"" and os.listdir(work) == []
    error_of(agent.http("DELETE", url(f"{work}/f")), 404, -32001, f"{work}/f")
    os.makedirs(f"{work}/d/e")
    error_of(agent.http("DELETE", url(f"{work}/d")), 409, -32004, "recursive")
    error_of(agent.http("DELETE", url(f"{work}/d", recursive="x")), 400, -32602, "recursive")
    assert agent.http("DELETE", url(f"{work}/d", recursive=1))[0] == 204
    error_of(agent.http("DELETE", url("/", recursive=1)), 400, -32602, "root")
    assert os.listdir(work) == []


def test_many_requests_on_one_connection(agent, work):
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
    for i in range(100):
        data = b"%d" % i * (i * 50)
        connection.request("PUT", url(f"{work}/{i}"), body=data)
        response = connection.getresponse()
        assert response.status == 201 and response.read()
        connection.request("GET", url(f"{work}/{i}"))
        assert connection.getresponse().read() == data
        connection.request("DELETE", url(f"{work}/{i}"))
        response = connection.getresponse()
        assert response.status == 204 and response.read() == b""
    connection.close()
