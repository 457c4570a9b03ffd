"""/health and /prompt as Puck uses them, on the real BEAM: Debian's elixir and Erlang's own HTTP client."""

import json
import os
import pathlib
import subprocess

import pytest

from helpers.agent import ROOT

pytestmark = pytest.mark.clients
SCRIPT = os.path.join(ROOT, "tests", "helpers", "puck_reader.exs")


class Reader:
    def __init__(self, port, prompt):
        environment = {"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": os.environ["PATH"]}
        self.process = subprocess.Popen(
            ["elixir", SCRIPT, str(port), json.dumps(prompt)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=environment,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def next(self):
        """(word, rest) of its next line."""
        word, _, rest = self.process.stdout.readline().rstrip("\n").partition(" ")
        return word, rest

    def event(self):
        word, rest = self.next()
        assert word == "event", (word, rest)
        return json.loads(rest)

    def begin(self):
        word, failed_polls = self.next()
        assert word == "ready"
        assert self.next() == ("type", "application/x-ndjson")
        return int(failed_polls)

    def end(self):
        assert self.next() == ("rest", "0")
        assert self.next() == ("end", "")
        assert self.process.wait(20) == 0


def test_echo(agent):
    with Reader(agent.port, "grüße\nan alle ☕") as reader:
        reader.begin()
        assert [reader.event() for _ in range(3)] == [
            {"type": "text", "text": "grüße\n"},
            {"type": "text", "text": "an alle ☕"},
            {"type": "done"},
        ]
        reader.end()


def test_events_come_as_they_happen(start_agent):
    """The handler waits for the test, which waits for the BEAM to have seen the event. The first one comes behind the
    head: httpc keeps back a chunk that comes in one piece with it until the next one comes."""
    agent = start_agent(
        "--prompt-handler",
        """for i in 1 2 3; do until [ -e $i ]; do sleep 0.01; done; echo '{"type":"n","n":'$i'}'; done""",
    )
    with Reader(agent.port, "hi") as reader:
        reader.begin()
        for i in (1, 2, 3):
            pathlib.Path(agent.workdir, str(i)).touch()
            assert reader.event() == {"type": "n", "n": i}
        assert reader.event() == {"type": "done"}
        reader.end()


def test_poller_waits_for_an_agent_that_comes_later(start_agent, tmp_path):
    """It polls from before there is anything at the port."""
    first = start_agent()
    port = first.port
    first.stop()
    with Reader(port, "hi") as reader:
        start_agent(listen=("--listen", f"127.0.0.1:{port}"))
        reader.begin()
        assert reader.event() == {"type": "text", "text": "hi"}
        assert reader.event() == {"type": "done"}
        reader.end()


@pytest.mark.parametrize(("prompt", "status"), [("", 400), ([{"type": "text"}], 400)])
def test_refusals(agent, prompt, status):
    with Reader(agent.port, prompt) as reader:
        assert reader.next()[0] == "ready"
        word, rest = reader.next()
        assert word == "status"
        code, _, body = rest.partition(" ")
        assert int(code) == status
        assert list(json.loads(body)) == ["error"]
        assert reader.process.wait(20) == 1


def test_many_events(start_agent):
    agent = start_agent("--prompt-handler", "seq 1 20000")
    with Reader(agent.port, "hi") as reader:
        reader.begin()
        for i in range(1, 20001):
            assert reader.event() == {"type": "text", "text": f"{i}\n"}
        assert reader.event() == {"type": "done"}
        reader.end()
