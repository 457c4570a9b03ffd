"""A file system that hangs: a request on it ends after --file-timeout, and everything else goes on."""

import base64
import hashlib
import os
import subprocess
import tempfile
import time
from urllib.parse import quote

import pytest
from helpers import hang_fs
from helpers.wait import wait_until

pytestmark = pytest.mark.mount

TIMEOUT = 1.0


class HangingMount:
    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="sandkeeper-hang-")
        os.chmod(self.path, 0o755)
        self.process = subprocess.Popen(["/usr/bin/python3", hang_fs.__file__, self.path])
        try:
            wait_until(self.is_mounted, 20, "the file system to be mounted")
        except BaseException:
            self.release()
            raise

    def is_mounted(self):
        assert self.process.poll() is None, "the file system's program ended; is python3-fusepy installed?"
        return os.path.ismount(self.path)

    def __getitem__(self, name):
        return f"{self.path}/{name}"

    def unmount(self):
        """Ends what hangs: with its program gone the kernel answers every request with an error."""
        self.process.kill()
        self.process.wait()
        subprocess.run(["umount", "--lazy", self.path], check=False, stderr=subprocess.DEVNULL)

    def release(self):
        self.unmount()
        os.rmdir(self.path)


@pytest.fixture
def hanging():
    mount = HangingMount()
    yield mount
    if os.path.exists(mount.path):
        mount.release()


@pytest.fixture
def slow_agent(start_agent, hanging):  # pylint: disable=unused-argument
    """Its file system hangs; it is released before the agent is stopped."""
    agent = start_agent("--file-timeout", str(TIMEOUT))
    yield agent
    if os.path.exists(hanging.path):
        hanging.release()


def url(path):
    return f"/files?path={quote(path)}"


CALLS = [
    ("read", {"path": "open"}),
    ("read", {"path": "read"}),
    ("read_stream", {"path": "open"}),
    ("read_stream", {"path": "read"}),
    ("edit", {"path": "read", "old_text": "a", "new_text": "b"}),
    ("stat", {"path": "dir/stat"}),
    ("stat", {"path": "read"}),
    ("list_files", {"path": "hung"}),
    ("write", {"path": "write", "content": "x"}),
    ("write", {"path": "dir/stat", "content": "x"}),
    ("mkdir", {"path": "dir/stat"}),
    ("remove", {"path": "dir/stat"}),
]


@pytest.mark.parametrize("method, params", CALLS)
def test_a_call_ends_in_time(slow_agent, hanging, method, params):
    path = hanging[params["path"]]
    with slow_agent.connect() as client:
        began = time.monotonic()
        error = client.call_error(method, {**params, "path": path})
        took = time.monotonic() - began
        assert error.code == -32002 and error.kind == "timed_out" and path in error.message
        assert TIMEOUT * 0.9 <= took < TIMEOUT + 3
        # The same connection goes on, with other files and with the same mount.
        assert client.call("read", {"path": hanging["fine"]})["content"] == "fine\n"
        client.call("write", {"path": "elsewhere", "content": "x"})
        assert client.call("exec", {"command": "echo on"})["output"] == "on\n"


@pytest.mark.parametrize(
    "method, name, body", [("GET", "open", None), ("GET", "read", None), ("DELETE", "dir/stat", None), ("PUT", "write", b"x")]
)
def test_a_request_ends_in_time(slow_agent, hanging, method, name, body):
    began = time.monotonic()
    status, _, answer = slow_agent.http(method, url(hanging[name]), body=body)
    assert status == 504 and b'"timed_out"' in answer and hanging[name].encode() in answer
    assert time.monotonic() - began < TIMEOUT + 3
    assert slow_agent.http("GET", url(hanging["fine"]))[2] == b"fine\n"


def test_health_and_others_go_on(start_agent, hanging):
    """While threads hang, health answers, and files and commands of others are served."""
    agent = start_agent("--file-timeout", "4")
    with agent.connect() as stuck, agent.connect() as other:
        calls = [stuck.start("read", {"path": hanging[name]}) for name in ("open", "read", "open", "read")]
        slowest = 0.0
        while any(call.response is None for call in calls):
            began = time.monotonic()
            assert agent.http("GET", "/health")[0] == 200
            assert other.call("write", {"path": "f", "content": "x" * 1000})["bytes_written"] == 1000
            assert other.call("exec", {"command": "true"})["exit_code"] == 0
            slowest = max(slowest, time.monotonic() - began)
            stuck.take(0.02)
        assert slowest < 2.0
        for call in calls:
            assert call.error().code == -32002
    hanging.release()


def test_eight_threads_are_written_off_and_come_back(slow_agent, hanging):
    with slow_agent.connect() as client:
        for _ in range(2):
            calls = [client.start("read", {"path": hanging["open"]}) for _ in range(4)]
            for call in calls:
                assert call.error().code == -32002
        error = client.call_error("read", {"path": hanging["fine"]})
        assert error.code == -32010 and error.kind == "busy" and error.data["limit"] == 8
        assert client.call_error("write", {"path": "f", "content": "x"}).code == -32010
        status, _, _ = slow_agent.http("PUT", url("f"), body=b"x")
        assert status == 503
        assert slow_agent.http("GET", "/health")[0] == 200
        hanging.release()
        wait_until(lambda: "result" in client.start("stat", {"path": "/"}).wait(), 10, "the threads to come back")
        assert client.call("write", {"path": "f", "content": "x"}) == {"bytes_written": 1}


def written_off(agent):
    metrics = agent.http("GET", "/metrics")[2].decode()
    return next(float(line.split()[1]) for line in metrics.splitlines() if line.startswith("sandkeeper_workers_written_off "))


def test_what_was_given_up_changes_nothing(slow_agent, hanging):
    """The threads come back when the mount is gone, and find an ordinary directory in its place."""
    with slow_agent.connect() as client:
        calls = [
            client.start("write", {"path": hanging["dir/stat/new"], "content": "late"}),
            client.start("mkdir", {"path": hanging["dir/stat/new/deep"]}),
            client.start("move", {"source": "/proc/version", "destination": hanging["dir/stat/moved"]}),
        ]
        for call in calls:
            assert call.error().code == -32002
        assert slow_agent.http("PUT", url(hanging["dir/stat/put"]), body=b"late")[0] == 504
        assert written_off(slow_agent) == 4
        hanging.unmount()
        wait_until(lambda: written_off(slow_agent) == 0, 10, "the threads to come back")
        assert os.listdir(hanging.path) == []


def test_a_client_that_leaves(slow_agent, hanging):
    fds = slow_agent.fd_count()
    client = slow_agent.connect()
    for method, params in CALLS[:4]:
        client.start(method, {**params, "path": hanging[params["path"]]})
    other = slow_agent.connect()
    assert other.call("stat", {"path": "/"})["is_dir"]
    client.abort()
    hanging.release()
    other.close()
    wait_until(lambda: slow_agent.fd_count() <= fds + 1, 10, "the files to be closed")
    assert slow_agent.http("GET", "/health")[0] == 200


def test_order_behind_a_hanging_call(slow_agent, hanging):
    """What changes something waits for what was sent before it, at most until that is given up."""
    with slow_agent.connect() as client:
        stuck = client.start("read", {"path": hanging["open"]})
        beside = client.start("stat", {"path": "/"})
        writes = [client.start("write", {"path": "after", "content": str(i), "append": True}) for i in range(5)]
        assert beside.result()["is_dir"] and stuck.response is None
        for call in writes:
            assert call.result()["bytes_written"] == 1
        assert stuck.error().code == -32002
        assert client.call("read", {"path": "after"})["content"] == "01234"


def test_a_queue_of_hanging_calls_ends(slow_agent, hanging):
    """Each is given its time, one after the other, until eight threads hang; the rest is told at once."""
    with slow_agent.connect() as client:
        calls = [client.start("write", {"path": hanging["write"], "content": "x"}) for _ in range(20)]
        began = time.monotonic()
        errors = [call.error(60) for call in calls]
        assert time.monotonic() - began < 8 * TIMEOUT + 5
        assert all(error.code == -32002 for error in errors)
        assert "not begun" not in errors[7].message and all("not begun" in error.message for error in errors[8:])
        assert slow_agent.http("GET", "/health")[0] == 200


def test_stopping_while_a_call_hangs(start_agent, hanging):
    """The agent does not wait for a thread that will not come back."""
    # The leak check would wait for that thread.
    agent = start_agent("--file-timeout", "30", env={"ASAN_OPTIONS": "detect_leaks=0"})
    with agent.connect() as client:
        client.start("read", {"path": hanging["open"]})
        assert client.call("stat", {"path": "/"})["is_dir"]
        os.kill(agent.pid, 15)
        began = time.monotonic()
        wait_until(lambda: not agent.is_running() or _is_only_stuck(agent), 15, "the agent to end")
        assert time.monotonic() - began < 15
    hanging.release()
    agent.check_ended()


def _is_only_stuck(agent):
    """Its main thread has ended; the kernel keeps the process until the hanging request is ended."""
    with open(f"/proc/{agent.pid}/stat", encoding="ascii") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_large_file_by_a_worker(slow_agent, hanging):
    """Not a local file system: no sendfile, but lengths, ranges and flat memory as ever."""
    expected = hashlib.sha256()
    pieces = [hang_fs.large_bytes(offset, 1 << 16) for offset in range(0, 1 << 20, 1 << 16)]
    for piece in pieces:
        expected.update(piece)
    path = hanging["large"]
    status, headers, body = slow_agent.http("GET", url(path), headers={"Range": f"bytes=0-{(1 << 20) - 1}"}, timeout=30)
    assert status == 206 and headers["Content-Length"] == str(1 << 20)
    assert headers["Content-Range"] == f"bytes 0-{(1 << 20) - 1}/{hang_fs.LARGE}"
    assert hashlib.sha256(body).digest() == expected.digest()
    status, headers, body = slow_agent.http("HEAD", url(path))
    assert status == 200 and headers["Content-Length"] == str(hang_fs.LARGE) and body == b""
    with slow_agent.connect() as client:
        call = client.start("read_stream", {"path": path, "length": 1 << 20})
        call.result(30)
        data = b"".join(base64.b64decode(p["data"]) for name, p in call.notifications if name == "read_stream.chunk")
        assert hashlib.sha256(data).digest() == expected.digest()


def test_quota(slow_agent, hanging):
    """EDQUOT is no_space too: the old content stands and no temporary file is left."""
    path = hanging["quota/f"]
    with slow_agent.connect() as client:
        for method, params in (("write", {"content": "new"}), ("edit", {"old_text": "fine", "new_text": "new"})):
            error = client.call_error(method, {"path": path, **params})
            assert error.code == -32007 and error.data["errno"] == 122 and path in error.message
        status, _, answer = slow_agent.http("PUT", url(path), body=b"new")
        assert status == 507 and b'"no_space"' in answer
        assert client.call("read", {"path": path})["content"] == "fine\n"
        assert [entry["name"] for entry in client.call("list_files", {"path": hanging["quota"]})] == ["f"]
