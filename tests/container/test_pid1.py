"""The agent as process 1: reaping, exit codes, signals, the end. In the busybox image unless a test says otherwise."""

import signal
import time

import pytest
from helpers import processes
from helpers.wait import wait_until
from podman import MANY_FILES


@pytest.fixture
def agent(start, example):
    return start(example("busybox"))


def test_it_is_process_1(agent):
    assert agent.run("cat /proc/1/cmdline")["output"].startswith("/bin/sandkeeper")


def test_case_4_orphans_leave_no_zombie(agent):
    with agent.connect() as client:
        for _ in range(200):
            assert client.exec("(sleep 0.05 &); true")["exit_code"] == 0
    wait_until(lambda: not processes.descendants(agent.pid), 10, "all orphans to be reaped")


def test_a_thousand_orphans_at_once(agent):
    result = agent.run("i=0; while [ $i -lt 1000 ]; do (sleep 1 &); i=$((i+1)); done; echo all", timeout=60)
    assert (result["exit_code"], result["output"]) == (0, "all\n")
    wait_until(lambda: not processes.descendants(agent.pid), 30, "all orphans to be reaped")
    assert agent.health()["commands"]["running"] == 0


def test_case_5_exit_codes_stay_exact_while_orphans_die(start, example):
    # A thousand at once have two pipes each.
    with start(example("busybox"), options=MANY_FILES).connect() as client:
        orphans = client.start_exec("i=0; while [ $i -lt 500 ]; do (sleep 0.0$((i%10)) &); i=$((i+1)); done", stream=False)
        calls = [client.start_exec(f"exit {i % 256}", stream=False) for i in range(1000)]
        codes = [call.result(60)["exit_code"] for call in calls]
        assert orphans.result(60)["exit_code"] == 0
    assert codes == [i % 256 for i in range(1000)]


def test_case_5_death_by_every_signal(agent):
    not_deadly = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT}
    not_deadly |= {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    with agent.connect() as client:
        for number in set(range(1, 32)) - not_deadly:
            call = client.start_exec(None, argv=["sleep", "100"])
            cmd_id = call.wait_for("exec.start")["cmd_id"]
            assert client.call("kill", {"cmd_id": cmd_id, "signal": number}) == {"signaled": True}
            result = call.result()
            found = (result["exit_code"], result["reason"], result["signal"])
            assert found == (128 + number, "signaled", signal.Signals(number).name)


def test_case_29_an_idle_agent_ends_at_once(agent):
    assert agent.seconds_to_end() < 1.0
    assert agent.exit_code() == 0


@pytest.mark.parametrize("name", ["TERM", "INT", "QUIT"])
def test_each_stop_signal_ends_it_with_0(agent, name):
    assert agent.seconds_to_end(name) < 1.0
    assert agent.exit_code() == 0


def test_case_29_podman_stop_needs_no_kill(agent):
    began = time.monotonic()
    done = __import__("podman").podman("stop", "--time", "10", agent.name)
    # podman warns when it had to resort to SIGKILL. Its own work takes some tenths of a second.
    assert "SIGKILL" not in done.stderr
    assert time.monotonic() - began < 5.0
    assert agent.exit_code() == 0


def test_case_29_polite_children_are_given_their_time(agent):
    with agent.connect() as client:
        call = client.start_exec("trap 'sleep 0.3; touch /run/agent/tidy; exit 0' TERM; echo ready; sleep 100 & wait")
        call.wait_for_text("ready")
        assert agent.seconds_to_end() < 2.0
    assert agent.exit_code() == 0
    import os

    assert os.path.exists(f"{agent.shared}/tidy")


def test_case_29_stubborn_children_are_killed_within_the_grace(start, example):
    agent = start(example("busybox"), "--grace", "1s")
    with agent.connect() as client:
        call = client.start_exec("trap '' TERM; echo ready; while true; do sleep 1; done")
        call.wait_for_text("ready")
        took = agent.seconds_to_end()
    assert 0.9 < took < 3.0
    assert agent.exit_code() == 0


def test_a_second_signal_kills_at_once(start, example):
    agent = start(example("busybox"), "--grace", "30s")
    with agent.connect() as client:
        call = client.start_exec("trap '' TERM; echo ready; while true; do sleep 1; done")
        call.wait_for_text("ready")
        agent.signal("TERM")
        wait_until(lambda: agent.http("GET", "/health")[0] == 503, 5, "the agent to say that it is stopping")
        assert agent.seconds_to_end() < 2.0
    assert agent.exit_code() == 0


def test_other_signals_change_nothing(agent):
    pid = agent.pid
    with agent.connect() as client:
        names = ["HUP", "USR1", "USR2", "WINCH", "PWR", "PIPE", "ALRM", "CONT", "URG", "IO"]
        for number in [*(getattr(signal, f"SIG{name}") for name in names), 34, 35, 50, 64]:
            __import__("os").kill(pid, number)
            assert client.exec("echo alive")["output"] == "alive\n"
    assert agent.pid == pid


def test_a_stopped_container_refuses_before_it_is_gone(start, example):
    agent = start(example("busybox"), "--grace", "3s")
    with agent.connect() as client:
        call = client.start_exec("trap '' TERM; echo ready; while true; do sleep 1; done")
        call.wait_for_text("ready")
        agent.signal("TERM")
        wait_until(lambda: agent.health()["status"] == "stopping", 5, "the status to be stopping")
        assert client.wait_closed(10)[0] == 1001
    assert agent.exit_code() == 0
