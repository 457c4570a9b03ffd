"""POST /rpc: JSON-RPC over plain HTTP. docs/protocol.md, section 3.4."""

import base64
import concurrent.futures
import json
import os
import pathlib
import signal
import time

import pytest

from helpers import processes
from helpers.agent import SANITIZED
from helpers.raw_http import RawHttp
from helpers.wait import wait_until

NDJSON = {"Accept": "application/x-ndjson"}


def request(method, params=None, call_id=1):
    message = {"jsonrpc": "2.0", "method": method, "id": call_id}
    if params is not None:
        message["params"] = params
    return message


def exec_request(command, call_id=1, **params):
    return request("exec", {"command": command, **params}, call_id)


def post(agent, body, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return agent.http("POST", "/rpc", data, headers, timeout=60)


def rpc(agent, body):
    status, headers, answer = post(agent, body)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    return json.loads(answer)


def stream(agent, body, accept="application/x-ndjson"):
    status, headers, answer = post(agent, body, {"Accept": accept})
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    assert answer == b"" or answer.endswith(b"\n")
    return [json.loads(line) for line in answer.splitlines()]


# ---- one answer ----


def test_exec(agent):
    answer = rpc(agent, exec_request("echo hi; echo ho >&2; exit 3", call_id="a"))
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", "a")
    result = answer["result"]
    assert (result["output"], result["exit_code"], result["reason"]) == ("hi\nho\n", 3, "exited")


def test_a_request_is_answered_once(start_agent):
    agent = start_agent()
    for call_id in range(10):
        assert rpc(agent, exec_request("echo hi", call_id))["result"]["output"] == "hi\n"
        assert post(agent, exec_request("echo hi", None))
    assert agent.events(event="answered twice") == []


def test_output_is_the_newest_512_kib_and_no_notification_is_made(agent):
    result = rpc(agent, exec_request("seq 1 1000000"))["result"]
    assert result["truncated"] is True
    assert result["output"].endswith("999999\n1000000\n")
    assert len(result["output"]) == 512 * 1024
    assert result["stdout_bytes"] == 6888896


def test_batch(agent):
    answers = rpc(
        agent,
        [
            exec_request("sleep 0.2; echo slow", 1),
            exec_request("echo quick", 2),
            {"jsonrpc": "2.0", "method": "exec", "params": {"command": "echo quiet >quiet"}},
            request("no_such_method", {}, 3),
            5,
            request("exec_list", {}, 4),
        ],
    )
    by_id = {answer["id"]: answer for answer in answers}
    assert set(by_id) == {1, 2, 3, 4, None}
    assert by_id[1]["result"]["output"] == "slow\n"
    assert by_id[2]["result"]["output"] == "quick\n"
    assert by_id[3]["error"]["code"] == -32601
    assert by_id[None]["error"]["code"] == -32600
    assert any(entry.get("command") == "sleep 0.2; echo slow" for entry in by_id[4]["result"])
    quiet = pathlib.Path(agent.workdir, "quiet")
    wait_until(lambda: quiet.exists() and quiet.read_text() == "quiet\n", what="the notification's command")


def test_requests_without_an_id_have_no_answer(agent):
    marker = pathlib.Path(agent.workdir, "without-id")
    message = {"jsonrpc": "2.0", "method": "exec", "params": {"command": f"touch {marker}"}}
    for body in (message, [message, message]):
        status, headers, answer = post(agent, body)
        assert (status, answer, headers["Content-Length"]) == (200, b"", "0")
        wait_until(marker.exists, what="its command to run")
        marker.unlink()
    assert stream(agent, message) == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", -32700),
        (b"{", -32700),
        (b'{"a":\xff}', -32700),
        (b"[" * 100000, -32700),
        (b"[]", -32600),
        (b"5", -32600),
        (b"{}", -32600),
        (b'{"jsonrpc":"2.0","method":"exec","id":true}', -32600),
        (b'{"jsonrpc":"2.0","method":"nothing","id":1}', -32601),
        (b'{"jsonrpc":"2.0","method":"exec","id":1}', -32602),
        (b'{"jsonrpc":"2.0","method":"exec","id":1,"params":{"command":5}}', -32602),
        (b'{"jsonrpc":"2.0","method":"exec_logs","id":1,"params":{"cmd_id":"none"}}', -32001),
    ],
    ids=str,
)
@pytest.mark.parametrize("ndjson", [False, True], ids=["json", "ndjson"])
def test_errors_are_answers(agent, body, code, ndjson):
    (answer,) = stream(agent, body) if ndjson else [rpc(agent, body)]
    assert answer["error"]["code"] == code
    assert isinstance(answer["error"]["message"], str)
    assert isinstance(answer["error"]["data"]["kind"], str)


def test_failed_command_is_an_answer(agent):
    answer = rpc(agent, exec_request("echo before; sleep 60", timeout=0.2))
    assert answer["error"]["code"] == -32002
    assert answer["error"]["data"]["output"] == "before\n"


def test_an_answer_has_no_limit(agent):
    """The Python SDK's 1 MiB belongs to its WebSocket library."""
    text = "x" * 500000 + "\n"
    status, _, answer = post(agent, exec_request(f"printf '%0.sx' $(seq 500000)"), {"User-Agent": "Python websockets/15"})
    assert status == 200
    assert json.loads(answer)["result"]["output"] == text[:-1]
    lost = rpc(agent, exec_request("head -c 524288 /dev/zero"))  # six bytes for each on the wire
    assert lost["result"]["output"] == "\x00" * 524288
    assert lost["result"]["truncated"] is False


def test_other_methods_and_heads(agent):
    status, headers, _ = agent.http("GET", "/rpc")
    assert (status, headers["Allow"]) == (405, "POST, OPTIONS")


# ---- a stream ----


def test_stream_of_an_exec(agent):
    messages = stream(agent, exec_request("echo hi; echo ho >&2; exit 3", call_id=7))
    assert [message.get("method") for message in messages] == [
        "exec.start",
        "exec.stdout",
        "exec.stderr",
        "exec.done",
        None,
    ]
    assert all(message["params"]["id"] == 7 for message in messages[:-1])
    assert messages[1]["params"]["data"] == "hi\n"
    assert messages[2]["params"]["data"] == "ho\n"
    assert messages[-1]["id"] == 7
    assert messages[-1]["result"]["exit_code"] == 3


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/json, Application/X-NDJSON;q=0.9", "*/*, application/x-ndjson"])
def test_accept(agent, accept):
    assert len(stream(agent, exec_request("echo hi"), accept)) == 4


def test_stream_of_a_batch(agent):
    messages = stream(agent, [exec_request("echo a", 1), exec_request("echo b", 2)])
    *notifications, last = messages
    assert sorted(answer["id"] for answer in last) == [1, 2]
    for call_id in (1, 2):
        mine = [message["method"] for message in notifications if message["params"]["id"] == call_id]
        assert mine == ["exec.start", "exec.stdout", "exec.done"]


def test_messages_come_as_they_happen(start_agent):
    """The command waits for the test, which waits for the message."""
    agent = start_agent()
    with RawHttp(agent.port) as http:
        body = json.dumps(exec_request("for i in 1 2 3; do echo $i; until [ -e $i ]; do sleep 0.01; done; done")).encode()
        http.request("POST", "/rpc", body, ["Accept: application/x-ndjson"])
        status, headers = http.read_head()
        assert (status, headers["cache-control"]) == (200, "no-cache")
        text, rest = "", b""
        for i in (1, 2, 3):
            while not text.endswith(f"{i}\n"):
                *lines, rest = (rest + http.read_chunk()).split(b"\n")
                for message in map(json.loads, lines):
                    if message["method"] == "exec.stdout":
                        text += message["params"]["data"]
            pathlib.Path(agent.workdir, str(i)).touch()
        assert text == "1\n2\n3\n"
        while http.read_chunk():
            pass


def test_fast_output_is_whole(agent):
    messages = stream(agent, exec_request("seq 1 1000000"))
    text = "".join(message["params"]["data"] for message in messages if message.get("method") == "exec.stdout")
    assert text == "".join(f"{i}\n" for i in range(1, 1000001))
    assert max(len(message["params"]["data"]) for message in messages[1:-2]) <= 65536
    assert not any(message.get("method") == "exec.gap" for message in messages)


def test_read_stream(agent):
    content = os.urandom(1_000_000)
    path = pathlib.Path(agent.workdir, "blob")
    path.write_bytes(content)
    messages = stream(agent, request("read_stream", {"path": str(path), "chunk_size": 100000}))
    chunks = [message["params"]["data"] for message in messages if message.get("method") == "read_stream.chunk"]
    assert b"".join(map(base64.b64decode, chunks)) == content
    assert messages[-1]["result"]["total_bytes"] == len(content)
    # Without a stream only the result comes.
    assert rpc(agent, request("read_stream", {"path": str(path)}))["result"]["total_bytes"] == len(content)


def test_exec_logs_of_another_request(agent):
    cmd_id = rpc(agent, exec_request("echo first; sleep 0.3; echo second", detached=True))["result"]["cmd_id"]
    messages = stream(agent, request("exec_logs", {"cmd_id": cmd_id}))
    assert messages[-1]["result"]["output"] == "first\nsecond\n"


# ---- clients that leave, and slow ones ----


@pytest.mark.parametrize("ndjson", [False, True], ids=["json", "ndjson"])
def test_client_leaves_and_its_command_goes_on(start_agent, ndjson):
    agent = start_agent()
    command = exec_request("touch begun; until [ -e go ]; do sleep 0.01; done; echo end; touch ended", cmd_id="left")
    before = agent.fd_count()
    with RawHttp(agent.port) as http:
        http.request("POST", "/rpc", json.dumps(command).encode(), ["Accept: application/x-ndjson"] if ndjson else [])
        wait_until(pathlib.Path(agent.workdir, "begun").exists, what="the command to begin")
        with agent.connect() as client:
            assert client.call("exec_list")[0]["state"] == "running"
    pathlib.Path(agent.workdir, "go").touch()
    wait_until(pathlib.Path(agent.workdir, "ended").exists, what="the command to end")
    answer = rpc(agent, request("exec_logs", {"cmd_id": "left"}))
    assert answer["result"]["output"] == "end\n"
    wait_until(lambda: agent.fd_count() <= before + 4, what="descriptors to be closed")


@pytest.mark.parametrize("by", ["signal", "command"])
def test_agent_ends_and_its_clients_hear_it(start_agent, tmp_path, by):
    own = ["--", "sh", "-c", f"until [ -e {tmp_path}/end ]; do sleep 0.05; done"]
    agent = start_agent(*(own if by == "command" else []))
    command = "echo begun; exec sleep 60"
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(rpc, agent, exec_request(command, i)) for i in range(20)]
        wait_until(lambda: agent.health()["commands"]["running"] == 20, what="20 commands")
        if by == "command":
            (tmp_path / "end").touch()
        else:
            agent.signal(signal.SIGTERM)
        for i, answer in enumerate(answers):
            assert (answer.result()["id"], answer.result()["result"]["signal"]) == (i, "SIGTERM")
    agent.check_ended()


def test_client_that_does_not_read_costs_no_megabyte(start_agent):
    """The command waits, and the agent holds less than 1 MB for the client."""
    agent = start_agent("--stall-timeout", "60")
    stream(agent, exec_request("seq 1 300000"))  # what is there once is there
    before = agent.rss_kib()
    with RawHttp(agent.port, receive_buffer=4096) as http:
        command = exec_request("yes 'a line of text' | head -c 400M; touch ended", cmd_id="slow")
        http.request("POST", "/rpc", json.dumps(command).encode(), ["Accept: application/x-ndjson"])
        assert http.read_head()[0] == 200
        written = []

        def stands_still():
            written.append(output_bytes(agent))
            return len(written) > 20 and written[-1] == written[-20] > 0

        wait_until(stands_still, what="the command to be held")
        assert not pathlib.Path(agent.workdir, "ended").exists()
        if not SANITIZED:
            assert agent.rss_kib() - before < 1024
    # Nobody holds it any more.
    wait_until(pathlib.Path(agent.workdir, "ended").exists, timeout=60, what="the command to end")


def output_bytes(agent):
    for line in agent.http("GET", "/metrics")[2].decode().splitlines():
        if line.startswith('sandkeeper_output_bytes_total{stream="stdout"}'):
            return int(line.split()[1])
    raise AssertionError("no such metric")


def test_stalled_client_is_told_what_it_lost(start_agent):
    agent = start_agent("--stall-timeout", "0.3")
    with RawHttp(agent.port, receive_buffer=4096) as http:
        http.request(
            "POST", "/rpc", json.dumps(exec_request("seq 1 3000000; touch ended")).encode(), ["Accept: application/x-ndjson"]
        )
        wait_until(pathlib.Path(agent.workdir, "ended").exists, timeout=60, what="the command to end without its reader")
        status, _, body = http.read_answer()
    messages = [json.loads(line) for line in body.splitlines()]
    seen = lost = 0
    for message in messages:
        if message.get("method") == "exec.stdout":
            assert message["params"]["offset"] == seen + lost
            seen += len(message["params"]["data"])
        elif message.get("method") == "exec.gap":
            lost += message["params"]["dropped_bytes"]
    assert lost > 0
    assert seen + lost == messages[-1]["result"]["stdout_bytes"]


# ---- bodies ----


def test_long_request(agent):
    """Parsed on a worker; json-c takes some ms a megabyte."""
    data = "x" * 20_000_000
    assert rpc(agent, exec_request("wc -c", stdin_data=data))["result"]["output"].strip() == "20000000"


def test_body_over_max_message(start_agent):
    agent = start_agent("--max-message", "100K")
    body = json.dumps(exec_request("wc -c", stdin_data="x" * 110000)).encode()
    with RawHttp(agent.port) as http:
        http.head("POST", "/rpc", [f"Content-Length: {len(body)}", "Expect: 100-continue"])
        assert http.read_head()[0] == 413
    with RawHttp(agent.port) as http:
        http.head("POST", "/rpc", ["Transfer-Encoding: chunked"])
        http.chunk(body)
        http.send(b"0\r\n\r\n")
        assert http.read_head()[0] == 413
    assert rpc(agent, exec_request("echo still there"))["result"]["output"] == "still there\n"


def test_many_requests_on_one_connection(agent):
    with RawHttp(agent.port) as http:
        for i in range(50):
            ndjson = ["Accept: application/x-ndjson"] if i % 2 else []
            http.request("POST", "/rpc", json.dumps(exec_request(f"echo {i}", i)).encode(), ndjson)
            status, _, body = http.read_answer()
            assert status == 200
            assert json.loads(body.splitlines()[-1])["result"]["output"] == f"{i}\n"


def test_waiting_costs_no_processor(start_agent):
    agent = start_agent()
    with RawHttp(agent.port) as one, RawHttp(agent.port) as other:
        body = json.dumps(exec_request("touch $$; sleep 3")).encode()
        one.request("POST", "/rpc", body)
        other.request("POST", "/rpc", body, ["Accept: application/x-ndjson"])
        wait_until(lambda: len(os.listdir(agent.workdir)) == 2, what="both commands")
        before, began = processes.cpu_seconds(agent.pid), time.monotonic()
        assert one.read_answer()[0] == other.read_answer()[0] == 200
        assert time.monotonic() - began > 2
    assert processes.cpu_seconds(agent.pid) - before < 0.5
