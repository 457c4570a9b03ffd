"""The real client: vtrix-sandbox 0.1.1 from PyPI, unmodified, against the agent. Its module is called `src`."""

import asyncio
import io
import signal

import pytest

from helpers.bounds import TIME_MARGIN
from helpers.names import unique_seconds
from helpers.sdk import ID, with_sandbox
from helpers.wait import wait_until
from helpers import processes
from src import Client, ClientOptions, RunOptions, SandboxError


async def until_running(sandbox, cmd_id):
    """Until the log has something."""
    async for event in sandbox.exec_logs(cmd_id):
        if event.type == "stdout":
            return event.data


def test_attach(agent):
    async def work(sandbox):
        assert sandbox.info.id == ID
        assert sandbox.status == "active"
        assert sandbox.created_at.year > 2020

    with_sandbox(agent, work)


def test_attach_to_another_id(agent):
    async def work():
        async with Client(ClientOptions(base_url=f"http://127.0.0.1:{agent.port}")) as client:
            with pytest.raises(Exception, match="404"):
                await client.attach("another")

    asyncio.run(work())


def test_run_command(agent):
    async def work(sandbox):
        done = await sandbox.run_command("echo hello; echo problem >&2; exit 3")
        assert done.exit_code == 3 and sorted(done.output.split()) == ["hello", "problem"]
        assert done.cmd_id and done.started_at.year > 2020

    with_sandbox(agent, work)


def test_run_command_with_args(agent):
    async def work(sandbox):
        args = ["a b", "it's", "$HOME", "*", "", "☕", "new\nline"]
        done = await sandbox.run_command("printf '%s|'", args)
        assert done.output == "".join(f"{arg}|" for arg in args)

    with_sandbox(agent, work)


def test_run_command_with_options(agent):
    async def work(sandbox):
        done = await sandbox.run_command("pwd; echo $WORD; cat; id -u",
            opts=RunOptions(working_dir="/usr", env={"WORD": "x y"}, stdin="from stdin\n", sudo=True, timeout_sec=30))  # fmt: skip
        assert done.output == "/usr\nx y\nfrom stdin\n0\n"
        assert done.cwd == "/usr"

    with_sandbox(agent, work)


def test_run_command_that_times_out(agent):
    async def work(sandbox):
        seconds = unique_seconds()
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(SandboxError) as caught:
            await sandbox.run_command(f"sleep {seconds} & sleep {seconds}", opts=RunOptions(timeout_sec=1))
        assert caught.value.code == -32002
        assert 1 <= loop.time() - started < 1 + 1.5 + TIME_MARGIN
        assert processes.with_words("sleep", seconds) == []
        assert (await sandbox.run_command("echo next")).output == "next\n"

    with_sandbox(agent, work)


def test_run_command_with_a_wrong_directory(agent):
    async def work(sandbox):
        with pytest.raises(SandboxError) as caught:
            await sandbox.run_command("true", opts=RunOptions(working_dir="/no/such"))
        assert caught.value.code == -32001

    with_sandbox(agent, work)


def test_run_command_with_writers(agent):
    async def work(sandbox):
        out, err = io.StringIO(), io.StringIO()
        done = await sandbox.run_command("echo out; echo err >&2; echo more", opts=RunOptions(stdout=out, stderr=err))
        assert (out.getvalue(), err.getvalue(), done.exit_code) == ("out\nmore\n", "err\n", 0)
        out = io.StringIO()
        await sandbox.run_command("seq 1 200000", opts=RunOptions(stdout=out))
        assert out.getvalue() == "".join(f"{n}\n" for n in range(1, 200_001))

    with_sandbox(agent, work)


def test_run_command_stream(agent):
    async def work(sandbox):
        events = [event async for event in sandbox.run_command_stream("echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c")]
        found = [(event.type, event.data) for event in events]
        assert found == [("start", ""), ("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), ("done", "a\nb\nc\n")]

    with_sandbox(agent, work)


def test_detached_wait_logs_and_output(agent):
    async def work(sandbox):
        command = await sandbox.run_command_detached("echo out; sleep 0.3; echo err >&2; exit 5")
        assert command.pid > 1 and command.exit_code is None
        logs = [(event.stream, event.data) async for event in command.logs()]
        assert logs == [("stdout", "out\n"), ("stderr", "err\n")]
        done = await command.wait()
        assert (done.exit_code, command.exit_code, done.output) == (5, 5, "out\nerr\n")
        assert await command.stdout() == "out\n"
        assert await command.stderr() == "err\n"
        assert await command.collect_output() == "out\nerr\n"
        assert await command.collect_output("stderr") == "err\n"

    with_sandbox(agent, work)


def test_exec_logs_twice_at_once_and_after_the_end(agent):
    async def work(sandbox):
        await sandbox.run_command("rm -f sdk.fifo; mkfifo sdk.fifo")
        command = await sandbox.run_command_detached("echo a; read x <sdk.fifo; echo b")

        async def collect():
            return [(event.type, event.data) async for event in sandbox.exec_logs(command.cmd_id)]

        both = [asyncio.ensure_future(collect()) for _ in range(2)]
        assert await until_running(sandbox, command.cmd_id) == "a\n"
        await sandbox.run_command("echo go >sdk.fifo")
        one, two = await asyncio.gather(*both)
        after = await collect()
        assert one[0] == ("start", "") and one[-1] == ("done", "a\nb\n")
        assert "".join(data for kind, data in one if kind == "stdout") == "a\nb\n"
        assert one == two
        assert after[-1] == ("done", "a\nb\n") and after[0] == ("start", "")

    with_sandbox(agent, work)


def test_exec_logs_of_an_unknown_command(agent):
    async def work(sandbox):
        with pytest.raises(SandboxError) as caught:
            async for _ in sandbox.exec_logs("never-started"):
                pass
        assert caught.value.code == -32001

    with_sandbox(agent, work)


def test_get_command_on_a_second_connection(agent):
    async def work(one, two):
        command = await one.run_command_detached("echo hi; exit 4")
        same = two.get_command(command.cmd_id)
        done = await same.wait()
        assert (done.exit_code, done.output) == (4, "hi\n")
        assert await same.stdout() == "hi\n"

    with_sandbox(agent, work, 2)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT", "SIGHUP"])
def test_kill_with_each_signal(agent, name):
    async def work(sandbox):
        command = await sandbox.run_command_detached("echo ready; exec sleep 600")
        assert await until_running(sandbox, command.cmd_id) == "ready\n"
        await command.kill(name)
        done = await command.wait()
        assert done.exit_code == 128 + getattr(signal, name)
        await command.kill(name)  # once more, for a command that has ended

    with_sandbox(agent, work)


def test_the_default_kill(agent):
    async def work(sandbox):
        command = await sandbox.run_command_detached("exec sleep 600")
        await command.kill()
        assert (await command.wait()).exit_code == 143
        with pytest.raises(SandboxError):
            await sandbox.kill("never-started")

    with_sandbox(agent, work)


def test_close_and_reconnect(agent):
    seconds = unique_seconds()

    async def first(sandbox):
        command = await sandbox.run_command_detached(f"echo before; sleep {seconds}; echo never", opts=RunOptions(env={"A": "b"}))
        await until_running(sandbox, command.cmd_id)
        ids.append(command.cmd_id)

    async def second(sandbox):
        command = sandbox.get_command(ids[0])
        assert await until_running(sandbox, command.cmd_id) == "before\n"
        await command.kill()
        assert (await command.wait()).output == "before\n"

    ids = []
    with_sandbox(agent, first)
    wait_until(lambda: processes.with_words("sleep", seconds))
    with_sandbox(agent, second)


def test_many_commands_at_once(agent):
    async def work(sandbox):
        async def one(n):
            done = await sandbox.run_command(f"echo {n}; exit {n}")
            return done.output, done.exit_code

        found = await asyncio.gather(*(one(n) for n in range(100)))
        assert found == [(f"{n}\n", n) for n in range(100)]

    with_sandbox(agent, work)


@pytest.mark.parametrize("byte", ["\\0", "\\377", "\\033", "x"])
def test_700000_bytes_of_anything_keep_the_connection(agent, byte):
    """Its WebSocket library closes on a message over 1 MiB, and all its calls are cancelled then."""

    async def work(sandbox):
        other = await sandbox.run_command_detached("sleep 1; echo other")
        waiting = asyncio.ensure_future(other.wait())
        done = await sandbox.run_command(f"head -c 700000 /dev/zero | tr '\\0' '{byte}'")
        assert done.exit_code == 0 and done.output
        assert (await waiting).output == "other\n"
        assert (await sandbox.run_command("echo next")).output == "next\n"

    with_sandbox(agent, work)


def test_ten_megabytes_of_stdin(agent):
    async def work(sandbox):
        done = await sandbox.run_command("wc -c", opts=RunOptions(stdin="x" * 10_000_000))
        assert done.output.strip() == "10000000"

    with_sandbox(agent, work)


def test_the_environment_of_the_client(agent):
    """create() gives the sandbox an environment for all its commands; attach() does not, so it is set by hand here."""

    async def work(sandbox):
        sandbox._default_env = {"A": "1", "B": "2"}
        done = await sandbox.run_command("echo $A $B", opts=RunOptions(env={"B": "3"}))
        assert done.output == "1 3\n"

    with_sandbox(agent, work)
