"""Clients that do anything, from fixed seeds: the server lives, frees everything, and no sanitizer complains. Case 30."""

import random
import socket

import pytest
from floor import state
from helpers.agent import rounds
from helpers.raw_ws import RawWebSocket, frame
from helpers.wait import wait_until

LENGTHS = [0, 1, 2, 125, 126, 127, 1000, 65535, 65536, 200000]


def send_in_pieces(chooser, client, data):
    """In pieces of odd sizes; reads when the server does not take more, and gives up when that does not help."""
    client.settimeout(0.05)
    stuck = 0
    while data and stuck < 20:
        try:
            data = data[client.send(data[: chooser.choice([len(data), 1, 7, 1000, 40000])]) :]
            stuck = 0
        except TimeoutError:
            stuck += 1
            try:
                client.recv(100000)
            except TimeoutError:
                pass


def leave(chooser, client):
    how = chooser.choice(["close", "reset", "half", "half"])
    try:
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif how == "half":
            client.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    client.close()


def maybe_read(chooser, client):
    client.settimeout(0.001)
    try:
        if chooser.random() < 0.3:
            client.recv(1 << chooser.randrange(18))
    except TimeoutError:
        pass


def any_frame(chooser):
    length = chooser.choice(LENGTHS) if chooser.random() < 0.5 else chooser.randrange(200)
    payload = chooser.randbytes(length) if chooser.random() < 0.3 else b"x" * length
    if chooser.random() < 0.3:
        payload = chooser.choice([b"hold 5", b"hold 50", b"flood 300000", b"max_message"])
    odd = {}
    if chooser.random() < 0.05:
        odd["rsv"] = chooser.randrange(8)
    if chooser.random() < 0.05:
        odd["mask"] = False
    if chooser.random() < 0.05:
        odd["length"] = chooser.choice([0, 1, len(payload) + 1, 1 << 20, 1 << 40, 1 << 63])
    return frame(chooser.choice([0, 1, 1, 1, 2, 8, 9, 9, 10, 3, 11]), payload, fin=chooser.random() < 0.7, **odd)


def right_frames(chooser):
    kinds = [b"hold %d", b"flood %d00", b"%d", b"%d" * 50]
    made = [frame(1, kind.replace(b"%d", b"%d" % chooser.randrange(3000))) for kind in kinds] + [frame(9, b"p")]
    return b"".join(chooser.choice(made) for _ in range(chooser.randrange(1, 20)))


def any_session(chooser, server):
    session = RawWebSocket(("127.0.0.1", server.port), timeout=5, receive_buffer=chooser.choice([None, 2048]))
    client = session.socket
    right = chooser.random() < 0.5
    try:
        for _ in range(chooser.randrange(1, 40)):
            send_in_pieces(chooser, client, right_frames(chooser) if right else any_frame(chooser))
            maybe_read(chooser, client)
    except ConnectionError:
        pass
    leave(chooser, client)


def any_request(chooser):
    method = chooser.choice(["GET", "GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE", "X-ODD"])
    target = chooser.choice(
        ["/health", "/echo?q=%41", "/tree/a/b", "/wait?ms=%d" % chooser.randrange(50), "/sink", "/nothing"]
        + ["/stream?lines=%d&ms=%d" % (chooser.randrange(2000), chooser.choice([0, 0, 0, 1]))]
        + ["/sink?every=%d&pause=2" % chooser.randrange(1, 5000), "/sink?at=%d" % chooser.randrange(5000)]
        + ["/sink?refuse=1&hold=%d" % chooser.randrange(20), "/sink?hold=10", "/file?path=/etc/passwd", "/ws", "/%zz"]
    )
    fields = ["Host: h"] if chooser.random() < 0.95 else []
    body = chooser.randbytes(chooser.choice([0, 1, 100, 5000, 100000]))
    framing = chooser.choice(["none", "length", "length", "chunked", "lie"])
    if framing == "length":
        fields.append(f"Content-Length: {len(body)}")
    elif framing == "lie":
        fields.append(f"Content-Length: {len(body) + chooser.choice([-1, 1, 1000])}")
    elif framing == "chunked":
        fields.append("Transfer-Encoding: chunked")
        pieces = [body[i : i + 3000] for i in range(0, len(body), 3000)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    if chooser.random() < 0.1:
        fields.append(chooser.choice(["Expect: 100-continue", "Connection: close", "Upgrade: websocket", "X: \x00"]))
    version = chooser.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"])
    head = f"{method} {target} {version}\r\n" + "".join(f"{field}\r\n" for field in fields) + "\r\n"
    return head.encode() + (b"" if framing == "none" else body)


def any_connection(chooser, server):
    client = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    try:
        for _ in range(chooser.randrange(1, 8)):
            data = any_request(chooser)
            if chooser.random() < 0.1:
                data = data[: chooser.randrange(len(data))]
            send_in_pieces(chooser, client, data)
            maybe_read(chooser, client)
    except ConnectionError:
        pass
    leave(chooser, client)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("any_client", [any_session, any_connection])
def test_anything(start_server, any_client, seed):
    server = start_server("--max-message", "1M", "--max-buffered", "2M")
    fds = server.fd_count()
    chooser = random.Random(seed)
    for _ in range(rounds(200)):
        any_client(chooser, server)
    assert server.health()["status"] == "ok"
    wait_until(lambda: state(server)["sessions"] == 0, 15, "the sessions to be freed")
    wait_until(lambda: state(server)["exchanges"] == 1, 15, "the requests to be freed")
    wait_until(lambda: state(server)["connections"] == 1, 70, "the connections to be freed")
    assert state(server)["buffered"] == 0
    wait_until(lambda: server.fd_count() <= fds, 10, "the descriptors to be closed")
