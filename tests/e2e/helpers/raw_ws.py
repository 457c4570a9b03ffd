"""A WebSocket client on a bare socket, for frames that no library would send, and for clients that do not read."""

import base64
import json
import os
import socket
import struct
import time

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class ConnectionEnded(Exception):
    """End of file or a reset, without a close frame."""


def frame(opcode, payload=b"", fin=True, mask=True, rsv=0, length=None):
    """The bytes of one frame. `length` lies about the payload's length."""
    length = len(payload) if length is None else length
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    bit = 0x80 if mask else 0
    if length < 126:
        head += bytes([bit | length])
    elif length < 65536:
        head += struct.pack("!BH", bit | 126, length)
    else:
        head += struct.pack("!BQ", bit | 127, length)
    if not mask:
        return head + payload
    key = os.urandom(4)
    return head + key + apply_mask(payload, key)


def apply_mask(payload, key):
    whole = int.from_bytes(payload, "big")
    pad = (key * (len(payload) // 4 + 1))[: len(payload)]
    return (whole ^ int.from_bytes(pad, "big")).to_bytes(len(payload), "big")


class RawWebSocket:
    """Connected and upgraded once made. receive_buffer: bytes of SO_RCVBUF, for a client that will not read."""

    def __init__(self, address, path="/ws", headers=(), receive_buffer=None, timeout=30.0):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(address)
        self.buffer = b""
        try:
            self.status, self.headers = self._upgrade(address, path, headers)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def _upgrade(self, address, path, headers):
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {address[0]}:{address[1]}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            *headers,
        ]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        while b"\r\n\r\n" not in self.buffer:
            self._more()
        head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        first, *rest = head.decode("latin-1").split("\r\n")
        status = int(first.split()[1])
        assert status == 101, f"no upgrade: {first}"
        pairs = (line.partition(":") for line in rest)
        return status, {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _more(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionError as error:
            raise ConnectionEnded(str(error)) from None
        if not data:
            raise ConnectionEnded("end of file")
        self.buffer += data

    def _take(self, n):
        while len(self.buffer) < n:
            self._more()
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def send_bytes(self, data):
        self.socket.sendall(data)

    def send_frame(self, opcode, payload=b"", **options):
        self.send_bytes(frame(opcode, payload, **options))

    def send_text(self, text):
        self.send_frame(TEXT, text.encode() if isinstance(text, str) else text)

    def send_request(self, method, params=None, call_id=1):
        self.send_text(json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}, "id": call_id}))

    def recv_frame(self):
        """(fin, opcode, payload) of the next frame."""
        first, second = self._take(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        assert not second & 0x80, "a server must not mask"
        return bool(first & 0x80), first & 0x0F, self._take(length)

    def recv_message(self):
        """(opcode, payload) of the next message; control frames come as they are."""
        fin, opcode, payload = self.recv_frame()
        parts = [payload]
        while not fin:
            fin, more, payload = self.recv_frame()
            assert more == CONTINUATION, f"opcode {more} inside a message"
            parts.append(payload)
        return opcode, b"".join(parts)

    def recv_json(self):
        """The next text message; pings are answered on the way."""
        while True:
            opcode, payload = self.recv_message()
            if opcode == PING:
                self.send_frame(PONG, payload)
                continue
            assert opcode == TEXT, f"opcode {opcode} with {payload[:100]!r} where text was expected"
            return json.loads(payload.decode("utf-8"))

    def recv_response(self, call_id=1, timeout=30.0):
        """The answer to one request; everything else is thrown away."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            message = self.recv_json()
            if "method" not in message and message.get("id") == call_id:
                return message
        raise AssertionError(f"no answer to request {call_id!r} in {timeout} s")

    def recv_close(self):
        """(code, reason) of the close frame; messages before it are thrown away. No close frame: ConnectionEnded."""
        while True:
            opcode, payload = self.recv_message()
            if opcode == CLOSE:
                code = struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else None
                return code, payload[2:].decode("utf-8")
