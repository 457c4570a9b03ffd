"""docs/protocol.md 3.1: requests, ids, notifications, batches, order."""

import json
import os
import time

from pathlib import Path
import pytest

from helpers.bounds import TIME_MARGIN, memory_kib
from helpers.messages import request
from helpers.names import unique_seconds
from helpers.wait import wait_until


@pytest.mark.parametrize("call_id", [0, 1, -7, 2**31, 2**53, 1.5, "", "7", "a b", 'quote " and \\', "☕", "x" * 200])
def test_the_id_comes_back_as_it_was(client, call_id):
    call = client.start("exec", {"command": "echo hi"}, call_id=call_id)
    response = call.wait()
    assert response["id"] == call_id
    assert type(response["id"]) is type(call_id)
    assert response["jsonrpc"] == "2.0"
    assert "result" in response and "error" not in response
    # The client routes notifications by exactly this id, so these came with it.
    assert call.names() == ["exec.start", "exec.stdout", "exec.done"]


@pytest.mark.parametrize("call_id", ["1.", "-.5", "1.e5", str(2**64), str(-(2**63) - 1), "9" * 40])
def test_an_id_that_would_come_back_as_another_is_refused(client, call_id):
    """json-c takes them: some it would give back as what is no JSON, the others as another number."""
    answer = client.answer_to('{"jsonrpc":"2.0","method":"exec_list","id":%s}' % call_id)
    assert (answer["error"]["code"], answer["id"]) == (-32600, None) and "id" in answer["error"]["message"]


@pytest.mark.parametrize("value", ["0", "{}", "[]"])
def test_a_message_of_very_many_values_is_a_parse_error(client, value):
    """16 MB of them took 4 GB and half a second of the loop."""
    message = '{"jsonrpc":"2.0","method":"exec_list","id":1,"params":{"x":[%s]}}' % ",".join([value] * 1_000_000)
    assert client.answer_to(message)["error"]["code"] == -32700


def test_an_id_that_is_too_long_is_refused(client):
    answer = client.answer_to(request("exec_list", call_id="x" * 1000))
    assert answer["error"]["code"] == -32600 and answer["id"] is None and "id" in answer["error"]["message"]


@pytest.mark.parametrize("call_id", ["true", "false", "[1]", "[]", "{}", '{"a":1}'])
def test_an_id_of_another_type_is_an_invalid_request(client, call_id):
    answer = client.answer_to('{"jsonrpc":"2.0","method":"exec_list","id":%s}' % call_id)
    assert answer["error"]["code"] == -32600
    assert answer["id"] is None
    assert client.call("exec_list") is not None


@pytest.mark.parametrize(
    "message",
    [
        "1",
        '"exec"',
        "null",
        "true",
        "{}",
        '{"jsonrpc":"2.0","id":5}',
        '{"jsonrpc":"2.0","method":5,"id":5}',
        '{"jsonrpc":"2.0","method":null,"id":5}',
        '{"jsonrpc":"1.0","method":"exec_list","id":5}',
        '{"jsonrpc":2.0,"method":"exec_list","id":5}',
        '{"method":"exec_list","id":5}',
    ],
)
def test_what_is_no_request_is_an_invalid_request(client, message):
    answer = client.answer_to(message)
    assert answer["error"]["code"] == -32600, answer
    assert answer["id"] in (None, 5)
    assert client.call("exec_list") is not None


@pytest.mark.parametrize("params", ['"a"', "5", "true"])
def test_params_that_are_no_structure(client, params):
    answer = client.answer_to('{"jsonrpc":"2.0","method":"exec_list","id":5,"params":%s}' % params)
    assert answer["error"]["code"] in (-32600, -32602)


def test_params_by_position_are_refused(client):
    answer = client.answer_to('{"jsonrpc":"2.0","method":"exec","id":5,"params":["true"]}')
    assert answer["error"]["code"] in (-32600, -32602)


@pytest.mark.parametrize(
    "message",
    ["", " ", "{", "[", '{"a"', '{"a":}', '{"a":1}x', "{}{}", "nul", '"\\x"', '"\\u12"', '"a', "\ufeff", "01", "[1,]"],
)
def test_what_is_no_json_is_a_parse_error(client, message):
    answer = client.answer_to(message)
    assert answer["error"]["code"] == -32700, answer
    assert answer["id"] is None
    assert client.call("exec_list") is not None


def test_blanks_around_a_message_are_fine(client):
    call = client.start("exec_list", call_id="blanks")
    call.wait()
    client.send_raw(" \r\n\t" + request("exec_list", call_id="more") + " \n")
    assert client.next_unrouted()["id"] == "more"


def test_an_unknown_method(client):
    error = client.call_error("exec_everything")
    assert error.code == -32601
    assert "exec_everything" in error.message


def test_a_notification_gets_no_answer(client, agent):
    for method, params in [
        ("exec_list", None),
        ("no_such_method", None),
        ("exec", {}),
        ("exec", {"command": "echo out; echo ran >notified"}),
        ("exec", {"command": 5}),
    ]:
        client.notify(method, params)
    path = os.path.join(agent.workdir, "notified")
    wait_until(lambda: os.path.exists(path) and Path(path).read_text() == "ran\n", what="the command of the notification")
    assert client.exec("echo last")["output"] == "last\n"
    assert client.unrouted == []


def test_a_batch_is_answered_by_one_array(client):
    answers = client.answer_to(
        json.dumps(
            [
                {"jsonrpc": "2.0", "method": "exec", "params": {"command": "echo one"}, "id": "a"},
                {"jsonrpc": "2.0", "method": "exec_list"},
                {"jsonrpc": "2.0", "method": "no_such_method", "id": "b"},
                5,
                {"jsonrpc": "2.0", "method": "exec", "params": {"command": "exit 3", "stream": False}, "id": "c"},
            ]
        )
    )
    while not isinstance(answers, list):  # the notifications of the first command come before
        assert answers["method"].startswith("exec.") and answers["params"]["id"] == "a"
        answers = client.next_unrouted()
    by_id = {answer["id"]: answer for answer in answers}
    assert len(answers) == 4
    assert by_id["a"]["result"]["output"] == "one\n"
    assert by_id["b"]["error"]["code"] == -32601
    assert by_id["c"]["result"]["exit_code"] == 3
    assert by_id[None]["error"]["code"] == -32600
    assert client.call("exec_list") is not None
    assert client.unrouted == []


def test_the_notifications_of_a_batch_do_not_wait_for_its_answer(client):
    calls = [client.start("exec_list", call_id=f"unused {n}") for n in range(2)]
    for call in calls:
        call.wait()
    seconds = unique_seconds()
    client.send_raw(
        "[" + request("exec", {"command": f"echo early; sleep {seconds}", "cmd_id": f"batch-{seconds}"}, "long") + "]"
    )
    first = client.next_unrouted()
    second = client.next_unrouted()
    assert (first["method"], second["method"]) == ("exec.start", "exec.stdout")
    assert second["params"]["data"] == "early\n"
    client.call("kill", {"cmd_id": f"batch-{seconds}"})
    assert client.next_unrouted()["method"] == "exec.done"
    (answer,) = client.next_unrouted()
    assert answer["id"] == "long" and answer["result"]["signal"] == "SIGTERM"


def test_the_commands_of_a_batch_run_side_by_side(client):
    # Each waits for the other: one after the other they would never end.
    a, b = "f=$PWD/batch.fifo; ", ""
    client.exec("rm -f batch.fifo; mkfifo batch.fifo")
    client.send_raw(
        "[%s,%s]"
        % (
            request("exec", {"command": a + "read x <$f; echo $x", "stream": False}, 1),
            request("exec", {"command": b + "echo met >batch.fifo", "stream": False}, 2),
        )
    )
    answers = client.next_unrouted()
    assert {answer["id"]: answer["result"]["output"] for answer in answers} == {1: "met\n", 2: ""}


def test_an_empty_batch_is_an_invalid_request(client):
    answer = client.answer_to("[]")
    assert isinstance(answer, dict)
    assert answer["error"]["code"] == -32600 and answer["id"] is None


def test_a_batch_of_rubbish_is_answered_piece_by_piece(client):
    answers = client.answer_to("[1,{},[]]")
    assert [answer["error"]["code"] for answer in answers] == [-32600] * 3


def test_a_batch_of_notifications_gets_no_answer(client):
    client.send_raw('[{"jsonrpc":"2.0","method":"exec_list"},{"jsonrpc":"2.0","method":"nothing"}]')
    assert client.call("exec_list") is not None
    assert client.unrouted == []


def test_a_large_batch(client):
    calls = [json.loads(request("exec_list", call_id=n)) for n in range(1000)]
    answers = client.answer_to(json.dumps(calls))
    assert sorted(answer["id"] for answer in answers) == list(range(1000))


def test_a_long_command_delays_nothing(client):
    long = client.start_exec(f"sleep {unique_seconds()}")
    cmd_id = long.wait_for("exec.start")["cmd_id"]
    started = time.monotonic()
    for n in range(20):
        assert client.exec(f"echo {n}")["output"] == f"{n}\n"
    assert time.monotonic() - started < 10 + TIME_MARGIN
    assert long.response is None
    client.call("kill", {"cmd_id": cmd_id})
    assert long.result()["signal"] == "SIGTERM"


def test_answers_come_in_the_order_the_work_ends(client):
    client.exec("rm -f order.fifo; mkfifo order.fifo")
    first = client.start_exec("read x <order.fifo")
    second = client.start_exec("echo second")
    assert second.result()["output"] == "second\n"
    assert first.response is None
    client.exec("echo go >order.fifo")
    assert first.result()["exit_code"] == 0


def test_many_requests_at_once(client):
    calls = [client.start_exec(f"echo {n}; exit {n % 256}") for n in range(200)]
    for n, call in enumerate(calls):
        result = call.result()
        assert (result["output"], result["exit_code"]) == (f"{n}\n", n % 256)
        assert call.text() == f"{n}\n"


def test_unknown_fields_are_ignored(client):
    message = {"jsonrpc": "2.0", "method": "exec", "id": "x", "extra": {"a": [1]}, "params": {"command": "echo hi", "later": 1}}
    client.send_raw(json.dumps(message))
    answer = client.next_unrouted()
    while "method" in answer:
        answer = client.next_unrouted()
    assert answer["result"]["output"] == "hi\n"


def test_two_sessions_do_not_see_each_other(agent):
    with agent.connect() as one, agent.connect() as two:
        first, second = one.start_exec("echo one"), two.start_exec("echo two")
        assert first.id == second.id
        assert first.result()["output"] == "one\n" and first.text() == "one\n"
        assert second.result()["output"] == "two\n" and second.text() == "two\n"
        assert one.unrouted == two.unrouted == []


def test_batches_that_wait_for_their_last_answer_do_not_pile_up_memory(start_agent, tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(14_000_000))
    sleep = f"sleep {unique_seconds()}"
    agent = start_agent()
    with agent.connect() as client:
        for n in range(12):
            start = request("exec", {"command": sleep, "stream": False, "cmd_id": f"sleep-{n}"}, call_id=f"exec-{n}")
            read = request("read", {"path": str(image)}, call_id=f"read-{n}")
            client.send_raw(f"[{start},{read}]")
            client.call("mkdir", {"path": str(tmp_path / "made")})  # waits for the read
        assert agent.rss_kib() < memory_kib(110 * 1024)  # it was 19 MB more for each
        for n in range(12):
            client.notify("kill", {"cmd_id": f"sleep-{n}"})
        reads = {}
        while len(reads) < 12:
            for answer in client.next_unrouted():
                if answer["id"].startswith("read"):
                    reads[answer["id"]] = answer
        assert "result" in reads["read-0"]
        assert reads["read-11"]["error"]["code"] == -32006
