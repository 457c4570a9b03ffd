"""WebSocket as the agent speaks it: what is wrong closes cleanly and harms nobody. Cases 30 and 31; more of both, over an echo,
in tests/floor/test_ws.py."""

import json
import os
import signal
import struct
import time

import pytest
from helpers.raw_ws import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, ConnectionEnded, frame

MIB = 1 << 20
PARSE_ERROR = -32700


def assert_works(client, call_id=99):
    client.send_request("exec_list", {}, call_id)
    assert "result" in client.recv_response(call_id)


def test_empty_message(agent):
    """A JSON-RPC parse error; the connection lives."""
    with agent.raw() as client:
        client.send_text(b"")
        assert client.recv_json()["error"]["code"] == PARSE_ERROR
        client.send_frame(TEXT, b"", fin=False)
        client.send_frame(CONTINUATION, b"")
        assert client.recv_json()["error"]["code"] == PARSE_ERROR
        assert_works(client)


@pytest.mark.parametrize(
    "what, code",
    [
        (frame(BINARY, b"{}"), 1003),
        (frame(TEXT, b'{"a":"\xff"}'), 1007),
        (frame(TEXT, b"{}", rsv=4), 1002),
        (frame(CONTINUATION, b"{}"), 1002),
        (frame(TEXT, b"{", length=65 * MIB), 1009),
    ],
    ids=["binary", "utf8", "reserved", "continuation", "long"],
)
def test_faults(agent, what, code):
    with agent.raw() as client:
        client.send_bytes(what)
        got, reason = client.recv_close()
        assert got == code and reason
    with agent.raw() as client:
        assert_works(client)


@pytest.mark.parametrize("what", [frame(TEXT, b"{}", mask=False), b"\xff" * 100, os.urandom(3000), b"\x81\xff\xff"])
def test_noise(agent, what):
    with agent.raw() as client:
        client.send_bytes(what)
    with agent.raw() as client:
        assert_works(client)


def test_request_in_tiny_fragments(agent):
    text = json.dumps({"jsonrpc": "2.0", "method": "exec", "params": {"command": "printf '☕ done'"}, "id": 3})
    data = text.encode()
    with agent.raw() as client:
        for i in range(len(data)):
            client.send_frame(CONTINUATION if i else TEXT, data[i : i + 1], fin=i == len(data) - 1)
            if i % 20 == 0:
                client.send_frame(PING, b"p%d" % i)
        while True:
            opcode, payload = client.recv_message()
            if opcode == TEXT and json.loads(payload).get("id") == 3:
                assert json.loads(payload)["result"]["output"] == "☕ done"
                break
            assert opcode in (TEXT, PONG)


@pytest.mark.parametrize("size", [65535, 65536, 16 * MIB])
def test_long_messages_both_ways(agent, size):
    """Case 31: an answer longer than 128 KiB goes out in fragments."""
    with agent.raw(timeout=60) as client:
        name = "x" * size
        client.send_request(name, {}, 5)
        answer = client.recv_response(5)
        assert answer["error"]["code"] == -32601
        client.send_request("exec", {"command": f"head -c {min(size, 524288)} /dev/zero | tr '\\0' y"}, 6)
        assert len(client.recv_response(6)["result"]["output"]) == min(size, 524288)


@pytest.mark.timeout(60)
def test_ping_after_twenty_seconds(agent):
    with agent.raw(timeout=40) as client:
        started = time.monotonic()
        fin, opcode, payload = client.recv_frame()
        assert (fin, opcode) == (True, PING)
        assert 15 < time.monotonic() - started < 35
        client.send_frame(PONG, payload)
        assert_works(client)


def test_close_1001_at_the_end(start_agent):
    agent = start_agent()
    with agent.raw() as client:
        assert_works(client)
        agent.signal(signal.SIGTERM)
        assert client.recv_close()[0] == 1001
        client.send_frame(CLOSE, struct.pack("!H", 1001))
        with pytest.raises(ConnectionEnded):
            client.recv_frame()
    agent.check_ended(10)
