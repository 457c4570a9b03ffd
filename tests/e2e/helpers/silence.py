"""Long silences, in a thread of their own while other tests work."""

import socket
import threading
import time

from .agent import Agent
from .raw_ws import CLOSE, PING, PONG, TEXT, ConnectionEnded, RawWebSocket

CUT_AFTER = 30.0  # seconds without traffic after which a proxy gives up


class IdleProxy:
    """Passes bytes on between one client and the agent, and cuts the connection when none came for CUT_AFTER seconds."""

    def __init__(self, target):
        self.target = target
        self.cut = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        client, _ = self.listener.accept()
        server = socket.create_connection(self.target)
        self.last = time.monotonic()
        pair = [(client, server), (server, client)]
        threads = [threading.Thread(target=self._pass_on, args=ends, daemon=True) for ends in pair]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() - self.last > CUT_AFTER:
                self.cut = True
                break
            time.sleep(0.1)
        for end in (client, server, self.listener):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def _pass_on(self, source, sink):
        try:
            while data := source.recv(65536):
                self.last = time.monotonic()
                sink.sendall(data)
        except OSError:
            pass
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class Silence:
    """Three clients of one agent: a command that says nothing for 60 s, seen through the proxy; a client that answers
    pings and is otherwise silent; one that does not answer them."""

    def __init__(self):
        self.agent = Agent()
        self.failure = None
        self.results = {}
        self.threads = [
            threading.Thread(target=self._run, args=(work,), daemon=True)
            for work in (self._through_the_proxy, self._answering, self._mute)
        ]
        for thread in self.threads:
            thread.start()

    def _run(self, work):
        try:
            work()
        except BaseException as failure:
            self.failure = failure

    def _through_the_proxy(self):
        proxy = IdleProxy(("127.0.0.1", self.agent.port))
        with RawWebSocket(proxy.address, timeout=90) as ws:
            ws.send_request("exec", {"command": "echo before; sleep 60; echo after"})
            self.results["proxy"] = ws.recv_response(timeout=90)
        self.results["cut"] = proxy.cut

    def _answering(self):
        pings = []
        started = time.monotonic()
        with self.agent.raw(timeout=70) as ws:
            while len(pings) < 3:
                opcode, payload = ws.recv_message()
                assert opcode == PING, opcode
                pings.append(time.monotonic() - started)
                ws.send_frame(PONG, payload)
            ws.send_request("exec_list")
            ws.recv_response()
        self.results["pings"] = pings

    def _mute(self):
        started = time.monotonic()
        with self.agent.raw(timeout=70) as ws:
            opcode, _ = ws.recv_message()
            assert opcode == PING
            self.results["mute ping"] = time.monotonic() - started
            try:
                while opcode != CLOSE:
                    opcode, _ = ws.recv_message()
                    assert opcode != TEXT
            except ConnectionEnded:
                pass
            self.results["mute end"] = time.monotonic() - started

    def finish(self):
        """Waits for the end of all three and returns what they saw."""
        for thread in self.threads:
            thread.join(100)
        assert self.failure is None, self.failure
        assert not any(thread.is_alive() for thread in self.threads)
        return self.results
