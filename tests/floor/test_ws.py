"""net/ws.c with an echo in the place of the agent: framing, limits, pings, holding, the end. Cases 30 and 31."""

import os
import signal
import socket
import struct
import time

import pytest
from floor import SMALL_BUFFER, state
from helpers import processes
from helpers.agent import rounds
from helpers.raw_ws import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, ConnectionEnded, frame
from helpers.wait import wait_until

MIB = 1 << 20


def echo(client, data):
    client.send_text(data)
    opcode, payload = client.recv_message()
    assert (opcode, payload) == (TEXT, data)


def assert_closes(client, code, reason=None):
    got, said = client.recv_close()
    assert got == code
    if reason is not None:
        assert reason in said


def assert_lives(server):
    with server.raw() as client:
        echo(client, b"alive")


# ---- messages ----


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 131072, 131073, MIB - 1, MIB + 1, 16 * MIB])
def test_sizes_both_ways(server, size):
    """Case 31."""
    data = os.urandom(size // 2).hex().encode().ljust(size, b"x")
    with server.raw(timeout=60) as client:
        echo(client, data)


def test_the_longest_message_and_one_byte_more(server):
    """Case 31: 1009, with a reason, and nothing is kept."""
    with server.raw(timeout=60) as client:
        echo(client, b"m" * (64 * MIB))
        client.send_frame(TEXT, b"x", length=64 * MIB + 1)
        assert_closes(client, 1009, str(64 * MIB))
    with server.raw(timeout=60) as client:
        client.send_frame(TEXT, b"x" * (32 * MIB), fin=False)
        client.send_frame(CONTINUATION, b"x" * (32 * MIB), fin=False)
        client.send_frame(CONTINUATION, b"x")
        assert_closes(client, 1009)
    wait_until(lambda: state(server)["sessions"] == 0, 10, "the sessions to end")
    assert state(server)["buffered"] == 0


def test_a_client_that_goes_on_sending_sees_1009(server):
    """What it sends after the refusal is read and dropped, so that the close frame is not lost in a reset."""
    with server.raw(timeout=30) as client:
        head = frame(TEXT, b"", length=80 * MIB)
        client.send_bytes(head[:-4] + bytes(4))  # a key that changes nothing
        for _ in range(80):
            client.send_bytes(b"x" * MIB)
        assert_closes(client, 1009)
        client.send_frame(CLOSE, struct.pack("!H", 1009))
        with pytest.raises(ConnectionEnded):
            client.recv_frame()


def test_fragments_of_every_kind(server):
    with server.raw() as client:
        for pieces in ([b"a", b"b"], [b"", b"a", b"", b""], [b"\xe2", b"\x98", b"\x95"], [b"x" * 70000] * 5):
            for i, piece in enumerate(pieces):
                client.send_frame(CONTINUATION if i else TEXT, piece, fin=i == len(pieces) - 1)
                client.send_frame(PING, b"between")
            data, pongs = None, 0
            while data is None or pongs < len(pieces):
                opcode, payload = client.recv_message()
                if opcode == PONG:
                    assert payload == b"between"
                    pongs += 1
                else:
                    data = payload
            assert data == b"".join(pieces)


def test_many_tiny_fragments(server):
    """Case 30: 100,000 of one byte."""
    n = rounds(100000)
    with server.raw(timeout=60) as client:
        client.send_frame(TEXT, b"", fin=False)
        block = b"".join(frame(CONTINUATION, b"y", fin=False) for _ in range(1000))
        for _ in range(n // 1000):
            client.send_bytes(block)
        client.send_frame(CONTINUATION, b"")
        assert client.recv_message() == (TEXT, b"y" * (n // 1000 * 1000))


def test_many_messages_in_one_piece(server):
    with server.raw() as client:
        client.send_bytes(b"".join(frame(TEXT, b"%d" % n) for n in range(5000)))
        assert [client.recv_message()[1] for _ in range(5000)] == [b"%d" % n for n in range(5000)]


def test_a_byte_at_a_time(server):
    with server.raw() as client:
        for byte in frame(TEXT, b"slow \xe2\x98\x95 one"):
            client.send_bytes(bytes([byte]))
        assert client.recv_message()[1] == b"slow \xe2\x98\x95 one"


# ---- what is wrong ----


@pytest.mark.parametrize(
    "what, code",
    [
        (frame(BINARY, b"x"), 1003),
        (frame(BINARY, b"x", fin=False), 1003),
        (frame(BINARY, b""), 1003),
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"\xed\xa0\x80"), 1007),
        (frame(TEXT, b"a\xe2\x98"), 1007),
        (frame(TEXT, b"a\xe2", fin=False) + frame(CONTINUATION, b"b"), 1007),
        (frame(TEXT, b"a\xe2\x98", fin=False) + frame(CONTINUATION, b""), 1007),
        (frame(TEXT, b"x", rsv=4), 1002),
        (frame(TEXT, b"x", rsv=1), 1002),
        (frame(3, b"x"), 1002),
        (frame(11, b"x"), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(TEXT, b"x", fin=False) + frame(TEXT, b"y"), 1002),
        (frame(PING, b"x", fin=False), 1002),
        (frame(CLOSE, b"x"), 1002),
        (frame(CLOSE, struct.pack("!H", 1005)), 1002),
    ],
    ids=lambda value: value.hex()[:24] if isinstance(value, bytes) else str(value),
)
def test_faults(server, what, code):
    """Case 30: a clean close that says why, and the next client is served."""
    with server.raw() as client:
        client.send_bytes(what)
        assert_closes(client, code)
        with pytest.raises(ConnectionEnded):
            client.recv_frame()
    assert_lives(server)
    assert state(server)["buffered"] == 0


@pytest.mark.parametrize(
    "what",
    [
        frame(TEXT, b"x", mask=False),
        frame(TEXT, b"", length=1 << 63),
        frame(PING, b"x" * 126),
        frame(CLOSE, b"x" * 126),
        b"\x81",
        b"\x81\xfe\x00",
        b"\xff" * 64,
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(5000),
    ],
    ids=lambda value: value.hex()[:16],
)
def test_odd_bytes(server, what):
    """Case 30: unmasked, a length that lies, noise: an answer, a close or the end; never a crash."""
    with server.raw() as client:
        client.send_bytes(what)
        client.socket.shutdown(socket.SHUT_WR)
        with pytest.raises((ConnectionEnded, ValueError, AssertionError)):
            while True:
                client.recv_frame()
    assert_lives(server)
    wait_until(lambda: state(server)["sessions"] == 0, 10, "the session to end")


def test_close_codes_are_echoed(server):
    for code in (1000, 1001, 1011, 3000, 4999):
        with server.raw() as client:
            client.send_frame(CLOSE, struct.pack("!H", code) + b"bye")
            assert client.recv_close() == (code, "bye")
            with pytest.raises(ConnectionEnded):
                client.recv_frame()


def test_pings_are_all_answered(server):
    with server.raw() as client:
        client.send_bytes(b"".join(frame(PING, b"%d" % n) for n in range(50)))
        assert [client.recv_frame() for _ in range(50)] == [(True, PONG, b"%d" % n) for n in range(50)]
        echo(client, b"and on")


# ---- limits of all together ----


def test_half_received_messages_together(start_server):
    server = start_server("--max-message", "4M", "--max-buffered", "8M")
    half = b"x" * (3 * MIB)
    clients = [server.raw() for _ in range(3)]
    for client in clients[:2]:
        client.send_frame(TEXT, half, fin=False)
    wait_until(lambda: state(server)["buffered"] == 6 * MIB, 5, "the halves to arrive")
    clients[2].send_frame(TEXT, half, fin=False)
    assert_closes(clients[2], 1013)
    clients[0].close()
    wait_until(lambda: state(server)["buffered"] == 3 * MIB, 5, "the half message to be dropped")
    clients[1].send_frame(CONTINUATION, b"y")
    assert clients[1].recv_message()[1] == half + b"y"
    assert state(server)["buffered"] == 0
    for client in clients:
        client.close()


def test_max_message_of_the_session(server):
    def asked(path="/ws", headers=()):
        with server.raw(path, headers=headers) as client:
            client.send_text("max_message")
            return int(client.recv_message()[1])

    assert asked() == 64 * MIB
    assert asked("/ws?max_message=2048") == 2048
    assert asked(headers=["User-Agent: Python/3.11 websockets/15.0.1"]) == MIB
    assert asked("/ws?max_message=3000000", ["User-Agent: Python/3.11 websockets/15.0.1"]) == 3000000


# ---- holding, slow clients ----


def test_hold(server):
    """While the api does not want more nothing is delivered (net_server aborts if it is), and nothing is lost."""
    with server.raw() as client:
        client.send_bytes(frame(TEXT, b"hold 300") + b"".join(frame(TEXT, b"%d" % n) for n in range(3000)))
        assert client.recv_message()[1] == b"hold 300"
        assert [client.recv_message()[1] for _ in range(3000)] == [b"%d" % n for n in range(3000)]


def test_hold_within_a_long_message(server):
    with server.raw(timeout=60) as client:
        long = b"z" * (3 * MIB)
        for _ in range(5):
            client.send_bytes(frame(TEXT, b"hold 20") + frame(TEXT, long) + frame(TEXT, b"after"))
            assert [client.recv_message()[1] for _ in range(3)] == [b"hold 20", long, b"after"]


def test_a_held_client_that_leaves_is_noticed(server):
    client = server.raw()
    client.send_text("hold 60000")
    assert client.recv_message()[1] == b"hold 60000"
    client.send_bytes(frame(TEXT, b"unread") * 1000)
    client.close()
    wait_until(lambda: state(server)["sessions"] == 0, 5, "the session to end")


def test_a_client_that_does_not_read(server):
    """Back-pressure: what it does not take is not held here, others are served, and nothing spins."""
    assert_lives(server)
    before = processes.rss_kib(server.pid)
    with server.raw(receive_buffer=SMALL_BUFFER) as client:
        client.send_text("flood 1000000000")
        time.sleep(0.5)
        ticks = processes.cpu_seconds(server.pid)
        time.sleep(1.5)  # the time over which the processor must stay idle
        assert processes.cpu_seconds(server.pid) - ticks < 0.7
        assert processes.rss_kib(server.pid) < before + 2048
        assert_lives(server)
        # Its sending side closed, nothing of the rest taken: no reason to spin either.
        client.socket.shutdown(socket.SHUT_WR)
        ticks = processes.cpu_seconds(server.pid)
        time.sleep(1.5)  # as above
        assert processes.cpu_seconds(server.pid) - ticks < 0.7
    wait_until(lambda: state(server)["sessions"] == 0, 10, "the session to end")


def test_a_flood_is_whole(server):
    with server.raw(timeout=60) as client:
        client.send_text("flood 100000000")
        received = 0
        while received < 100000000:
            received += len(client.recv_message()[1])
        assert received == 100000000
        echo(client, b"and on")


# ---- pings ----


@pytest.mark.timeout(60)
def test_pings_and_silence(start_server):
    """With 1 s instead of 20: a silent client gets a ping; who answers stays, who does not is dropped."""
    server = start_server(env={"NET_SERVER_PING_MS": "1000"})
    with server.raw() as good, server.raw() as silent:
        started = time.monotonic()
        pings = 0
        while time.monotonic() - started < 5:
            fin, opcode, payload = good.recv_frame()
            assert (fin, opcode) == (True, PING) and payload
            good.send_frame(PONG, payload)
            pings += 1
        assert 2 <= pings <= 7
        echo(good, b"still there")
        assert silent.recv_frame()[1] == PING
        with pytest.raises(ConnectionEnded):
            silent.recv_frame()


@pytest.mark.timeout(60)
def test_a_held_client_is_not_taken_for_silent(start_server):
    """Its pongs are not read while it is held."""
    server = start_server(env={"NET_SERVER_PING_MS": "500"})
    with server.raw() as client:
        client.send_text("hold 3000")
        client.send_text("done")
        pings = 0
        while True:
            opcode, payload = client.recv_message()
            if opcode == PING:
                pings += 1
                client.send_frame(PONG, payload)
            elif payload == b"done":
                break
        assert pings >= 2


def test_a_busy_client_gets_no_pings(start_server):
    server = start_server(env={"NET_SERVER_PING_MS": "500"})
    with server.raw() as client:
        for _ in range(20):
            echo(client, b"x")  # a ping would be taken for the echo
            time.sleep(0.1)


# ---- many, and the end ----


def test_many_idle_sessions(server):
    """Case 32: they cost little memory and no processor, and are freed."""
    assert_lives(server)
    before, fds = processes.rss_kib(server.pid), server.fd_count()
    n = rounds(2000)
    clients = [server.raw() for _ in range(n)]
    assert state(server)["sessions"] == n
    if n == 2000:
        assert processes.rss_kib(server.pid) - before < 16 * n
    ticks = processes.cpu_seconds(server.pid)
    time.sleep(2)  # the time over which the processor must stay idle
    assert processes.cpu_seconds(server.pid) - ticks < 0.1
    for client in clients:
        client.close()
    wait_until(lambda: state(server)["sessions"] == 0, 10, "the sessions to be freed")
    wait_until(lambda: server.fd_count() <= fds, 5, "the descriptors to be closed")
    if n == 2000:
        assert processes.rss_kib(server.pid) < before + 2048


def test_rest_without_a_tick(server):
    """Nothing happens, nothing runs: not one switch to the agent in two seconds."""

    def switches():
        with open(f"/proc/{server.pid}/status", encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if "_ctxt_switches" in line)

    assert_lives(server)
    wait_until(lambda: state(server)["sessions"] == 0, 5, "the session to end")
    time.sleep(0.5)
    before = switches()
    time.sleep(2)  # the time over which nothing must happen
    assert switches() - before <= 2


def test_orderly_end(start_server):
    """1001 to everyone; what is still to be sent goes out first."""
    server = start_server()
    with server.raw(timeout=20) as idle, server.raw(timeout=20) as busy:
        echo(idle, b"x")
        busy.send_text("flood 3000000")
        server.signal(signal.SIGTERM)
        assert_closes(idle, 1001, "stopping")
        received = 0
        while True:
            opcode, payload = busy.recv_message()
            if opcode == CLOSE:
                assert payload[:2] == struct.pack("!H", 1001)
                break
            received += len(payload)
        assert received == 3000000
        for client in (idle, busy):
            client.send_frame(CLOSE, struct.pack("!H", 1001))
    server.check_ended(5)


def test_end_with_a_client_that_does_not_answer(start_server):
    server = start_server()
    with server.raw(receive_buffer=SMALL_BUFFER) as client:
        client.send_text("flood 1000000000")
        wait_until(lambda: state(server)["sessions"] == 1, 5, "the session")
        started = time.monotonic()
        server.signal(signal.SIGTERM)
        server.check_ended(10)
        assert time.monotonic() - started < 6


def test_open_and_close_at_once(server):
    fds = server.fd_count()
    for n in range(rounds(1000)):
        client = server.raw()
        if n % 2:
            client.send_text(b"x")
        client.close()
    wait_until(lambda: state(server)["sessions"] == 0, 10, "the sessions to end")
    wait_until(lambda: server.fd_count() <= fds, 5, "the descriptors to be closed")


def test_clients_are_not_dropped_because_the_server_slept(start_server):
    """Stopped for longer than both times, as a paused container is: the pongs that wait are heard first."""
    server = start_server(env={"NET_SERVER_PING_MS": "1500"})
    clients = [server.raw() for _ in range(100)]
    for client in clients:
        assert client.recv_frame()[1] == PING
    server.signal(signal.SIGSTOP)
    for client in clients:
        client.send_frame(PONG, b"are you?")
    time.sleep(4)  # the time over which the server must not run
    server.signal(signal.SIGCONT)
    for client in clients:
        client.send_text(b"here")
    for client in clients:
        opcode, payload = client.recv_message()
        while opcode == PING:
            client.send_frame(PONG, payload)
            opcode, payload = client.recv_message()
        assert payload == b"here"
        client.close()
