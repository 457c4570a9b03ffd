"""The sandbox's life: stop, start, restart, delete and expiry, docs/protocol.md section 6."""

import concurrent.futures
import contextlib
import http.client
import json
import signal
import time

import pytest

from helpers import processes
from helpers.agent import rounds
from helpers.client import Closed, RpcError
from helpers.control import Control
from helpers.names import unique_seconds
from helpers.wait import wait_until


@pytest.fixture
def box(start_agent):
    return Control(start_agent("--sandbox-id", "box", "--grace", "1s"))


def gone(box):
    """Nothing that this agent has started is alive."""
    return box.agent.left_over() == []


def start_stubborn(client):
    """A command that ignores SIGTERM, and does so already when this returns."""
    call = client.start_exec(f"trap '' TERM; echo begun; while :; do sleep 0.02; done")
    call.wait_for_text("begun")
    return call


@pytest.fixture
def patient(start_agent):
    """An agent that waits long before it kills."""
    return Control(start_agent("--sandbox-id", "box", "--grace", "60s"))


def start_unhurried(client):
    """A command that ignores SIGTERM and ends after let_go()."""
    call = client.start_exec("trap '' TERM; echo begun; while [ ! -e go ]; do sleep 0.02; done")
    call.wait_for_text("begun")
    return call


def let_go(box):
    with open(f"{box.agent.workdir}/go", "w", encoding="utf-8"):
        pass


# Stop


def test_stop_ends_commands_and_refuses_new_ones(box):
    with box.agent.connect() as client:
        finished = client.exec("echo kept")
        running = client.start_exec("echo begun; sleep 60")
        running.wait_for_text("begun")
        detached = client.call("exec", {"command": "sleep 60", "detached": True})
        assert box.stop().data["status"] == "stopped"
        assert gone(box)
        result = running.result()
        assert result["reason"] == "signaled" and result["signal"] == "SIGTERM" and result["survivors"] == 0
        assert running.names()[-1] == "exec.done"

        error = client.call_error("exec", {"command": "true"})
        assert error.code == -32009 and error.kind == "stopped" and "start it" in error.message
        assert client.call("exec_logs", {"cmd_id": finished["cmd_id"]})["output"] == "kept\n"
        assert client.call("exec_logs", {"cmd_id": detached["cmd_id"]})["exit_code"] == 128 + 15
        assert {command["state"] for command in client.call("exec_list")} == {"finished"}
        assert client.call("write", {"path": "f", "content": "still"}) == {"bytes_written": 5}
        assert client.call("read", {"path": "f"})["content"] == "still"
        assert client.call("stat", {"path": "f"})["exists"]
        assert box.agent.http("GET", "/files?path=f")[2] == b"still"
        assert box.agent.health()["status"] == "ok"
        assert box.info()["status"] == "stopped"
        assert box.stop().data["status"] == "stopped"

        assert box.start().data["status"] == "active"
        assert client.exec("echo again")["output"] == "again\n"
        assert box.start().data["status"] == "active"


def test_stop_kills_what_ignores_term(box):
    with box.agent.connect() as client:
        stubborn = start_stubborn(client)
        assert box.stop().data["status"] == "stopped"
        assert gone(box)
        assert stubborn.result()["signal"] == "SIGKILL"


def test_stop_answers_when_all_is_gone(box):
    with box.agent.connect() as client:
        slow = client.start_exec("trap 'sleep 0.3; echo bye; exit 5' TERM; echo begun; while :; do sleep 0.02; done")
        slow.wait_for_text("begun")
        box.stop()
        # The end has been told before the answer to stop: nothing is waited for here.
        assert client.call("exec_list")[0]["state"] == "finished"
        result = slow.result()
        assert result["exit_code"] == 5 and result["output"].endswith("bye\n")


def test_stop_ends_what_finished_commands_left_behind(box):
    with box.agent.connect() as client:
        client.exec("sleep 60 & echo")
        client.exec("setsid sh -c 'sleep 60' > /dev/null & echo")
        client.exec("(trap '' TERM; while :; do sleep 0.02; done) > /dev/null & echo")
        assert not gone(box)
        assert box.stop().data["status"] == "stopped"
        assert gone(box)


def test_stop_spares_the_images_own_command(start_agent, tmp_path):
    spared, ended = unique_seconds(), unique_seconds()
    script = f"trap 'echo hit > hit; exit' TERM; echo > up; sleep {spared} & while :; do sleep 0.05; done"
    env = {"SANDKEEPER_WORKDIR": str(tmp_path)}
    agent = start_agent("--sandbox-id", "box", "--", "sh", "-c", script, env=env)
    box = Control(agent)
    wait_until((tmp_path / "up").exists, what="the image's command to be up")
    with agent.connect() as client:
        client.exec(f"sleep {ended} & echo")
    for _ in range(2):
        assert box.stop().data["status"] == "stopped"
        assert not processes.with_words("sleep", ended)
        assert processes.with_words("sleep", spared) and not (tmp_path / "hit").exists()
        assert box.restart().data["status"] == "active"
    assert box.delete().data["status"] == "destroying"
    agent.check_ended()
    assert gone(box)


def test_stop_while_a_command_is_starting(box):
    with box.agent.connect() as client:
        calls = [client.start_exec("sleep 60") for _ in range(20)]
        assert box.stop().data["status"] == "stopped"
        assert gone(box)
        for call in calls:
            response = call.wait()
            assert response.get("result", {}).get("reason") == "signaled" or response["error"]["code"] == -32009


def test_a_reader_that_stands_still_does_not_hold_the_stop(box):
    with box.agent.raw() as reader, box.agent.connect() as client:
        reader.send_text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "exec", "params": {"command": "yes"}}))
        wait_until(lambda: not gone(box), what="the command to run")
        assert box.stop().data["status"] == "stopped"
        assert gone(box)
        assert client.call("exec_list")[0]["state"] == "finished"


def test_client_that_leaves_does_not_stop_the_stop(patient):
    with patient.agent.connect() as client:
        start_unhurried(client)
        with pytest.raises(TimeoutError):
            patient.post("stop", {}, timeout=0.2)
        assert patient.info()["status"] == "stopping"
        let_go(patient)
        wait_until(lambda: patient.info()["status"] == "stopped", what="the stop to be done")
        assert gone(patient)


def test_status_while_it_stops(patient):
    with patient.agent.connect() as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        start_unhurried(client)
        stop = pool.submit(patient.stop)
        wait_until(lambda: patient.info()["status"] == "stopping", what="the status stopping")
        assert client.call_error("exec", {"command": "true"}).code == -32009
        let_go(patient)
        assert stop.result().data["status"] == "stopped"


HANDLERS = ["echo begun; sleep 60; :", "trap '' TERM; echo begun; while :; do sleep 0.02; done"]


@pytest.mark.parametrize("handler", HANDLERS)
def test_stop_ends_prompts_and_refuses_new_ones(start_agent, handler):
    box = Control(start_agent("--sandbox-id", "box", "--grace", "1s", "--prompt-handler", handler))
    prompt = json.dumps({"prompt": "hello"})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", box.agent.port, timeout=30)) as connection:
        connection.request("POST", "/prompt", prompt)
        response = connection.getresponse()
        assert json.loads(response.readline()) == {"type": "text", "text": "begun\n"}
        assert box.stop().data["status"] == "stopped"
        assert box.agent.left_over() == []
        events = [json.loads(line) for line in response.read().splitlines()]
        assert [event["type"] for event in events] == ["error", "done"]
        status, _, body = box.agent.http("POST", "/prompt", prompt)
        assert status == 503 and b"stopped" in body
        box.start()
        connection.request("POST", "/prompt", prompt)
        with connection.getresponse() as response:
            assert json.loads(response.readline()) == {"type": "text", "text": "begun\n"}
    wait_until(lambda: box.agent.left_over() == [], what="the prompt to end with its client")


def test_stop_refuses_the_built_in_prompt_too(box):
    box.stop()
    assert box.agent.http("POST", "/prompt", json.dumps({"prompt": "hello"}))[0] == 503
    box.start()
    assert box.agent.http("POST", "/prompt", json.dumps({"prompt": "hello"}))[0] == 200


# Restart


def test_restart(box):
    with box.agent.connect() as client:
        call = client.start_exec("echo begun; sleep 60")
        call.wait_for_text("begun")
        assert box.restart().data["status"] == "active"
        assert gone(box) and call.result()["reason"] == "signaled"
        assert client.exec("echo up")["output"] == "up\n"
        box.stop()
        assert box.restart().data["status"] == "active"
        assert client.exec("echo up")["output"] == "up\n"


def test_what_was_claimed_stays(box):
    box.create("ann", labels={"a": "1"}, ttl_hours=1, payloads=[{"api": "/api/v1/env", "body": {"KEPT": "yes"}}])
    before = box.info()
    box.stop()
    box.start()
    assert {**box.info(), "last_active_at": ""} == {**before, "last_active_at": ""}
    with box.agent.connect() as client:
        assert client.exec("echo $KEPT")["output"] == "yes\n"


@pytest.mark.parametrize("last", ["stop", "start", "restart"])
def test_fifty_wishes_at_once(box, last):
    wishes = (["stop", "start", "restart"] * 17)[:50]
    stop = []

    def make_work():
        with box.agent.connect() as client:
            while not stop:
                try:
                    client.exec("sleep 0.01")
                except RpcError as error:
                    assert error.code == -32009

    with concurrent.futures.ThreadPoolExecutor(54) as pool:
        workers = [pool.submit(make_work) for _ in range(4)]
        answers = list(pool.map(box.post, wishes))
        stop.append(True)
        for worker in workers:
            worker.result()
    assert {answer.data["status"] for answer in answers} <= {"active", "stopping", "stopped"}
    status = box.post(last).data["status"]
    assert status == ("stopped" if last == "stop" else "active") == box.info()["status"]
    with box.agent.connect() as client:
        if last == "stop":
            assert client.call_error("exec", {"command": "true"}).code == -32009
        else:
            assert client.exec("echo up")["output"] == "up\n"


def test_stop_and_start_again_and_again(box):
    with box.agent.connect() as client:
        before = box.agent.fd_count()
        for i in range(rounds(100)):
            call = client.start_exec(f"sleep 60; : {i}")
            call.wait_for("exec.start")
            assert box.stop().data["status"] == "stopped"
            assert call.result()["reason"] == "signaled"
            assert box.start().data["status"] == "active"
        assert gone(box)
        wait_until(lambda: box.agent.fd_count() <= before + 2, what="the descriptors to be closed")


# The end


def test_delete(box):
    assert box.delete().data["status"] == "destroying"
    box.agent.check_ended()


def test_delete_tells_streams_the_end_and_closes_1001(box):
    with box.agent.connect() as client:
        call = client.start_exec("trap 'echo last words; exit 3' TERM; echo begun; while :; do sleep 0.02; done")
        call.wait_for_text("begun")
        idle = box.agent.connect()
        assert box.delete().data["status"] == "destroying"
        result = call.result()
        assert result["exit_code"] == 3 and result["output"].endswith("last words\n")
        assert call.names()[-1] == "exec.done"
        assert client.wait_closed()[0] == 1001
        assert idle.wait_closed()[0] == 1001
    box.agent.check_ended()


def test_delete_while_output_is_unread(box):
    """What a slow reader has not taken yet comes before the close."""
    with box.agent.connect() as client:
        last = unique_seconds()
        call = client.start_exec(f"head -c 300000 /dev/zero | tr '\\0' x; echo full; sleep {last}")
        wait_until(lambda: processes.with_words("sleep", last), what="the output to be written")
        box.delete()
        assert len(call.result()["output"]) == 300005
        assert len(call.text()) == 300005
        assert client.wait_closed()[0] == 1001
    box.agent.check_ended()


def test_while_it_is_being_destroyed(patient):
    with patient.agent.connect() as client:
        start_unhurried(client)
        assert patient.delete().data["status"] == "destroying"
        assert patient.delete().data["status"] == "destroying"
        assert patient.info()["status"] == "destroying"
        status, _, health = patient.agent.http("GET", "/health")
        assert status == 503 and json.loads(health)["status"] == "stopping"
        for call in (patient.stop, patient.start, patient.restart, patient.extend, patient.create, patient.configure):
            call().fails(409, "destroyed")
        patient.update(payloads=[]).fails(409, "destroyed")
        assert client.call_error("exec", {"command": "true"}).code == -32009
        assert patient.list(status="destroying").data["pagination"]["total"] == 1
        let_go(patient)
    patient.agent.check_ended()
    assert gone(patient)


def test_delete_of_a_stopped_one(box):
    box.stop()
    assert box.delete().data["status"] == "destroying"
    box.agent.check_ended()


def test_delete_while_it_stops(patient):
    with patient.agent.connect() as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        start_unhurried(client)
        stop = pool.submit(patient.stop)
        wait_until(lambda: patient.info()["status"] == "stopping", what="the status stopping")
        assert patient.delete().data["status"] == "destroying"
        let_go(patient)
        assert stop.result().data["status"] == "destroying"
    patient.agent.check_ended()


def test_term_while_it_stops(patient):
    """SIGTERM goes ahead of a stop under way."""
    import signal

    with patient.agent.connect() as client, concurrent.futures.ThreadPoolExecutor(1) as pool:
        start_unhurried(client)
        stop = pool.submit(patient.post, "stop")
        wait_until(lambda: patient.info()["status"] == "stopping", what="the status stopping")
        patient.agent.signal(signal.SIGTERM)
        let_go(patient)
        patient.agent.check_ended()
        try:
            stop.result()
        except OSError:
            pass  # it may be told, or cut off
    assert gone(patient)


# Expiry


def expire(box, began, at_least):
    box.agent.check_ended(timeout=30)
    assert time.monotonic() - began >= at_least


def test_ttl_option(start_agent):
    began = time.monotonic()
    box = Control(start_agent("--sandbox-id", "box", "--ttl", "1s"))
    info = box.info()
    assert info["expire_at"] > info["created_at"]
    with box.agent.connect() as client:
        call = client.start_exec("sleep 60")
        assert call.result()["reason"] == "signaled"
        assert client.wait_closed()[0] == 1001
    expire(box, began, 1)
    assert [event["reason"] for event in box.agent.events("control")] == []
    assert box.agent.events("life", "expired")


def test_extend_sets_the_end(box):
    began = time.monotonic()
    assert box.extend(seconds=1).data["expire_at"]
    expire(box, began, 1)


def test_extend_moves_the_end(start_agent):
    box = Control(start_agent("--sandbox-id", "box", "--ttl", "1s"))
    began = time.monotonic()
    box.extend(seconds=1)
    expire(box, began, 1.5)


def test_ttl_hours_go_before_the_option(start_agent):
    box = Control(start_agent("--sandbox-id", "box", "--ttl", "2s"))
    box.create("ann", ttl_hours=1).data
    start_agent("--ttl", "2s").check_ended()  # started later, and over
    assert box.info()["status"] == "active"


def test_a_stopped_sandbox_expires(start_agent):
    box = Control(start_agent("--sandbox-id", "box", "--ttl", "1s"))
    box.stop()
    box.agent.check_ended()


def test_closed_sessions_say_so(box):
    client = box.agent.connect()
    box.delete()
    with pytest.raises(Closed) as closed:
        client.pump(lambda: False, 10)
    assert closed.value.code == 1001
    box.agent.check_ended()
