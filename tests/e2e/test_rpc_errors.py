"""docs/protocol.md 3.2: every error that the commands can give, with its kind and data, and then the next request works."""

import errno
import os

import pytest

from helpers.messages import nested, request
from helpers.names import unique_cmd_id, unique_seconds
from helpers.wait import wait_until

RESULT_FIELDS = {
    "cmd_id",
    "pid",
    "exit_code",
    "started_at",
    "finished_at",
    "duration_ms",
    "reason",
    "signal",
    "oom_killed",
    "stdout_bytes",
    "stderr_bytes",
    "truncated",
    "survivors",
}


@pytest.fixture(autouse=True)
def next_request_works(client):
    yield
    assert client.exec("echo alive")["output"] == "alive\n"


def check(error, code, kind, *named):
    assert (error.code, error.kind) == (code, kind), error
    for word in named:
        assert word in error.message, error
    assert error.message.strip() and "\n" not in error.message


def test_parse_error(client):
    assert client.answer_to("{")["error"]["code"] == -32700


def test_invalid_request(client):
    assert client.answer_to("{}")["error"]["code"] == -32600


def test_method_not_found(client):
    assert client.call_error("no_such_method").code == -32601


def test_standard_errors_have_a_kind_too(client):
    answers = [client.answer_to("{")["error"], client.answer_to("{}")["error"]]
    answers += [client.call_error("nothing"), client.call_error("exec", {})]
    for answer in answers:
        data = answer["data"] if isinstance(answer, dict) else answer.data
        assert isinstance(data["kind"], str) and data["kind"]


# -32602: one wrong value for every field of every method of section 4.1 to 4.5.
WRONG = {
    ("exec", "command"): [5, None, True, [], {}, "a\0b"],
    ("exec", "argv"): ["true", [], [5], ["a\0b"], ["true", None], {}],
    ("exec", "working_dir"): [5, True, [], "a\0b"],
    ("exec", "env"): [5, "A=b", ["A=b"], {"A": 5}, {"A": True}, {"A": []}, {"": "x"}, {"A=B": "x"}, {"A": "x\0y"}],
    ("exec", "timeout"): ["5", True, [], -1, -0.001],
    ("exec", "sudo"): ["yes", 1, []],
    ("exec", "stdin_data"): [5, True, [], {}],
    ("exec", "detached"): ["yes", 1, []],
    ("exec", "cmd_id"): [5, "", "a b", "a/b", "ü", "x" * 129, "a\0b", "a\nb"],
    ("exec", "user"): [True, [], ""],
    ("exec", "idle_timeout"): ["5", True, -1],
    ("exec", "stdin"): ["yes", 1],
    ("exec", "stream"): ["yes", 0],
    ("exec", "encoding"): [5, "utf-16", "", "BASE64"],
    ("exec", "output"): [5, "all", "", True],
    ("exec_logs", "cmd_id"): [None, 5, []],
    ("exec_logs", "since"): [5, "0", [], {"stdout": "0"}, {"stdout": -1}, {"stderr": 1.5}],
    ("exec_logs", "follow"): ["no", 0],
    ("exec_logs", "stream"): ["no", 0],
    ("exec_logs", "encoding"): ["utf-7", 1],
    ("exec_logs", "output"): ["both", 1],
    ("kill", "cmd_id"): [None, 5],
    ("kill", "signal"): ["SIGFOO", "", "SIG", 65, -1, 1000, 1.5, True, [], "SIGTERM\0", " TERM"],
    ("kill", "scope"): ["all", 5, ""],
    ("exec_input", "cmd_id"): [None, 5],
    ("exec_input", "data"): [5, True, []],
    ("exec_input", "encoding"): ["hex", 5],
    ("exec_input", "eof"): ["yes", 1],
    ("exec_remove", "cmd_id"): [None, 5],
}
RIGHT = {
    "exec": {"command": "true"},
    "exec_logs": {"cmd_id": "e2e-wrong"},
    "kill": {"cmd_id": "e2e-wrong"},
    "exec_input": {"cmd_id": "e2e-wrong", "data": "x"},
    "exec_remove": {"cmd_id": "e2e-wrong"},
}


@pytest.fixture
def running(client):
    """A command of the name used in RIGHT that runs and has an open stdin."""
    call = client.start_exec("exec sleep 600", stdin=True, cmd_id="e2e-wrong")
    call.wait_for("exec.start")
    yield call
    assert call.response is None, "a request with a wrong field did something"
    client.call("kill", {"cmd_id": "e2e-wrong", "signal": "KILL"})
    call.wait()
    client.call("exec_remove", {"cmd_id": "e2e-wrong"})


@pytest.mark.parametrize("method, field", WRONG, ids=lambda word: word)
def test_invalid_params_name_the_field(client, running, method, field):
    for value in WRONG[method, field]:
        params = {**RIGHT[method], field: value}
        if field == "argv":
            del params["command"]
        error = client.call_error(method, params)
        assert error.code == -32602, f"{field}={value!r}: {error}"
        assert field in error.message, f"{field}={value!r}: {error}"


@pytest.mark.parametrize("method, field", [("exec", "command"), *((m, "cmd_id") for m in RIGHT if m != "exec")])
def test_a_missing_field_is_named(client, method, field):
    for params in ({}, None):
        error = client.call_error(method, params)
        assert error.code == -32602 and field in error.message, error


def test_command_and_argv_together(client):
    error = client.call_error("exec", {"command": "true", "argv": ["true"]})
    assert error.code == -32602
    assert "command" in error.message and "argv" in error.message


def test_null_is_as_good_as_absent(client):
    """The SDKs leave fields out; others send null for "not set"."""
    fields = "working_dir env sudo stdin_data detached user idle_timeout stdin stream encoding output".split()
    for field in fields:
        assert client.exec("echo ok", **{field: None})["exit_code"] == 0, field
    assert client.call("exec", {"command": "echo ok", "timeout": None})["exit_code"] == 0


def test_a_nul_in_the_name_of_a_field(client):
    """json-c would cut the name there, so the whole message is refused; whoever asked is told."""
    error = client.call_error("exec", {"command": "true", "env": {"A\0B": "x"}})
    assert error.code == -32602 and "NUL" in error.message


def test_not_found_working_dir(client):
    error = client.call_error("exec", {"command": "true", "working_dir": "/no/such/place"})
    check(error, -32001, "not_found", "/no/such/place")


@pytest.mark.parametrize("method", ["exec_logs", "kill", "exec_input", "exec_remove"])
def test_not_found_cmd_id(client, method):
    params = {"cmd_id": "never-started"}
    if method == "exec_input":
        params["data"] = "x"
    check(client.call_error(method, params), -32001, "not_found", "never-started")


def test_not_found_user(client):
    check(client.call_error("exec", {"command": "true", "user": "nosuchuser"}), -32001, "not_found", "nosuchuser")


def test_timed_out_has_all_fields_of_the_result(client):
    error = client.call_error("exec", {"command": "echo before; sleep 600", "timeout": 0.3})
    check(error, -32002, "timed_out")
    assert RESULT_FIELDS <= set(error.data)
    assert error.data["output"] == "before\n"
    assert error.data["reason"] == "timed_out"
    assert error.data["survivors"] == 0


def test_permission_denied_working_dir(client, agent):
    if os.geteuid() != 0:
        pytest.fail("these tests want to be run by root")
    closed = os.path.join(agent.workdir, "closed")
    os.makedirs(closed, exist_ok=True)
    os.chmod(closed, 0o700)
    error = client.call_error("exec", {"command": "true", "working_dir": closed, "user": "nobody"})
    check(error, -32003, "permission_denied", closed)


def test_permission_denied_user_without_root(start_agent):
    agent = start_agent(user="nobody", group="nogroup", extra_groups=[])
    with agent.connect() as client:
        error = client.call_error("exec", {"command": "true", "user": "root"})
        check(error, -32003, "permission_denied", "root")


def test_wrong_type_working_dir(client):
    error = client.call_error("exec", {"command": "true", "working_dir": "/etc/passwd"})
    check(error, -32004, "wrong_type", "/etc/passwd")


def test_wrong_type_input_without_stdin(client):
    cmd_id = unique_cmd_id()
    call = client.start_exec("sleep 600", cmd_id=cmd_id)
    call.wait_for("exec.start")
    check(client.call_error("exec_input", {"cmd_id": cmd_id, "data": "x"}), -32004, "wrong_type", cmd_id)
    client.call("kill", {"cmd_id": cmd_id})
    call.wait()


def test_spawn_failed(client):
    error = client.call_error("exec", {"argv": ["/no/such/program", "x"]})
    check(error, -32008, "spawn_failed", "/no/such/program")
    assert error.data["errno"] == errno.ENOENT
    assert error.data["program"] == "/no/such/program"


def test_busy_starts_nothing(start_agent):
    agent = start_agent("--max-commands", "3")
    with agent.connect() as client:
        running = [client.start_exec(f"sleep {unique_seconds()}") for _ in range(3)]
        for call in running:
            call.wait_for("exec.start")
        path = os.path.join(agent.workdir, "started")
        check(client.call_error("exec", {"command": f"touch {path}"}), -32010, "busy", "3")
        check(client.call_error("exec", {"command": f"touch {path}", "detached": True}), -32010, "busy")
        client.call("kill", {"cmd_id": running[0].wait_for("exec.start")["cmd_id"]})
        running[0].wait()
        assert client.exec("echo room")["output"] == "room\n"
        assert not os.path.exists(path)


def test_a_command_that_has_failed_to_start_takes_no_place(start_agent):
    agent = start_agent("--max-commands", "2")
    with agent.connect() as client:
        for _ in range(10):
            assert client.call_error("exec", {"argv": ["/no/such/program"]}).code == -32008
        assert client.exec("echo room")["output"] == "room\n"
        assert wait_until(lambda: agent.health()["commands"]["running"] == 0)


# The bad input that clients really send.


@pytest.mark.parametrize("timeout, works", [(-1, False), (0, True), (0.5, True), (1e12, True), (1e300, True), ("5", False)])
def test_odd_timeouts(client, timeout, works):
    if works:
        assert client.call("exec", {"command": "echo ok", "timeout": timeout})["output"] == "ok\n"
        assert client.call("exec", {"command": "echo ok", "idle_timeout": timeout})["output"] == "ok\n"
    else:
        error = client.call_error("exec", {"command": "echo ok", "timeout": timeout})
        assert error.code == -32602 and "timeout" in error.message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-0"])
def test_odd_numbers(client, number):
    client.send_raw('{"jsonrpc":"2.0","method":"exec","id":"n","params":{"command":"true","stream":false,"timeout":%s}}' % number)
    answer = client.next_unrouted()
    assert "result" in answer or answer["error"]["code"] in (-32700, -32602)


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00x"', '"\\ud83d\\u0041"', '"a\\ud800"', '"\\ud800\\ud800"'])
def test_lone_surrogates(client, text):
    """They have no UTF-8. Refused, or replaced; what comes back is strict UTF-8 in any case (the client checks)."""
    client.send_raw('{"jsonrpc":"2.0","method":"exec","id":"s","params":{"argv":["printf","%%s",%s],"stream":false}}' % text)
    answer = client.next_unrouted()
    if "result" in answer:
        assert "\ufffd" in answer["result"]["output"]
    else:
        assert answer["error"]["code"] in (-32700, -32602)


def test_lone_surrogates_in_the_id_and_the_method(client):
    for message in ('{"jsonrpc":"2.0","method":"exec_list","id":"\\ud800"}', '{"jsonrpc":"2.0","method":"\\ud800","id":1}'):
        client.send_raw(message)
        client.next_unrouted()


def test_surrogate_pairs_are_characters(client):
    client.send_raw(request("exec", {"argv": ["printf", "%s", "😀"], "stream": False}, "pair"))
    assert client.next_unrouted()["result"]["output"] == "😀"


def test_64_levels_of_json_and_no_more(client):
    """The number inside the innermost array is a level too."""
    assert "result" in client.answer_to(nested(63))
    assert client.answer_to(nested(65))["error"]["code"] == -32700


@pytest.mark.parametrize("levels", [100_000])
def test_very_deep_json(client, levels):
    assert client.answer_to(nested(levels))["error"]["code"] == -32700
    assert client.answer_to("[" * levels)["error"]["code"] == -32700
    assert client.answer_to('{"a":' * levels)["error"]["code"] == -32700


def test_very_many_keys(client):
    keys = ",".join(f'"k{n}":{n}' for n in range(100_000))
    answer = client.answer_to('{"jsonrpc":"2.0","method":"exec_list","id":1,"params":{%s}}' % keys)
    assert "result" in answer


def test_the_same_key_twice(client):
    client.send_raw('{"jsonrpc":"2.0","method":"exec","id":1,"params":{"command":"echo a","command":"echo b","stream":false}}')
    answer = client.next_unrouted()
    assert "error" in answer or answer["result"]["output"] in ("a\n", "b\n")
