"""What Puck.Sandbox.Runtime does with a sandbox: a poller for /health, and a reader for the events of /prompt.

Puck streams the answer with Req and Finch: the status must be 200, the bytes are split at newlines, each line is decoded,
and what is behind the last newline when the answer ends is dropped.
"""

import http.client
import json
import time


class PuckError(Exception):
    def __init__(self, status, headers, body):
        super().__init__(f"HTTP {status}: {body[:300]!r}")
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def error(self):
        return json.loads(self.body)["error"]


class PuckReader:
    """One connection, kept alive between prompts as Finch's pool keeps it."""

    def __init__(self, port, timeout=60.0):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self.response = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.connection.close()

    def start(self, prompt, options=None, headers=None):
        """Sends a prompt; the answer's head must be 200."""
        body = {"prompt": prompt, "options": options or {}}
        self.connection.request(
            "POST", "/prompt", json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        )
        response = self.connection.getresponse()
        if response.status != 200:
            raise PuckError(response.status, dict(response.getheaders()), response.read())
        self.response = response
        return self

    def events(self):
        """Events as they come."""
        rest = b""
        while True:
            piece = self.response.read1(65536)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield json.loads(line.decode("utf-8"))

    def prompt(self, prompt, options=None):
        """All events of one prompt."""
        return list(self.start(prompt, options).events())


def text_of(events, text_type="text"):
    return "".join(event["text"] for event in events if event["type"] == text_type)


def await_ready(port, timeout=10.0, interval=0.02):
    """GET /health every interval until it is exactly 200, as Puck's await_ready does; returns the other answers seen on
    the way (None: no answer)."""
    seen = []
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=interval * 50)
        try:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        except OSError:
            status = None
        finally:
            connection.close()
        if status == 200:
            return seen
        seen.append(status)
        time.sleep(interval)
    raise AssertionError(f"not ready within {timeout} s; answers: {seen[-5:]}")
