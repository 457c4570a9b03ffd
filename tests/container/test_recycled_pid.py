"""Case 7: a number that another process has taken meanwhile is never signalled."""

import os
import subprocess

import podman as containers
import pytest
from helpers.wait import wait_until

HERE = os.path.dirname(os.path.abspath(__file__))


@pytest.fixture
def agent(start, example):
    """Privileged, so that a test may choose a process's number; with_pid lies in /run/agent."""
    container = start(example("busybox"), options=["--privileged"])
    done = subprocess.run(
        [os.path.join(containers.ROOT, "scripts", "static-libs")], capture_output=True, text=True, timeout=600, check=True
    )
    compiler = os.path.join(done.stdout.strip(), "bin", "cc")
    program = os.path.join(container.shared, "with_pid")
    subprocess.run([compiler, "-O1", "-o", program, os.path.join(HERE, "with_pid.c")], timeout=60, check=True)
    return container


class Victim:
    """A process that the agent has nothing to do with, as soon as `pid` is free."""

    def __init__(self, agent, pid):
        self.agent, self.pid = agent, pid
        agent.exec("/run/agent/with_pid", str(pid), "sleep", "12345", options=["--detach"])

    def is_alive(self):
        words = self.agent.exec("cat", f"/proc/{self.pid}/cmdline", check=False).stdout
        state = self.agent.exec("cut", "-d", " ", "-f", "3", f"/proc/{self.pid}/stat", check=False).stdout.strip()
        return words == "sleep\x0012345\x00" and state in ("S", "R")

    def wait(self):
        wait_until(self.is_alive, 20, f"process {self.pid} to be the victim", interval=0.05)


@pytest.mark.parametrize("scope", [None, "tree"])
def test_case_7_an_old_command_is_not_signalled(agent, scope):
    with agent.connect() as client:
        result = client.exec("exit 0")
        victim = Victim(agent, result["pid"])
        victim.wait()
        for signal in ("TERM", "KILL", "9"):
            params = {"cmd_id": result["cmd_id"], "signal": signal, **({"scope": scope} if scope else {})}
            assert client.call("kill", params)["signaled"] is False
        assert client.exec("echo hi")["output"] == "hi\n"
        assert victim.is_alive()


def test_case_7_an_old_grace_timer_hits_nobody(agent):
    """The leader dies of the timeout's SIGTERM; one of its descendants does not, so that SIGKILL follows a second later.
    The leader's number is another's by then."""
    script = "setsid sh -c \"trap '' TERM; echo ready; while true; do sleep 0.1; done\" & exec sleep 100"
    with agent.connect() as client:
        call = client.start_exec(script, timeout=2)
        pid = call.wait_for("exec.start")["pid"]
        call.wait_for_text("ready")
        victim = Victim(agent, pid)
        error = call.error()
        assert error.kind == "timed_out"
        assert error.data["survivors"] == 0
        victim.wait()
        # Whatever a late timer would do, it has done before an exec that comes after it.
        assert client.exec("sleep 1.5; echo hi")["output"] == "hi\n"
        assert victim.is_alive()


def test_case_7_the_end_of_the_agent_still_comes(agent):
    """At the shutdown a recycled number must not be waited for either."""
    with agent.connect() as client:
        Victim(agent, client.exec("exit 0")["pid"]).wait()
    assert agent.seconds_to_end() < 2.0
    assert agent.exit_code() == 0
