"""docs/protocol.md 4.4."""

import os
import signal
import time

import pytest

from helpers import processes
from helpers.names import unique_cmd_id, unique_seconds
from helpers.wait import wait_until


def start(client, command, **params):
    """Runs it until it says "ready"."""
    call = client.start_exec(command, cmd_id=unique_cmd_id(), **params)
    call.wait_for_text("ready\n")
    return call, call.wait_for("exec.start")["cmd_id"]


@pytest.mark.parametrize(
    "name, number",
    [
        ("SIGTERM", 15), ("TERM", 15), (15, 15), ("SIGKILL", 9), ("KILL", 9), (9, 9), ("SIGINT", 2), ("INT", 2),
        ("SIGHUP", 1), ("HUP", 1), (1, 1), ("SIGQUIT", 3), ("SIGUSR1", 10), ("USR2", 12), ("ALRM", 14), ("PIPE", 13),
    ],
)  # fmt: skip
def test_signals_by_name_and_number(client, name, number):
    # Not through a shell: bash ignores SIGQUIT until it has become the sleep.
    call = client.start_exec(None, argv=["sleep", "600"])
    cmd_id = call.wait_for("exec.start")["cmd_id"]
    pid = call.wait_for("exec.start")["pid"]
    wait_until(lambda: processes.cmdline(pid) == ["sleep", "600"])  # bash itself ignores some of them
    assert client.call("kill", {"cmd_id": cmd_id, "signal": name}) == {"signaled": True}
    result = call.result()
    assert result["exit_code"] == 128 + number
    assert (result["reason"], result["signal"]) == ("signaled", signal.Signals(number).name)


def test_the_default_is_sigterm(client):
    call, cmd_id = start(client, "echo ready; exec sleep 600")
    assert client.call("kill", {"cmd_id": cmd_id}) == {"signaled": True}
    assert call.result()["signal"] == "SIGTERM"


def test_a_signal_that_is_handled(client):
    # The signal hits the whole group; what the shell then says about its sleep is of no interest.
    call, cmd_id = start(client, "exec 2>/dev/null; trap 'echo got it; exit 5' USR1; echo ready; while :; do sleep 0.05; done")
    client.call("kill", {"cmd_id": cmd_id, "signal": "USR1"})
    result = call.result()
    assert (result["exit_code"], result["reason"], result["output"]) == (5, "exited", "ready\ngot it\n")


def test_stop_and_continue(client):
    call, cmd_id = start(client, "echo ready; exec sleep 600")
    pid = call.wait_for("exec.start")["pid"]
    client.call("kill", {"cmd_id": cmd_id, "signal": "STOP"})
    wait_until(lambda: processes.stat(pid)["state"] == "T")
    client.call("kill", {"cmd_id": cmd_id, "signal": "CONT"})
    wait_until(lambda: processes.stat(pid)["state"] == "S")
    assert call.response is None
    client.call("kill", {"cmd_id": cmd_id})
    call.result()


def test_case_03_kill_takes_the_whole_group(client):
    seconds = unique_seconds(771)
    call, cmd_id = start(client, f"sleep {seconds} & echo ready; sleep {seconds}")
    wait_until(lambda: len(processes.with_words("sleep", seconds)) == 2)
    client.call("kill", {"cmd_id": cmd_id})
    assert call.result()["reason"] == "signaled"
    wait_until(lambda: processes.with_words("sleep", seconds) == [])


def test_case_03_by_every_signal_that_kills(client):
    for name in ("HUP", "INT", "TERM", "KILL"):
        seconds = unique_seconds(771)
        # Without job control a shell starts background children with SIGINT ignored; here the child asks for it again.
        child = f"env --default-signal=INT sleep {seconds}"
        call, cmd_id = start(client, f"{child} & {child} & echo ready; wait")
        wait_until(lambda: len(processes.with_words("sleep", seconds)) == 2)
        client.call("kill", {"cmd_id": cmd_id, "signal": name})
        call.result()
        wait_until(lambda: processes.with_words("sleep", seconds) == [], what=f"the end of all after {name}")


def test_case_11_a_stopped_process_must_still_die(client):
    call, cmd_id = start(client, "echo ready; kill -STOP $$; sleep 600")
    pid = call.wait_for("exec.start")["pid"]
    wait_until(lambda: processes.stat(pid)["state"] == "T")
    client.call("kill", {"cmd_id": cmd_id, "signal": "SIGTERM"})
    assert call.result(10)["signal"] == "SIGTERM"


def test_a_finished_command_is_never_signalled(client):
    result = client.exec("true")
    assert client.call("kill", {"cmd_id": result["cmd_id"]}) == {"signaled": False}
    assert client.call("kill", {"cmd_id": result["cmd_id"], "signal": "KILL"}) == {"signaled": False}


def test_the_background_child_of_a_finished_command_is_not_signalled(client):
    seconds = unique_seconds()
    result = client.exec(f"sleep {seconds} & echo hi")
    assert client.call("kill", {"cmd_id": result["cmd_id"], "signal": "KILL"}) == {"signaled": False}
    time.sleep(0.3)
    (pid,) = processes.with_words("sleep", seconds)
    os.kill(pid, signal.SIGKILL)


def test_a_kill_from_another_connection(agent, client):
    call, cmd_id = start(client, "echo ready; exec sleep 600")
    with agent.connect() as other:
        assert other.call("kill", {"cmd_id": cmd_id}) == {"signaled": True}
    assert call.result()["signal"] == "SIGTERM"


def test_without_a_scope_a_new_session_is_left_alone(client):
    seconds = unique_seconds()
    call, cmd_id = start(client, f"setsid sleep {seconds} & echo ready; sleep 600")
    wait_until(lambda: processes.with_words("sleep", seconds))
    client.call("kill", {"cmd_id": cmd_id})
    call.result()
    (pid,) = processes.with_words("sleep", seconds)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "command",
    [
        "setsid sleep {0} & echo ready; sleep 600",
        "(setsid sh -c 'setsid sleep {0}' &); echo ready; sleep 600",
        "(setsid setsid sleep {0} & ) ; echo ready; exec sleep 600",
        "sleep {0} & echo ready; wait",
    ],
)
def test_the_scope_tree_takes_every_descendant(client, command):
    seconds = unique_seconds()
    call, cmd_id = start(client, command.format(seconds))
    wait_until(lambda: processes.with_words("sleep", seconds))
    answer = client.call("kill", {"cmd_id": cmd_id, "signal": "KILL", "scope": "tree"})
    assert answer["signaled"] is True and answer["survivors"] == 0
    assert call.result()["signal"] == "SIGKILL"
    wait_until(lambda: processes.with_words("sleep", seconds) == [])


def test_the_scope_tree_with_sigterm(client):
    seconds = unique_seconds()
    call, cmd_id = start(client, f"setsid sleep {seconds} & echo ready; sleep {seconds}")
    wait_until(lambda: len(processes.with_words("sleep", seconds)) == 2)
    assert isinstance(client.call("kill", {"cmd_id": cmd_id, "scope": "tree"})["survivors"], int)
    call.result()
    wait_until(lambda: processes.with_words("sleep", seconds) == [])


def test_signals_to_the_tree_that_come_together(client):
    """Each reaches each process once, also those that left the group."""
    loop = "trap 'echo {0} USR1' USR1; trap 'echo {0} USR2' USR2; trap 'echo {0} ALRM' ALRM; trap 'echo {0} HUP' HUP; echo ready; while :; do sleep 0.02; done"
    command = f"setsid sh -c \"{loop.format('out')}\" 2>/dev/null & exec 2>/dev/null; {loop.format('in')}"
    for _ in range(5):
        call = client.start_exec(command, cmd_id=unique_cmd_id())
        call.wait_for_text("ready\nready\n")
        cmd_id = call.wait_for("exec.start")["cmd_id"]
        names = ["USR1", "USR2", "ALRM", "HUP"]
        kills = [client.start("kill", {"cmd_id": cmd_id, "signal": name, "scope": "tree"}) for name in names]
        assert all(kill.result()["signaled"] for kill in kills)
        wait_until(lambda: client.call("exec_logs", {"cmd_id": cmd_id, "follow": False, "stream": False})["stdout_bytes"] >= 12 + 66)
        client.call("kill", {"cmd_id": cmd_id, "signal": "KILL", "scope": "tree"})
        told = call.result()["output"].split("\n")[2:-1]
        assert sorted(told) == sorted(f"{who} {name}" for who in ("in", "out") for name in names)


def test_the_scope_tree_does_not_touch_other_commands(client):
    other, other_id = start(client, "echo ready; exec sleep 600")
    call, cmd_id = start(client, "setsid sleep 600 & echo ready; sleep 600")
    client.call("kill", {"cmd_id": cmd_id, "signal": "KILL", "scope": "tree"})
    call.result()
    assert other.response is None and processes.is_alive(other.wait_for("exec.start")["pid"])
    client.call("kill", {"cmd_id": other_id})
    other.result()


def test_two_agents_with_the_same_cmd_id(start_agent):
    """The mark in the environment is of one agent's run: the tree of one is not the tree of the other."""
    one, two = start_agent(), start_agent()
    with one.connect() as a, two.connect() as b:
        calls, seconds = [], [unique_seconds(), unique_seconds()]
        for client, word in zip((a, b), seconds):
            call = client.start_exec(f"setsid sleep {word} & echo ready; sleep 600", cmd_id="same")
            call.wait_for_text("ready\n")
            calls.append(call)
        wait_until(lambda: all(processes.with_words("sleep", word) for word in seconds))
        a.call("kill", {"cmd_id": "same", "signal": "KILL", "scope": "tree"})
        calls[0].result()
        wait_until(lambda: processes.with_words("sleep", seconds[0]) == [])
        assert processes.with_words("sleep", seconds[1])
        b.call("kill", {"cmd_id": "same", "signal": "KILL", "scope": "tree"})
        calls[1].result()


def test_a_kill_right_after_the_start(client):
    """The kill may find the program not yet started: it must not get lost."""
    for _ in range(30):
        cmd_id = unique_cmd_id()
        call = client.start_exec("exec sleep 600", cmd_id=cmd_id)
        kill = client.start("kill", {"cmd_id": cmd_id, "signal": "KILL"})
        assert kill.result() == {"signaled": True}
        assert call.result(10)["signal"] == "SIGKILL"


def test_kills_right_after_the_start(client):
    """Nor may one take the place of another; and the scope tree counts survivors also then."""
    for _ in range(30):
        cmd_id = unique_cmd_id()
        call = client.start_exec("exec sleep 600", cmd_id=cmd_id)
        kill = client.start("kill", {"cmd_id": cmd_id, "signal": "KILL"})
        tree = client.start("kill", {"cmd_id": cmd_id, "signal": "CONT", "scope": "tree"})
        assert kill.result() == {"signaled": True}
        assert tree.result() in ({"signaled": True, "survivors": 0}, {"signaled": False})
        assert call.result(10)["signal"] == "SIGKILL"


def test_the_tree_of_a_command_that_does_not_start(client):
    call = client.start("exec", {"argv": ["/does/not/exist"], "cmd_id": "nothing"})
    response = client.start("kill", {"cmd_id": "nothing", "scope": "tree"}).wait()
    assert response.get("result") == {"signaled": False} or response["error"]["code"] == -32001
    assert call.error().code == -32008
