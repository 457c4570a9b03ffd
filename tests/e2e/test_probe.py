"""`sandkeeper health` against servers that answer well, badly, slowly or not at all."""

import os
import socket
import subprocess
import threading
import time

import pytest
from helpers.agent import BINARY

GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"ok"}'


def probe(*arguments, env=None):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDKEEPER_")}
    done = subprocess.run(
        [BINARY, "health", *arguments], capture_output=True, text=True, timeout=30, check=False,
        env={**environment, **(env or {})},
    )  # fmt: skip
    assert len((done.stdout + done.stderr).splitlines()) == 1, done
    return done


@pytest.fixture
def server(tmp_path):
    """server(answer, ...) -> the address of a server that gives this answer to one request and closes, or does not."""
    sockets = []

    def start(answer, family=socket.AF_INET, close=True, requests=None):
        listener = socket.socket(family)
        path = str(tmp_path / f"socket{len(sockets)}")
        listener.bind(path if family == socket.AF_UNIX else ("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
        sockets.append(listener)

        def serve():
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            sockets.append(connection)
            request = connection.recv(65536)
            if requests is not None:
                requests.append(request)
            connection.sendall(answer)
            if close:
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        if family == socket.AF_UNIX:
            return path
        return f"[::1]:{listener.getsockname()[1]}" if family == socket.AF_INET6 else f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for used in sockets:
        used.close()


def test_a_healthy_agent(agent):
    done = probe("--url", f"http://127.0.0.1:{agent.port}")
    assert done.returncode == 0
    assert done.stdout.startswith(f'healthy: 127.0.0.1:{agent.port}: 200 {{"status":"ok"')


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_the_request(server, family):
    requests = []
    address = server(GOOD, family, requests=requests)
    assert probe(f"--url=http://{address}").returncode == 0
    assert requests == [b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]


def test_a_path_of_its_own(server):
    requests = []
    assert probe("--url", f"http://{server(GOOD, requests=requests)}/other?x=1").returncode == 0
    assert requests[0].startswith(b"GET /other?x=1 HTTP/1.1\r\n")


def test_a_unix_socket(server):
    path = server(GOOD, socket.AF_UNIX)
    done = probe("--url", f"unix:{path}")
    assert (done.returncode, done.stdout) == (0, f'healthy: unix:{path}: 200 {{"status":"ok"}}\n')


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (GOOD.replace(b"200 OK", b"503 Service Unavailable"), "503"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "404"),
        (b"", "not HTTP"),
        (b"SSH-2.0-OpenSSH_9\r\n", "not HTTP"),
        (b"HTTP/1.1", "not HTTP"),
        (b"HTTP/1.1 \r\n\r\n", ""),
        (b"\x00\xff" * 5000, "not HTTP"),
        (b"HTTP/1.1 500 x\r\n\r\nline one\r\nline two\x1b[31m\n", "line one  line two"),
    ],
)
def test_a_bad_answer(server, answer, said):
    done = probe("--url", f"http://{server(answer)}")
    assert done.returncode == 1
    assert done.stdout.startswith("unhealthy: ")
    assert said in done.stdout
    assert "\x1b" not in done.stdout


def test_an_answer_without_end_counts_when_its_buffer_is_full(server):
    assert probe("--url", f"http://{server(GOOD + b' ' * 100000, close=False)}").returncode == 0


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["silence", "half a head"])
def test_the_timeout(server, answer):
    began = time.monotonic()
    done = probe("--url", f"http://{server(answer, close=False)}", "--timeout", "300ms")
    assert done.returncode == 1
    assert "no answer within the timeout" in done.stdout
    assert time.monotonic() - began < 10


def test_nobody_listens(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = probe("--url", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert (done.returncode, "Connection refused" in done.stdout) == (1, True)
    done = probe("--url", f"unix:{tmp_path}/none")
    assert (done.returncode, "No such file" in done.stdout) == (1, True)


def test_it_looks_where_the_environment_says(server):
    address = server(GOOD)
    port = address.rpartition(":")[2]
    assert probe(env={"SANDKEEPER_PORT": port}).returncode == 0
    for listen in (server(GOOD), f"0.0.0.0:{server(GOOD).rpartition(':')[2]}"):
        assert probe(env={"SANDKEEPER_LISTEN": f"{listen},[::1]:1"}).returncode == 0
    assert probe(env={"SANDKEEPER_LISTEN": f"unix:{server(GOOD, socket.AF_UNIX)}"}).returncode == 0


def test_it_reads_the_environment_as_the_agent_does(server, tmp_path):
    # Kubernetes sets this beside a service that is named sandkeeper; it means nothing to the agent.
    assert "127.0.0.1:4001" in probe(env={"SANDKEEPER_PORT": "tcp://10.0.0.1:4001"}).stdout
    assert probe(env={"SANDKEEPER_LISTEN": f" {server(GOOD)}, [::1]:1"}).returncode == 0
    os.rename(server(GOOD, socket.AF_UNIX), tmp_path / "two words")
    assert probe(env={"SANDKEEPER_LISTEN": f"unix:{tmp_path}/two words,[::1]:1"}).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--url", "localhost:1"], ["--url", "http://"], ["--url", "http://example.org"], ["--url", "http://127.0.0.1:0"],
        ["--url", "http://127.0.0.1:99999"], ["--url", "http://127.0.0.1:"], ["--url", "http://[::1"], ["--url", "unix:"],
        ["--url", "unix:" + "x" * 200], ["--url", "http://1.2.3.4/a b"], ["--url"], ["--timeout", "0"], ["--timeout", "-1"],
        ["--timeout", "1x"], ["--timeout", "nan"], ["--timeout"], ["--port", "1"], ["what"],
    ],
)  # fmt: skip
def test_a_wrong_option(arguments):
    done = probe(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("sandkeeper health: ")


def test_a_wrong_environment():
    assert probe(env={"SANDKEEPER_PORT": "many"}).returncode == 2
