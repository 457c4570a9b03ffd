"""docs/protocol.md 3.3: limits of messages, close codes, and what we send fits the client."""

import json
import time

import pytest

from helpers.agent import SANITIZED
from helpers.bounds import memory_kib
from helpers.messages import padded, request
from helpers.raw_ws import BINARY, CONTINUATION, PING, PONG, TEXT
from helpers.wait import wait_until

MIB = 1024 * 1024
PYTHON_AGENT = "Python/3.11 websockets/15.0.1"


@pytest.fixture(scope="module")
def small(module_agents):
    return module_agents("--max-message", "1M", "--max-buffered", "4M")


def test_a_message_of_the_largest_size(small):
    with small.connect() as client:
        assert client.answer_to(padded(MIB))["result"] is not None
        client.send_raw(padded(MIB + 1))
        code, reason = client.wait_closed()
        assert code == 1009 and reason
    with small.connect() as client:
        assert client.exec("echo next")["output"] == "next\n"


def test_the_default_limit_is_64_mib(agent):
    with agent.connect() as client:
        assert client.answer_to(padded(64 * MIB))["result"] is not None
        assert client.answer_to(padded(100))["result"] is not None
    with agent.raw() as ws:
        try:
            ws.send_text(padded(64 * MIB + 1))
        except OSError:
            pass  # it has closed already
        code, reason = ws.recv_close()
        assert code == 1009 and reason


def test_the_memory_of_a_large_message_is_given_back(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("true")
        before = agent.rss_kib()
        for _ in range(2):
            client.answer_to(padded(32 * MIB))
        wait_until(lambda: agent.rss_kib() < before + memory_kib(4096), what="the memory to come back")


@pytest.mark.parametrize("pieces", [1, 2, 3, 100])
def test_a_message_in_fragments(agent, pieces):
    text = request("exec", {"command": "echo ☕☕☕", "stream": False}).encode()
    cuts = [len(text) * n // pieces for n in range(pieces + 1)]
    with agent.raw() as ws:
        for n in range(pieces):
            ws.send_frame(CONTINUATION if n else TEXT, text[cuts[n] : cuts[n + 1]], fin=n == pieces - 1)
        assert ws.recv_response()["result"]["output"] == "☕☕☕\n"


def test_fragments_are_counted_together(small):
    with small.raw() as ws:
        ws.send_frame(TEXT, b"[" + b" " * (600 * 1024), fin=False)
        ws.send_frame(CONTINUATION, b" " * (600 * 1024), fin=False)
        assert ws.recv_close()[0] == 1009


def test_control_frames_between_fragments(agent):
    text = request("exec_list").encode()
    with agent.raw() as ws:
        ws.send_frame(TEXT, text[:10], fin=False)
        ws.send_frame(PING, b"between")
        assert ws.recv_frame() == (True, PONG, b"between")
        ws.send_frame(CONTINUATION, b"", fin=False)
        ws.send_frame(CONTINUATION, text[10:])
        assert "result" in ws.recv_response()


def test_an_empty_message_is_a_parse_error(client):
    answer = client.answer_to("")
    assert answer["error"]["code"] == -32700 and answer["id"] is None
    assert client.exec("echo alive")["output"] == "alive\n"


def test_an_empty_message_in_fragments(agent):
    with agent.raw() as ws:
        ws.send_frame(TEXT, b"", fin=False)
        ws.send_frame(CONTINUATION, b"")
        assert ws.recv_json()["error"]["code"] == -32700
        ws.send_request("exec_list")
        assert "result" in ws.recv_response()


def test_a_binary_message_closes_with_1003(agent):
    for payload in (b"", b"\0", request("exec_list").encode(), b"x" * 100_000):
        with agent.raw() as ws:
            ws.send_frame(BINARY, payload)
            assert ws.recv_close()[0] == 1003


@pytest.mark.parametrize("payload", [b"\xff", b'"\xc3\x28"', b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b'"\xc0\x80"', b'"\xe2\x98'])
def test_invalid_utf8_closes_with_1007(agent, payload):
    with agent.raw() as ws:
        ws.send_text(payload)
        assert ws.recv_close()[0] == 1007
    with agent.connect() as client:
        assert client.exec("echo next")["output"] == "next\n"


def test_invalid_utf8_over_a_fragment_border(agent):
    with agent.raw() as ws:
        ws.send_frame(TEXT, b'"\xe2\x98', fin=False)
        ws.send_frame(CONTINUATION, b'a"')
        assert ws.recv_close()[0] == 1007


def test_half_received_messages_of_all_sessions_are_bounded(small):
    half = b"[" + b" " * (900 * 1024)
    sessions = [small.raw() for _ in range(5)]
    try:
        for ws in sessions[:4]:
            ws.send_frame(TEXT, half, fin=False)
            ws.send_frame(PING, b"taken")
            assert ws.recv_frame() == (True, PONG, b"taken")
        sessions[4].send_frame(TEXT, half, fin=False)
        code, reason = sessions[4].recv_close()
        assert code == 1013 and reason
        # The others live, and what they give back can be used again.
        sessions[0].send_frame(CONTINUATION, b"]")
        assert sessions[0].recv_json()["error"]["code"] == -32600
        with small.raw() as ws:
            ws.send_frame(TEXT, half, fin=False)
            ws.send_frame(CONTINUATION, b"]")
            assert ws.recv_json()["error"]["code"] == -32600
        sessions[1].close()
        sessions[2].close()
        with small.connect() as client:
            wait_until(lambda: client.answer_to(padded(900 * 1024))["result"] is not None)
    finally:
        for ws in sessions:
            ws.close()


def test_the_client_closes(agent):
    before = agent.fd_count()
    with agent.raw() as ws:
        ws.send_frame(8, b"\x03\xe8bye")
        assert ws.recv_close()[0] == 1000
    wait_until(lambda: agent.fd_count() <= before)


def test_shutdown_closes_with_1001(start_agent):
    agent = start_agent()
    with agent.connect() as idle, agent.connect() as busy:
        call = busy.start_exec("sleep 600")
        call.wait_for("exec.start")
        agent.signal(15)
        assert idle.wait_closed()[0] == 1001
        assert busy.wait_closed()[0] == 1001
    agent.check_ended()


# What we send fits the client


def run_and_measure(client, command, **params):
    call = client.start_exec(command, **params)
    return call, call.result(60)


# 300,000 bytes each, which take from one to six times as much in JSON.
OUTPUTS = {
    "NUL": "head -c 300000 /dev/zero",
    "no UTF-8": "head -c 300000 /dev/zero | tr '\\0' '\\377'",
    "escapes": "head -c 300000 /dev/zero | tr '\\0' '\\033'",
    "quotes": "head -c 300000 /dev/zero | tr '\\0' '\"'",
    "letters": "head -c 300000 /dev/zero | tr '\\0' x",
    "coffee": "yes ☕ | tr -d '\\n' | head -c 300000",
}


@pytest.mark.parametrize("limit", [4096, 65536, 500_000, MIB])
@pytest.mark.parametrize("output", OUTPUTS)
def test_no_message_is_longer_than_max_message(agent, limit, output):
    with agent.connect(f"/ws?max_message={limit}") as client:
        call, result = run_and_measure(client, OUTPUTS[output])
        assert client.largest_message <= limit
        streamed = call.text()
        assert result["stdout_bytes"] == 300_000
        done = call.wait_for("exec.done")
        assert streamed.endswith(result["output"])
        assert streamed.endswith(done["output"])
        assert result["output"], "some of the output must fit"
        assert result["truncated"] == (len(result["output"]) < len(streamed))
        logs = client.start("exec_logs", {"cmd_id": result["cmd_id"]})
        assert streamed.endswith(logs.result()["output"])
        assert client.largest_message <= limit


def test_the_output_uses_most_of_what_fits(agent):
    with agent.connect(f"/ws?max_message={65536}") as client:
        result = client.exec("head -c 200000 /dev/zero | tr '\\0' x")
        assert result["truncated"] is True
        assert 48 * 1024 < len(result["output"]) < 65536


def test_split_output_fits_too(agent):
    command = "head -c 300000 /dev/zero | tee /dev/stderr"
    with agent.connect(f"/ws?max_message={65536}") as client:
        result = client.exec(command, output="split")
        assert client.largest_message <= 65536
        assert result["truncated"] is True
        assert result["stdout"] + result["stderr"]
    with agent.connect(f"/ws?max_message={65536}") as client:
        result = client.exec(command, encoding="base64")
        assert client.largest_message <= 65536
        assert result["truncated"] is True


def test_a_timeout_error_fits_too(agent):
    with agent.connect(f"/ws?max_message={65536}") as client:
        error = client.call_error("exec", {"command": "head -c 300000 /dev/zero; sleep 600", "timeout": 1})
        assert error.code == -32002 and error.data["truncated"] is True
        assert client.largest_message <= 65536


def test_a_batch_fits_too(agent):
    batch = [json.loads(request("exec", {"command": "head -c 100000 /dev/zero", "stream": False}, n)) for n in range(8)]
    with agent.connect(f"/ws?max_message={65536}") as client:
        answers = client.answer_to(json.dumps(batch))
        assert sorted(answer["id"] for answer in answers) == list(range(8))
        assert client.largest_message <= 65536


def test_python_websockets_gets_at_most_1_mib(agent):
    with agent.connect(user_agent=PYTHON_AGENT) as client:
        call, result = run_and_measure(client, "head -c 700000 /dev/zero")
        assert client.largest_message <= MIB
        assert result["truncated"] is True and result["stdout_bytes"] == 700_000
        assert len(call.text()) == 700_000


def test_max_message_rules_over_the_user_agent(agent):
    with agent.connect(f"/ws?max_message={8 * MIB}", user_agent=PYTHON_AGENT) as client:
        result = client.exec("head -c 524288 /dev/zero")
        assert result["output"] == "\0" * 524288 and result["truncated"] is False
        assert client.largest_message > MIB


def test_others_get_what_they_have_always_got(agent):
    for user_agent in (None, "Go-http-client/1.1", "node"):
        with agent.connect(user_agent=user_agent) as client:
            result = client.exec("head -c 524288 /dev/zero")
            assert result["output"] == "\0" * 524288 and result["truncated"] is False


@pytest.mark.parametrize("value", ["", "0", "-1", "x", "1e9", "99999999999999999999"])
def test_an_odd_max_message_does_no_harm(agent, value):
    """It is refused with the upgrade, or ignored."""
    try:
        with agent.raw(f"/ws?max_message={value}") as ws:
            ws.send_request("exec", {"command": "echo hi", "stream": False})
            assert ws.recv_response()["result"]["output"] == "hi\n"
    except AssertionError as failure:
        assert "no upgrade: HTTP/1.1 400" in str(failure)


def test_notifications_hold_at_most_64_kib(client):
    sizes = []
    call = client.start(
        "exec",
        {"command": "head -c 20000000 /dev/zero | tr '\\0' x"},
        on_notification=lambda name, params: sizes.append(len(params.get("data", ""))),
    )
    call.result(60)
    assert sum(sizes) == 20_000_000
    assert max(sizes) <= 65536
    assert len(sizes) < 20_000_000 / 1024, "the pieces are too small"


def test_the_first_byte_after_silence_does_not_wait(client):
    """The best of ten: a timer of ours would be in all of them, the machine's noise is not."""
    call = client.start_exec("for n in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; date +%s.%N; done")
    delays = []
    for n in range(10):
        client.pump(lambda: len(call.text().split()) > n, 20, "the next line")
        delays.append(time.time() - float(call.text().split()[n]))
    call.result()
    assert min(delays) < (0.1 if SANITIZED else 0.05)
