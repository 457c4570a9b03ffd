"""The agent's own log: one line an event on stderr. docs/protocol.md, section 8."""

import json
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from helpers.agent import BINARY
from helpers.raw_http import RawHttp
from helpers.wait import wait_until

LEVELS = ["debug", "info", "warn", "error"]


def test_each_line_is_json_with_the_same_head(start_agent):
    agent = start_agent("--log-level", "debug", "--prompt-handler", "printf 'a \\377\"\\n' >&2; exit 1")
    with agent.connect() as client:
        client.exec("echo hi")
        client.call_error("exec", {"command": "x", "working_dir": "/no/such/directory"})
    agent.http("POST", "/prompt", b'{"prompt":"hi"}')
    agent.http("GET", "/files?path=/nothing")
    agent.signal(signal.SIGTERM)
    agent.check_ended()
    lines = agent.log_text().splitlines()
    assert len(lines) >= 8
    for line in lines:
        entry = json.loads(line)
        assert list(entry)[:4] == ["time", "level", "part", "event"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])
        assert entry["level"] in LEVELS
        assert re.fullmatch(r"[a-z]+", entry["part"])
    said = {(entry["part"], entry["event"]) for entry in map(json.loads, lines)}
    assert {
        ("agent", "started"),
        ("gate", "listening"),
        ("gate", "websocket"),
        ("http", "request"),
        ("exec", "ended"),
        ("exec", "failed"),
        ("prompt", "handler says"),
        ("prompt", "handler failed"),
        ("prompt", "ended"),
        ("shutdown", "stopping"),
        ("agent", "stopped"),
    } <= said


@pytest.mark.parametrize("level", LEVELS)
def test_levels(start_agent, level):
    """Nothing below the level; the agent may be silent then, so health tells that it is there."""
    agent = start_agent("--log-level", level, "--port", "0", "--prompt-handler", "kill -9 $$", wait=level in ("debug", "info"))
    if agent.port is None:
        return check_quiet_level(agent, level)
    agent.http("POST", "/prompt", b'{"prompt":"hi"}')
    seen = {entry["level"] for entry in agent.events()}
    assert seen == set(LEVELS[LEVELS.index(level) : 3])
    return None


def check_quiet_level(agent, level):
    wait_until(lambda: listening_port(agent.pid), what="the agent to listen")
    with RawHttp(listening_port(agent.pid)) as http:
        http.request("POST", "/prompt", b'{"prompt":"hi"}')
        assert http.read_answer()[0] == 200
    seen = {entry["level"] for entry in agent.events()}
    assert seen == ({"warn"} if level == "warn" else set())


def listening_port(pid):
    """The port of its one listening socket, from /proc."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
        if found:
            inodes.add(found.group(1))
    with open(f"/proc/{pid}/net/tcp") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return int(fields[1].split(":")[1], 16)
    return None


def run_to_the_end(*options, stderr, env=None):
    """An agent whose own command ends at once, and so it."""
    return subprocess.run(
        [BINARY, "--listen", "127.0.0.1:0", *options, "--", "/bin/true"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, **(env or {})},
        timeout=30,
        check=True,
    )


TEXT_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d{3} (debug|info |warn |error) [a-z]+: [a-z ]+( [a-z_]+=\S+| [a-z_]+=\".*\")*")


def on_a_terminal(*options):
    master, terminal = pty.openpty()
    try:
        run_to_the_end(*options, stderr=terminal)
        return os.read(master, 65536).decode().splitlines()
    finally:
        os.close(terminal)
        os.close(master)


def in_a_pipe(*options, env=None):
    return run_to_the_end(*options, stderr=subprocess.PIPE, env=env).stderr.decode().splitlines()


def test_text_on_a_terminal_and_json_otherwise():
    lines = on_a_terminal()
    assert any("gate: listening address=127.0.0.1:" in line for line in lines)
    assert all(TEXT_LINE.fullmatch(line) for line in lines), lines
    assert all(json.loads(line) for line in in_a_pipe())


def test_log_format():
    assert all(json.loads(line) for line in on_a_terminal("--log-format", "json"))
    assert all(TEXT_LINE.fullmatch(line) for line in in_a_pipe("--log-format", "text"))
    assert all(TEXT_LINE.fullmatch(line) for line in in_a_pipe(env={"SANDKEEPER_LOG_FORMAT": "text"}))


def test_failing_clients_cannot_fill_a_disk(start_agent):
    """Each kind of event has a stock of 20 lines and gets 2 a second; what was left out is told."""
    agent = start_agent(env={"SANDKEEPER_TOKEN": "right"})
    began, sent = time.monotonic(), 0

    def fail():
        nonlocal sent
        sent += 1
        assert agent.http("GET", "/metrics", headers={"X-API-Key": "wrong"})[0] == 401
        return agent.events("http", "refused")

    while sent < 500:
        refused = fail()
    assert 20 <= len(refused) <= 20 + 2 * (time.monotonic() - began) + 1
    with RawHttp(agent.port) as http:
        http.send(b"nonsense\r\n\r\n")
        http.at_end()
    assert agent.events("gate", "refused")  # another kind of event still has its own stock

    def all_told():
        refused = fail()
        return len(refused) + sum(entry.get("suppressed", 0) for entry in refused) == sent

    wait_until(all_told, what="a line that tells what was left out", interval=0.2)
    assert max(entry.get("suppressed", 0) for entry in agent.events("http", "refused")) > 0


def test_nobody_reads_the_log(tmp_path):
    """A full pipe stops only the log."""
    reader, writer = os.pipe()
    agent = subprocess.Popen(
        [BINARY, "--listen", f"unix:{tmp_path}/socket", "--log-level", "debug"], stdin=subprocess.DEVNULL, stderr=writer
    )
    try:
        wait_until(lambda: os.path.exists(tmp_path / "socket"), what="its socket")
        # Opened anew, so that only this end does not block; down to the last byte, which may not be a page's.
        full = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):
            try:
                while True:
                    os.write(full, b"x" * size)
            except BlockingIOError:
                pass
        os.close(full)
        for _ in range(50):
            subprocess.run(
                ["curl", "-sf", "--unix-socket", f"{tmp_path}/socket", "http://localhost/metrics", "-o", "/dev/null"],
                check=True,
                timeout=10,
            )
    finally:
        agent.terminate()
        assert agent.wait(10) == 0
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_project_and_service_of_a_client(start_agent, transport):
    agent = start_agent()
    headers = {"X-Project-ID": "proj-1", "X-Service-ID": 'svc "2"'}
    if transport == "http":
        agent.http("GET", "/metrics", headers=headers)
    else:
        with agent.connect(additional_headers=headers) as client:
            client.exec("true")
    (entry,) = agent.events("net", "client")
    assert (entry["project_id"], entry["service_id"]) == ("proj-1", 'svc "2"')
    assert entry["address"].startswith("127.0.0.1:")


def test_commands_are_not_in_the_log(start_agent):
    """They may hold secrets; their ids are enough."""
    agent = start_agent("--log-level", "debug", "--prompt-handler", "cat >/dev/null # handler-secret")
    with agent.connect() as client:
        client.exec("echo command-secret", env={"KEY": "env-secret"}, stdin_data="stdin-secret")
        client.call("write", {"path": "f", "content": "file-secret"})
    agent.http("POST", "/prompt", b'{"prompt":"prompt-secret"}')
    wait_until(lambda: agent.events("prompt", "ended"), what="the end of the prompt")
    assert "-secret" not in agent.log_text()
