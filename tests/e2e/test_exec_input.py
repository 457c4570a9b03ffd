"""docs/protocol.md 4.5: exec_input, exec_list, exec_remove."""

import base64
import hashlib
import os


from helpers.agent import SANITIZED
from helpers.names import unique_cmd_id, unique_seconds
from helpers.wait import wait_until


def start(client, command, **params):
    call = client.start_exec(command, cmd_id=unique_cmd_id(), stdin=True, **params)
    return call, call.wait_for("exec.start")["cmd_id"]


def test_a_conversation(client):
    call, cmd_id = start(client, "while read line; do echo \"got $line\"; done; echo end")
    for word in ("one", "two ☕", ""):
        client.call("exec_input", {"cmd_id": cmd_id, "data": word + "\n"})
        call.wait_for_text(f"got {word}\n")
    client.call("exec_input", {"cmd_id": cmd_id, "data": "last\n", "eof": True})
    assert call.result()["output"] == "got one\ngot two ☕\ngot \ngot last\nend\n"


def test_eof_alone(client):
    call, cmd_id = start(client, "cat; echo end")
    client.call("exec_input", {"cmd_id": cmd_id, "eof": True})
    assert call.result()["output"] == "end\n"


def test_without_eof_it_stays_open(client):
    call, cmd_id = start(client, "head -c 4; echo; cat")
    client.call("exec_input", {"cmd_id": cmd_id, "data": "abcd", "eof": False})
    call.wait_for_text("abcd\n")
    client.call("exec_input", {"cmd_id": cmd_id, "data": "", "eof": False})
    assert call.response is None
    client.call("exec_input", {"cmd_id": cmd_id, "data": "rest", "eof": True})
    assert call.result()["output"] == "abcd\nrest"


def test_base64(client):
    content = bytes(range(256))
    call, cmd_id = start(client, "cat", encoding="base64")
    data = base64.b64encode(content).decode()
    client.call("exec_input", {"cmd_id": cmd_id, "data": data, "encoding": "base64", "eof": True})
    assert base64.b64decode(call.result()["output"]) == content


def test_bad_base64_writes_nothing(client):
    call, cmd_id = start(client, "cat")
    for data in ("a", "====", "YQ", "Y Q==", "ä", "YQ==YQ=="):
        error = client.call_error("exec_input", {"cmd_id": cmd_id, "data": data, "encoding": "base64"})
        assert error.code == -32602 and "data" in error.message, data
    client.call("exec_input", {"cmd_id": cmd_id, "data": "ok", "eof": True})
    assert call.result()["output"] == "ok"


def test_stdin_data_first_then_more(client):
    """stdin_data and stdin together: the data comes first and stdin stays open, or the pair is refused by name."""
    call = client.start_exec("cat", stdin_data="first ", stdin=True, cmd_id=(cmd_id := unique_cmd_id()))
    client.pump(lambda: call.response or "exec.start" in call.names(), 10)
    if call.response:
        assert call.error().code == -32602 and "stdin" in call.error().message
        return
    client.call("exec_input", {"cmd_id": cmd_id, "data": "more", "eof": True})
    assert call.result()["output"] == "first more"


def test_the_answer_waits_until_the_bytes_are_in_the_pipe(client):
    """A pipe holds 64 KiB: the answer to more than that comes when the program has read some of it."""
    client.exec("rm -f flow.fifo; mkfifo flow.fifo")
    call, cmd_id = start(client, "read x <flow.fifo; wc -c")
    small = client.start("exec_input", {"cmd_id": cmd_id, "data": "x" * 1000})
    small.result()
    big = client.start("exec_input", {"cmd_id": cmd_id, "data": "y" * 1_000_000, "eof": True})
    for n in range(20):
        assert client.exec(f"echo {n}")["output"] == f"{n}\n"
    assert big.response is None
    client.exec("echo go >flow.fifo")
    big.result()
    assert call.result()["output"].strip() == "1001000"


def test_inputs_keep_their_order(client):
    call, cmd_id = start(client, "sha256sum")
    expected = hashlib.sha256()
    for n in range(60):
        data = f"{n} " * (n * 100 + 1)
        expected.update(data.encode())
        client.start("exec_input", {"cmd_id": cmd_id, "data": data, "eof": n == 59})
    assert call.result()["output"].split()[0] == expected.hexdigest()


def test_too_much_input_waiting_is_refused(client):
    """What was taken stays in order; what was refused can be sent again."""
    call, cmd_id = start(client, "read x <full.fifo; wc -c", working_dir=fifo(client, "full.fifo"))
    waiting = [client.start("exec_input", {"cmd_id": cmd_id, "data": "x" * 100_000}) for _ in range(200)]
    refused = [request for request in waiting[100:] if request.error().code == -32010]
    assert len(refused) == 100
    client.exec("echo go >full.fifo")
    taken = sum("result" in request.wait() for request in waiting)
    client.call("exec_input", {"cmd_id": cmd_id, "eof": True})
    assert int(call.result()["output"]) == taken * 100_000


def fifo(client, name):
    """Makes it in the work directory, and returns that."""
    return client.exec(f"rm -f {name}; mkfifo {name}; pwd")["output"].strip()


def test_ten_megabytes(client):
    call, cmd_id = start(client, "sha256sum")
    text = "z" * 10_000_000
    client.call("exec_input", {"cmd_id": cmd_id, "data": text, "eof": True})
    assert call.result()["output"].split()[0] == hashlib.sha256(text.encode()).hexdigest()


def test_a_closed_stdin_is_of_the_wrong_type(client):
    call, cmd_id = start(client, "cat >/dev/null; sleep 600")
    client.call("exec_input", {"cmd_id": cmd_id, "eof": True})
    error = client.call_error("exec_input", {"cmd_id": cmd_id, "data": "x"})
    assert (error.code, error.kind) == (-32004, "wrong_type")
    client.call("kill", {"cmd_id": cmd_id})
    call.result()
    assert client.call_error("exec_input", {"cmd_id": cmd_id, "data": "x"}).code == -32004


def test_a_program_that_closed_its_stdin(client):
    """The pipe breaks: an error, not a silent loss, and no SIGPIPE for the agent."""
    call, cmd_id = start(client, "exec <&-; echo closed; sleep 600")
    call.wait_for_text("closed\n")
    error = client.call_error("exec_input", {"cmd_id": cmd_id, "data": "x"})
    assert error.code == -32004
    client.call("kill", {"cmd_id": cmd_id})
    call.result()


def test_a_command_that_ends_with_input_waiting(client):
    """Requests that wait for a full pipe are answered when the command ends."""
    call, cmd_id = start(client, "sleep 600")
    waiting = [client.start("exec_input", {"cmd_id": cmd_id, "data": "x" * 200_000}) for _ in range(3)]
    assert client.exec("echo on")["output"] == "on\n"
    client.call("kill", {"cmd_id": cmd_id, "signal": "KILL"})
    call.result()
    for request in waiting:
        assert request.error(10).code == -32004


def test_a_client_that_leaves_with_input_waiting(agent):
    fds = agent.fd_count()
    with agent.connect() as client:
        call, cmd_id = start(client, "sleep 600")
        client.start("exec_input", {"cmd_id": cmd_id, "data": "x" * 200_000})
        client.abort()
    with agent.connect() as client:
        client.call("kill", {"cmd_id": cmd_id, "signal": "KILL"})
        client.call("exec_logs", {"cmd_id": cmd_id})
        assert client.exec("echo on")["output"] == "on\n"
    wait_until(lambda: agent.fd_count() <= fds)


# exec_list


def entry(client, cmd_id):
    return next((item for item in client.call("exec_list") if item["cmd_id"] == cmd_id), None)


def test_exec_list(client):
    running = client.start_exec(f"sleep {unique_seconds()}", cmd_id=(running_id := unique_cmd_id()))
    start = running.wait_for("exec.start")
    finished = client.exec("exit 5", cmd_id=unique_cmd_id())
    by_argv = client.exec(None, argv=["true", "a b"], cmd_id=unique_cmd_id())

    item = entry(client, running_id)
    assert item["state"] == "running" and item["pid"] == start["pid"] and item["started_at"] == start["started_at"]
    assert item["command"].startswith("sleep ")
    assert item.get("exit_code") is None and item.get("reason") is None

    item = entry(client, finished["cmd_id"])
    assert (item["state"], item["exit_code"], item["reason"]) == ("finished", 5, "exited")
    assert item["pid"] == finished["pid"] and item["command"] == "exit 5"

    item = entry(client, by_argv["cmd_id"])
    assert item["argv"] == ["true", "a b"] and "command" not in item

    client.call("kill", {"cmd_id": running_id})
    running.result()
    item = entry(client, running_id)
    assert (item["state"], item["exit_code"], item["reason"]) == ("finished", 143, "signaled")


def test_exec_list_without_commands(start_agent):
    with start_agent().connect() as client:
        assert client.call("exec_list") == []
        assert client.call("exec_list", {}) == []


def test_the_counters_of_health(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("true")
        call = client.start_exec("sleep 600")
        cmd_id = call.wait_for("exec.start")["cmd_id"]
        assert agent.health()["commands"] == {"running": 1, "finished": 1}
        client.call("kill", {"cmd_id": cmd_id})
        call.result()
        assert agent.health()["commands"] == {"running": 0, "finished": 2}


# exec_remove


def test_exec_remove(client):
    cmd_id = client.exec("echo hi")["cmd_id"]
    client.call("exec_remove", {"cmd_id": cmd_id})
    for method in ("exec_logs", "exec_remove", "kill"):
        assert client.call_error(method, {"cmd_id": cmd_id}).code == -32001
    assert entry(client, cmd_id) is None
    # The name is free again.
    assert client.exec("echo new", cmd_id=cmd_id)["output"] == "new\n"


def test_a_running_command_is_not_removed(client):
    call = client.start_exec("exec sleep 600", cmd_id=(cmd_id := unique_cmd_id()))
    call.wait_for("exec.start")
    error = client.call_error("exec_remove", {"cmd_id": cmd_id})
    assert error.code < 0 and cmd_id in error.message
    assert entry(client, cmd_id)["state"] == "running"
    client.call("kill", {"cmd_id": cmd_id})
    call.result()


def test_a_removed_command_with_a_child_that_goes_on_printing(client, agent):
    fds = agent.fd_count()
    client.exec("rm -f go.fifo went; mkfifo go.fifo")
    cmd_id = client.exec("(read x <go.fifo; head -c 1000000 /dev/zero; echo $? >went) & echo hi")["cmd_id"]
    client.call("exec_remove", {"cmd_id": cmd_id})
    client.exec("echo go >go.fifo")
    wait_until(lambda: client.exec("cat went 2>/dev/null")["output"] == "0\n")
    wait_until(lambda: agent.fd_count() <= fds)


def test_a_removed_command_is_still_read_to_the_end(agent):
    """A reader that is behind when the command is forgotten gets what was promised."""
    with agent.connect() as client, agent.connect() as other:
        call = client.start_exec("head -c 400000 /dev/zero | tr '\\0' x", cmd_id=(cmd_id := unique_cmd_id()))
        wait_until(lambda: (entry(other, cmd_id) or {}).get("state") == "finished")
        other.call("exec_remove", {"cmd_id": cmd_id})
        assert call.result()["stdout_bytes"] == 400_000
        assert len(call.text()) == 400_000


def test_removing_gives_memory_back(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("true")
        before = agent.rss_kib()
        ids = [client.exec("head -c 500000 /dev/zero", stream=False, output="none")["cmd_id"] for _ in range(20)]
        assert SANITIZED or agent.rss_kib() > before + 8000
        for cmd_id in ids:
            client.call("exec_remove", {"cmd_id": cmd_id})
        wait_until(lambda: agent.rss_kib() < before + 3000 * (5 if SANITIZED else 1))
