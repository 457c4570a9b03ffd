"""The gate: one port for WebSocket and HTTP, and everything that comes to it without being either. Case 32."""

import base64
import json
import os
import resource
import socket
import stat
import time

import pytest
from helpers import processes
from helpers.agent import rounds
from helpers.raw_ws import TEXT, frame
from helpers.wait import wait_until

HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
REQUEST = json.dumps({"jsonrpc": "2.0", "method": "exec_list", "params": {}, "id": 7}).encode()


def connect(agent, timeout=20):
    return socket.create_connection(("127.0.0.1", agent.port), timeout=timeout)


def read_all(client):
    """All until the server has closed."""
    data = b""
    try:
        while more := client.recv(65536):
            data += more
    except ConnectionError:
        pass
    return data


def answer(agent, data):
    """What comes back for these bytes, (status, parsed JSON body)."""
    with connect(agent) as client:
        client.sendall(data)
        head, _, body = read_all(client).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


def cpu_while(agent, seconds):
    """Processor time the agent takes in that time."""
    before = processes.cpu_seconds(agent.pid)
    time.sleep(seconds)
    return processes.cpu_seconds(agent.pid) - before


# ---- heads ----


def test_a_head_in_pieces(agent):
    for request, expected in ((HEALTH, b" 200 "), (UPGRADE, b" 101 ")):
        with connect(agent) as client:
            for byte in request:
                client.sendall(bytes([byte]))
            assert expected in client.recv(100).split(b"\r\n")[0]


def test_frames_right_behind_the_head(agent):
    """A client that does not wait for the handshake: nothing of it is lost."""
    with connect(agent) as client:
        client.sendall(UPGRADE + frame(TEXT, REQUEST))
        data = b""
        while b'"id":7' not in data:
            more = client.recv(65536)
            assert more, f"the connection ended after {data!r}"
            data += more
        assert data.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "data, status",
    [
        (b"GET / HTTP/1.1\nHost: h\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: \x00\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX-Long: " + b"a" * 5000 + b"\r\n\r\n", 431),
        (b"a" * 100000, 431),
    ],
    ids=lambda value: value[:24].decode("latin-1").encode("unicode_escape").decode() if isinstance(value, bytes) else None,
)
def test_bad_heads(agent, data, status):
    """Each is told what is wrong, in JSON, before the connection ends; also when it has sent more than was read."""
    got, body = answer(agent, data)
    assert got == body["code"] == body["error"]["code"] == status
    assert len(body["error"]["message"]) > 10


def test_no_head_at_all(agent):
    """Clients that leave: at once, after 3 bytes, with a reset, in the middle of an upgrade."""
    fds = agent.fd_count()
    for data in (b"", b"GET", b"GET /health HTTP/1.1\r\nHost:", UPGRADE[:-2]):
        for reset in (False, True):
            client = connect(agent)
            client.sendall(data)
            if reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
    wait_until(lambda: agent.fd_count() <= fds, 4, "the connections to be freed before their 5 s are over")


def test_half_closed_after_three_bytes(agent):
    with connect(agent) as client:
        client.sendall(b"GET")
        client.shutdown(socket.SHUT_WR)
        client.settimeout(3)
        assert read_all(client) == b""


def test_half_closed_after_a_whole_request(agent):
    with connect(agent) as client:
        client.sendall(HEALTH)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


@pytest.mark.timeout(60)
def test_slow_heads_cost_nothing_and_end(agent):
    """Half a head then silence, and a byte every half second: 5 s, then 408; no processor meanwhile."""
    with connect(agent) as silent, connect(agent) as slow, connect(agent) as nothing:
        started = time.monotonic()
        silent.sendall(b"GET /health HTT")
        assert cpu_while(agent, 1.5) < 0.3
        slow.settimeout(0.5)
        data = b""
        for byte in b"GET /health HTTP/1.1\r\nX: yyyyyyyyyyyyyyyyyyyyyyyyyyy":
            try:
                slow.sendall(bytes([byte]))
                data = slow.recv(1000)
                break
            except TimeoutError:
                continue
        assert b" 408 " in data
        assert b" 408 " in read_all(silent)
        assert read_all(nothing) == b""
        assert 3 < time.monotonic() - started < 20


@pytest.mark.timeout(60)
def test_more_waiting_connections_than_there_is_room_for(start_agent):
    """1024 may wait for their heads; who comes then ends the oldest, and is served."""
    agent = start_agent()
    clients = [connect(agent) for _ in range(1100)]
    try:
        for client in clients:
            client.sendall(b"GET ")
        assert agent.health()["status"] == "ok"
        clients[0].settimeout(4)
        assert read_all(clients[0]) == b""
        clients[-1].sendall(HEALTH[4:])
        assert read_all(clients[-1]).startswith(b"HTTP/1.1 200 ")
    finally:
        for client in clients:
            client.close()


@pytest.mark.timeout(120)
def test_no_descriptors_left(start_agent):
    """EMFILE: no spin, the agent lives, and serves again as soon as there are some."""

    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    agent = start_agent(preexec_fn=limit)
    clients = []
    try:
        for _ in range(90):
            client = socket.socket()
            client.settimeout(20)
            client.connect(("127.0.0.1", agent.port))
            client.sendall(UPGRADE)
            clients.append(client)
        wait_until(lambda: agent.events("gate", "accept failed"), 5, "the descriptors to be used up")
        assert cpu_while(agent, 2) < 0.5
        assert b" 101 " in clients[0].recv(4096)
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: agent.fd_count() < 40, 10, "the descriptors to be freed")
    assert agent.health()["status"] == "ok"
    with agent.connect() as client:
        assert client.call("exec_list") == []


@pytest.mark.timeout(120)
def test_many_idle_sessions(start_agent):
    """Case 32, at the agent itself: 2,000 sessions cost at most 16 KB each and no processor, and are freed."""
    agent = start_agent()
    with agent.connect() as client:
        client.call("exec_list")
    n = rounds(2000)
    before, fds = agent.rss_kib(), agent.fd_count()
    clients = [agent.raw() for _ in range(n)]
    if n == 2000:
        assert agent.rss_kib() - before < 16 * n
    assert cpu_while(agent, 2) < 0.1
    for client in clients:
        client.close()
    wait_until(lambda: agent.fd_count() <= fds, 20, "the sessions to be freed")
    if n == 2000:
        wait_until(lambda: agent.rss_kib() < before + 1024, 20, "the memory to be given back")


# ---- who is let in ----


@pytest.mark.parametrize(
    "path, status",
    [
        ("/ws", 101),
        ("/api/v1/sandboxes/e2e-sandbox/connect", 101),
        ("/api/v1/sandbox/e2e%2Dsandbox/connect", 101),
        ("/api/v1/sandboxes/another/connect", 404),
        ("/elsewhere", 404),
        ("/health", 404),
        ("/ws?max_message=1000", 400),
        ("/ws?max_message=many", 400),
        ("/ws?max_message=1024", 101),
    ],
)
def test_upgrade_paths(agent, path, status):
    with connect(agent) as client:
        client.sendall(UPGRADE.replace(b"/ws", path.encode()))
        head, _, body = client.recv(65536).partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status
        if status != 101:
            assert json.loads(body)["error"]["message"]
        if "max_message" in path and status == 400:
            assert b"max_message" in body


@pytest.mark.parametrize("missing", [b"Upgrade: websocket\r\n", b"Connection: Upgrade\r\n"])
def test_half_an_upgrade(agent, missing):
    status, body = answer(agent, UPGRADE.replace(missing, b""))
    assert status == 426 and "Upgrade" in body["error"]["message"]


def test_wrong_version_and_key(agent):
    with connect(agent) as client:
        client.sendall(UPGRADE.replace(b"13", b"8"))
        data = read_all(client)
        assert data.startswith(b"HTTP/1.1 426 ") and b"Sec-WebSocket-Version: 13\r\n" in data
    status, body = answer(agent, UPGRADE.replace(b"Key: d", b"Key: ").replace(b"Upgrade\r\n", b"Upgrade, close\r\n"))
    assert status == 400 and "Sec-WebSocket-Key" in body["error"]["message"]


def test_accept_key(agent):
    """The example of RFC 6455, 1.3."""
    with connect(agent) as client:
        client.sendall(UPGRADE)
        assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in client.recv(4096)


def test_subprotocol_is_echoed(agent):
    """The early Node SDK offers bearer.TOKEN and wants it back."""
    with agent.raw(headers=["Sec-WebSocket-Protocol: bearer.anything"]) as client:
        assert client.headers["sec-websocket-protocol"] == "bearer.anything"
    with agent.raw(headers=["Sec-WebSocket-Protocol: chat"]) as client:
        assert "sec-websocket-protocol" not in client.headers


TOKEN = "tok3n-of-this-test"
WRONG = [
    [],
    ["Authorization: Bearer"],
    ["Authorization: Bearer wrong"],
    ["Authorization: Basic " + base64.b64encode(TOKEN.encode()).decode()],
    [f"X-Access-Token: {TOKEN}x"],
    [f"X-API-Key: {TOKEN[:-1]}"],
    ["Sec-WebSocket-Protocol: bearer.wrong"],
]
RIGHT = [
    [f"Authorization: Bearer {TOKEN}"],
    [f"X-Access-Token: {TOKEN}"],
    [f"X-API-Key: {TOKEN}"],
    [f"Sec-WebSocket-Protocol: bearer.{TOKEN}"],
    [f"Authorization: Bearer {TOKEN}", "Sec-WebSocket-Protocol: bearer.other"],
]


def test_token(start_agent):
    """Before any upgrade, in each of its places; never in the log."""
    agent = start_agent(env={"SANDKEEPER_TOKEN": TOKEN})
    for fields in WRONG:
        extra = "".join(f"{field}\r\n" for field in fields).encode()
        with connect(agent) as client:
            client.sendall(UPGRADE[:-2] + extra + b"Connection: close\r\n\r\n")
            data = read_all(client)
            assert data.startswith(b"HTTP/1.1 401 "), fields
            assert b"WWW-Authenticate: Bearer\r\n" in data
    for fields in RIGHT:
        with agent.raw(headers=fields) as client:
            client.send_text(REQUEST)
            assert client.recv_json()["result"] == []
    with agent.raw(headers=RIGHT[3]) as client:
        assert client.headers["sec-websocket-protocol"] == f"bearer.{TOKEN}"
    assert agent.http("GET", "/nothing")[0] == 401
    assert agent.http("GET", "/nothing", headers={"X-API-Key": TOKEN})[0] == 404
    assert agent.http("GET", "/health")[0] == 200
    assert TOKEN not in agent.log_text()


def test_foreign_origin(agent):
    """A web page on the developer's machine cannot drive the agent."""
    status, body = answer(agent, UPGRADE[:-2] + b"Origin: http://evil.example\r\nConnection: close\r\n\r\n")
    assert status == 403 and "evil.example" in body["error"]["message"]
    with agent.raw(headers=[f"Origin: http://127.0.0.1:{agent.port}"]) as client:
        client.send_text(REQUEST)
        assert "result" in client.recv_json()


# ---- where it listens ----


def test_default_addresses(start_agent):
    """0.0.0.0 and [::] with one port; where IPv6 is off the log says so."""
    agent = start_agent("--port", "0", listen=())
    listening = agent.events("gate", "listening")
    assert len({event["port"] for event in listening}) == 1
    assert listening[0]["address"] == f"0.0.0.0:{agent.port}"
    others = [event["address"] for event in listening[1:] + agent.events("gate", "not listening")]
    assert others == [f"[::]:{agent.port}"] or others == ["[::]:0"]
    if len(listening) == 2:
        with socket.create_connection(("::1", agent.port), timeout=5) as client:
            client.sendall(HEALTH)
            assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_several_addresses(start_agent, tmp_path):
    path = str(tmp_path / "s")
    agent = start_agent(listen=("--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0", "--listen", f"unix:{path}"))
    assert len(agent.events("gate", "listening")) == 3
    with socket.create_connection(("127.0.0.2", agent.port), timeout=5) as client:
        client.sendall(HEALTH)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def unix_connect(path):
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(10)
    client.connect(path)
    return client


def test_unix_socket(start_agent, tmp_path):
    """HTTP and WebSocket through the same gate; half a head costs nothing; the file goes with the agent."""
    path = str(tmp_path / "agent.sock")
    agent = start_agent(listen=("--listen", "127.0.0.1:0", "--listen", f"unix:{path}"))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    with unix_connect(path) as client:
        client.sendall(HEALTH)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")
    with unix_connect(path) as client:
        client.sendall(UPGRADE + frame(TEXT, REQUEST))
        data = b""
        while b'"id":7' not in data:
            more = client.recv(65536)
            assert more
            data += more
    with unix_connect(path) as client:
        client.sendall(HEALTH[:20])
        assert cpu_while(agent, 1.5) < 0.3
        client.sendall(HEALTH[20:])
        assert read_all(client).startswith(b"HTTP/1.1 200 ")
    agent.stop()
    assert not os.path.exists(path)


def test_unix_socket_in_the_way(start_agent, tmp_path):
    """A stale one is replaced; a living one, or any other file, is not."""
    stale = str(tmp_path / "stale")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(stale)
    start_agent(listen=("--listen", "127.0.0.1:0", "--listen", f"unix:{stale}"))
    with unix_connect(stale) as client:
        client.sendall(HEALTH)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")
    file = tmp_path / "file"
    file.write_text("precious")
    for path in (stale, str(file)):
        agent = start_agent(listen=("--listen", f"unix:{path}"), wait=False)
        assert agent.process.wait(10) == 1
        assert path in agent.log_text()
        agent.kill()
    assert file.read_text() == "precious"
    assert os.path.exists(stale)


def test_port_in_use(start_agent):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        agent = start_agent(listen=("--listen", f"127.0.0.1:{port}"), wait=False)
        assert agent.process.wait(10) == 1
        assert f"127.0.0.1:{port}" in agent.log_text()
        agent.kill()
