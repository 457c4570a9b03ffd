"""HTTP/1.1 on a bare socket, for requests that a library would not send: half bodies, slow ones, odd heads."""

import json
import socket


class RawHttp:
    def __init__(self, port, timeout=30.0, receive_buffer=None):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.rest = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def request(self, method, path, body=b"", headers=()):
        self.head(method, path, [f"Content-Length: {len(body)}", *headers])
        self.send(body)

    def head(self, method, path, headers=()):
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
        self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    def chunk(self, data):
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def _more(self):
        """False at the end of the connection, a reset too."""
        try:
            piece = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.rest += piece
        return bool(piece)

    def read_line(self):
        while b"\n" not in self.rest:
            if not self._more():
                raise EOFError(f"the connection ended behind {self.rest[:200]!r}")
        line, _, self.rest = self.rest.partition(b"\n")
        return line.rstrip(b"\r")

    def read_exactly(self, n):
        while len(self.rest) < n:
            if not self._more():
                raise EOFError(f"the connection ended after {len(self.rest)} of {n} bytes")
        data, self.rest = self.rest[:n], self.rest[n:]
        return data

    def read_head(self):
        """(status, headers with lower-case names)"""
        status = int(self.read_line().split()[1])
        headers = {}
        while line := self.read_line():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def read_chunk(self):
        """The next chunk of a chunked answer; b"" is its end."""
        n = int(self.read_line(), 16)
        data = self.read_exactly(n)
        assert self.read_line() == b""
        return data

    def read_answer(self):
        """(status, headers, body) of a whole answer."""
        status, headers = self.read_head()
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := self.read_chunk():
                body += chunk
        else:
            body = self.read_exactly(int(headers.get("content-length", 0)))
        return status, headers, body

    def read_json(self):
        status, headers, body = self.read_answer()
        return status, headers, json.loads(body)

    def at_end(self):
        """Waits for the end of the connection; True when nothing came before it."""
        while self._more():
            pass
        return self.rest == b""
