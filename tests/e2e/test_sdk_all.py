"""Every public name of the Python SDK, vtrix-sandbox 0.1.1 from PyPI, unmodified, against a live agent. helpers/sdk_names.py
checks that each test calls what it says it covers, and that nothing is left out."""

import asyncio
import base64
import datetime
import io
import os
import sys

import httpx
import pytest
import websockets
from src import (
    Client,
    ClientOptions,
    Command,
    CommandFinished,
    CreateOptions,
    DownloadEntry,
    FileOptions,
    ListOptions,
    Payload,
    RunOptions,
    SandboxError,
    Spec,
    StopOptions,
    UpdateOptions,
    WriteFileEntry,
)

from helpers import sdk_names
from helpers.control import with_limits
from helpers.sdk_names import covers

UTC = datetime.timezone.utc

# One pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(autouse=True)
def calls_what_it_covers(request, monkeypatch):
    recorder = sdk_names.Recorder()
    recorder.install(monkeypatch)
    yield
    missing = set(getattr(request.function, "covers", ())) - recorder.called
    assert not missing, f"the test says that it calls {sorted(missing)}, and does not"


def run(agent, work, token=""):
    """Runs the coroutine function `work` with a client."""

    async def with_client():
        options = ClientOptions(base_url=f"http://127.0.0.1:{agent.port}/", token=token, project_id="project-7")
        async with Client(options) as client:
            return await asyncio.wait_for(work(client), 60)

    return asyncio.run(with_client())


def in_sandbox(agent, work):
    """Runs `work` with a client and a sandbox that it is attached to."""

    async def attached(client):
        async with await client.attach("box") as sandbox:
            return await work(client, sandbox)

    return run(agent, attached)


@pytest.fixture
def box(start_agent):
    return start_agent("--sandbox-id", "box", "--grace", "1s")


def status_of(error):
    return error.value.response.status_code


# The names themselves


def test_every_public_name_has_a_test():
    assert [name for name, tests in sdk_names.coverage(sys.modules[__name__]).items() if not tests] == []
    assert len(sdk_names.public_names()) > 50


def test_the_table_in_the_documents_is_up_to_date():
    with open(sdk_names.DOCUMENT, encoding="utf-8") as file:
        document = file.read()
    assert sdk_names.with_table(document, sys.modules[__name__]) == document, "run scripts/compatibility"


def test_a_name_without_a_test_is_noticed(monkeypatch):
    monkeypatch.setattr(Client, "brand_new", lambda self: None, raising=False)
    with pytest.raises(AssertionError, match="Client.brand_new"):
        sdk_names.table(sys.modules[__name__])


# Client


@covers("Client.create", "Client.get", "Client.aclose", "Sandbox.status", "Sandbox.close")
def test_create(box):
    async def work(client):
        options = CreateOptions(
            user_id="ann",
            spec=Spec(image="debian:12"),
            labels={"team": "red"},
            payloads=[Payload(api="/api/v1/env", body={"COLOR": "green"})],
            ttl_hours=3,
            env={"SHAPE": "round"},
        )
        sandbox = await client.create(options)
        assert sandbox.status == "active"
        info = await client.get("box")
        assert info == sandbox.info or info.last_active_at != sandbox.info.last_active_at
        assert (info.id, info.user_id, info.labels, info.spec.image) == ("box", "ann", {"team": "red"}, "debian:12")
        done = await sandbox.run_command("echo $COLOR $SHAPE")
        assert done.output == "green round\n"
        await sandbox.close()
        with pytest.raises(httpx.HTTPStatusError) as error:
            await client._create_sandbox(CreateOptions(user_id="bob"))
        assert status_of(error) == 409 and "ann" in error.value.response.json()["message"]
        await client.aclose()
        with pytest.raises(RuntimeError, match="closed"):
            await client.get("box")

    run(box, work)


@covers("Client.attach", "Client.get")
def test_attach(box):
    async def work(client):
        sandbox = await client.attach("box")
        assert sandbox.info.id == "box" and sandbox.info.user_id == ""
        await sandbox.close()
        for call in (client.attach, client.get):
            with pytest.raises(httpx.HTTPStatusError) as error:
                await call("another")
            assert status_of(error) == 404

    run(box, work)


@covers("Client.attach")
def test_the_token(start_agent, tmp_path):
    token = tmp_path / "token"
    token.write_text("sdk-secret")
    agent = start_agent("--sandbox-id", "box", "--token-file", str(token))

    async def work(client):
        async with await client.attach("box") as sandbox:
            return (await sandbox.run_command("echo in")).output

    assert run(agent, work, token="sdk-secret") == "in\n"
    with pytest.raises(httpx.HTTPStatusError) as error:
        run(agent, work, token="wrong")
    assert status_of(error) == 401


@covers("Client.list")
def test_list(box):
    async def work(client):
        everything = await client.list()
        assert [item.id for item in everything.items] == ["box"]
        assert (everything.pagination.total, everything.pagination.has_more) == (1, False)
        assert (await client.list(ListOptions(status="stopped"))).items == []
        assert (await client.list(ListOptions(user_id="nobody"))).pagination.total == 0
        page = await client.list(ListOptions(status="active", limit=5, offset=1))
        assert page.items == [] and (page.pagination.limit, page.pagination.offset) == (5, 1)

    run(box, work)


@covers("Client.delete")
def test_client_delete(box):
    async def work(client):
        await client.delete("box")

    run(box, work)
    box.check_ended()


@covers("Client.pool_status", "Client.rolling_status", "Client.rolling_start", "Client.rolling_cancel")
def test_admin(box):
    async def work(client):
        pool = await client.pool_status()
        assert (pool.total, pool.active, pool.warm, pool.max_total, pool.healthy) == (1, 1, 0, 1, True)
        assert pool.utilization == 1.0 and pool.last_allocate_at is None
        rolling = await client.rolling_status()
        assert (rolling.phase, rolling.progress) == ("idle", 0)
        for call in (client.rolling_start("debian:13"), client.rolling_cancel()):
            with pytest.raises(httpx.HTTPStatusError) as error:
                await call
            assert status_of(error) == 409 and "image" in error.value.response.json()["message"]

    run(box, work)


# Sandbox: its life


@covers("Sandbox.refresh", "Sandbox.status", "Sandbox.created_at", "Sandbox.expire_at", "Sandbox.timeout", "Sandbox.domain")
def test_what_it_says_of_itself(box):
    async def work(client, sandbox):
        assert datetime.timedelta(0) <= datetime.datetime.now(UTC) - sandbox.created_at < datetime.timedelta(minutes=2)
        assert sandbox.expire_at == "" and sandbox.timeout == 0
        assert sandbox.domain(8080) == f"http://127.0.0.1:{box.port}"
        other = await client.attach("box")
        await other.extend(1)
        await other.close()
        assert sandbox.timeout == 0
        await sandbox.refresh()
        assert sandbox.status == "active" and sandbox.expire_at.endswith("Z")
        assert 3_500_000 < sandbox.timeout <= 3_600_000

    in_sandbox(box, work)


@covers("Sandbox.domain")
def test_domain_of_a_preview_host(start_agent):
    async def work(client, sandbox):
        assert sandbox.domain(8080) == "https://8080-box.example"

    in_sandbox(start_agent("--sandbox-id", "box", "--preview-host", "box.example"), work)


@covers("Sandbox.extend", "Sandbox.extend_timeout")
def test_extend(box):
    async def work(client, sandbox):
        await sandbox.extend()
        assert sandbox.expire_at == ""
        await sandbox.extend_timeout(2)
        assert 13.9 * 3_600_000 < sandbox.timeout <= 14 * 3_600_000
        with pytest.raises(httpx.HTTPStatusError) as error:
            await sandbox.extend(-1)
        assert status_of(error) == 400

    in_sandbox(box, work)


@covers("Sandbox.stop", "Sandbox.start", "Sandbox.restart", "Sandbox.refresh")
def test_stop_start_restart(box):
    async def work(client, sandbox):
        command = await sandbox.run_command_detached("sleep 60")
        await sandbox.stop(StopOptions(blocking=True, poll_interval=0.01))
        assert sandbox.status == "stopped"
        assert (await command.wait()).exit_code == 128 + 15
        with pytest.raises(SandboxError) as error:
            await sandbox.run_command("true")
        assert error.value.code == -32009
        await sandbox.write("kept", "yes")
        await sandbox.start()
        assert (await sandbox.run_command("cat kept")).output == "yes"
        command = await sandbox.run_command_detached("sleep 60")
        await sandbox.restart()
        await sandbox.refresh()
        assert sandbox.status == "active"
        assert (await command.wait()).exit_code == 128 + 15
        await sandbox.stop()
        assert (await client.get("box")).status == "stopped"

    in_sandbox(box, work)


@covers("Sandbox.configure")
def test_configure(box):
    async def work(client, sandbox):
        await sandbox.configure()
        await sandbox.configure([Payload(api="/api/v1/env", body={"COLOR": "red"})])
        assert (await sandbox.run_command("echo $COLOR")).output == "red\n"
        with pytest.raises(httpx.HTTPStatusError) as error:
            await sandbox.configure([Payload(api="/nowhere", body={})])
        assert status_of(error) == 400 and "/nowhere" in error.value.response.json()["message"]

    in_sandbox(box, work)


@covers("Sandbox.update")
def test_update(box):
    async def work(client, sandbox):
        await sandbox.update(UpdateOptions(payloads=[Payload(api="/api/v1/env", body={"COLOR": "red"})]))
        assert (await sandbox.run_command("echo $COLOR")).output == "red\n"
        for options, status in [
            (UpdateOptions(image="debian:13"), 409),
            (UpdateOptions(spec=Spec(image="debian:13")), 409),
            (UpdateOptions(spec=Spec(cpu="two")), 400),
            (UpdateOptions(), 400),
        ]:
            with pytest.raises(httpx.HTTPStatusError) as error:
                await sandbox.update(options)
            assert status_of(error) == status

    in_sandbox(box, work)


@pytest.mark.mount
@covers("Sandbox.update")
def test_update_of_limits(start_agent, tmp_path):
    async def work(client, sandbox):
        await sandbox.update(UpdateOptions(spec=Spec(cpu="750m", memory="768Mi")))
        await sandbox.refresh()
        assert (sandbox.info.spec.cpu, sandbox.info.spec.memory) == ("750m", "768Mi")

    in_sandbox(start_agent("--sandbox-id", "box", prefix=with_limits(tmp_path)), work)


@covers("Sandbox.delete")
def test_sandbox_delete(box):
    async def work(client, sandbox):
        events = [event async for event in deleting(sandbox)]
        assert events[0].type == "start" and events[-1].type == "done"

    async def deleting(sandbox):
        async for event in sandbox.run_command_stream("echo begun; sleep 60"):
            if event.data == "begun\n" and event.type == "stdout":
                await sandbox.delete()
            yield event

    in_sandbox(box, work)
    box.check_ended()


@covers("Sandbox.close")
def test_close(box):
    async def work(client):
        sandbox = await client.attach("box")
        await sandbox.close()
        with pytest.raises(SandboxError, match="send failed"):
            await sandbox.run_command("true")

    run(box, work)


# Sandbox: commands


@covers("Sandbox.run_command")
def test_run_command(box):
    async def work(client, sandbox):
        out, err = io.StringIO(), io.StringIO()
        options = RunOptions(
            working_dir="/", timeout_sec=20, env={"A": "1"}, sudo=True, stdin="typed", stdout=out, stderr=err
        )
        done = await sandbox.run_command('printf "%s|" "$A" "$PWD" "$(cat)" "$@"; echo oops >&2; exit 4; :', ["a b", "c'd"], options)
        assert isinstance(done, CommandFinished) and done.exit_code == 4 and done.cwd == "/"
        assert out.getvalue() == "1|/|typed|" and err.getvalue() == "oops\n"
        assert (await sandbox.run_command("printf '%s|'", ["a b", "c'd", "$HOME"])).output == "a b|c'd|$HOME|"

    in_sandbox(box, work)


@covers("Sandbox.run_command_stream")
def test_run_command_stream(box):
    async def work(client, sandbox):
        events = [event async for event in sandbox.run_command_stream("echo out; echo err >&2")]
        assert (events[0].type, events[-1].type) == ("start", "done")
        assert sorted((event.type, event.data) for event in events[1:-1]) == [("stderr", "err\n"), ("stdout", "out\n")]
        assert sorted(events[-1].data.splitlines()) == ["err", "out"]

    in_sandbox(box, work)


@covers(
    "Sandbox.run_command_detached", "Command.exit_code", "Command.wait", "Command.logs", "Command.stdout",
    "Command.stderr", "Command.collect_output",
)  # fmt: skip
def test_command(box):
    async def work(client, sandbox):
        command = await sandbox.run_command_detached("echo out; echo err >&2; exit 6")
        assert type(command) is Command and command.pid > 0 and command.exit_code is None
        assert datetime.datetime.now(UTC) - command.started_at < datetime.timedelta(minutes=1)
        finished = await command.wait()
        assert command.exit_code == finished.exit_code == 6
        assert sorted(finished.output.splitlines()) == ["err", "out"]
        assert sorted([(e.stream, e.data) async for e in command.logs()]) == [("stderr", "err\n"), ("stdout", "out\n")]
        assert await command.stdout() == "out\n"
        assert await command.stderr() == "err\n"
        assert sorted((await command.collect_output()).splitlines()) == ["err", "out"]

    in_sandbox(box, work)


@covers(
    "CommandFinished.exit_code", "CommandFinished.wait", "CommandFinished.logs", "CommandFinished.stdout",
    "CommandFinished.stderr", "CommandFinished.collect_output", "CommandFinished.kill",
)  # fmt: skip
def test_command_finished(box):
    async def work(client, sandbox):
        done = await sandbox.run_command("echo out; echo err >&2; exit 6")
        assert type(done) is CommandFinished and done.exit_code == 6
        assert (await done.wait()).exit_code == 6
        assert sorted([(e.stream, e.data) async for e in done.logs()]) == [("stderr", "err\n"), ("stdout", "out\n")]
        assert await done.stdout() == "out\n"
        assert await done.stderr() == "err\n"
        assert len(await done.collect_output()) == 8
        await done.kill()  # nothing to hit, and nothing is
        assert done.exit_code == 6

    in_sandbox(box, work)


@covers("Sandbox.get_command", "Sandbox.exec_logs", "Sandbox.kill", "Command.kill")
def test_kill_and_logs_from_another_connection(box):
    async def work(client, sandbox):
        for by_sandbox in (True, False):
            started = await sandbox.run_command_detached("echo begun; sleep 60")
            async with await client.attach("box") as other:
                async for event in other.exec_logs(started.cmd_id):
                    if event.type == "stdout":
                        assert event.data == "begun\n"
                        await (other.kill(started.cmd_id, "SIGINT") if by_sandbox else other.get_command(started.cmd_id).kill())
                same = other.get_command(started.cmd_id)
                assert (await same.wait()).exit_code == 128 + (2 if by_sandbox else 15)
        with pytest.raises(SandboxError) as error:
            await sandbox.kill("no-such-command")
        assert error.value.code == -32001

    in_sandbox(box, work)


# Sandbox: files


@covers("Sandbox.write", "Sandbox.read", "Sandbox.edit")
def test_write_read_edit(box):
    async def work(client, sandbox):
        assert (await sandbox.write("a/b/text", "one\ntwo\n")).bytes_written == 8
        got = await sandbox.read("a/b/text")
        assert (got.type, got.content, got.truncated) == ("text", "one\ntwo\n", False)
        assert (await sandbox.edit("a/b/text", "two", "zwei")).message
        assert (await sandbox.read("a/b/text")).content == "one\nzwei\n"
        with pytest.raises(SandboxError) as error:
            await sandbox.edit("a/b/text", "three", "drei")
        assert error.value.code == -32005

    in_sandbox(box, work)


@covers("Sandbox.write_files", "Sandbox.read_to_buffer", "Sandbox.read")
def test_write_files(box):
    async def work(client, sandbox):
        await sandbox.write_files(
            [
                WriteFileEntry("bin/tool", b"#!/bin/sh\necho tool\n", 0o755),
                WriteFileEntry("plain", b"text", 0o600),
                WriteFileEntry("picture", PNG),
            ]
        )
        assert (await sandbox.run_command("bin/tool; stat -c %a plain")).output == "tool\n600\n"
        assert await sandbox.read_to_buffer("plain") == b"text"
        assert await sandbox.read_to_buffer("picture") == PNG
        assert await sandbox.read_to_buffer("no-such-file") is None
        picture = await sandbox.read("picture")
        assert (picture.type, picture.mime_type) == ("image", "image/png")

    in_sandbox(box, work)


@covers("Sandbox.mkdir", "Sandbox.list_files", "Sandbox.stat", "Sandbox.exists")
def test_look_around(box):
    async def work(client, sandbox):
        await sandbox.mkdir("d/with space/deep")
        await sandbox.write("d/file", "12345")
        entries = await sandbox.list_files("d")
        assert [(e.name, e.size if not e.is_dir else None, e.is_dir) for e in entries] == [
            ("file", 5, False),
            ("with space", None, True),
        ]
        assert entries[0].path == f"{box.workdir}/d/file" and entries[0].modified_at.endswith("Z")
        info = await sandbox.stat("d/file")
        assert (info.exists, info.is_file, info.is_dir, info.size) == (True, True, False, 5)
        info = await sandbox.stat("nothing")
        assert (info.exists, info.is_file, info.is_dir, info.size, info.modified_at) == (False, False, False, 0, None)
        assert await sandbox.exists("d/with space/deep") and not await sandbox.exists("d/nothing")

    in_sandbox(box, work)


@covers("Sandbox.upload_file", "Sandbox.download_file", "Sandbox.download_files")
def test_up_and_down(box, tmp_path):
    content = os.urandom(100_000) + b"\0"
    (tmp_path / "text").write_bytes("täxt\r\n".encode() * 1000)
    (tmp_path / "picture").write_bytes(PNG)
    (tmp_path / "bytes").write_bytes(content)

    async def work(client, sandbox):
        for name in ("text", "picture", "bytes"):
            await sandbox.upload_file(str(tmp_path / name), f"up/{name}", FileOptions(mkdir_recursive=True))
        got = await sandbox.download_file("up/text", str(tmp_path / "new/text"), FileOptions(mkdir_recursive=True))
        assert got == str(tmp_path / "new/text") and (tmp_path / "new/text").read_bytes() == (tmp_path / "text").read_bytes()
        assert await sandbox.download_file("up/nothing", str(tmp_path / "nothing")) is None
        entries = [DownloadEntry(f"up/{name}", str(tmp_path / f"new/{name}2")) for name in ("text", "picture")]
        got = await sandbox.download_files(entries)
        assert got == {entry.sandbox_path: entry.local_path for entry in entries}
        assert (tmp_path / "new/picture2").read_bytes() == PNG
        assert b"".join([piece async for piece in sandbox.read_stream("up/bytes")]) == content

    in_sandbox(box, work)


@covers("Sandbox.read_stream")
def test_read_stream(box):
    content = os.urandom(300_001)

    async def work(client, sandbox):
        await sandbox.write_files([WriteFileEntry("bytes", content)])
        for size in (1000, 65536, 1 << 20):
            pieces = [piece async for piece in sandbox.read_stream("bytes", chunk_size=size)]
            assert b"".join(pieces) == content
            assert all(len(piece) == size for piece in pieces[:-1])
        with pytest.raises(SandboxError) as error:
            async for _ in sandbox.read_stream("nothing"):
                pass
        assert error.value.code == -32001

    in_sandbox(box, work)


# Failures that once killed a connection


@covers("Sandbox.read")
def test_an_image_too_long_for_a_message_is_an_error_and_the_connection_lives(box):
    async def work(client, sandbox):
        await sandbox.write_files([WriteFileEntry("small.png", PNG + bytes(500_000))])
        await sandbox.run_command("{ cat small.png; head -c 1000000 /dev/zero; } > large.png")
        assert (await sandbox.read("small.png")).type == "image"
        with pytest.raises(SandboxError) as error:
            await sandbox.read("large.png")
        assert error.value.code == -32006 and "read_stream" in str(error.value)
        assert len(b"".join([piece async for piece in sandbox.read_stream("large.png")])) == 1_500_000 + len(PNG)
        assert (await sandbox.run_command("echo alive")).output == "alive\n"
        assert sandbox._ws.state is websockets.State.OPEN

    in_sandbox(box, work)
