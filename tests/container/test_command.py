"""The image's own command beside the agent: `sandkeeper [options] -- CMD`."""

import os
import signal

import pytest
from helpers import processes
from helpers.wait import wait_until

FOREVER = "while true; do sleep 0.1; done"


def with_command(start, example, script, *options, **arguments):
    return start(example("busybox"), *options, "--", "sh", "-c", script, **arguments)


@pytest.mark.parametrize(
    ("script", "code"), [("sleep 0.2; exit 7", 7), ("exit 0", 0), ("kill -KILL $$", 137), ("kill -USR1 $$", 138)]
)
def test_its_exit_code_is_the_containers(start, example, script, code):
    assert with_command(start, example, script, wait=False).exit_code() == code


@pytest.mark.parametrize(("word", "code"), [("/no/such/program", 127), ("/etc/passwd", 126)])
def test_a_command_that_cannot_start(start, example, word, code):
    container = start(example("busybox"), "--", word, wait=False)
    assert container.exit_code() == code
    assert word in container.logs()


def test_it_has_the_containers_output_and_environment(start, example):
    container = with_command(
        start, example, "echo out; echo err >&2; echo $COLOUR $SANDKEEPER_PORT; pwd; exit 0", wait=False,
        options=["-e", "COLOUR=blue", "-e", "SANDKEEPER_PORT=4001"],
    )  # fmt: skip
    assert container.exit_code() == 0
    lines = container.logs().splitlines()
    # The agent's own settings are not handed on; a token could be among them.
    assert [line for line in ("out", "err", "blue", "/work") if line not in lines] == []


def test_it_reads_the_containers_input(example):
    import podman

    done = podman.podman(
        "run", "--rm", "--interactive", "--label", podman.LABEL, example("busybox"), "--", "cat", stdin=None, input="typed\n"
    )
    assert "typed" in done.stdout.splitlines()


def test_it_may_use_a_terminal(example):
    """A group in the background may not read a terminal: it would be stopped for ever."""
    import podman

    script = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"
    words = [*podman._PODMAN, "run", "--rm", "--interactive", "--tty", "--label", podman.LABEL, example("busybox")]
    done = __import__("subprocess").run(
        ["python3", "-c", script, *words, "--", "sh", "-c", "read line; echo got $line; tty"],
        input=b"typed\n", capture_output=True, timeout=60, check=False, env=podman._ENVIRONMENT,
    )  # fmt: skip
    assert b"got typed" in done.stdout, done
    assert b"/dev/" in done.stdout


def test_it_and_the_clients_run_side_by_side(start, example):
    container = with_command(start, example, f"echo started; {FOREVER}")
    assert container.run("echo hi")["output"] == "hi\n"
    container.wait_log("started")
    # Not a client's command: neither listed nor counted.
    with container.connect() as client:
        assert all("started" not in entry.get("command", "") for entry in client.call("exec_list", {}))
        assert client.call("exec_list", {}) != []
    assert container.health()["commands"]["running"] == 0


def test_its_end_ends_the_clients_commands(start, example):
    container = with_command(start, example, "while [ ! -e /run/agent/go ]; do sleep 0.05; done; exit 3")
    with container.connect() as client:
        call = client.start_exec("trap 'echo told; exit 0' TERM; echo ready; while true; do sleep 0.1; done")
        call.wait_for_text("ready")
        with open(f"{container.shared}/go", "w", encoding="utf-8"):
            pass
        assert client.wait_closed()[0] == 1001
    assert container.exit_code() == 3


@pytest.mark.parametrize("name", ["HUP", "USR1", "USR2", "WINCH"])
def test_signals_are_handed_on(start, example, name):
    container = with_command(start, example, f"trap 'echo got {name}; exit 9' {name}; echo ready; {FOREVER}")
    container.wait_log("ready")
    container.signal(name)
    assert container.exit_code() == 9
    assert f"got {name}" in container.logs()


def test_real_time_signals_are_handed_on(start, example):
    container = with_command(start, example, f"trap 'exit 9' 37; echo ready; {FOREVER}")
    container.wait_log("ready")
    os.kill(container.pid, signal.SIGRTMIN + 3)
    assert container.exit_code() == 9


def test_stop_gives_it_time_and_ends_with_0(start, example):
    container = with_command(start, example, f"trap 'sleep 0.3; echo tidy; exit 5' TERM; echo ready; {FOREVER}")
    container.wait_log("ready")
    assert container.seconds_to_end() < 2.0
    assert container.exit_code() == 0
    assert "tidy" in container.logs()


def test_stop_kills_a_stubborn_one_within_the_grace(start, example):
    container = with_command(start, example, f"trap '' TERM; echo ready; {FOREVER}", "--grace", "1s")
    container.wait_log("ready")
    assert 0.9 < container.seconds_to_end() < 3.0
    assert container.exit_code() == 0


def test_keep_alive(start, example):
    container = with_command(start, example, "exit 7", "--keep-alive")
    container.wait_log("ended")
    assert container.run("echo still here")["output"] == "still here\n"
    assert container.seconds_to_end() < 1.0
    assert container.exit_code() == 0


def test_restart_command(start, example):
    container = with_command(start, example, "echo run >> /run/agent/runs; exit 1", "--restart-command")

    def runs():
        try:
            with open(f"{container.shared}/runs", encoding="utf-8") as file:
                return len(file.readlines())
        except FileNotFoundError:
            return 0

    wait_until(lambda: runs() >= 4, 20, "four runs")
    assert container.run("echo here")["output"] == "here\n"
    assert container.seconds_to_end() < 1.0


def test_its_orphans_are_reaped(start, example):
    container = with_command(start, example, f"i=0; while [ $i -lt 100 ]; do (sleep 0.1 &); i=$((i+1)); done; echo made; {FOREVER}")
    container.wait_log("made")
    wait_until(lambda: len(processes.descendants(container.pid)) <= 2, 10, "the orphans to be gone")
    assert container.zombies() == []


@pytest.mark.parametrize("options", [["--init"], ["--pid", "host"]], ids=["init", "pid-host"])
def test_beside_another_process_1(start, example, options):
    container = with_command(start, example, "sleep 0.3; exit 7", wait=False, options=options)
    assert container.exit_code() == 7
