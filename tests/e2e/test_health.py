"""GET /health, docs/protocol.md section 2."""

import datetime
import http.client
import json
import signal
import socket
import time

from helpers.wait import wait_until


def test_fields(agent):
    status, headers, body = agent.http("GET", "/health")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    health = json.loads(body)
    assert health["status"] == "ok"
    assert health["sandbox_id"] == "e2e-sandbox"
    assert health["version"]
    assert health["uptime_ms"] > 0
    assert set(health["commands"]) == {"running", "finished"}
    assert health["prompt_handler"] == "echo"
    then = datetime.datetime.strptime(health["timestamp"], "%Y-%m-%dT%H:%M:%S.%fZ")
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    assert abs((now - then).total_seconds()) < 60


def test_counts(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("true")
        client.exec("sleep 60", detached=True)
        assert agent.health()["commands"] == {"running": 1, "finished": 1}


def test_head(agent):
    status, headers, body = agent.http("HEAD", "/health")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


def test_other_methods(agent):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        status, headers, _ = agent.http(method, "/health", body=b"{}")
        assert status == 405
        assert headers["Allow"] == "GET, HEAD, OPTIONS"


def test_any_query_and_origin(agent):
    assert agent.http("GET", "/health?now=1", headers={"Origin": "http://elsewhere.example"})[0] == 200


def test_many_on_one_connection(agent):
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=10)
    connection.connect()
    first = connection.sock
    for _ in range(200):
        connection.request("GET", "/health")
        assert json.loads(connection.getresponse().read())["status"] == "ok"
        assert connection.sock is first, "the connection was not kept alive"
    connection.close()


def test_while_stopping(start_agent):
    """503 and "stopping" on a connection that is there, until the last command has ended."""
    agent = start_agent()
    with agent.connect() as client, socket.create_connection(("127.0.0.1", agent.port), timeout=10) as probe:
        client.start_exec("trap '' TERM; echo ready; while :; do sleep 0.1; done").wait_for_text("ready")
        probe.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        assert probe.recv(4096).startswith(b"HTTP/1.1 200 ")
        started = time.monotonic()
        agent.signal(signal.SIGTERM)
        wait_until(lambda: agent.events("shutdown", "stopping"), 5, "the shutdown to begin")
        probe.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
        data = probe.recv(4096)
        assert data.startswith(b"HTTP/1.1 503 "), data
        assert b'"status":"stopping"' in data
        agent.check_ended(20)
        assert time.monotonic() - started < 15
