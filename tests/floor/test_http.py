"""net/http.c: bodies, streams, files, slow clients and clients that leave."""

import http.client
import json
import os
import resource
import signal
import socket
import time

import pytest
from floor import SMALL_BUFFER, Http, state
from helpers import processes
from helpers.wait import wait_until

MIB = 1 << 20


def gone_is(server, n):
    wait_until(lambda: state(server)["gone"] >= n, 5, f"{n} exchanges to end")


# ---- what every route gets ----


def test_unknown_path(server):
    status, headers, body = server.http("GET", "/nothing/here?x=1")
    assert status == 404
    assert headers["Content-Type"] == "application/json"
    answer = json.loads(body)
    assert answer["code"] == answer["error"]["code"] == 404
    assert "/nothing/here" in answer["error"]["message"]


def test_wrong_method(server):
    status, headers, body = server.http("DELETE", "/file")
    assert status == 405
    assert headers["Allow"] == "GET, HEAD, PUT, OPTIONS"
    assert "DELETE" in json.loads(body)["error"]["message"]


def test_options_without_origin(server):
    status, headers, _ = server.http("OPTIONS", "/file")
    assert (status, headers["Allow"]) == (204, "GET, HEAD, PUT, OPTIONS")
    assert "Access-Control-Allow-Origin" not in headers


def test_odd_names_in_an_error(server):
    status, _, body = server.http("GET", '/"%00%ff\\<')
    assert status == 404
    assert '/"%00%ff\\<' in json.loads(body)["error"]["message"]


def test_path_and_query_come_as_sent(server):
    _, headers, body = server.http("POST", "/echo?q=a%20b%2Bc+d&z", body=b"text")
    assert (headers["X-Query"], headers["X-Path"], body) == ("a b+c d", "/echo", b"text")
    assert server.http("GET", "/tree/a%2Fb//c")[1]["X-Path"] == "/tree/a%2Fb//c"


def test_broken_percent_sign(server):
    assert server.http("POST", "/echo?q=%4", body=b"")[0] == 400
    assert server.http("GET", "/tree/%zz")[0] == 400


def test_absolute_target(server):
    with Http(server) as client:
        client.send(b"GET http://elsewhere/tree/x?q=1 HTTP/1.1\r\nHost: h\r\n\r\n")
        status, headers, _ = client.answer()
        assert (status, headers["x-path"], headers["x-query"]) == (200, "/tree/x", "1")


def test_head_has_the_length_and_no_body(server):
    with Http(server) as client:
        client.send(b"HEAD /health HTTP/1.1\r\nHost: h\r\n\r\nGET /tree/next HTTP/1.1\r\nHost: h\r\n\r\n")
        status, headers = client.head()
        assert status == 200 and int(headers["content-length"]) > 50
        assert client.answer()[1]["x-path"] == "/tree/next"


def test_kept_alive_and_pipelined(server):
    with Http(server) as client:
        client.send(b"".join(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n%03d" % i for i in range(50)))
        assert [client.answer()[2] for _ in range(50)] == [b"%03d" % i for i in range(50)]
        assert state(server)["connections"] == 2


def test_http_1_0(server):
    with Http(server) as client:
        client.send(b"GET /stream?lines=3 HTTP/1.0\r\n\r\n")
        status, headers = client.head()
        assert status == 200 and "transfer-encoding" not in headers
        data = client.buffer
        while chunk := client.socket.recv(65536):
            data += chunk
        assert data.count(b"\n") == 3


@pytest.mark.parametrize(
    "fields",
    [b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"Content-Length: 4\r\nContent-Length: 4\r\n"],
)
def test_two_lengths_on_a_kept_alive_connection(server, fields):
    with Http(server) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.answer()[0] == 200
        client.send(b"POST /echo HTTP/1.1\r\nHost: h\r\n" + fields + b"\r\n0\r\n\r\n")
        assert client.answer()[0] == 400
        assert client.is_ended()


def test_upgrade_on_a_kept_alive_connection(server):
    """Rule 6 of the gate: the socket cannot be handed over any more, the client must come again."""
    with Http(server) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.answer()[0] == 200
        client.send(
            b"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        status, headers, _ = client.answer()
        assert status == 426
        assert headers["upgrade"] == "websocket" and "close" in headers["connection"]
        assert client.is_ended()


def test_origins(start_server):
    server = start_server("--allow-origin", "https://app.example")
    allowed = {"Origin": "https://app.example"}
    status, headers, _ = server.http("POST", "/echo", body=b"x", headers=allowed)
    assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://app.example"
    asked = {**allowed, "Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "content-type, x-a"}
    status, headers, _ = server.http("OPTIONS", "/sink", headers=asked)
    assert status == 204
    assert headers["Access-Control-Allow-Headers"] == "content-type, x-a"
    assert "PUT" in headers["Access-Control-Allow-Methods"]
    status, headers, body = server.http("POST", "/echo", body=b"x", headers={"Origin": "https://evil.example"})
    assert status == 403 and "Access-Control-Allow-Origin" not in headers
    assert "evil.example" in json.loads(body)["error"]["message"]
    own = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert server.http("POST", "/echo", body=b"x", headers=own)[0] == 200


def test_preflight_needs_no_token(start_server):
    server = start_server("--allow-origin", "https://app.example", env={"SANDKEEPER_TOKEN": "s3cret"})
    asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    assert server.http("OPTIONS", "/echo", headers=asked)[0] == 204
    assert server.http("OPTIONS", "/echo")[0] == 401
    status, headers, _ = server.http("POST", "/echo", body=b"x", headers={"Origin": "https://app.example"})
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert server.http("GET", "/health")[0] == 200
    assert server.http("GET", "/nothing")[0] == 401


# ---- bodies ----


def test_buffered_body_at_its_limit(server):
    body = os.urandom(MIB)
    assert server.http("POST", "/echo", body=body)[2] == body
    for extra in ({}, {"Transfer-Encoding": "chunked"}):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        data = body + b"x"
        connection.request(
            "POST", "/echo", body=iter([data]) if extra else data, headers=extra, encode_chunked=bool(extra)
        )
        response = connection.getresponse()
        assert response.status == 413
        assert str(MIB) in json.loads(response.read())["error"]["message"]
        # What was too much has been read: the connection goes on.
        connection.request("POST", "/echo", body=b"next")
        assert connection.getresponse().read() == b"next"
        connection.close()


def test_body_on_a_route_that_takes_none(server):
    with Http(server) as client:
        client.send(b"GET /health HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloGET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert [client.answer()[0] for _ in range(2)] == [200, 200]


def test_expect_continue(server):
    with Http(server) as client:
        client.send(b"PUT /sink HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.head()[0] == 100
        client.send(b"hello")
        assert client.answer()[2] == b'{"bytes_written":5}'


@pytest.mark.parametrize("query", ["refuse=1", "refuse=1&hold=100"])
def test_refused_before_continue(server, query):
    """The client is spared its upload, also when the refusal takes its time."""
    with Http(server) as client:
        client.send(
            b"PUT /sink?%s HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
            % query.encode()
        )
        assert client.answer()[0] == 403
        assert client.is_ended()


def test_held_body_goes_on(server):
    with Http(server) as client:
        client.send(b"PUT /sink?hold=100 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.head()[0] == 100
        client.send(b"hello")
        assert client.answer()[2] == b'{"bytes_written":5}'


@pytest.mark.parametrize("query", ["refuse=1", "refuse=1&hold=50", "at=1000000"])
def test_refused_while_the_client_sends(server, query):
    """A client that sends all before it reads gets the answer, and the connection goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("PUT", f"/sink?{query}", body=bytes(8 * MIB))
    response = connection.getresponse()
    assert response.status == 403
    response.read()
    connection.request("PUT", "/sink", body=b"abc")
    assert connection.getresponse().read() == b'{"bytes_written":3}'
    connection.close()


def test_upload_in_constant_memory(server):
    server.http("PUT", "/sink", body=bytes(MIB))
    processes.reset_peak_rss(server.pid)
    before = processes.peak_rss_kib(server.pid)
    size = 256 * MIB
    with Http(server) as client:
        client.send(b"PUT /sink?every=3000000&pause=1 HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
        block = bytes(MIB)
        for _ in range(256):
            client.send(block)
        assert client.answer()[2] == b'{"bytes_written":%d}' % size
    assert processes.peak_rss_kib(server.pid) < before + 2048


def test_connections_give_their_memory_back(server):
    """libmicrohttpd's pools for them, some 16 MB, do not stay in the heap."""
    server.http("GET", "/nothing")
    before = processes.rss_kib(server.pid)
    clients = [Http(server) for _ in range(400)]
    for client in clients:
        client.send(b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n")
    for client in clients:
        assert client.answer()[0] == 404
    for client in clients:
        client.socket.close()
    wait_until(lambda: processes.rss_kib(server.pid) < before + 6000, 10, "the memory to come back")


def test_idle_connections_make_room(server):
    """A client that keeps as many connections as there may be does not shut out the next one."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    clients = []
    for _ in range(2100):
        clients.append(client := Http(server))
        client.send(b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.answer()[0] == 404
    assert clients[0].is_ended()
    clients[-1].send(b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n")
    assert clients[-1].answer()[0] == 404
    for client in clients:
        client.socket.close()


def test_paused_upload_holds_the_client_back(server):
    """Back-pressure: what the route does not take stays with the client."""
    with Http(server) as client:
        client.send(b"PUT /sink?every=100000&pause=3000 HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999\r\n\r\n")
        client.socket.settimeout(0.5)
        sent = 0
        with pytest.raises(TimeoutError):
            for _ in range(999):
                sent += client.socket.send(bytes(MIB))
        assert sent < 32 * MIB


def test_aborted_upload(server):
    with Http(server) as client:
        client.send(b"PUT /sink HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n0123456789")
        wait_until(lambda: state(server)["exchanges"] == 2, 5, "the upload to begin")
    gone_is(server, 1)
    assert state(server)["exchanges"] == 1


def test_aborted_upload_whose_end_comes_with_its_last_bytes(server):
    """libmicrohttpd does not notice by itself."""
    for _ in range(20):
        with Http(server) as client:
            client.send(b"PUT /sink HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n0123456789")
    gone_is(server, 20)
    wait_until(lambda: state(server)["connections"] == 1, 5, "the connections to be freed")


def test_aborted_upload_while_paused(server):
    with Http(server) as client:
        client.send(b"PUT /sink?every=5&pause=60000 HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n0123456789")
        wait_until(lambda: state(server)["exchanges"] == 2, 5, "the upload to begin")
    gone_is(server, 1)


# ---- answers ----


def test_late_answer(server):
    assert server.http("GET", "/wait?ms=300")[2] == b"done\n"


def test_client_leaves_before_its_answer(server):
    with Http(server) as client:
        client.send(b"GET /wait?ms=60000 HTTP/1.1\r\nHost: h\r\n\r\n")
        wait_until(lambda: state(server)["exchanges"] == 2, 5, "the request to arrive")
    gone_is(server, 1)


def test_client_is_reset_before_its_answer(server):
    with Http(server) as client:
        client.send(b"GET /wait?ms=60000 HTTP/1.1\r\nHost: h\r\n\r\n")
        wait_until(lambda: state(server)["exchanges"] == 2, 5, "the request to arrive")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone_is(server, 1)


def test_stream_is_flushed_line_by_line(server):
    with Http(server) as client:
        client.send(b"GET /stream?lines=5&ms=150 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.head()[0] == 200
        for n in range(1, 6):
            assert json.loads(client.chunk())["n"] == n
        assert client.chunk() == b""


def test_stream_is_whole(server):
    lines = server.http("GET", "/stream?lines=200000", timeout=60)[2].splitlines()
    assert len(lines) == 200000
    assert all(json.loads(line)["n"] == n for n, line in enumerate(lines[:1000], 1))
    assert json.loads(lines[-1])["n"] == 200000


def test_client_leaves_a_stream_that_waits(server):
    with Http(server) as client:
        client.send(b"GET /stream?lines=2&ms=60000 HTTP/1.1\r\nHost: h\r\n\r\n")
        client.head()
        client.chunk()
    gone_is(server, 1)


def test_stream_holds_little_for_a_client_that_does_not_read(server):
    server.http("GET", "/stream?lines=1000")
    before = processes.rss_kib(server.pid)
    with Http(server, receive_buffer=SMALL_BUFFER) as client:
        client.send(b"GET /stream?lines=100000000 HTTP/1.1\r\nHost: h\r\n\r\n")
        client.head()
        time_before = processes.cpu_seconds(server.pid)
        time.sleep(2)  # the time over which the processor must stay idle
        assert processes.cpu_seconds(server.pid) - time_before < 1
        assert processes.rss_kib(server.pid) < before + 1024
        assert server.health()["status"] == "ok"
    gone_is(server, 2)


def test_file(server, tmp_path):
    data = os.urandom(5 * MIB + 17)
    (tmp_path / "f").write_bytes(data)
    assert server.http("GET", f"/file?path={tmp_path}/f", timeout=30)[2] == data
    status, headers, body = server.http("HEAD", f"/file?path={tmp_path}/f")
    assert (status, headers["Content-Length"], body) == (200, str(len(data)), b"")
    fds = server.fd_count()
    assert server.http("GET", f"/file?path={tmp_path}/missing")[0] == 404
    wait_until(lambda: server.fd_count() <= fds, 5, "the descriptors to be closed")


def test_empty_file(server, tmp_path):
    (tmp_path / "f").write_bytes(b"")
    assert server.http("GET", f"/file?path={tmp_path}/f")[2] == b""


@pytest.mark.timeout(30)
def test_a_file_that_becomes_shorter_ends_the_connection(server, tmp_path):
    """Case 27: an honest end, never a hang."""
    with open(tmp_path / "f", "wb") as file:
        file.truncate(64 * MIB)
    with Http(server, receive_buffer=SMALL_BUFFER) as client:
        client.send(f"GET /file?path={tmp_path}/f HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        _, headers = client.head()
        os.truncate(tmp_path / "f", MIB)
        received = len(client.buffer)
        try:
            while data := client.socket.recv(MIB):
                received += len(data)
        except ConnectionError:
            pass
        assert received < int(headers["content-length"])


# ---- connections ----


def test_idle_connections_cost_no_processor(server):
    clients = [Http(server) for _ in range(200)]
    for client in clients:
        client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
    for client in clients:
        assert client.answer()[0] == 200
    before = processes.cpu_seconds(server.pid)
    time.sleep(2)  # the time over which the processor must stay idle
    assert processes.cpu_seconds(server.pid) - before < 0.1
    for client in clients:
        client.socket.close()
    wait_until(lambda: state(server)["connections"] == 1, 5, "the connections to be freed")


def drip(client, data):
    """Sends it; whether the connection is still there."""
    try:
        client.socket.send(data)
        return client.socket.recv(100) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


@pytest.mark.timeout(150)
def test_slow_clients_do_not_hold_slots_for_ever(server):
    """A body of a byte a second has 20 s. A head has 60 s from the answer before it; the gate's 5 s are for the first."""
    with Http(server) as body, Http(server) as head:
        body.send(b"PUT /sink HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
        head.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\nGET /health HTTP/1.1\r\n")
        assert head.answer()[0] == 200
        ended = {}
        started = time.monotonic()
        for client in (body, head):
            client.socket.settimeout(0.5)
        while len(ended) < 2 and time.monotonic() - started < 100:
            for client, data in ((body, b"x"), (head, b"X-A: b\r\n")):
                if client not in ended and not drip(client, data):
                    ended[client] = time.monotonic() - started
        assert 10 < ended[body] < 35
        assert 40 < ended[head] < 80
    gone_is(server, 1)


def is_refused(server):
    try:
        with Http(server):
            return False
    except ConnectionRefusedError:
        return True


def test_stopping(start_server):
    """Listeners close; who is connected is told."""
    server = start_server()
    with Http(server) as client, Http(server) as other:
        for one in (client, other):
            one.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert one.answer()[0] == 200
        server.signal(signal.SIGUSR1)
        wait_until(lambda: is_refused(server), 5, "the listener to close")
        client.send(b"POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi")
        status, headers, body = client.answer()
        assert (status, headers["connection"]) == (503, "close")
        assert "stopping" in json.loads(body)["error"]["message"]
        other.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        status, _, body = other.answer()
        assert (status, json.loads(body)["status"]) == (503, "stopping")
