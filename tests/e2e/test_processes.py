"""Cases 4 to 13 of what goes wrong with processes."""

import errno
import os
import threading

import pytest

from helpers import processes
from helpers.agent import rounds
from helpers.bounds import memory_kib
from helpers.names import unique_seconds
from helpers.wait import wait_until


def no_zombies(agent):
    return processes.zombies(agent.pid) == []


def test_case_04_orphans_are_reaped(start_agent):
    """200 orphans that end under the agent: here as their subreaper."""
    agent = start_agent()
    with agent.connect() as client:
        for _ in range(rounds(200)):
            client.exec("(sleep 0.05 &); true")
    wait_until(lambda: not processes.children(agent.pid), what="the end of the last orphan")


def test_case_04_orphans_are_reaped_by_pid_1(start_agent):
    """The same as PID 1 of a pid namespace."""
    agent = start_agent(prefix=("unshare", "--fork", "--pid", "--mount-proc", "--kill-child"))
    with agent.connect() as client:
        assert client.exec("cat /proc/1/comm")["output"].startswith("sandkeeper")
        for _ in range(rounds(200)):
            client.exec("(sleep 0.05 &); true")
        client.exec("(setsid sh -c '(setsid sleep 0.2 &)' &) ; true")
    wait_until(lambda: not processes.children(agent.pid), what="the end of the last orphan")


@pytest.mark.timeout(240)
def test_case_05_a_thousand_exact_codes_while_orphans_die(client, agent):
    calls = []
    for n in range(rounds(1000)):
        orphan = "(sleep 0.0%d &); " % (n % 7) if n % 2 else ""
        calls.append(client.start_exec(f"{orphan}exit {n % 256}"))
    for n, call in enumerate(calls):
        result = call.result(120)
        assert (result["exit_code"], result["reason"]) == (n % 256, "exited")
    wait_until(lambda: no_zombies(agent))


def test_case_06_two_hundred_deaths_at_once(client, agent):
    path = os.path.join(agent.workdir, "release")
    os.mkfifo(path)
    door = os.open(path, os.O_RDWR)
    calls = [client.start_exec(f"exec 3<{path}; echo ready; read x <&3; exit {n % 256}") for n in range(200)]
    for call in calls:
        call.wait_for_text("ready\n")
    os.close(door)  # an end of file for all of them
    for n, call in enumerate(calls):
        assert call.result()["exit_code"] == n % 256
    wait_until(lambda: no_zombies(agent))


def test_case_06_two_hundred_killed_at_once(client, agent):
    calls = [client.start_exec("exec sleep 600") for _ in range(200)]
    ids = [call.wait_for("exec.start")["cmd_id"] for call in calls]
    kills = [client.start("kill", {"cmd_id": cmd_id, "signal": "KILL"}) for cmd_id in ids]
    for kill in kills:
        assert kill.result() == {"signaled": True}
    for call in calls:
        assert call.result()["exit_code"] == 137
    wait_until(lambda: no_zombies(agent))


@pytest.fixture
def files(agent):
    """Programs that cannot be started."""
    directory = os.path.join(agent.workdir, "programs")
    os.makedirs(os.path.join(directory, "directory"), exist_ok=True)
    for name, mode, content in [
        ("not-executable", 0o644, "#!/bin/sh\necho no\n"),
        ("bad-interpreter", 0o755, "#!/no/such/interpreter\n"),
        ("no-format", 0o755, "\x7fELF rubbish"),
        ("empty", 0o755, ""),
    ]:
        with open(os.path.join(directory, name), "w") as file:
            file.write(content)
        os.chmod(os.path.join(directory, name), mode)
    return directory


@pytest.mark.parametrize(
    "program, number",
    [
        ("missing", errno.ENOENT),
        ("directory", errno.EACCES),
        ("not-executable", errno.EACCES),
        ("bad-interpreter", errno.ENOENT),
        ("no-format", errno.ENOEXEC),
        ("not-executable/below", errno.ENOTDIR),
        ("x" * 300, errno.ENAMETOOLONG),
    ],
)
def test_case_08_what_cannot_be_started(client, agent, files, program, number):
    path = os.path.join(files, program)
    error = client.call_error("exec", {"argv": [path, "argument"]})
    assert (error.code, error.kind) == (-32008, "spawn_failed")
    assert error.data["errno"] == number, error
    assert error.data["program"] == path
    assert path in error.message
    # The same name, found by PATH.
    if "/" not in program and number in (errno.ENOENT, errno.EACCES):
        error = client.call_error("exec", {"argv": [program], "env": {"PATH": files}})
        assert error.code == -32008 and error.data["errno"] == number, error
    wait_until(lambda: no_zombies(agent))
    assert client.exec("echo next")["output"] == "next\n"


@pytest.mark.parametrize("params", [{"command": "echo " + "x" * 3_000_000}, {"argv": ["echo", "x" * 3_000_000]}])
def test_case_08_three_megabytes_of_argument(client, agent, params):
    error = client.call_error("exec", params)
    assert error.code == -32008 and error.data["errno"] == errno.E2BIG
    assert len(error.message) < 5000, "the argument itself is not for the message"
    wait_until(lambda: no_zombies(agent))
    assert client.exec("echo next")["output"] == "next\n"


def test_case_08_an_environment_of_three_megabytes(client):
    error = client.call_error("exec", {"command": "true", "env": {"BIG": "x" * 3_000_000}})
    assert error.code == -32008 and error.data["errno"] == errno.E2BIG


def test_case_08_a_missing_shell(start_agent, tmp_path):
    shell = tmp_path / "shell"
    shell.symlink_to("/bin/sh")
    agent = start_agent("--shell", str(shell))
    with agent.connect() as client:
        assert client.exec("echo there")["output"] == "there\n"
        shell.unlink()
        error = client.call_error("exec", {"command": "echo gone"})
        assert error.code == -32008 and error.data["errno"] == errno.ENOENT and str(shell) in error.message


def test_case_08_a_failed_start_sends_nothing_but_the_error(client):
    call = client.start("exec", {"argv": ["/no/such/program"]})
    call.error()
    assert call.notifications == []


@pytest.mark.timeout(300)
def test_case_09_descriptors_do_not_leak(agent):
    """20,000 execs with failed starts among them, from four connections at once."""
    with agent.connect() as client:
        client.exec("true")
    before = agent.fd_count()
    total, window, failures = rounds(20_000), 8, []

    def work(start):
        try:
            with agent.connect() as client:
                calls = []
                for n in range(start, total, 4):
                    kind = n % 10
                    if kind == 0:
                        params = {"argv": ["/no/such/program"]}
                    elif kind == 1:
                        params = {"argv": ["true"], "working_dir": "/no/such/directory"}
                    elif kind == 2:
                        params = {"argv": ["true"], "stdin_data": "x"}
                    else:
                        params = {"argv": ["true"], "stream": kind > 5}
                    calls.append((kind, client.start("exec", params)))
                    if len(calls) >= window:
                        check(client, *calls.pop(0))
                for kind, call in calls:
                    check(client, kind, call)
        except BaseException as failure:
            failures.append(failure)

    def check(client, kind, call):
        if kind == 0:
            assert call.error().code == -32008
        elif kind == 1:
            assert call.error().code == -32001
        else:
            assert call.result()["exit_code"] == 0
        client.forget(call)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    wait_until(lambda: agent.fd_count() <= before, what=lambda: f"the descriptors to go: {processes.fds(agent.pid)}")
    assert no_zombies(agent)


def test_case_09_inherited_descriptors_are_not_in_children(start_agent):
    agent = start_agent(prefix=("sh", "-c", 'exec 9>/dev/null; exec "$@"', "sh"))
    assert 9 in processes.fds(agent.pid), "the agent was not given it"
    with agent.connect() as client:
        assert client.exec(None, argv=["ls", "/proc/self/fd"])["output"].split() == ["0", "1", "2", "3"]
        assert client.exec("[ -e /proc/self/fd/9 ] || echo none")["output"] == "none\n"


def test_the_agents_own_descriptors_are_not_in_children(agent):
    """With many connections and commands open, so that there is much to inherit."""
    clients = [agent.connect() for _ in range(20)]
    try:
        calls = [client.start_exec("exec sleep 600", stdin=True) for client in clients]
        for call in calls:
            call.wait_for("exec.start")
        result = clients[0].exec(None, argv=["ls", "/proc/self/fd"])
        assert result["output"].split() == ["0", "1", "2", "3"]
        for call in calls:
            # The loader of a program just started has its libraries open for a moment.
            wait_until(lambda: set(processes.fds(call.wait_for("exec.start")["pid"])) == {0, 1, 2})
            call.client.call("kill", {"cmd_id": call.wait_for("exec.start")["cmd_id"]})
            call.result()
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("ignored", ["CHLD", "PIPE", "CHLD PIPE HUP INT USR1 USR2"])
def test_case_10_inherited_ignored_signals(start_agent, ignored):
    agent = start_agent(prefix=("env", *(f"--ignore-signal={name}" for name in ignored.split())))
    with agent.connect() as client:
        for code in (0, 7, 255):
            assert client.exec(f"exit {code}")["exit_code"] == code
        result = client.exec("yes | head -n 1", output="split")
        assert (result["stdout"], result["stderr"]) == ("y\n", "")
        assert client.exec("yes | head -n 1; echo ${PIPESTATUS[0]}")["output"] == "y\n141\n"
        status = client.exec(None, argv=["grep", "-E", "^Sig(Ign|Blk):", "/proc/self/status"])["output"]
        assert all(int(line.split()[1], 16) == 0 for line in status.splitlines()), status


def test_case_10_blocked_signals(start_agent):
    agent = start_agent(prefix=("env", "--block-signal"))
    with agent.connect() as client:
        status = client.exec(None, argv=["grep", "-E", "^SigBlk:", "/proc/self/status"])["output"]
        assert int(status.split()[1], 16) == 0
        assert client.exec("exit 7")["exit_code"] == 7


@pytest.mark.timeout(240)
def test_case_13_quick_start_and_close(agent):
    with agent.connect() as client:
        client.exec("true")
        running = agent.health()["commands"]["running"]
    before = agent.fd_count()
    for n in range(rounds(1000)):
        client = agent.connect()
        if n % 3 == 0:
            assert client.exec("echo hi")["output"] == "hi\n"
            client.close()
        elif n % 3 == 1:
            client.start_exec("echo hi")
            client.close()
        else:
            client.start_exec("echo hi")
            client.abort()
            client.close()
    wait_until(lambda: agent.health()["commands"]["running"] <= running, 20, "the end of the commands")
    wait_until(lambda: agent.fd_count() <= before, what=lambda: f"the descriptors to go: {processes.fds(agent.pid)}")
    assert no_zombies(agent)


@pytest.mark.timeout(240)
def test_memory_comes_back_after_many_commands(start_agent):
    agent = start_agent()
    with agent.connect() as client:

        def burst(n):
            calls = [client.start_exec("echo hi") for _ in range(n)]
            for call in calls:
                call.result(60)
                client.forget(call)

        burst(300)
        before = agent.rss_kib()
        for _ in range(rounds(3000) // 300 + 1):
            burst(300)
        wait_until(lambda: agent.rss_kib() < before + memory_kib(1024), what=lambda: f"{before} KiB again, not {agent.rss_kib()}")


def test_a_burst_gives_its_memory_back(start_agent):
    """Code that it touched and free heap go two seconds after the last command; nothing else gives them back. What the end
    of the last thread touches goes too."""
    agent = start_agent()
    with agent.connect() as client:
        for call in [client.start_exec("echo hi") for _ in range(300)]:
            call.result(60)
        high = agent.rss_kib()
        wait_until(lambda: agent.rss_kib() < high - 256, 20, lambda: f"less than {high} KiB, not {agent.rss_kib()}")
        low = agent.rss_kib()
        wait_until(lambda: len(os.listdir(f"/proc/{agent.pid}/task")) == 1, 20, "the threads to end")
        wait_until(lambda: agent.rss_kib() < low + 256, 20, lambda: f"about {low} KiB, not {agent.rss_kib()}")


def test_a_background_child_of_a_finished_command_dies_with_the_agent(start_agent):
    agent = start_agent()
    seconds = unique_seconds()
    with agent.connect() as client:
        client.exec(f"setsid sleep {seconds} & sleep {seconds} & echo hi")
    wait_until(lambda: len(processes.with_words("sleep", seconds)) == 2)
    agent.stop()
    assert processes.with_words("sleep", seconds) == []


def test_a_child_that_shed_its_mark_dies_with_the_agent(start_agent):
    """Whatever has the agent for its nearest living ancestor is the agent's to end."""
    agent = start_agent()
    seconds = unique_seconds()
    with agent.connect() as client:
        client.exec(f"env -i setsid sleep {seconds} & echo hi")
    wait_until(lambda: processes.with_words("sleep", seconds))
    agent.stop()
    assert processes.with_words("sleep", seconds) == []


def test_a_command_that_cannot_be_waited_away(client):
    """The leader hands its work to a child that stays; its own exit still ends the command."""
    seconds = unique_seconds()
    result = client.exec(f"nohup sleep {seconds} >/dev/null 2>&1 & disown; exit 4")
    assert result["exit_code"] == 4
    (pid,) = wait_until(lambda: processes.with_words("sleep", seconds))
    os.kill(pid, 9)
