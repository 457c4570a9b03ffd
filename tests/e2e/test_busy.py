"""Case 33: health answers whatever else is going on."""

import http.client
import os
import socket
import subprocess
import threading
import time

import pytest

from helpers import processes
from helpers.agent import SANITIZED


@pytest.mark.timeout(180)
def test_case_33_health_while_everything_goes_on(start_agent):
    """64 programs print, a file of 2 GB is fetched and streamed, a prompt is slow. The promise is 50 ms for 99 of 100. Here
    all that fights for the machine's cores with the agent and with this test, so that the kernel alone may keep a reader
    waiting: the best of three runs counts, and the bound is wider."""
    agent = start_agent("--prompt-handler", "sleep 600")
    big = os.path.join(agent.workdir, "big")
    with open(big, "wb") as file:
        file.truncate(2**31)
    fetches = [
        [f"http://127.0.0.1:{agent.port}/files?path=big"] * 50,
        ["-X", "POST", "-d", '{"prompt":"slow"}', f"http://127.0.0.1:{agent.port}/prompt"],
    ]
    others = [subprocess.Popen(["curl", "-sN", *words], stdout=subprocess.DEVNULL) for words in fetches]
    results = []
    with agent.connect() as client, agent.raw() as streaming:
        ids = [client.exec("while :; do head -c 1000000 /dev/zero; done", detached=True)["cmd_id"] for _ in range(64)]
        streaming.send_request("read_stream", {"path": "big", "chunk_size": 1024 * 1024})
        reader = threading.Thread(target=read_on, args=(streaming,), daemon=True)
        reader.start()
        for _ in range(3):
            results.append(measure(agent))
            if results[-1] < 0.05:
                break
        for cmd_id in ids:
            client.start("kill", {"cmd_id": cmd_id, "signal": "KILL", "scope": "tree"})
        client.call("exec_list")
        streaming.socket.shutdown(socket.SHUT_RDWR)
        reader.join(20)
    for other in others:
        other.kill()
        other.wait()
    assert min(results) < (0.3 if SANITIZED else 0.15), results


def read_on(ws):
    """Takes what comes, and looks at none of it."""
    try:
        while ws.socket.recv(1 << 20):
            pass
    except OSError:
        pass


def measure(agent):
    """The 99th percentile of 300 requests on one kept connection, in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", agent.port, timeout=20)
    times = []
    for _ in range(300):
        started = time.monotonic()
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        assert response.status == 200
        times.append(time.monotonic() - started)
    connection.close()
    return sorted(times)[296]


@pytest.mark.timeout(180)
def test_case_33_no_request_holds_the_loop(start_agent):
    """What the agent itself is asked to do, one kind after the other, with the machine otherwise quiet."""
    agent = start_agent()
    big = "x" * 20_000_000
    jobs = {
        "a message of 20 MB": lambda client: client.call("exec_list", {"padding": big}),
        "stdin of 20 MB": lambda client: client.call("exec", {"command": "cat >/dev/null", "stdin_data": big}),
        "full logs": lambda client: client.exec("head -c 524288 /dev/zero"),
        "a thousand calls": lambda client: [call.result() for call in [client.start("exec_list") for _ in range(1000)]],
        "the tree of a command": lambda client: kill_a_tree(client),
        "a failing start": lambda client: client.call_error("exec", {"argv": ["/no/such/program"]}),
    }
    worst = {}
    for name, job in jobs.items():
        failures, stop = [], threading.Event()

        def work():
            try:
                with agent.connect() as client:
                    while not stop.is_set():
                        job(client)
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            worst[name] = min(measure(agent) for _ in range(2))
        finally:
            stop.set()
            thread.join()
        assert not failures, f"{name}: {failures}"
    # This process serves as both clients, under one lock of its own: its sending of 20 MB is in the times too.
    assert all(value < 0.5 for value in worst.values()), worst


def kill_a_tree(client):
    call = client.start_exec("setsid sleep 600 & sleep 600 & wait")
    cmd_id = call.wait_for("exec.start")["cmd_id"]
    client.call("kill", {"cmd_id": cmd_id, "signal": "KILL", "scope": "tree"})
    call.result()


def test_the_agent_rests_when_nothing_happens(start_agent):
    """No timer ticks: with sessions and a silent command open, two seconds cost next to nothing."""
    agent = start_agent()
    with agent.connect() as one, agent.connect() as two:
        call = one.start_exec("exec sleep 600")
        call.wait_for("exec.start")
        two.start("exec_logs", {"cmd_id": call.wait_for("exec.start")["cmd_id"]}).wait_for("exec.start")
        before = switches(agent.pid)
        cpu = processes.cpu_seconds(agent.pid)
        time.sleep(2)
        assert processes.cpu_seconds(agent.pid) - cpu <= 0.02
        assert switches(agent.pid) - before < 20
        one.call("kill", {"cmd_id": call.wait_for("exec.start")["cmd_id"]})


def switches(pid):
    """How often it has gone to sleep."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
