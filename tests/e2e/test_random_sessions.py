"""Sessions that do a bit of everything in a random order and leave at a random moment. What is looked for is a crash, a
leak, a report of the sanitizers, or something that is not given back."""

import contextlib
import json
import os
import random
import signal
import threading

import pytest

from helpers import processes
from helpers.agent import rounds
from helpers.client import Closed
from helpers.raw_ws import BINARY, CLOSE, CONTINUATION, PING, TEXT, ConnectionEnded
from helpers.wait import wait_until

COMMANDS = [
    "true",
    "echo hi",
    "exit 3",
    "seq 1 20000",
    "cat",
    "sleep 0.05",
    "(sleep 0.05; echo late) & echo early",
    "yes | head -c 700000",
    "printf '\\342'; sleep 0.01; printf '\\230\\225\\377'",
    "kill -9 $$",
    "no-such-program",
    "setsid sleep 0.1 & sleep 0.1",
    "exec >&- 2>&-; sleep 0.05",
]


class Script:
    """One session's random doings, always the same for one seed."""

    def __init__(self, seed):
        self.dice = random.Random(seed)
        self.ids = [f"fuzz-{self.dice.randrange(40)}" for _ in range(3)]

    def request(self, number):
        dice = self.dice
        cmd_id = dice.choice(self.ids)
        method = dice.choice(["exec"] * 6 + ["exec_logs"] * 2 + ["kill"] * 2 + ["exec_input"] * 2 + ["exec_list", "exec_remove", "nothing"])
        params = {"cmd_id": cmd_id}
        if method == "exec":
            params = {"command": dice.choice(COMMANDS)}
            for name, value in [
                ("cmd_id", cmd_id),
                ("stdin", True),
                ("stdin_data", "x" * dice.choice([0, 10, 100_000])),
                ("stream", dice.random() < 0.5),
                ("output", dice.choice(["combined", "split", "none"])),
                ("encoding", dice.choice(["utf-8", "base64"])),
                ("timeout", dice.choice([0.02, 0.2, 5])),
                ("idle_timeout", dice.choice([0.05, 1])),
                ("detached", True),
                ("env", {"A": "b", "PATH": dice.choice(["/usr/bin:/bin", ""])}),
                ("working_dir", dice.choice(["/", "/no/such", "/etc/passwd"])),
                ("user", dice.choice(["nobody", "nosuchuser"])),
                ("argv", ["/no/such"]),
            ]:
                if dice.random() < 0.2:
                    params[name] = value
        elif method == "kill":
            params["signal"] = dice.choice(["TERM", "KILL", 0, "STOP", "CONT", 34])
            if dice.random() < 0.3:
                params["scope"] = "tree"
        elif method == "exec_input":
            params.update(data="y" * dice.choice([0, 1, 200_000]), eof=dice.random() < 0.5)
        elif method == "exec_logs":
            if dice.random() < 0.3:
                params["since"] = {"stdout": dice.randrange(1000), "stderr": 0}
            if dice.random() < 0.3:
                params["follow"] = False
        request = {"jsonrpc": "2.0", "method": method, "params": params}
        if dice.random() < 0.9:
            request["id"] = number
        return request

    def run(self, ws):
        dice = self.dice
        for number in range(dice.randrange(1, 12)):
            kind = dice.random()
            if kind < 0.75:
                ws.send_text(json.dumps(self.request(number)))
            elif kind < 0.85:
                ws.send_text(json.dumps([self.request(number * 100 + n) for n in range(dice.randrange(5))]))
            elif kind < 0.90:
                text = json.dumps(self.request(number)).encode()
                ws.send_frame(TEXT, text[:20], fin=False)
                ws.send_frame(PING, b"p")
                ws.send_frame(CONTINUATION, text[20:], fin=dice.random() < 0.8)
            elif kind < 0.93:
                ws.send_text(dice.choice(["", "{", "[1,2]", "null", "[[[[", '"\\ud800"']))
            elif kind < 0.95:
                ws.send_frame(BINARY, b"\0\1")
            elif kind < 0.97:
                ws.send_frame(CLOSE, dice.choice([b"", b"\x03\xe8", b"\x03"]))
            else:
                ws.send_text(b"\xff\xfe")
            if dice.random() < 0.3:
                ws.socket.settimeout(0.05)
                try:
                    ws.recv_frame()
                except TimeoutError:
                    return  # in the middle of a frame, perhaps: leave
                finally:
                    ws.socket.settimeout(30)


@pytest.mark.timeout(300)
def test_random_sessions(start_agent):
    agent = start_agent("--stall-timeout", "0.2", "--keep-finished", "20", "--log-memory", "2M", "--grace", "1")
    with agent.connect() as client:
        client.exec("true")
    wait_until(lambda: agent.health()["commands"]["running"] == 0)
    before, failures = agent.fd_count(), []

    def work(start):
        for seed in range(start, rounds(1200), 6):
            try:
                with agent.raw(receive_buffer=4096 if seed % 4 == 0 else None) as ws:
                    Script(seed).run(ws)
            except (ConnectionEnded, OSError, Closed):
                pass  # the agent closes on what is no WebSocket or no text
            except BaseException as failure:
                failures.append((seed, failure))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    with agent.connect() as client:
        assert client.exec("echo alive")["output"] == "alive\n"
        for item in client.call("exec_list"):
            if item["state"] == "running":
                client.start("kill", {"cmd_id": item["cmd_id"], "signal": "KILL", "scope": "tree"})
        wait_until(lambda: all(item["state"] == "finished" for item in client.call("exec_list")), 20, "the end of all commands")
    # A background child that was stopped outlives its command and holds the pipes, as it may.
    for pid in processes.descendants(agent.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: agent.fd_count() <= before, 20, lambda: f"the descriptors to go: {processes.fds(agent.pid)}")
    wait_until(lambda: processes.zombies(agent.pid) == [])
