"""docs/protocol.md 4.2 and 4.3: the log of a command, and reading it."""

import base64

import pytest

from helpers.agent import SANITIZED
from helpers.bounds import memory_kib
from helpers.names import unique_cmd_id
from helpers.wait import wait_until

CAPACITY = 524_288


def letters(n):
    """A command that prints n bytes, each run of 8 different from all others."""
    return f"seq -w 1 9999999 | head -c {n}"


def expected_letters(n):
    return "".join(f"{number:07d}\n" for number in range(1, n // 8 + 2))[:n]


def logs(client, cmd_id, **params):
    call = client.start("exec_logs", {"cmd_id": cmd_id, **params})
    return call, call.result()


# The ring


@pytest.mark.parametrize("size", [CAPACITY - 1, CAPACITY, CAPACITY + 1, CAPACITY + 65536, 3 * CAPACITY + 5])
def test_the_last_512_kib_are_kept(client, size):
    call = client.start_exec(letters(size))
    result = call.result()
    expected = expected_letters(size)
    assert call.text() == expected
    kept = expected[-CAPACITY:]
    assert result["stdout_bytes"] == size
    assert result["output"] == kept
    assert result["truncated"] is (size > CAPACITY)
    assert call.wait_for("exec.done")["output"] == kept
    again, replayed = logs(client, result["cmd_id"])
    assert again.text() == replayed["output"] == kept
    assert replayed["truncated"] is (size > CAPACITY)
    assert again.wait_for("exec.stdout")["offset"] == size - len(kept)


def test_both_streams_share_the_ring(client):
    command = f"{letters(400_000)}; sleep 0.3; {letters(400_000)} >&2"
    result = client.exec(command, output="split")
    expected = expected_letters(400_000)
    assert result["stderr"] == expected
    assert result["stdout"] == expected[-(CAPACITY - 400_000) :]
    assert result["truncated"] is True
    assert (result["stdout_bytes"], result["stderr_bytes"]) == (400_000, 400_000)


def test_byte_by_byte_interleaving_shortens_nothing(client):
    command = "n=0; while [ $n -lt 3000 ]; do printf a; printf b >&2; n=$((n+1)); done"
    call = client.start_exec(command, output="split")
    result = call.result(60)
    assert result["stdout"] == "a" * 3000 and result["stderr"] == "b" * 3000
    assert call.text() == "a" * 3000 and call.text("stderr") == "b" * 3000
    replay, again = logs(client, result["cmd_id"], output="split")
    assert (again["stdout"], again["stderr"]) == (result["stdout"], result["stderr"])
    assert replay.text() == "a" * 3000 and replay.text("stderr") == "b" * 3000


def test_what_is_truncated_starts_with_a_whole_character(client):
    for extra in ("", "x", "xx", "xxx"):
        result = client.exec(f"printf '{extra}'; yes ☕ | tr -d '\\n' | head -c 600000")
        assert result["truncated"] is True
        assert set(result["output"]) == {"☕"}
        assert CAPACITY - 3 < len(result["output"].encode()) <= CAPACITY
        replay, _ = logs(client, result["cmd_id"])
        assert set(replay.text()) == {"☕"}


# Keeping finished commands


def test_keep_finished(start_agent):
    with start_agent("--keep-finished", "3").connect() as client:
        ids = [client.exec(f"echo {n}")["cmd_id"] for n in range(5)]
        assert {item["cmd_id"] for item in client.call("exec_list")} == set(ids[2:])
        for cmd_id in ids[:2]:
            assert client.call_error("exec_logs", {"cmd_id": cmd_id}).code == -32001
        for n, cmd_id in enumerate(ids[2:], 2):
            assert logs(client, cmd_id)[1]["output"] == f"{n}\n"


def test_running_commands_are_never_forgotten(start_agent):
    with start_agent("--keep-finished", "1").connect() as client:
        call = client.start_exec("echo first; exec sleep 600", cmd_id="old")
        call.wait_for_text("first\n")
        for _ in range(5):
            client.exec("true")
        assert {item["cmd_id"]: item["state"] for item in client.call("exec_list")}["old"] == "running"
        client.call("kill", {"cmd_id": "old"})
        assert call.result()["output"] == "first\n"
        assert logs(client, "old")[1]["output"] == "first\n"


def test_256_finished_commands_are_kept_by_default(start_agent):
    with start_agent().connect() as client:
        ids = [client.exec("true", stream=False)["cmd_id"] for _ in range(260)]
        kept = {item["cmd_id"] for item in client.call("exec_list")}
        assert kept == set(ids[-256:])


def test_log_memory(start_agent):
    """The oldest finished logs go first; the newest is whole, and the agent stays within what was said."""
    agent = start_agent("--log-memory", "2M")
    with agent.connect() as client:
        client.exec("true")
        before = agent.rss_kib()
        results = [client.exec(letters(500_000), stream=False, output="none") for _ in range(12)]
        assert logs(client, results[-1]["cmd_id"])[1]["output"] == expected_letters(500_000)
        oldest = client.start("exec_logs", {"cmd_id": results[0]["cmd_id"], "stream": False})
        answer = oldest.wait()
        assert "error" in answer or answer["result"]["output"] == ""
        wait_until(lambda: agent.rss_kib() < before + memory_kib(2048 + 2500))


def test_small_logs_take_little_memory(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        for _ in range(10):
            client.exec("echo hi")
        before = agent.rss_kib()
        for _ in range(250):
            client.exec("echo hi", stream=False)
        # ASAN pads each of a command's many small allocations.
        assert agent.rss_kib() < before + (12288 if SANITIZED else 1024)


# exec_logs


def test_replay_of_a_finished_command(client):
    first = client.start_exec("echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c; exit 3")
    original = first.result()
    call, result = logs(client, original["cmd_id"])
    assert call.names() == ["exec.start", "exec.stdout", "exec.stderr", "exec.stdout", "exec.done"]
    assert result == {**original, **{key: result[key] for key in result.keys() - original.keys()}}
    start, *_, done = (params for _, params in call.notifications)
    assert start == {**first.wait_for("exec.start"), "id": call.id}
    assert done == {**first.wait_for("exec.done"), "id": call.id}
    data = [(name, {**params, "id": 0}) for name, params in call.notifications]
    assert data == [(name, {**params, "id": 0}) for name, params in first.notifications]


def test_replay_then_live(client):
    client.exec("rm -f live.fifo; mkfifo live.fifo")
    cmd_id = client.exec("echo before; read x <live.fifo; echo after; exit 2", detached=True)["cmd_id"]
    call = client.start("exec_logs", {"cmd_id": cmd_id})
    call.wait_for_text("before\n")
    assert call.response is None
    client.exec("echo go >live.fifo")
    result = call.result()
    assert call.text() == "before\nafter\n" and result["output"] == "before\nafter\n" and result["exit_code"] == 2


def test_the_end_of_a_timed_out_command(client):
    error = client.call_error("exec", {"command": "echo out; sleep 600", "timeout": 0.3})
    call = client.start("exec_logs", {"cmd_id": error.data["cmd_id"]})
    response = call.wait()
    told = response["result"] if "result" in response else response["error"]["data"]
    assert (told["reason"], told["output"], told["exit_code"]) == ("timed_out", "out\n", 143)


def test_many_readers(agent):
    clients = [agent.connect() for _ in range(10)]
    try:
        clients[0].exec("rm -f many.fifo; mkfifo many.fifo")
        cmd_id = clients[0].exec("echo a; read x <many.fifo; echo b; exit 1", detached=True)["cmd_id"]
        calls = [client.start("exec_logs", {"cmd_id": cmd_id}) for client in clients for _ in range(3)]
        for call in calls:
            call.wait_for_text("a\n")
        clients[0].exec("echo go >many.fifo")
        for call in calls:
            result = call.result()
            assert (call.text(), result["output"], result["exit_code"]) == ("a\nb\n", "a\nb\n", 1)
    finally:
        for client in clients:
            client.close()


def test_two_readers_on_one_connection(client):
    client.exec("rm -f two.fifo; mkfifo two.fifo")
    cmd_id = client.exec("echo a; read x <two.fifo; echo b", detached=True)["cmd_id"]
    one, two = (client.start("exec_logs", {"cmd_id": cmd_id}) for _ in range(2))
    one.wait_for_text("a\n")
    two.wait_for_text("a\n")
    client.exec("echo go >two.fifo")
    assert one.result() == two.result()
    assert one.text() == two.text() == "a\nb\n"


def test_since(client):
    cmd_id = client.exec("printf 0123456789; sleep 0.2; printf abcdef >&2")["cmd_id"]
    call, result = logs(client, cmd_id, since={"stdout": 4, "stderr": 2})
    assert (call.text(), call.text("stderr")) == ("456789", "cdef")
    assert call.wait_for("exec.stdout")["offset"] == 4
    assert call.wait_for("exec.stderr")["offset"] == 2
    call, _ = logs(client, cmd_id, since={"stdout": 10})
    assert (call.text(), call.text("stderr")) == ("", "abcdef")
    call, _ = logs(client, cmd_id, since={})
    assert (call.text(), call.text("stderr")) == ("0123456789", "abcdef")
    call, _ = logs(client, cmd_id, since={"stdout": 10, "stderr": 6})
    assert call.names() == ["exec.start", "exec.done"]


def test_since_before_what_is_kept_tells_the_gap(client):
    size = CAPACITY + 1000
    cmd_id = client.exec(letters(size), stream=False, output="none")["cmd_id"]
    call, _ = logs(client, cmd_id, since={"stdout": 10})
    gap = call.wait_for("exec.gap", 1)
    assert (gap["stream"], gap["dropped_bytes"]) == ("stdout", 990)
    assert call.text() == expected_letters(size)[1000:]
    assert call.wait_for("exec.stdout")["offset"] == 1000


def test_since_after_the_end(client):
    """An offset that was never reached: nothing to replay, or refused by name."""
    cmd_id = client.exec("echo hi")["cmd_id"]
    response = client.start("exec_logs", {"cmd_id": cmd_id, "since": {"stdout": 10**15}}).wait()
    assert "result" in response or response["error"]["code"] == -32602


def test_since_in_the_middle_of_a_character(client):
    cmd_id = client.exec("printf 'a☕b☕'")["cmd_id"]
    for offset, text in [(0, "a☕b☕"), (1, "☕b☕"), (2, "b☕"), (3, "b☕"), (4, "b☕"), (5, "☕"), (6, ""), (7, ""), (8, "")]:
        assert logs(client, cmd_id, since={"stdout": offset})[0].text() == text


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_cut_character_that_lies_across_the_end_of_the_ring(client, before):
    """The ring's memory ends at a multiple of its size: what is left of the first character is in two pieces."""
    cups = 349_525  # 1 048 575 bytes
    program = f"import sys; sys.stdout.buffer.write(b'x' * {before} + '☕'.encode() * {cups})"
    result = client.exec(None, argv=["python3", "-c", program], output="none")
    printed = ("x" * before + "☕" * cups).encode()
    assert result["stdout_bytes"] == len(printed)
    for since in [len(printed) - CAPACITY, CAPACITY - 1, CAPACITY - 2, 2 * CAPACITY - 1, 2 * CAPACITY - 2]:
        if not len(printed) - CAPACITY <= since < len(printed):
            continue
        call, _ = logs(client, result["cmd_id"], since={"stdout": since})
        expected = printed[since:].decode(errors="ignore")
        assert call.text() == expected
        if expected:
            assert call.wait_for("exec.stdout")["offset"] == len(printed) - len(expected.encode())


def test_resuming_after_a_lost_connection_loses_nothing(agent):
    with agent.connect() as one:
        one.exec("rm -f resume.fifo; mkfifo resume.fifo")
        cmd_id = one.exec("echo one; echo err >&2; read x <resume.fifo; echo two", detached=True)["cmd_id"]
        first = one.start("exec_logs", {"cmd_id": cmd_id})
        first.wait_for_text("one\n")
        first.wait_for_text("err\n", "stderr")
        one.abort()
    with agent.connect() as two:
        two.exec("echo go >resume.fifo")
        call = two.start("exec_logs", {"cmd_id": cmd_id, "since": {"stdout": 4, "stderr": 4}})
        call.result()
        assert (call.text(), call.text("stderr")) == ("two\n", "")


def test_follow_false_ends_after_the_replay(client):
    cmd_id = client.exec("echo so far; exec sleep 600", detached=True)["cmd_id"]
    wait_until(lambda: logs(client, cmd_id, follow=False)[0].text() == "so far\n")
    call, result = logs(client, cmd_id, follow=False)
    assert result["cmd_id"] == cmd_id
    assert result.get("exit_code") is None, "it has not ended"
    client.call("kill", {"cmd_id": cmd_id})
    call, result = logs(client, cmd_id)
    assert result["signal"] == "SIGTERM"
    call, result = logs(client, cmd_id, follow=False)
    assert result["signal"] == "SIGTERM" and call.text() == "so far\n"


def test_stream_encoding_and_output(client):
    cmd_id = client.exec("printf 'a\\377'; sleep 0.2; printf b >&2")["cmd_id"]
    call, result = logs(client, cmd_id, stream=False)
    assert call.notifications == [] and result["output"] == "a\ufffdb"
    call, result = logs(client, cmd_id, encoding="base64")
    assert base64.b64decode(call.text()) == b"a\xff" and base64.b64decode(result["output"]) == b"a\xffb"
    _, result = logs(client, cmd_id, output="split")
    assert (result["stdout"], result["stderr"]) == ("a\ufffd", "b") and "output" not in result
    _, result = logs(client, cmd_id, output="none")
    assert not {"output", "stdout", "stderr"} & set(result) and result["stdout_bytes"] == 2


def test_how_it_was_started_does_not_bind_the_readers(client):
    cmd_id = client.exec("echo hi", stream=False, output="none", encoding="base64")["cmd_id"]
    call, result = logs(client, cmd_id)
    assert call.text() == result["output"] == "hi\n"


def test_a_reader_that_leaves_does_not_end_the_command(agent, client):
    client.exec("rm -f leave.fifo; mkfifo leave.fifo")
    cmd_id = client.exec("echo a; read x <leave.fifo; echo b", detached=True)["cmd_id"]
    with agent.connect() as other:
        other.start("exec_logs", {"cmd_id": cmd_id}).wait_for_text("a\n")
        other.abort()
    client.exec("echo go >leave.fifo")
    assert logs(client, cmd_id)[1]["output"] == "a\nb\n"


def test_a_log_that_grows_after_the_end(client):
    """Offsets go on where they were, and a replay has it all."""
    client.exec("rm -f grow.fifo grown; mkfifo grow.fifo")
    cmd_id = client.exec(f"(read x <grow.fifo; {letters(600_000)}; echo $? >grown) & echo hi", cmd_id=unique_cmd_id())["cmd_id"]
    client.exec("echo go >grow.fifo")
    wait_until(lambda: client.exec("cat grown 2>/dev/null")["output"] == "0\n")
    wait_until(lambda: logs(client, cmd_id, stream=False)[1]["output"].endswith(expected_letters(600_000)[-100:]))
    call, result = logs(client, cmd_id)
    assert result["output"] == call.text() == expected_letters(600_000)[-CAPACITY:]
    assert call.wait_for("exec.stdout")["offset"] == 600_003 - CAPACITY
    assert SANITIZED or result["exit_code"] == 0
