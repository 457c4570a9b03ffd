"""What these tests share."""

import json
import socket

SMALL_BUFFER = 4096


def state(server):
    """The server's own counters."""
    return json.loads(server.http("GET", "/state")[2])


class Http:
    """HTTP/1.1 on a bare socket, for clients that no library would be."""

    def __init__(self, server, receive_buffer=None):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(20)
        try:
            self.socket.connect(("127.0.0.1", server.port))
        except OSError:
            self.socket.close()
            raise
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def _until(self, mark):
        while mark not in self.buffer:
            data = self.socket.recv(65536)
            assert data, f"the connection ended after {self.buffer[:500]!r}"
            self.buffer += data
        found, self.buffer = self.buffer.split(mark, 1)
        return found

    def head(self):
        """(status, headers) of the next answer's head."""
        first, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _take(self, n):
        while len(self.buffer) < n:
            data = self.socket.recv(65536)
            assert data, "the connection ended inside a body"
            self.buffer += data
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def chunk(self):
        """The next chunk of a body; empty: its end."""
        length = int(self._until(b"\r\n"), 16)
        data = self._take(length)
        assert self._take(2) == b"\r\n"
        return data

    def answer(self):
        """(status, headers, body) of the next answer."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join(iter(self.chunk, b""))
        return status, headers, self._take(int(headers.get("content-length", 0)))

    def is_ended(self):
        """The server has closed, in good order or not."""
        try:
            return self.socket.recv(65536) == b""
        except ConnectionError:
            return True
