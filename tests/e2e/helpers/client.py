"""A small JSON-RPC client over WebSocket.

It reads its socket only while a test waits for something, in the test's own thread. So a test that does not wait is a
client that does not read, and nothing happens behind a test's back. One Client belongs to one thread.
"""

import json
import socket
import time

import websockets.exceptions
import websockets.sync.client

DEFAULT_TIMEOUT = 30.0


class RpcError(Exception):
    """An error answer."""

    def __init__(self, error):
        super().__init__(f"{error['code']}: {error['message']}")
        self.code = error["code"]
        self.message = error["message"]
        self.data = error.get("data")

    @property
    def kind(self):
        return (self.data or {}).get("kind")


class Closed(Exception):
    """The server closed the connection."""

    def __init__(self, code, reason):
        super().__init__(f"closed with {code}: {reason}")
        self.code = code
        self.reason = reason


class Call:
    """One request under way, with what has come for it so far."""

    def __init__(self, client, call_id, on_notification=None):
        self.client = client
        self.id = call_id
        self.response = None
        self.notifications = []  # in order of arrival, as (method, params); not kept with on_notification
        self.on_notification = on_notification

    def add(self, message):
        if self.on_notification:
            self.on_notification(message["method"], message["params"])
        else:
            self.notifications.append((message["method"], message["params"]))

    def wait(self, timeout=DEFAULT_TIMEOUT):
        """The whole response, error or not."""
        self.client.pump(lambda: self.response is not None, timeout, f"the answer to request {self.id!r}")
        return self.response

    def result(self, timeout=DEFAULT_TIMEOUT):
        response = self.wait(timeout)
        if "error" in response:
            raise RpcError(response["error"])
        return response["result"]

    def error(self, timeout=DEFAULT_TIMEOUT):
        response = self.wait(timeout)
        assert "error" in response, f"an error was expected, this came: {str(response)[:500]}"
        return RpcError(response["error"])

    def wait_for(self, method, timeout=DEFAULT_TIMEOUT, condition=lambda params: True):
        """The params of the first notification of that name (that has the condition), now or later."""

        def find():
            return next((params for name, params in self.notifications if name == method and condition(params)), None)

        self.client.pump(lambda: find() is not None, timeout, f"{method} of request {self.id!r}")
        return find()

    def wait_for_text(self, text, stream="stdout", timeout=DEFAULT_TIMEOUT):
        self.client.pump(lambda: text in self.text(stream), timeout, f"{text!r} in {stream} of request {self.id!r}")

    def names(self):
        return [name for name, _ in self.notifications]

    def text(self, stream="stdout"):
        return "".join(params["data"] for name, params in self.notifications if name == f"exec.{stream}")


class Client:
    def __init__(self, url, user_agent="sandkeeper-tests", **options):
        self.ws = websockets.sync.client.connect(
            url,
            user_agent_header=user_agent,
            compression=None,
            max_size=None,
            open_timeout=DEFAULT_TIMEOUT,
            close_timeout=2,
            ping_interval=None,
            proxy=None,
            **options,
        )
        self.calls = {}
        self.unrouted = []  # messages that belong to no call: batch answers, answers with id null
        self.largest_message = 0  # bytes of the longest message that came
        self._next_id = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.ws.close()

    def abort(self):
        """Leaves without a word."""
        self.ws.socket.shutdown(socket.SHUT_RDWR)

    def new_id(self):
        self._next_id += 1
        return self._next_id

    def start(self, method, params=None, call_id=None, on_notification=None):
        """Sends a request and does not wait."""
        call = Call(self, self.new_id() if call_id is None else call_id, on_notification)
        self.calls[call.id] = call
        message = {"jsonrpc": "2.0", "method": method, "id": call.id}
        if params is not None:
            message["params"] = params
        self.send_raw(json.dumps(message))
        return call

    def call(self, method, params=None, timeout=DEFAULT_TIMEOUT):
        """The result; an error answer is raised as RpcError."""
        call = self.start(method, params)
        try:
            return call.result(timeout)
        finally:
            self.forget(call)

    def call_error(self, method, params=None, timeout=DEFAULT_TIMEOUT):
        """The error; a result fails the test."""
        return self.start(method, params).error(timeout)

    def exec(self, command, patience=DEFAULT_TIMEOUT, **params):
        """The result of a command; params are those of exec. command None: argv is among them."""
        return self.call("exec", {"command": command, **params} if command is not None else params, patience)

    def start_exec(self, command, **params):
        return self.start("exec", {"command": command, **params})

    def notify(self, method, params=None):
        message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        self.send_raw(json.dumps(message))

    def forget(self, call):
        self.calls.pop(call.id, None)

    def send_raw(self, message):
        """A text message for str, a binary one for bytes."""
        try:
            self.ws.send(message)
        except websockets.exceptions.ConnectionClosed as closed:
            raise self._closed(closed) from None

    def answer_to(self, message, timeout=DEFAULT_TIMEOUT):
        """Sends a raw message and returns the next one that belongs to no call."""
        self.send_raw(message)
        return self.next_unrouted(timeout)

    def next_unrouted(self, timeout=DEFAULT_TIMEOUT):
        self.pump(lambda: self.unrouted, timeout, "a message that belongs to no call")
        return self.unrouted.pop(0)

    def wait_closed(self, timeout=DEFAULT_TIMEOUT):
        """Reads until the server closes; returns (code, reason)."""
        try:
            self.pump(lambda: False, timeout, "the close of the connection")
        except Closed as closed:
            return closed.code, closed.reason

    def pump(self, condition, timeout, what="a condition"):
        """Takes in messages until the condition holds."""
        deadline = time.monotonic() + timeout
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"waited {timeout} s for {what}, in vain; {self.describe()}")
            self.take(left)

    def take(self, timeout):
        """Takes in one message, if one comes in time."""
        try:
            text = self.ws.recv(timeout=timeout, decode=False)
        except TimeoutError:
            return
        except websockets.exceptions.ConnectionClosed as closed:
            raise self._closed(closed) from None
        self.largest_message = max(self.largest_message, len(text))
        self.dispatch(json.loads(text.decode("utf-8")))  # strict: what comes must be UTF-8 and JSON

    def dispatch(self, message):
        if isinstance(message, dict) and "method" in message:
            call = self.calls.get(message["params"].get("id"))
            if call is not None:
                call.add(message)
                return
        elif isinstance(message, dict) and message.get("id") is not None:
            call = self.calls.get(message["id"])
            if call is not None:
                assert call.response is None, f"two answers to request {call.id!r}"
                call.response = message
                return
        self.unrouted.append(message)

    def describe(self):
        waiting = [f"{call.id!r}: {call.names()[-5:]}" for call in self.calls.values() if call.response is None]
        return f"open calls and their last notifications: {waiting[:10]}; unrouted: {str(self.unrouted)[:500]}"

    @staticmethod
    def _closed(closed):
        return Closed(closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else Closed(1006, str(closed))
