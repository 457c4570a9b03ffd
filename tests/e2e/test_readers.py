"""docs/protocol.md 4.2, slow and dead readers: a reader is a position in the log, and memory is bounded."""

import random
import threading
import time

import pytest

from helpers import processes
from helpers.agent import SANITIZED, rounds
from helpers.bounds import TIME_MARGIN, memory_kib
from helpers.names import unique_cmd_id
from helpers.wait import wait_until


class Sink:
    """Takes the notifications of a call: counts, checks the offsets, keeps no text unless asked."""

    def __init__(self, keep=False):
        self.position = {}
        self.first = {}
        self.gaps = []
        self.parts = {"stdout": [], "stderr": []} if keep else None
        self.names = []

    def __call__(self, name, params):
        self.names.append(name) if name not in ("exec.stdout", "exec.stderr") else None
        if name == "exec.gap":
            self.gaps.append(params)
            stream = params["stream"]
            assert params["dropped_bytes"] > 0
            self.position[stream] = self.position.get(stream, 0) + params["dropped_bytes"]
        elif name in ("exec.stdout", "exec.stderr"):
            stream = name.removeprefix("exec.")
            self.first.setdefault(stream, params["offset"])
            expected = self.position.setdefault(stream, params["offset"])
            assert params["offset"] == expected, f"{stream}: offset {params['offset']} where {expected} is next"
            self.position[stream] += len(params["data"])  # ASCII only in these tests
            if self.parts is not None:
                self.parts[stream].append(params["data"])

    def text(self, stream="stdout"):
        return "".join(self.parts[stream])


def test_case_18_a_dead_reader_does_not_wedge_the_others(start_agent):
    """One of two followers stops reading while 50 MB flow: the other gets all, the command ends, memory is bounded."""
    agent = start_agent("--stall-timeout", "1")
    size = rounds(50_000_000)
    with agent.connect() as client, agent.raw(receive_buffer=4096) as dead:
        client.exec("rm -f go.fifo; mkfifo go.fifo; head -c 3000000 /dev/zero")
        processes.reset_peak_rss(agent.pid)
        base = agent.rss_kib()
        client.exec(f"read x <go.fifo; yes | head -c {size}", detached=True, cmd_id="flow")
        dead.send_request("exec_logs", {"cmd_id": "flow"})
        assert dead.recv_json()["method"] == "exec.start"
        sink = Sink()
        call = client.start("exec_logs", {"cmd_id": "flow"}, on_notification=sink)
        client.exec("echo go >go.fifo")
        started = time.monotonic()
        result = call.result(60)
        assert time.monotonic() - started < 30
        assert result["stdout_bytes"] == size and sink.position["stdout"] == size and not sink.gaps
        assert processes.peak_rss_kib(agent.pid) < base + memory_kib(8192)
        # It wakes up: what it had, then the gap, then the rest, and the end.
        dead_sink = Sink()
        while "id" not in (message := dead.recv_json()):
            dead_sink(message["method"], message["params"])
        assert dead_sink.gaps and dead_sink.position["stdout"] == size
        assert message["result"]["stdout_bytes"] == size


def test_case_19_a_slow_client_does_not_grow_memory(start_agent):
    """400 MB with a reader that does not read: resident memory stays under base + 8 MB."""
    agent = start_agent("--stall-timeout", "1")
    size = rounds(400_000_000)
    with agent.connect() as client, agent.raw(receive_buffer=4096) as dead:
        client.exec("head -c 3000000 /dev/zero")
        base = agent.rss_kib()
        processes.reset_peak_rss(agent.pid)
        dead.send_request("exec", {"command": f"yes | head -c {size}", "cmd_id": "flow"})
        wait_until(lambda: any(item["state"] == "finished" for item in client.call("exec_list") if item["cmd_id"] == "flow"), 60)
        assert processes.peak_rss_kib(agent.pid) < base + memory_kib(8192)
        sink = Sink()
        while "id" not in (message := dead.recv_json()):
            sink(message["method"], message["params"])
        assert sink.position["stdout"] == size
        assert sink.gaps[0]["stream"] == "stdout" and sink.gaps[0]["dropped_bytes"] > size // 2
        assert message["result"]["stdout_bytes"] == size and message["result"]["truncated"] is True
        assert message["result"]["output"] == ("y\n" * 300_000)[-524_288:]


def test_many_dead_readers_do_not_grow_memory(start_agent):
    agent = start_agent("--stall-timeout", "0.5")
    dead = []
    try:
        with agent.connect() as client:
            client.exec("head -c 3000000 /dev/zero")
            base = agent.rss_kib()
            for n in range(20):
                dead.append(agent.raw(receive_buffer=4096))
                dead[-1].send_request("exec", {"command": f"yes | head -c {rounds(20_000_000)}", "cmd_id": f"flow{n}"})

            def all_finished():
                return sum(item["state"] == "finished" for item in client.call("exec_list")) == 21

            wait_until(all_finished, 60)
            # 20 logs of 512 KiB with their tags, and one message under way for each session.
            assert agent.rss_kib() < base + memory_kib(20 * (640 + 512) + 4096)
            assert client.exec("echo on")["output"] == "on\n"
    finally:
        for ws in dead:
            ws.close()


def test_a_slow_but_living_reader_loses_nothing(start_agent):
    """It takes little at a time, with pauses shorter than the stall limit: the command waits for it."""
    agent = start_agent("--stall-timeout", "5")
    size = rounds(30_000_000)
    with agent.raw(receive_buffer=65536) as slow:
        slow.send_request("exec", {"command": f"yes | head -c {size}"})
        sink, n = Sink(), 0
        while "id" not in (message := slow.recv_json()):
            sink(message["method"], message["params"])
            n += 1
            if n in (20, 60, 100):
                time.sleep(1)
        assert sink.position["stdout"] == size and not sink.gaps


def test_a_command_waits_for_its_living_reader(start_agent):
    """Reading from the pipe pauses: the program cannot end before its reader has taken enough."""
    agent = start_agent("--stall-timeout", "60")
    with agent.raw(receive_buffer=4096) as reader, agent.connect() as client:
        reader.send_request("exec", {"command": "head -c 30000000 /dev/zero | tr '\\0' x", "cmd_id": "waits"})
        assert reader.recv_json()["method"] == "exec.start"
        time.sleep(1)
        (item,) = (item for item in client.call("exec_list") if item["cmd_id"] == "waits")
        assert item["state"] == "running"
        used = processes.cpu_seconds(agent.pid)
        time.sleep(1)
        assert processes.cpu_seconds(agent.pid) - used < 0.5, "the agent spins while it waits"
        sink = Sink()
        while "id" not in (message := reader.recv_json()):
            sink(message["method"], message["params"])
        assert sink.position["stdout"] == 30_000_000 and not sink.gaps


def test_a_reader_that_leaves_no_longer_holds_the_command(start_agent):
    agent = start_agent("--stall-timeout", "60")
    with agent.connect() as client:
        with agent.raw(receive_buffer=4096) as reader:
            reader.send_request("exec", {"command": "head -c 30000000 /dev/zero", "cmd_id": "free"})
            assert reader.recv_json()["method"] == "exec.start"
        assert client.call("exec_logs", {"cmd_id": "free", "stream": False})["stdout_bytes"] == 30_000_000


def test_a_detached_command_without_readers_never_waits(client):
    size = rounds(100_000_000)
    cmd_id = client.exec(f"head -c {size} /dev/zero", detached=True)["cmd_id"]
    assert client.call("exec_logs", {"cmd_id": cmd_id, "stream": False}, 60)["stdout_bytes"] == size


def test_a_reader_that_wants_no_stream_holds_nothing(client):
    """stream: false has no position to keep."""
    assert client.exec(f"head -c {rounds(50_000_000)} /dev/zero", stream=False)["truncated"] is True


def test_the_stall_limit_is_kept(start_agent):
    agent = start_agent("--stall-timeout", "2")
    with agent.connect() as client, agent.raw(receive_buffer=4096) as dead:
        started = time.monotonic()
        dead.send_request("exec", {"command": "head -c 30000000 /dev/zero", "cmd_id": "held"})
        wait_for_command(client, "held")
        result = client.call("exec_logs", {"cmd_id": "held", "stream": False})
        elapsed = time.monotonic() - started
        assert result["stdout_bytes"] == 30_000_000
        assert 1.5 < elapsed < 2 + 3 + 2 * TIME_MARGIN


def wait_for_command(client, cmd_id):
    return wait_until(lambda: any(item["cmd_id"] == cmd_id for item in client.call("exec_list")))


@pytest.mark.parametrize("seed", range(2))
def test_case_20_no_gap_and_no_double_between_replay_and_follow(start_agent, seed):
    """Readers attach at random moments to a counter on both streams; each gets one unbroken piece up to the end."""
    agent = start_agent("--stall-timeout", "60")
    last = rounds(1_000_000)
    expected = "".join(f"{n}\n" for n in range(1, last + 1))
    dice = random.Random(seed)
    moments = sorted(dice.randrange(len(expected)) for _ in range(6))
    doors = [threading.Event() for _ in moments]
    failures, sinks = [], []

    def follow(door):
        try:
            with agent.connect() as client:
                sink = Sink(keep=True)
                assert door.wait(60)
                call = client.start("exec_logs", {"cmd_id": "counter"}, on_notification=sink)
                result = call.result(90)
                assert result["stdout_bytes"] == result["stderr_bytes"] == len(expected)
                assert not sink.gaps
                sinks.append(sink)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=follow, args=(door,)) for door in doors]
    for thread in threads:
        thread.start()
    with agent.connect() as client:
        sink = Sink(keep=True)

        def take(name, params):
            sink(name, params)
            for moment, door in zip(moments, doors):
                if sink.position.get("stdout", 0) >= moment and not door.is_set():
                    door.set()

        command = f"seq 1 {last} & seq 1 {last} >&2; wait"
        client.start("exec", {"command": command, "cmd_id": "counter"}, on_notification=take).result(90)
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert sink.text() == sink.text("stderr") == expected
    assert len(sinks) == len(moments)
    for sink in sinks:
        for stream in ("stdout", "stderr"):
            assert sink.text(stream) == expected[sink.first.get(stream, len(expected)) :]


def test_case_21_300_mb_on_one_line(client, agent):
    """No quadratic time, no spinning."""
    size = rounds(300_000_000)
    sink = Sink()
    started = time.monotonic()
    call = client.start("exec", {"command": f"head -c {size} /dev/zero | tr '\\0' x"}, on_notification=sink)
    result = call.result(100)
    assert sink.position["stdout"] == size and result["stdout_bytes"] == size
    assert time.monotonic() - started < 60
    assert_quiet(agent)


def test_case_21_100_mb_to_stderr_with_stdout_closed(client, agent):
    size = rounds(100_000_000)
    sink = Sink()
    call = client.start("exec", {"command": f"exec >&-; head -c {size} /dev/zero | tr '\\0' x >&2"}, on_notification=sink)
    result = call.result(100)
    assert sink.position["stderr"] == result["stderr_bytes"] == size and result["stdout_bytes"] == 0
    assert_quiet(agent)


def assert_quiet(agent):
    """With nothing to do, nothing is done."""
    before = processes.cpu_seconds(agent.pid)
    time.sleep(0.5)
    assert processes.cpu_seconds(agent.pid) - before < 0.2


def test_a_closed_stdout_of_a_living_command_costs_nothing(client, agent):
    """An end of file on one pipe while the other is open: a level-triggered wait would spin."""
    call = client.start_exec("exec >&-; exec sleep 600", cmd_id=(cmd_id := unique_cmd_id()))
    call.wait_for("exec.start")
    time.sleep(0.2)
    assert_quiet(agent)
    both = client.start_exec("exec >&- 2>&-; exec sleep 600", cmd_id=(both_id := unique_cmd_id()))
    both.wait_for("exec.start")
    time.sleep(0.2)
    assert_quiet(agent)
    for name, running in ((cmd_id, call), (both_id, both)):
        client.call("kill", {"cmd_id": name})
        running.result()


def test_a_stalled_reader_is_told_the_gap_of_each_stream(start_agent):
    agent = start_agent("--stall-timeout", "0.5")
    size = 10_000_000
    with agent.raw(receive_buffer=4096) as dead, agent.connect() as client:
        dead.send_request("exec", {"command": f"yes | head -c {size} & yes | head -c {size} >&2; wait", "cmd_id": "two"})
        wait_for_command(client, "two")
        assert client.call("exec_logs", {"cmd_id": "two", "stream": False})["stderr_bytes"] == size
        sink = Sink()
        while "id" not in (message := dead.recv_json()):
            sink(message["method"], message["params"])
        assert sink.position == {"stdout": size, "stderr": size}
        assert {gap["stream"] for gap in sink.gaps} == {"stdout", "stderr"}
        for gap in sink.gaps:
            assert set(gap) == {"id", "stream", "offset", "dropped_bytes"}
        assert SANITIZED or message["result"]["truncated"] is True


def test_waiting_for_a_reader_is_no_idleness(start_agent):
    """The program has output; that it cannot get rid of it is not its fault: idle_timeout does not count that time."""
    agent = start_agent("--stall-timeout", "60")
    with agent.raw(receive_buffer=4096) as reader:
        reader.send_request("exec", {"command": "yes | head -c 30000000", "idle_timeout": 0.5})
        assert reader.recv_json()["method"] == "exec.start"
        time.sleep(2)
        sink = Sink()
        while "id" not in (message := reader.recv_json()):
            sink(message["method"], message["params"])
        assert message.get("result", {}).get("reason") == "exited", message
        assert sink.position["stdout"] == 30_000_000
