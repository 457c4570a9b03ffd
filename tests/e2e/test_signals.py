"""The agent's own signals, and its orderly end."""

import os
import signal
import time

from pathlib import Path
import pytest
from websockets.exceptions import InvalidStatus

from helpers import processes
from helpers.bounds import TIME_MARGIN
from helpers.client import Closed, RpcError
from helpers.names import unique_seconds
from helpers.wait import wait_until


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGQUIT"])
def test_an_idle_agent_ends_at_once(start_agent, name):
    agent = start_agent()
    started = time.monotonic()
    agent.signal(getattr(signal, name))
    agent.check_ended(5)
    assert time.monotonic() - started < 1 + TIME_MARGIN


def test_polite_commands_end_the_agent_at_once(start_agent):
    agent = start_agent()
    seconds = unique_seconds()
    with agent.connect() as client:
        for _ in range(5):
            client.exec(f"sleep {seconds} & sleep {seconds}", detached=True)
        client.exec(f"kill -STOP $$; sleep {seconds}", detached=True)
        wait_until(lambda: len(processes.with_words("sleep", seconds)) == 10)
        started = time.monotonic()
        agent.signal(signal.SIGTERM)
        assert client.wait_closed()[0] == 1001
    agent.check_ended(5)
    assert time.monotonic() - started < 1 + TIME_MARGIN


def stubborn(client):
    """Ignores everything that can be ignored, in the group and out of it."""
    seconds = unique_seconds()
    command = f"trap '' TERM INT HUP; (setsid sh -c 'trap \"\" TERM; sleep {seconds}; :' &); echo ready; sleep {seconds}; :"
    call = client.start_exec(command)
    call.wait_for_text("ready\n")
    wait_until(lambda: len(processes.with_words("sleep", seconds)) == 2)
    return seconds


def test_stubborn_commands_are_killed_after_the_grace(start_agent):
    agent = start_agent("--grace", "1")
    with agent.connect() as client:
        seconds = stubborn(client)
        started = time.monotonic()
        agent.signal(signal.SIGTERM)
    agent.check_ended(10)
    assert 0.9 < time.monotonic() - started < 1 + 1 + TIME_MARGIN
    assert processes.with_words("sleep", seconds) == []


def test_a_second_sigterm_kills_at_once(start_agent):
    agent = start_agent("--grace", "60")
    with agent.connect() as client:
        seconds = stubborn(client)
        agent.signal(signal.SIGTERM)
        wait_until(lambda: stopping(agent), what="the agent to be stopping")
        assert processes.with_words("sleep", seconds)
        started = time.monotonic()
        agent.signal(signal.SIGTERM)
    agent.check_ended(10)
    assert time.monotonic() - started < 1 + TIME_MARGIN
    assert processes.with_words("sleep", seconds) == []


def stopping(agent):
    """Health says so, or nobody is answered any more."""
    try:
        status, _, body = agent.http("GET", "/health")
    except OSError:
        return True
    return status == 503 and b"stopping" in body


def test_a_command_may_finish_its_work_in_the_grace(start_agent):
    agent = start_agent("--grace", "10")
    path = os.path.join(agent.directory, "cleaned")
    with agent.connect() as client:
        call = client.start_exec(f"trap 'sleep 0.5; echo done >{path}; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        call.wait_for_text("ready\n")
        agent.signal(signal.SIGTERM)
    agent.process.wait(10)
    assert Path(path).read_text() == "done\n"
    agent.check_ended()


def test_no_new_work_while_stopping(start_agent):
    agent = start_agent("--grace", "3")
    with agent.connect() as client:
        stubborn(client)
        agent.signal(signal.SIGTERM)
        client.wait_closed()
    with pytest.raises((OSError, Closed, RpcError, InvalidStatus)):
        with agent.connect() as late:
            late.exec("echo late")
    agent.check_ended(10)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGPWR", "SIGCHLD", "SIGPIPE", "SIGALRM",
                                  "SIGCONT", "SIGURG", "SIGRTMIN", "SIGRTMAX", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGIO",
                                  "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGXFSZ"])  # fmt: skip
def test_other_signals_change_nothing(start_agent, name):
    agent = start_agent()
    with agent.connect() as client:
        for _ in range(3):
            agent.signal(getattr(signal, name))
        assert client.exec("echo on")["output"] == "on\n"
    assert agent.health()["status"] == "ok"
    assert agent.is_running()


def test_an_agent_that_was_stopped_goes_on(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        agent.signal(signal.SIGSTOP)
        call = client.start_exec("echo on")
        agent.signal(signal.SIGCONT)
        assert call.result()["output"] == "on\n"


def test_sigterm_in_the_middle_of_everything(start_agent):
    """Output flows, starts are under way, input waits: still an orderly end."""
    agent = start_agent("--grace", "1")
    clients = [agent.connect() for _ in range(4)]
    try:
        clients[0].start_exec("yes")  # the one that is read first: a client that does not read sees no close frame
        for client in clients:
            client.start_exec("sleep 600", stdin=True, cmd_id=f"input{clients.index(client)}")
            client.start("exec_input", {"cmd_id": f"input{clients.index(client)}", "data": "x" * 500_000})
            for _ in range(20):
                client.start_exec("sleep 0.01; echo hi")
        clients[0].calls[1].wait_for("exec.stdout")
        agent.signal(signal.SIGTERM)
        for client in clients:
            assert client.wait_closed()[0] == 1001
    finally:
        for client in clients:
            client.close()
    agent.check_ended(10)


def test_the_agent_killed_leaves_its_commands_to_the_container(start_agent):
    """No promise but this: its clients see the end, and a new agent works in the same place."""
    agent = start_agent()
    with agent.connect() as client:
        client.start_exec("exec sleep 600").wait_for("exec.start")
        agent.signal(signal.SIGKILL)
        assert client.wait_closed()[0] == 1006
    agent.kill()
