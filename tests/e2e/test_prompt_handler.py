"""The handler of /prompt: what it gets, what its output becomes, and how it ends. docs/protocol.md, section 5."""

import base64
import hashlib
import json
import os
import pathlib
import signal
import time

import pytest

from helpers import processes
from helpers.agent import SANITIZED
from helpers.puck_reader import PuckError, PuckReader, text_of
from helpers.raw_http import RawHttp
from helpers.wait import wait_until

DONE = {"type": "done"}
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def ask(start_agent):
    """ask(handler, prompt, options, *flags) -> all events of one prompt to a fresh agent; ask.agent is that agent."""

    def run(handler, prompt="hi", options=None, flags=()):
        run.agent = start_agent("--prompt-handler", handler, *flags)
        with PuckReader(run.agent.port) as puck:
            return puck.prompt(prompt, options)

    return run


def work(agent, name):
    return pathlib.Path(agent.workdir, name)


def reported_pids(agent, name="pids"):
    """What a handler wrote into a file of the work directory."""
    path = work(agent, name)
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"), what=f"{name} to be written")
    return [int(word) for word in path.read_text().split()]


def assert_gone(pids, within):
    deadline = time.monotonic() + within
    wait_until(
        lambda: not any(processes.is_alive(pid) for pid in pids),
        timeout=max(0.01, deadline - time.monotonic()),
        what=lambda: f"the end of {[(pid, processes.cmdline(pid)) for pid in pids if processes.is_alive(pid)]}",
    )


# ---- what it gets ----


def test_one_line_of_json(ask):
    prompt, options = 'say "hi"\n☕\u0000', {"model": "m", "n": 1.5, "list": [None, {"a": True}]}
    events = ask("""wc -l <&0 >lines; echo ok""", prompt, options)
    assert events == [{"type": "text", "text": "ok\n"}, DONE]
    assert work(ask.agent, "lines").read_text().strip() == "1"
    events = ask("cat", prompt, options)
    assert json.loads(text_of(events)) == {"prompt": prompt, "options": options, "files": []}


def test_options_are_an_object_also_when_absent(ask, start_agent):
    agent = start_agent("--prompt-handler", "cat")
    for body in [{"prompt": "hi"}, {"prompt": "hi", "options": None}]:
        answer = agent.http("POST", "/prompt", json.dumps(body).encode())[2]
        assert json.loads(json.loads(answer.split(b"\n")[0])["text"])["options"] == {}


def test_files(ask):
    blob = os.urandom(300000)
    prompt = [
        {"type": "text", "text": "look"},
        {"type": "file", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        {"type": "file", "media_type": "image/jpeg", "data": base64.b64encode(b"no image at all\n").decode()},
        {"type": "file", "media_type": "application/octet-stream", "data": base64.b64encode(blob).decode()},
        {"type": "file", "media_type": "text/markdown", "text": "# ☕\n"},
        {"type": "file", "media_type": "text/plain", "data": ""},
    ]
    handler = r"""
tee line | grep -o '"path":"[^"]*"' | cut -d'"' -f4 >paths
stat -c '%a %u %n' $(cat paths) "$(dirname "$(head -n 1 paths)")" >modes
sha256sum $(cat paths) | cut -d' ' -f1 >sums
touch "$(dirname "$(head -n 1 paths)")/left-by-the-handler"
"""
    assert ask(handler, prompt) == [DONE]
    agent = ask.agent
    line = json.loads(work(agent, "line").read_text())
    assert line["prompt"] == prompt
    files = line["files"]
    assert [(file["index"], file["media_type"], file["found_type"], file["size"]) for file in files] == [
        (1, "image/png", "image/png", len(PNG)),
        (2, "image/jpeg", "text/plain", 16),
        (3, "application/octet-stream", "application/octet-stream", 300000),
        (4, "text/markdown", "text/plain", 6),
        (5, "text/plain", "text/plain", 0),
    ]
    contents = [PNG, b"no image at all\n", blob, "# ☕\n".encode(), b""]
    assert work(agent, "sums").read_text().split() == [hashlib.sha256(c).hexdigest() for c in contents]
    modes = [entry.split() for entry in work(agent, "modes").read_text().splitlines()]
    assert [(mode, int(uid)) for mode, uid, _ in modes] == [("600", os.geteuid())] * 5 + [("700", os.geteuid())]
    directory = modes[-1][2]
    assert all(os.path.dirname(file["path"]) == directory for file in files)
    wait_until(lambda: not os.path.exists(directory), what="the directory to be removed")


def test_files_of_another_user(start_agent):
    """With --user the handler can read its files, and nobody else but root."""
    user = "65534" if os.geteuid() == 0 else str(os.geteuid())
    agent = start_agent("--prompt-handler", "id -u; cat $(sed 's/.*\"path\":\"//; s/\".*//')", "--user", user)
    with PuckReader(agent.port) as puck:
        events = puck.prompt([{"type": "file", "media_type": "text/plain", "text": "secret\n"}])
    assert text_of(events) == f"{user}\nsecret\n"


def test_no_room_for_files(start_agent):
    agent = start_agent("--prompt-handler", "cat", env={"TMPDIR": "/dev/full"})  # no directory: the next place is used
    with PuckReader(agent.port) as puck:
        events = puck.prompt([{"type": "file", "media_type": "text/plain", "text": "x"}])
    path = json.loads(text_of(events))["files"][0]["path"]
    assert path.startswith("/tmp/sandkeeper-prompt-")


def test_its_surroundings(ask):
    """The work directory, no cmd_id, a group of its own, and only 0, 1 and 2."""
    events = ask("""pwd; echo "id=$SANDKEEPER_CMD_ID"; ps -o pid=,pgid=,sid= -p $$; ls -C -w 0 /proc/$$/fd; true""")
    directory, cmd_id, numbers, fds = text_of(events).splitlines()
    assert directory == ask.agent.workdir
    assert cmd_id == "id="
    assert len(set(numbers.split())) == 1
    assert [int(fd) for fd in fds.split() if int(fd) < 200] == [0, 1, 2]
    with ask.agent.connect() as client:
        assert client.call("exec_list") == []
    assert ask.agent.health()["commands"] == {"running": 0, "finished": 0}


def test_large_prompt_into_a_handler_that_does_not_read(ask):
    assert ask("echo quick", "x" * 10_000_000) == [{"type": "text", "text": "quick\n"}, DONE]


def test_large_prompt_arrives_whole(ask):
    text = "0123456789" * 1_000_000
    events = ask("sha256sum", text)
    line = json.dumps({"prompt": text, "options": {}, "files": []}, separators=(",", ":")) + "\n"
    assert text_of(events).split()[0] == hashlib.sha256(line.encode()).hexdigest()


@pytest.fixture
def no_shell(tmp_path):
    """Flags for a shell that is there and cannot run."""
    path = tmp_path / "no-shell"
    path.write_text("#!/no/interpreter\n")
    path.chmod(0o755)
    return ["--shell", str(path)]


def test_handler_without_a_shell(ask, no_shell):
    assert ask('["/bin/echo", "two words", "$HOME"]', flags=no_shell) == [
        {"type": "text", "text": "two words $HOME\n"},
        DONE,
    ]


@pytest.mark.parametrize("handler", ['[ "$HOME" ] && cat > /dev/null; echo shell', '["a"];', '["a", 1]', "[1]", "["])
def test_a_command_line_that_begins_like_an_array(ask, handler):
    """Only a whole array of strings is one: "[" is a program too."""
    said = ask(handler)
    assert said[0] == {"type": "text", "text": "shell\n"} or "not found" in said[0]["message"] or "]" in said[0]["message"]


@pytest.mark.parametrize("handler", ['["/no/program"]', "anything"])
def test_handler_that_cannot_start(start_agent, no_shell, handler):
    agent = start_agent("--prompt-handler", handler, *no_shell, "--prompt-concurrency", "1")
    for _ in range(2):
        with PuckReader(agent.port) as puck, pytest.raises(PuckError) as failure:
            puck.start("hi")
        assert failure.value.status == 500
        assert "could not be started" in failure.value.error
        assert "/no/program" in failure.value.error or "no-shell" in failure.value.error


# ---- what its output becomes ----


def test_output(ask):
    events = ask(
        r"""
printf '{"type":"text","text":"a"}\n{"type":"tool_start","id":"1","name":"sh","arguments":{"x":[1]}}\n'
printf '{"type":"custom","extra":{"deep":[1.5,null]}}\r\n'
printf 'plain \377\000 bytes\n\n'
printf '{"type":5}\n{"type":"te\n'
printf '{"type":"tool_done","id":"1","result":"ok"}'
"""
    )
    assert events == [
        {"type": "text", "text": "a"},
        {"type": "tool_start", "id": "1", "name": "sh", "arguments": {"x": [1]}},
        {"type": "custom", "extra": {"deep": [1.5, None]}},
        {"type": "text", "text": "plain \ufffd\x00 bytes\n"},
        {"type": "text", "text": "\n"},
        {"type": "text", "text": '{"type":5}\n'},
        {"type": "text", "text": '{"type":"te\n'},
        {"type": "tool_done", "id": "1", "result": "ok"},
        DONE,
    ]


def test_text_type_of_events(ask):
    handler = r"""printf '{"type":"text","text":"a"}\nb\n{"type":"texts"}\n'"""
    assert ask(handler, flags=["--prompt-text-type", "text_chunk"]) == [
        {"type": "text_chunk", "text": "a"},
        {"type": "text_chunk", "text": "b\n"},
        {"type": "texts"},
        DONE,
    ]


def test_done_is_sent_once(ask):
    assert ask("""echo '{"type":"done","result":"r"}'""") == [{"type": "done", "result": "r"}]
    assert ask("true") == [DONE]


def test_each_event_at_once(start_agent):
    """The handler waits for the test, which waits for the event."""
    agent = start_agent(
        "--prompt-handler",
        """for i in 1 2 3; do echo '{"type":"n","n":'$i'}'; until [ -e $i ]; do sleep 0.01; done; done""",
    )
    with PuckReader(agent.port) as puck:
        events = puck.start("hi").events()
        for i in (1, 2, 3):
            assert next(events) == {"type": "n", "n": i}
            work(agent, str(i)).touch()
        assert list(events) == [DONE]


def test_silence_is_silent(start_agent):
    """Nothing is sent while the handler says nothing, not even a blank line, and the connection stays."""
    agent = start_agent("--prompt-handler", "sleep 3; echo late")
    with RawHttp(agent.port) as http:
        http.request("POST", "/prompt", b'{"prompt":"hi"}')
        assert http.read_head()[0] == 200
        http.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            http.socket.recv(1)
        http.socket.settimeout(20)
        assert json.loads(http.read_chunk().split(b"\n")[0]) == {"type": "text", "text": "late\n"}


def test_hundred_megabytes_on_one_line(ask, start_agent):
    agent = start_agent("--prompt-handler", "head -c 100000000 /dev/zero | tr '\\0' x")
    before = agent.rss_kib()
    processes.reset_peak_rss(agent.pid)
    length = 0
    with PuckReader(agent.port) as puck:
        for event in puck.start("hi").events():
            length += len(event.get("text", ""))
    assert length == 100_000_000
    assert event == DONE
    if not SANITIZED:
        assert processes.peak_rss_kib(agent.pid) < before + 8 * 1024


def test_hundred_megabytes_that_begin_like_an_event(start_agent):
    agent = start_agent(
        "--prompt-handler", """printf '{"type":"x","a":"'; head -c 100000000 /dev/zero | tr '\\0' x; printf '"}\\nnext\\n'"""
    )
    before = agent.rss_kib()
    processes.reset_peak_rss(agent.pid)
    with PuckReader(agent.port) as puck:
        events = puck.prompt("hi")
    assert [event["type"] for event in events] == ["error", "text", "done"]
    assert "more than 4194304 bytes" in events[0]["message"]
    if not SANITIZED:
        assert processes.peak_rss_kib(agent.pid) < before + 16 * 1024


def test_hundred_thousand_events_of_a_program(start_agent):
    agent = start_agent("--prompt-handler", "cat lines")
    line = '{"type":"text","text":"' + "x" * 74 + '"}\n'
    work(agent, "lines").write_text(line * 100000)
    with PuckReader(agent.port) as puck:
        events = puck.prompt("hi")
    assert len(events) == 100001
    assert events[0] == events[99999] == json.loads(line)


def test_client_that_does_not_read(start_agent):
    """The handler waits, longer than any stalled reader would hold a command; nothing is lost, and memory stays."""
    agent = start_agent("--prompt-handler", "seq 1 4000000; echo end >ended", "--stall-timeout", "0.5")
    before = agent.rss_kib()
    with RawHttp(agent.port, receive_buffer=4096) as http:
        http.request("POST", "/prompt", b'{"prompt":"hi"}')
        assert http.read_head()[0] == 200
        time.sleep(2.5)  # the time that is tested: five stall timeouts
        assert not work(agent, "ended").exists()
        if not SANITIZED:
            assert agent.rss_kib() < before + 2 * 1024
        rest, expected = b"", 1
        while expected < 100000:
            *lines, rest = (rest + http.read_chunk()).split(b"\n")
            for line in lines:
                assert json.loads(line) == {"type": "text", "text": f"{expected}\n"}
                expected += 1


# ---- how it ends ----


def test_exit_code_and_stderr(ask):
    handler = r"""echo out; printf 'first\nlast \377 ☕\n\n' >&2; exit 3"""
    assert ask(handler) == [
        {"type": "text", "text": "out\n"},
        {"type": "error", "message": "handler exited with code 3: first\nlast \ufffd ☕"},
        DONE,
    ]
    said = [entry["text"] for entry in ask.agent.events("prompt", "handler says")]
    assert said == ["first", "last \ufffd ☕"]
    assert ask.agent.events("prompt", "handler failed")


def test_stderr_of_a_good_end_is_in_the_log_only(ask):
    assert ask("echo note >&2") == [DONE]
    assert [entry["text"] for entry in ask.agent.events("prompt", "handler says")] == ["note"]


def test_the_last_4_kib_of_stderr(ask):
    events = ask("seq 1 100000 >&2; exit 1")
    message = events[-2]["message"]
    expected = "\n".join(str(i) for i in range(1, 100001)) + "\n"
    assert message == "handler exited with code 1: " + expected[-4096:].rstrip("\n")
    # A handler that complains for ever cannot fill the log.
    assert len(ask.agent.events("prompt", "handler says")) < 200


def test_complaints_for_ever_hold_up_nobody(start_agent):
    agent = start_agent("--prompt-handler", "echo '{\"type\":\"on\"}'; exec yes >&2")
    puck = PuckReader(agent.port)
    assert next(puck.start("hi").events()) == {"type": "on"}
    slowest = 0
    for _ in range(100):
        began = time.monotonic()
        assert agent.health()["status"] == "ok"
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1
    assert len(agent.log_text()) < 64 * 1024
    puck.response.close()
    puck.close()
    wait_until(lambda: not agent.left_over(), what="the handler to be gone")


def test_failure_after_done(ask):
    events = ask("""echo '{"type":"done"}'; exit 1""")
    assert [event["type"] for event in events] == ["done", "error", "done"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1])
def test_end_by_a_signal(ask, number):
    assert ask(f"kill -{int(number)} $$; sleep 10") == [
        {"type": "error", "message": f"handler was ended by {number.name}"},
        DONE,
    ]


@pytest.mark.parametrize("where", ["option", "flag", "both"])
def test_timeout(start_agent, where):
    """TERM, which it ignores, then KILL: within 1.5 s of the deadline."""
    flags = {"option": [], "flag": ["--prompt-timeout", "0.5"], "both": ["--prompt-timeout", "0.5"]}[where]
    options = {"option": {"timeout": 0.5}, "flag": {}, "both": {"timeout": 60}}[where]
    agent = start_agent(
        "--prompt-handler", """trap '' TERM; sleep 60 & echo $$ $! >pids; echo on; while :; do sleep 60; done""", *flags
    )
    began = time.monotonic()
    with PuckReader(agent.port) as puck:
        events = puck.prompt("hi", options)
    assert time.monotonic() - began < 0.5 + 1.5 + 2
    assert events == [
        {"type": "text", "text": "on\n"},
        {"type": "error", "message": "handler was ended after 0.5 s, its timeout"},
        DONE,
    ]
    assert_gone(reported_pids(agent), within=2)


def test_an_option_may_shorten_the_timeout_to_a_fraction(ask):
    assert ask("sleep 60", options={"timeout": 0.1})[0]["message"] == "handler was ended after 0.1 s, its timeout"


def test_closes_stdout_and_lives_on(start_agent):
    """Its exit code is waited for, but not for ever."""
    agent = start_agent("--prompt-handler", "echo $$ >pids; echo hi; exec >&-; sleep 60")
    began = time.monotonic()
    with PuckReader(agent.port) as puck:
        events = puck.prompt("hi")
    assert time.monotonic() - began < 10
    assert events == [
        {"type": "text", "text": "hi\n"},
        {"type": "error", "message": "handler closed its stdout and did not exit within 2 s"},
        DONE,
    ]
    assert_gone(reported_pids(agent), within=2)


def test_closes_stdout_and_exits_a_little_later(ask):
    events = ask("echo hi; exec >&-; sleep 0.3; exit 7")
    assert events == [
        {"type": "text", "text": "hi\n"},
        {"type": "error", "message": "handler exited with code 7"},
        DONE,
    ]


def test_says_done_closes_stdout_and_lives_on(ask):
    assert ask("""echo '{"type":"done"}'; exec >&-; sleep 60""") == [DONE]


def test_child_that_holds_stdout(start_agent):
    """The leader's exit is the end, as for commands: the child lives on and is not waited for."""
    agent = start_agent("--prompt-handler", "sleep 60 & echo $! >pids; echo hi")
    began = time.monotonic()
    with PuckReader(agent.port) as puck:
        assert puck.prompt("hi") == [{"type": "text", "text": "hi\n"}, DONE]
    assert time.monotonic() - began < 5
    (pid,) = reported_pids(agent)
    assert processes.is_alive(pid)


def test_child_that_goes_on_printing(start_agent):
    agent = start_agent("--prompt-handler", "yes noise & echo $! >pids; exit 0")
    with PuckReader(agent.port) as puck:
        events = puck.prompt("hi")
    assert events[-1] == DONE
    (pid,) = reported_pids(agent)
    assert processes.is_alive(pid)
    assert agent.health()["status"] == "ok"
    os.kill(pid, signal.SIGKILL)


LEAVING = {
    "plain": "sleep 771 & echo $$ $! >pids; echo '{\"type\":\"on\"}'; sleep 772",
    "ignores TERM": "trap '' TERM; sleep 771 & echo $$ $! >pids; echo '{\"type\":\"on\"}'; while :; do sleep 1; done",
    "left the group": "setsid sleep 771 & echo $$ $! >pids; echo '{\"type\":\"on\"}'; sleep 772",
    "stopped": "sleep 771 & echo $$ $! >pids; echo '{\"type\":\"on\"}'; kill -STOP $$",
    "prints": "sleep 771 & echo $$ $! >pids; echo '{\"type\":\"on\"}'; exec yes",
}


@pytest.mark.parametrize("how", LEAVING)
def test_client_leaves(start_agent, how):
    agent = start_agent("--prompt-handler", LEAVING[how], "--prompt-concurrency", "1")
    puck = PuckReader(agent.port)
    assert next(puck.start("hi").events()) == {"type": "on"}
    pids = reported_pids(agent)
    assert all(processes.is_alive(pid) for pid in pids)
    puck.response.close()
    puck.close()
    assert_gone(pids, within=2)
    wait_until(lambda: b"prompts_running 0" in agent.http("GET", "/metrics")[2], what="the place to be free")
    assert b'sandkeeper_prompts_total{outcome="left"} 1' in agent.http("GET", "/metrics")[2]


def test_client_leaves_before_the_answer(start_agent):
    """Also one that goes while its files are written, or while the handler starts."""
    agent = start_agent("--prompt-handler", "sleep 771", "--prompt-concurrency", "64")
    data = base64.b64encode(os.urandom(500000)).decode()
    body = json.dumps({"prompt": [{"type": "file", "media_type": "a/b", "data": data}]}).encode()
    for _ in range(20):
        with RawHttp(agent.port) as http:
            http.request("POST", "/prompt", body)
    wait_until(lambda: b"prompts_running 0" in agent.http("GET", "/metrics")[2], what="the places to be free")
    wait_until(lambda: not agent.left_over(), what="the handlers to be gone")


def test_agent_ends_while_prompts_run(start_agent):
    agent = start_agent("--prompt-handler", "tee line; echo; trap '' TERM; while :; do sleep 1; done", "--grace", "0.5")
    with PuckReader(agent.port) as puck:
        events = puck.start([{"type": "file", "media_type": "a/b", "text": "x"}]).events()
        line = json.loads(next(events)["text"])
        path = line["files"][0]["path"]
        assert os.path.exists(path)
        agent.stop()
    assert not os.path.exists(os.path.dirname(path))


def test_agent_ends_and_its_clients_hear_it(start_agent):
    agent = start_agent("--prompt-handler", "echo '{\"type\":\"on\"}'; sleep 60")
    with PuckReader(agent.port) as puck:
        events = puck.start("hi").events()
        assert next(events) == {"type": "on"}
        agent.signal(signal.SIGTERM)
        assert list(events) == [{"type": "error", "message": "handler was ended by SIGTERM"}, DONE]
    agent.check_ended()


def test_stopped_sandbox(start_agent):
    """Section 6: stop ends prompts too, and then they are refused."""
    agent = start_agent("--prompt-handler", "echo $$ >pids; echo '{\"type\":\"on\"}'; sleep 60", "--sandbox-id", "box")
    with PuckReader(agent.port) as puck, PuckReader(agent.port) as other:
        events = puck.start("hi").events()
        assert next(events) == {"type": "on"}
        assert agent.http("POST", "/api/v1/sandbox/box/stop")[0] == 200
        assert list(events) == [{"type": "error", "message": "handler was ended by SIGTERM"}, DONE]
        assert_gone(reported_pids(agent), within=1)
        with pytest.raises(PuckError) as refused:
            other.start("hi")
        assert (refused.value.status, refused.value.error) == (
            503,
            "the sandbox is stopped and takes no prompts; start it first",
        )
        assert agent.http("POST", "/api/v1/sandbox/box/start")[0] == 200
        assert next(other.start("hi").events()) == {"type": "on"}


def test_health_while_prompts_stream(start_agent):
    """Case 33, its prompt: four handlers print at full speed to clients that read, and health answers."""
    agent = start_agent("--prompt-handler", "yes '{\"type\":\"x\"}'")
    readers = []
    for _ in range(4):
        puck = PuckReader(agent.port)
        readers.append((puck, puck.start("hi").events()))
    slowest = 0
    for _ in range(50):
        for _, events in readers:
            for _ in range(100):
                assert next(events) == {"type": "x"}
        began = time.monotonic()
        assert agent.health()["status"] == "ok"
        slowest = max(slowest, time.monotonic() - began)
    assert slowest < 1  # the figure itself is in bench/
    for puck, _ in readers:
        puck.response.close()
        puck.close()
