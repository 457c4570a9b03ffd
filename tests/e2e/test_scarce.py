"""When the machine gives no more: descriptors, processes, memory, the work directory. Errors, not death, and a recovery."""

import errno
import os
import shutil

import pytest

from helpers.agent import SANITIZED
from helpers.client import Closed
from helpers.messages import padded
from helpers.names import unique_seconds
from helpers.raw_ws import ConnectionEnded
from helpers.wait import wait_until


def limited(limit):
    """A prefix that starts the agent under a limit of the shell's ulimit."""
    return ("bash", "-c", f'ulimit {limit}; exec "$@"', "bash")


def test_descriptors_run_out(start_agent):
    agent = start_agent(prefix=limited("-n 100"))
    with agent.connect() as client:
        client.exec("true")
        before = agent.fd_count()
        running, refused = [], 0
        for _ in range(60):  # each holds three descriptors: more than there are
            call = client.start_exec(f"exec sleep {unique_seconds()}", stdin=True)
            client.pump(lambda: call.response or "exec.start" in call.names(), 30, "a start or an error")
            if call.response:
                error = call.error()
                assert error.code == -32008 and error.data["errno"] == errno.EMFILE, error
                refused += 1
            else:
                running.append(call)
        assert running and refused
        # The session lives, and what is given back can be used again.
        for call in running:
            client.call("kill", {"cmd_id": call.wait_for("exec.start")["cmd_id"], "signal": "KILL"})
            assert call.result()["signal"] == "SIGKILL"
        assert client.exec("echo again")["output"] == "again\n"
        wait_until(lambda: agent.fd_count() <= before)
    with agent.connect() as client:
        assert client.exec("echo and again")["output"] == "and again\n"


def test_connections_use_up_the_descriptors(start_agent):
    agent = start_agent(prefix=limited("-n 120"))
    crowd = []
    try:
        for _ in range(150):
            try:
                crowd.append(agent.raw(timeout=1))
            except (OSError, AssertionError, ConnectionEnded):
                break
        assert 10 < len(crowd) < 150
    finally:
        for ws in crowd:
            ws.close()
    wait_until(lambda: healthy(agent), 20, "health to answer again")
    with agent.connect() as client:
        assert client.exec("echo room")["output"] == "room\n"


def healthy(agent):
    try:
        return agent.http("GET", "/health", timeout=2)[0] == 200
    except OSError:
        return False


def test_processes_run_out(start_agent):
    """RLIMIT_NPROC counts all processes of a user; this one has no others."""
    agent = start_agent(user=54321, group=54321, extra_groups=[], prefix=limited("-u 20"))
    with agent.connect() as client:
        calls, refused = [], []
        for _ in range(25):
            call = client.start("exec", {"argv": ["sleep", unique_seconds()]})
            client.pump(lambda: call.response or "exec.start" in call.names(), 30, "a start or an error")
            (refused if call.response else calls).append(call)
        assert calls and refused
        for call in refused:
            error = call.error()
            assert error.code in (-32008, -32010), error
        for call in calls:
            client.call("kill", {"cmd_id": call.wait_for("exec.start")["cmd_id"]})
            call.result()
        assert client.exec("echo again")["output"] == "again\n"


def test_memory_runs_out(start_agent):
    # ASAN needs terabytes of address space: there the same goes on without a limit.
    agent = start_agent(prefix=limited("-v unlimited" if SANITIZED else "-v 150000"))
    for _ in range(2):
        clients = [agent.connect() for _ in range(3)]
        try:
            for client in clients:
                try:
                    client.send_raw(padded(60_000_000, call_id="big"))
                except Closed:
                    pass
            for client in clients:
                try:
                    answer = client.next_unrouted(30)
                    assert "result" in answer or answer["error"]["code"] == -32603, answer
                except Closed as closed:
                    assert closed.code in (1009, 1011, 1013, 1006), closed
        finally:
            for client in clients:
                client.close()
        with agent.connect() as client:
            assert client.exec("echo alive")["output"] == "alive\n"
            assert client.exec("wc -c", stdin_data="x" * 1_000_000)["output"].strip() == "1000000"


def test_the_work_directory_goes_away(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("true")
        shutil.rmtree(agent.workdir)
        response = client.start("exec", {"command": "echo still here", "output": "split"}).wait()
        assert "error" not in response or response["error"]["code"] == -32001, response
        assert "error" in response or response["result"]["stdout"] == "still here\n"
        assert client.exec("echo elsewhere", working_dir="/")["output"] == "elsewhere\n"
        os.mkdir(agent.workdir)


@pytest.mark.parametrize(
    "path, number", [("/" + "x" * 300, errno.ENAMETOOLONG), ("/tmp/" + "y/" * 2500, errno.ENAMETOOLONG), ("loop", errno.ELOOP)]
)
def test_other_faults_of_a_working_dir(client, agent, path, number):
    loop = os.path.join(agent.workdir, "loop")
    if not os.path.islink(loop):
        os.symlink("loop", loop)
    error = client.call_error("exec", {"command": "true", "working_dir": path})
    assert error.code < -31000 and error.data["errno"] == number, error
    assert "working_dir" in error.message
