"""docs/protocol.md 4.1: what each parameter of exec does."""

import base64
import hashlib
import json
import os
import pwd
import stat
import subprocess
import threading
import time

from pathlib import Path
import pytest

from helpers import processes
from helpers.agent import SANITIZED
from helpers.bounds import TIME_MARGIN
from helpers.names import unique_cmd_id, unique_seconds
from helpers.wait import wait_until


def lines(result):
    return result["output"].splitlines()


# command and argv


def test_command_is_run_by_bash(client):
    result = client.exec('echo "${BASH_VERSION:+bash}"; readlink /proc/$$/exe; true')
    assert lines(result)[0] == "bash"
    assert os.path.basename(lines(result)[1]) == "bash"


def test_the_shell_can_be_chosen(start_agent):
    agent = start_agent("--shell", "/bin/sh")
    with agent.connect() as client:
        assert client.exec("readlink /proc/$$/exe; true")["output"].strip() == os.path.realpath("/bin/sh")


def test_quotes_and_newlines_reach_the_shell(client):
    assert client.exec("echo 'a  b' \"c\"\necho \\$HOME")["output"] == "a  b c\n$HOME\n"


def test_an_empty_command_does_nothing(client):
    assert client.exec("")["exit_code"] == 0


def test_argv_needs_no_shell(client):
    argv = ["printf", "%s|", "a b", "$HOME", "*", "", "'", "☕"]
    assert client.exec(None, argv=argv)["output"] == "a b|$HOME|*||'|☕|"


def test_argv_is_found_by_path(client, agent):
    directory = os.path.join(agent.workdir, "bin")
    os.makedirs(directory, exist_ok=True)
    program = os.path.join(directory, "only-here")
    with open(program, "w") as file:
        file.write("#!/bin/sh\necho found $0\n")
    os.chmod(program, 0o755)
    assert client.call_error("exec", {"argv": ["only-here"]}).code == -32008
    result = client.exec(None, argv=["only-here"], env={"PATH": f"/nowhere:{directory}"})
    assert result["output"] == f"found {program}\n"
    assert client.exec(None, argv=["bin/only-here"])["output"] == "found bin/only-here\n"
    assert client.exec(None, argv=["./only-here"], working_dir=directory)["output"] == "found ./only-here\n"


# working_dir


def test_the_default_directory_is_the_work_directory(client, agent):
    assert client.exec("pwd -P")["output"].strip() == os.path.realpath(agent.workdir)


def test_working_dir(client, agent):
    path = os.path.join(agent.workdir, "a b ☕")
    os.makedirs(path, exist_ok=True)
    result = client.exec('pwd; echo "$PWD"', working_dir=path)
    assert lines(result) == [path, path]


def test_a_relative_working_dir_is_below_the_work_directory(client, agent):
    os.makedirs(os.path.join(agent.workdir, "below"), exist_ok=True)
    assert client.exec("pwd -P", working_dir="below")["output"].strip().endswith("/work/below")


# env


def test_env_is_over_the_agents_own(start_agent):
    agent = start_agent(env={"KEPT": "kept", "CHANGED": "old", "REMOVED": "there"})
    with agent.connect() as client:
        result = client.exec(
            'echo "$KEPT,$CHANGED,${REMOVED-gone},$ADDED,${EMPTY-unset}"',
            env={"CHANGED": "new", "REMOVED": None, "ADDED": "a=b ☕\n$x", "EMPTY": "", "NEVER": None},
        )
        assert result["output"] == "kept,new,gone,a=b ☕\n$x,\n"
        # The next command sees nothing of it.
        assert client.exec('echo "$CHANGED,$REMOVED,$ADDED"')["output"] == "old,there,\n"


def test_env_names_are_free(client):
    result = client.exec(None, argv=["env"], env={"a.b-c": "1", "ü": "2", "with space": "3"})
    assert {"a.b-c=1", "ü=2", "with space=3"} <= set(lines(result))


def test_very_many_variables_do_not_hold_the_agent(agent):
    """Each was once looked for among those before it: half a million took minutes, for everyone."""
    env = {f"V{n:x}": "" for n in range(60_000)}
    with agent.connect() as client:
        started = time.monotonic()
        assert client.exec(None, argv=["true"], env=env)["exit_code"] == 0
        assert time.monotonic() - started < 2 * TIME_MARGIN
    changes = {f"{n:x}": "" for n in range(20_000)}
    started = time.monotonic()
    for value in ("", None):
        body = json.dumps(dict.fromkeys(changes, value), separators=(",", ":"))
        status, _, answer = agent.http("POST", "/api/v1/env", body=body, headers={"Content-Type": "application/json"})
        assert status == 200, answer
    assert time.monotonic() - started < 1 * TIME_MARGIN


def test_a_large_environment(client):
    env = {f"VARIABLE_{n}": str(n) for n in range(5000)}
    result = client.exec(None, argv=["env"], env=env)
    assert {f"{name}={value}" for name, value in env.items()} <= set(lines(result))


def test_an_environment_of_a_hundred_thousand_variables_holds_nobody_up(client):
    started = time.monotonic()
    result = client.exec(None, argv=["env"], env={f"V{n}": "" for n in range(100_000)} | {"HOME": None}, output="none")
    assert result["stdout_bytes"] > 500_000
    assert time.monotonic() - started < 5 * TIME_MARGIN  # it was 12 s, in which nobody else was answered


def test_missing_variables_are_filled_in(start_agent):
    keep = {"ASAN_OPTIONS": "detect_leaks=1"} if SANITIZED else {}
    agent = start_agent("--sandbox-id", "box", clean_env=True, env=keep)
    with agent.connect() as client:
        found = dict(line.split("=", 1) for line in lines(client.exec(None, argv=["/usr/bin/env"])))
        me = pwd.getpwuid(os.geteuid())
        assert found["HOME"] == me.pw_dir
        assert found["USER"] == found["LOGNAME"] == me.pw_name
        assert found["SHELL"].startswith("/")
        assert {"/usr/bin", "/bin"} <= set(found["PATH"].split(":"))
        assert found["SANDBOX_ID"] == "box"


def test_variables_that_are_there_stay(start_agent):
    values = {"HOME": "/h", "USER": "u", "LOGNAME": "l", "SHELL": "/s", "PATH": "/usr/bin:/bin:/x"}
    agent = start_agent(env=values)
    with agent.connect() as client:
        found = dict(line.split("=", 1) for line in lines(client.exec(None, argv=["env"])))
        assert {name: found[name] for name in values} == values
        found = dict(line.split("=", 1) for line in lines(client.exec(None, argv=["env"], env={"HOME": "/mine"})))
        assert found["HOME"] == "/mine"


def test_every_command_knows_the_sandbox_and_itself(client):
    result = client.exec("echo $SANDBOX_ID $SANDKEEPER_CMD_ID", cmd_id=(cmd_id := unique_cmd_id()))
    assert result["output"] == f"e2e-sandbox {cmd_id}\n"
    result = client.exec("echo $SANDKEEPER_CMD_ID")
    assert result["output"].strip() == result["cmd_id"]


# timeout and idle_timeout


def check_deadline(client, command, deadline, **params):
    """Runs it into a deadline and returns the error's data. The bound is the protocol's: 1.5 s after the deadline."""
    started = time.monotonic()
    error = client.call_error("exec", {"command": command, **params})
    elapsed = time.monotonic() - started
    assert error.code == -32002, error
    assert deadline <= elapsed < deadline + 1.5 + TIME_MARGIN
    assert error.data["survivors"] == 0
    return error.data


def test_timeout(client):
    seconds = unique_seconds()
    data = check_deadline(client, f"echo out; sleep {seconds}", 0.5, timeout=0.5)
    assert data["reason"] == "timed_out" and data["output"] == "out\n"
    assert data["signal"] == "SIGTERM" and data["exit_code"] == 143
    assert processes.with_words("sleep", seconds) == []


def test_case_02_a_child_that_holds_the_pipes_does_not_defeat_the_timeout(client):
    seconds = unique_seconds(774)
    check_deadline(client, f"sleep {seconds} & sleep {seconds}", 1, timeout=1)
    assert processes.with_words("sleep", seconds) == []


@pytest.mark.parametrize(
    "command",
    [
        "sleep {0} & exec sleep {0}",
        "setsid sleep {0} & exec sleep {0}",
        "(setsid setsid sleep {0} &) ; (sleep {0} &) ; sleep {0}",
        "trap '' TERM; sleep {0} & sleep {0}",
        "trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; sleep {0}; sleep {0}' & sleep {0}",
        "kill -STOP $$; sleep {0}",
        "sleep {0} & kill -STOP $!; sleep {0}",
        "nohup setsid sh -c 'while :; do echo on; sleep {0}; done' </dev/null >/dev/null 2>&1 & sleep {0}",
        "env -i setsid sleep {0} & sleep {0}",
    ],
)
def test_case_02_nothing_of_a_timed_out_command_is_left(client, command):
    seconds = unique_seconds(774)
    check_deadline(client, command.format(seconds), 0.5, timeout=0.5)
    assert processes.with_words("sleep", seconds) == []


def test_case_02_a_chain_that_outruns_a_look_is_ended(client, tmp_path):
    """Each process starts the next, in a session of its own, and ends: it is gone when a look at /proc comes to it, and the
    next was not there when that look began."""
    chain = tmp_path / "chain"
    chain.write_text("""#!/bin/sh
        trap '' TERM
        [ $1 -gt 0 ] || exit 0
        printf . >>links
        setsid "$0" $(($1 - 1)) &
    """)
    chain.chmod(0o755)
    for _ in range(6):
        data = check_deadline(client, f"{chain} 3000; sleep 60", 0.2, timeout=0.2, working_dir=str(tmp_path))
        links = (tmp_path / "links").stat().st_size
        time.sleep(0.2)  # the time over which it must not grow
        assert data["survivors"] > 0 or (tmp_path / "links").stat().st_size == links


def test_a_command_may_use_its_last_second(client):
    """SIGTERM first, and a second to react."""
    command = "trap 'echo bye; exit 3' TERM; echo hi; while :; do sleep 0.05; done"
    data = check_deadline(client, command, 0.5, timeout=0.5, output="split")
    assert data["stdout"] == "hi\nbye\n"
    assert data["exit_code"] == 3 and data["signal"] is None and data["reason"] == "timed_out"


def test_a_command_that_ignores_sigterm_is_killed_a_second_later(client):
    started = time.monotonic()
    data = check_deadline(client, "trap '' TERM; while :; do sleep 0.05; done", 0.3, timeout=0.3)
    assert time.monotonic() - started >= 1.3
    assert data["signal"] == "SIGKILL" and data["exit_code"] == 137


def test_done_comes_before_the_timeouts_error(client):
    call = client.start_exec("echo out; sleep 600", timeout=0.3)
    error = call.error()
    assert call.names() == ["exec.start", "exec.stdout", "exec.done"]
    done = call.wait_for("exec.done")
    assert done["reason"] == "timed_out" and done["output"] == "out\n"
    assert done["cmd_id"] == error.data["cmd_id"]
    assert done["exit_code"] == error.data["exit_code"]


def test_a_timeout_that_does_not_pass(client):
    result = client.exec("echo quick", timeout=30)
    assert result["reason"] == "exited"
    assert client.exec("echo quick", timeout=5.5)["output"] == "quick\n"


def test_the_timeout_holds_for_a_detached_command(client):
    seconds = unique_seconds()
    cmd_id = client.exec(f"sleep {seconds}", detached=True, timeout=0.3)["cmd_id"]
    call = client.start("exec_logs", {"cmd_id": cmd_id})
    assert call.wait_for("exec.done")["reason"] == "timed_out"
    wait_until(lambda: not processes.with_words("sleep", seconds))


def test_the_timeout_holds_after_the_client_has_gone(agent):
    seconds = unique_seconds()
    with agent.connect() as client:
        client.start("exec", {"command": f"sleep {seconds}", "timeout": 2}).wait_for("exec.start")
        wait_until(lambda: processes.with_words("sleep", seconds), 2)
    wait_until(lambda: not processes.with_words("sleep", seconds), 2 + 1.5 + TIME_MARGIN)


def test_a_background_child_is_not_ended_by_a_timeout_that_came_too_late(client, agent):
    """The command ended in time: its child lives on, as long as it likes."""
    seconds = unique_seconds()
    client.call("exec", {"command": f"sleep {seconds} & echo hi", "timeout": 0.3})
    time.sleep(0.8)
    (pid,) = processes.with_words("sleep", seconds)
    os.kill(pid, 9)


def test_idle_timeout(client):
    data = check_deadline(client, "for n in 1 2 3 4 5; do echo $n; sleep 0.2; done; sleep 600", 1.0, idle_timeout=0.8)
    assert data["reason"] == "idle_timed_out"
    assert data["output"] == "1\n2\n3\n4\n5\n"


def test_stderr_counts_as_activity(client):
    result = client.call("exec", {"command": "for n in 1 2 3 4 5 6; do echo $n >&2; sleep 0.3; done", "idle_timeout": 1.5})
    assert result["reason"] == "exited"


def test_timeout_and_idle_timeout_together(client):
    noisy = "while :; do echo on; sleep 0.05; done"
    assert check_deadline(client, noisy, 0.6, timeout=0.6, idle_timeout=5)["reason"] == "timed_out"
    assert check_deadline(client, "sleep 600", 0.3, timeout=5, idle_timeout=0.3)["reason"] == "idle_timed_out"


# sudo and user


def test_sudo_as_root_needs_no_program(client):
    result = client.exec("id -u; echo $KEPT", sudo=True, env={"KEPT": "yes", "PATH": "/usr/bin:/bin"})
    assert result["output"] == "0\nyes\n"


def test_sudo_wins_over_the_default_user(start_agent):
    agent = start_agent("--user", "nobody")
    with agent.connect() as client:
        assert client.exec("id -u")["output"] == f"{pwd.getpwnam('nobody').pw_uid}\n"
        assert client.exec("id -u", sudo=True)["output"] == "0\n"


def as_nobody(start_agent, **arguments):
    return start_agent(user="nobody", group="nogroup", extra_groups=[], **arguments)


def test_sudo_without_root_uses_the_program(start_agent, tmp_path):
    """A stand-in for sudo(8) that tells what it was asked."""
    directory = tmp_path_for_all(tmp_path)
    sudo = os.path.join(directory, "sudo")
    with open(sudo, "w") as file:
        file.write('#!/bin/sh\necho "asked: $1 $2"\nshift 2\n[ "$1" = -- ] && shift\nexec "$@"\n')
    os.chmod(sudo, 0o755)
    agent = as_nobody(start_agent, env={"PATH": f"{directory}:/usr/bin:/bin"})
    with agent.connect() as client:
        output = client.exec("echo $KEPT", sudo=True, env={"KEPT": "yes"})["output"]
        assert output.endswith("yes\n")
        assert set(output.splitlines()[0].split()[1:]) == {"-E", "-n"}


def test_sudo_that_is_not_possible(start_agent, tmp_path):
    agent = as_nobody(start_agent, env={"PATH": tmp_path_for_all(tmp_path)})
    with agent.connect() as client:
        error = client.call_error("exec", {"command": "echo hi", "sudo": True})
        assert error.code == -32008 and "sudo" in error.message
        assert client.exec("/bin/echo next")["output"] == "next\n"


def test_sudo_that_would_ask_for_a_password(start_agent, tmp_path):
    """What sudo(8) says of itself is no result of the command; what looks like it but is one, stays one."""
    directory = tmp_path_for_all(tmp_path)
    sudo = os.path.join(directory, "sudo")
    with open(sudo, "w") as file:
        file.write('#!/bin/sh\n[ "$ANSWER" ] || { echo "sudo: a password is required" >&2; exit 1; }\n')
        file.write('echo "$ANSWER"; echo "sudo: so it says" >&2; exit 1\n')
    os.chmod(sudo, 0o755)
    agent = as_nobody(start_agent, env={"PATH": f"{directory}:/usr/bin:/bin"})
    with agent.connect() as client:
        error = client.call_error("exec", {"command": "echo hi", "sudo": True})
        assert error.code == -32008 and error.message == "sudo: a password is required"
        assert error.data["kind"] == "spawn_failed" and error.data["program"] == "sudo"
        result = client.exec("echo hi", sudo=True, env={"ANSWER": "it ran"})
        assert result["exit_code"] == 1 and "it ran" in result["output"]


def tmp_path_for_all(tmp_path):
    """pytest's directories are closed to other users."""
    path = str(tmp_path)
    while path != "/tmp" and path != "/":
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) | 0o055)
        path = os.path.dirname(path)
    return str(tmp_path)


@pytest.mark.parametrize("user", ["nobody", "65534"])
def test_user(client, user):
    entry = pwd.getpwnam("nobody")
    result = client.exec("id -u; id -g; id -G; echo $USER $LOGNAME $HOME; touch /root/no 2>/dev/null || echo denied", user=user)
    uid, gid, groups, names, denied = lines(result)
    assert (int(uid), int(gid)) == (entry.pw_uid, entry.pw_gid)
    assert groups == str(entry.pw_gid)
    assert names == f"nobody nobody {entry.pw_dir}"
    assert denied == "denied"


def test_user_by_number_without_an_entry(client):
    result = client.exec("id -u; id -g; echo ${HOME:+home}", user="54321")
    assert lines(result)[0] == "54321"
    assert lines(result)[1] != "0" and lines(result)[2] == "home"


def test_user_takes_its_supplementary_groups(start_agent, tmp_path):
    passwd, group = tmp_path / "passwd", tmp_path / "group"
    passwd.write_text(Path("/etc/passwd").read_text() + "e2euser:x:4711:4712::/home/e2e:/bin/sh\n")
    group.write_text(Path("/etc/group").read_text() + "e2emain:x:4712:\ne2eone:x:4713:e2euser\ne2etwo:x:4714:root,e2euser\ne2eno:x:4715:root\n")
    mount = f"mount --bind {passwd} /etc/passwd && mount --bind {group} /etc/group && exec \"$@\""
    agent = start_agent("--umask", "0027", prefix=("unshare", "--mount", "sh", "-c", mount, "sh"))
    with agent.connect() as client:
        result = client.exec("id -u; id -G; echo $USER $HOME $SHELL; umask", user="e2euser")
        assert lines(result)[0] == "4711"
        assert sorted(lines(result)[1].split()) == ["4712", "4713", "4714"]
        assert lines(result)[2].startswith("e2euser /home/e2e ")
        assert lines(result)[3] == "0027"


def test_the_agent_keeps_its_own_identity(client, agent):
    client.exec("true", user="nobody")
    with open(f"/proc/{agent.pid}/status") as file:
        uids = next(line for line in file if line.startswith("Uid:")).split()[1:]
    assert set(uids) == {str(os.geteuid())}


def test_user_cannot_get_back(client):
    result = client.exec("grep -E '^(Uid|Gid|Groups|CapEff|CapPrm):' /proc/self/status", user="nobody")
    fields = {line.split(":")[0]: line.split()[1:] for line in lines(result)}
    assert set(fields["Uid"]) == {"65534"} and set(fields["Gid"]) == {"65534"}
    assert fields["CapEff"] == fields["CapPrm"] == ["0000000000000000"]


# stdin_data and stdin


@pytest.mark.parametrize("text", ["", "a", "line\n", "☕\0\r\n\x01", "x" * 65536, "y" * 65537])
def test_stdin_data(client, text):
    result = client.exec("wc -c", stdin_data=text)
    assert result["output"].strip() == str(len(text.encode()))
    assert client.exec("cat", stdin_data=text)["output"] == text


def test_case_12_no_stdin_is_an_end_of_file(client):
    started = time.monotonic()
    result = client.exec("cat; readlink /proc/self/fd/0")
    assert result["output"] == "/dev/null\n"
    assert time.monotonic() - started < 5


@pytest.mark.timeout(120)
def test_case_12_ten_megabytes_of_stdin(client):
    text = "0123456789abcdef☕" * (10_000_000 // 19 + 1)
    expected = hashlib.sha256(text.encode()).hexdigest()
    assert client.exec("sha256sum", stdin_data=text)["output"].split()[0] == expected
    # Into a program that reads nothing of it, little of it, or closes it and lives on.
    assert client.exec("true", stdin_data=text)["exit_code"] == 0
    assert client.exec("head -c 5", stdin_data=text)["output"] == "01234"
    assert client.exec("exec <&-; sleep 0.2; echo closed", stdin_data=text)["output"] == "closed\n"
    assert client.exec("sleep 0.2; cat >/dev/null; echo late", stdin_data=text)["output"] == "late\n"


def test_stdin_data_is_echoed_while_it_is_written(client):
    """More than both pipes hold, in both directions at once: neither side may wait for the other."""
    text = "line of text\n" * 200_000
    parts = []
    call = client.start(
        "exec",
        {"command": "cat", "stdin_data": text},
        on_notification=lambda name, params: parts.append(params.get("data", "") if name == "exec.stdout" else ""),
    )
    assert call.result(60)["stdout_bytes"] == len(text)
    assert "".join(parts) == text


def test_the_memory_of_stdin_data_is_given_back(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("true")
        before = agent.rss_kib()
        for _ in range(3):
            client.exec("true", stdin_data="x" * 10_000_000)
        running = client.start_exec("sleep 600", stdin_data="x" * 10_000_000)
        cmd_id = running.wait_for("exec.start")["cmd_id"]
        client.call("kill", {"cmd_id": cmd_id})
        running.wait()
        wait_until(lambda: agent.rss_kib() < before + 4096 * (4 if SANITIZED else 1), what="the memory to come back")


# detached


def test_detached_answers_at_once(client):
    started = time.monotonic()
    call = client.start_exec("echo hi; sleep 600", detached=True)
    result = call.result()
    assert time.monotonic() - started < 5
    assert set(result) == {"cmd_id", "pid", "started_at"}
    assert processes.is_alive(result["pid"])
    logs = client.start("exec_logs", {"cmd_id": result["cmd_id"]})
    logs.wait_for_text("hi\n")
    assert call.notifications == []
    client.call("kill", {"cmd_id": result["cmd_id"]})
    assert logs.result()["signal"] == "SIGTERM"


def test_detached_reports_a_failed_start(client):
    assert client.call_error("exec", {"argv": ["/no/such"], "detached": True}).code == -32008
    assert client.call_error("exec", {"command": "true", "detached": True, "working_dir": "/no/such"}).code == -32001


# cmd_id


@pytest.mark.parametrize("cmd_id", ["a", "A.b_c-9", "-", "..", "0" * 128])
def test_cmd_id_is_taken(client, cmd_id):
    assert client.exec("echo hi", cmd_id=cmd_id)["cmd_id"] == cmd_id
    client.call("exec_remove", {"cmd_id": cmd_id})


def test_cmd_ids_of_the_agent_differ(client):
    ids = [client.exec("true", stream=False)["cmd_id"] for _ in range(20)]
    assert len(set(ids)) == 20


def test_the_same_cmd_id_starts_nothing_again(client, agent):
    path, cmd_id = os.path.join(agent.workdir, "once"), unique_cmd_id()
    first = client.exec(f"echo ran >>{path}; echo out; exit 7", cmd_id=cmd_id)
    assert "existing" not in first or first["existing"] is False
    second = client.exec("echo another", cmd_id=cmd_id)
    assert second["existing"] is True
    for field in ("cmd_id", "pid", "exit_code", "output", "started_at", "finished_at"):
        assert second[field] == first[field]
    detached = client.exec("echo another", cmd_id=cmd_id, detached=True)
    assert detached["existing"] is True and detached["pid"] == first["pid"]
    assert Path(path).read_text() == "ran\n"


def test_the_same_cmd_id_joins_a_running_command(agent):
    cmd_id = unique_cmd_id()
    with agent.connect() as one, agent.connect() as two:
        one.exec("rm -f join.fifo; mkfifo join.fifo")
        first = one.start_exec("echo begin; read x <join.fifo; echo end; exit 4", cmd_id=cmd_id)
        first.wait_for_text("begin\n")
        second = two.start_exec("echo never", cmd_id=cmd_id)
        second.wait_for_text("begin\n")
        assert two.call("exec", {"command": "x", "cmd_id": cmd_id, "detached": True})["existing"] is True
        assert second.response is None
        one.exec("echo go >join.fifo")
        a, b = first.result(), second.result()
        assert b["existing"] is True
        assert a["pid"] == b["pid"] and a["exit_code"] == b["exit_code"] == 4
        assert a["output"] == b["output"] == "begin\nend\n"


def test_a_client_can_repeat_a_start_after_a_lost_connection(agent):
    path, cmd_id = os.path.join(agent.workdir, "lost"), unique_cmd_id()
    params = {"command": f"echo ran >>{path}; sleep 0.5; echo out", "cmd_id": cmd_id}
    lost = agent.connect()
    lost.start("exec", params)
    lost.abort()
    with agent.connect() as client:
        assert client.call("exec", params)["output"] == "out\n"
    assert Path(path).read_text() == "ran\n"


def test_the_same_cmd_id_on_two_connections_at_the_same_moment(agent):
    path = os.path.join(agent.workdir, "race")
    clients = [agent.connect() for _ in range(4)]
    try:
        for n in range(20):
            cmd_id = unique_cmd_id()
            calls = [client.start_exec(f"echo {n} >>{path}", cmd_id=cmd_id) for client in clients]
            results = [call.result() for call in calls]
            assert len({result["pid"] for result in results}) == 1
            assert sum(bool(result.get("existing")) for result in results) == 3
    finally:
        for client in clients:
            client.close()
    assert Path(path).read_text().split() == [str(n) for n in range(20)]


def test_a_cmd_id_whose_start_failed_is_free_again(client):
    cmd_id = unique_cmd_id()
    assert client.call_error("exec", {"argv": ["/no/such"], "cmd_id": cmd_id}).code == -32008
    assert client.exec("echo now", cmd_id=cmd_id)["output"] == "now\n"


# stream, encoding, output


def test_stream_false_sends_no_notifications(client):
    call = client.start_exec("echo a; echo b >&2", stream=False)
    assert call.result()["output"] in ("a\nb\n", "b\na\n")
    assert call.notifications == []


def test_base64_is_exact(client):
    content = bytes(range(256)) * 3
    octal = "".join(f"\\{byte:03o}" for byte in content)
    call = client.start("exec", {"argv": ["printf", octal], "encoding": "base64"})
    result = call.result()
    assert base64.b64decode(result["output"], validate=True) == content
    pieces = [params["data"] for name, params in call.notifications if name == "exec.stdout"]
    assert b"".join(base64.b64decode(piece, validate=True) for piece in pieces) == content
    done = call.wait_for("exec.done")
    assert base64.b64decode(done["output"], validate=True) == content


def test_base64_offsets_count_bytes(client):
    call = client.start("exec", {"command": "head -c 1000000 /dev/urandom | tee copy", "encoding": "base64"})
    call.result()
    position, digest = 0, hashlib.sha256()
    for name, params in call.notifications:
        if name == "exec.stdout":
            data = base64.b64decode(params["data"], validate=True)
            assert params["offset"] == position and 0 < len(data) <= 65536
            position += len(data)
            digest.update(data)
    assert position == 1_000_000
    assert client.exec("sha256sum <copy")["output"].split()[0] == digest.hexdigest()


def test_output_split(client):
    call = client.start_exec("echo a; echo b >&2; echo c", output="split")
    result = call.result()
    assert (result["stdout"], result["stderr"]) == ("a\nc\n", "b\n")
    assert "output" not in result
    result = client.exec("printf '\\377'; printf '\\376' >&2", output="split", encoding="base64")
    assert (result["stdout"], result["stderr"]) == ("/w==", "/g==")


def test_output_none(client):
    call = client.start_exec("echo a; echo b >&2", output="none")
    result = call.result()
    assert not {"output", "stdout", "stderr"} & set(result)
    assert (result["stdout_bytes"], result["stderr_bytes"]) == (2, 2)
    assert call.text() == "a\n" and call.text("stderr") == "b\n"


def test_output_combined_is_the_default(client):
    result = client.exec("echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c")
    assert result["output"] == "a\nb\nc\n"
    assert client.exec("echo a", output="combined", encoding="utf-8")["output"] == "a\n"


# What a command finds itself in


def test_a_command_has_its_own_session_and_no_terminal(client):
    result = client.exec("echo $$; ps -o pid=,pgid=,sid=,tty= -p $$ 2>/dev/null || cat /proc/$$/stat")
    pid = int(lines(result)[0])
    assert pid == result["pid"]
    fields = client.exec("cut -d' ' -f1,5,6,7 /proc/$$/stat; true")["output"].split()
    assert fields[0] == fields[1] == fields[2]
    assert fields[3] == "0"


def test_signals_are_as_in_a_fresh_process(client):
    found = [line for line in lines(client.exec(None, argv=["cat", "/proc/self/status"])) if line.startswith("Sig")]
    masks = {line.split(":")[0]: int(line.split()[1], 16) for line in found if "/" not in line}
    assert masks == {"SigPnd": 0, "SigBlk": 0, "SigIgn": 0, "SigCgt": 0}


def test_no_descriptor_but_the_three(client):
    result = client.exec(None, argv=["ls", "/proc/self/fd"])
    assert lines(result) == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


def test_the_limits_of_a_command_are_the_containers(start_agent):
    """The agent may raise its own limits; its commands get what the container was given."""
    expected = subprocess.run(["sh", "-c", "ulimit -Sn 256; ulimit -Sn; ulimit -Sc"], capture_output=True, text=True).stdout
    agent = start_agent(prefix=("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh"))
    with agent.connect() as client:
        assert client.exec("ulimit -Sn; ulimit -Sc")["output"] == expected


def test_many_connections_may_run_commands_at_once(agent):
    failures = []

    def work(number):
        try:
            with agent.connect() as client:
                for n in range(10):
                    assert client.exec(f"echo {number} {n}")["output"] == f"{number} {n}\n"
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
