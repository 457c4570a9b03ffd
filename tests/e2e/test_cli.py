"""The command line and the environment; docs/protocol.md 1, "Options"."""

import json
import os
import pwd
import socket
import subprocess

import pytest

from helpers.agent import BINARY


def run(*options, env=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SANDKEEPER_")}
    environment.update(env or {})
    return subprocess.run([BINARY, *options], capture_output=True, text=True, env=environment, timeout=20)


def check_refused(done, *words):
    """Exit code 2, nothing on stdout, and one line that names the thing."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


def test_help_fits_a_screen():
    done = run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert max(len(line) for line in lines) <= 100


OPTIONS = """port listen workdir shell user umask sandbox-id token-file allow-origin max-message max-buffered log-memory
keep-finished max-commands stall-timeout file-timeout grace prompt-handler prompt-timeout prompt-concurrency
prompt-text-type ttl preview-url preview-host log-format log-level keep-alive restart-command help version""".split()


def test_help_names_every_option():
    text = run("--help").stdout
    assert [name for name in OPTIONS if f"--{name}" not in text] == []


def test_version():
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    name, version = done.stdout.split()
    assert name == "sandkeeper" and version[0].isdigit()
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("options", [["--nonsense"], ["--por", "1"], ["-x"], ["word"], ["--help=1"], ["--port"]])
def test_bad_flags(options):
    check_refused(run(*options))


@pytest.mark.parametrize("options", [["--port", "1\n2"], ["--port\n"], ["health", "--url", "a\nb"], ["install", "/no\n/x"]])
def test_a_complaint_is_one_line_whatever_it_quotes(options):
    done = run(*options)
    assert (done.returncode in (1, 2), len(done.stderr.splitlines())) == (True, 1), done


def test_a_bad_flag_is_named():
    check_refused(run("--nonsense"), "--nonsense")
    check_refused(run("--port"), "--port")


BAD = [
    *(("port", value) for value in ("abc", "-1", "65536", "", "4001x", "1e3", " 1")),
    *(("listen", value) for value in ("localhost:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", ":1", "unix:", "unix:rel", "::1:1")),
    ("workdir", "/no/such/directory"),
    ("workdir", "/etc/passwd"),
    ("umask", "8"),
    ("umask", "1777"),
    ("umask", "x"),
    *(("max-message", value) for value in ("0", "x", "-1", "10X", "1.5M", "99999999999999999999")),
    ("max-buffered", "x"),
    ("log-memory", "-5"),
    ("keep-finished", "x"),
    ("keep-finished", "-1"),
    ("max-commands", "0"),
    ("max-commands", "x"),
    *(("stall-timeout", value) for value in ("x", "-1", "1d", "", "1.", "s", "1e9h")),
    ("file-timeout", "x"),
    ("grace", "x"),
    ("prompt-timeout", "x"),
    ("prompt-concurrency", "0"),
    ("prompt-text-type", "loud"),
    ("ttl", "x"),
    ("log-format", "xml"),
    ("log-level", "loud"),
    ("token-file", "/no/such/file"),
]


@pytest.mark.parametrize("name, value", BAD)
def test_a_bad_value_is_named_with_its_flag(name, value):
    check_refused(run("--listen", "127.0.0.1:0", f"--{name}", value), f"--{name}")


@pytest.mark.parametrize("name, value", [(name, value) for name, value in BAD if value])
def test_a_bad_value_is_named_with_its_variable(name, value):
    variable = "SANDKEEPER_" + name.upper().replace("-", "_")
    check_refused(run(env={"SANDKEEPER_LISTEN": "127.0.0.1:0", variable: value}), name if name == "workdir" else variable)


def test_an_unknown_user_or_shell_is_refused():
    check_refused(run("--listen", "127.0.0.1:0", "--user", "nosuchuser"), "nosuchuser")
    check_refused(run("--listen", "127.0.0.1:0", "--shell", "/no/such/shell"), "/no/such/shell")
    check_refused(run("--listen", "127.0.0.1:0", "--shell", "/etc/passwd"), "/etc/passwd")
    check_refused(run("--listen", "127.0.0.1:0", "--shell", "/etc"), "--shell /etc", "directory")


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--log-format", "text")
    assert done.returncode not in (0, 2) and "127.0.0.1" in done.stderr


def test_the_environment_sets_options(start_agent):
    agent = start_agent(env={"SANDKEEPER_SANDBOX_ID": "by-environment", "SANDKEEPER_MAX_COMMANDS": "1"})
    with agent.connect() as client:
        assert client.exec("echo $SANDBOX_ID")["output"] == "by-environment\n"
        call = client.start_exec("exec sleep 600")
        call.wait_for("exec.start")
        assert client.call_error("exec", {"command": "true"}).code == -32010
        client.call("kill", {"cmd_id": call.wait_for("exec.start")["cmd_id"]})
        call.result()


def test_the_flag_wins_over_the_environment(start_agent):
    agent = start_agent("--sandbox-id", "by-flag", env={"SANDKEEPER_SANDBOX_ID": "by-environment"})
    with agent.connect() as client:
        assert client.exec("echo $SANDBOX_ID")["output"] == "by-flag\n"


def test_the_listen_address_by_environment(start_agent):
    agent = start_agent(listen=(), env={"SANDKEEPER_LISTEN": "127.0.0.1:0"})
    assert agent.health()["status"] == "ok"


def test_port_zero_on_the_default_addresses(start_agent):
    agent = start_agent("--port", "0", listen=())
    assert agent.port and agent.health()["status"] == "ok"
    ports = {event["port"] for event in agent.events("gate", "listening")}
    assert ports == {agent.port}, "one port for all default addresses"


def test_several_addresses(start_agent):
    agent = start_agent(listen=("--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0"))
    found = {event["address"].split(":")[0]: event["port"] for event in agent.events("gate", "listening")}
    assert set(found) == {"127.0.0.1", "127.0.0.2"}
    for address, port in found.items():
        with socket.create_connection((address, port)) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert connection.recv(100).split()[1] == b"200"


@pytest.mark.parametrize("option, value", [("stall-timeout", "0.5"), ("stall-timeout", "10s"), ("grace", "1m"), ("file-timeout", "1h"),
                                           ("max-message", "64M"), ("max-message", "2k"), ("log-memory", "1G"), ("umask", "022")])  # fmt: skip
def test_good_values(start_agent, option, value):
    assert start_agent(f"--{option}", value).health()["status"] == "ok"


def test_values_behind_an_equals_sign(start_agent):
    agent = start_agent("--sandbox-id=equals")
    with agent.connect() as client:
        assert client.exec("echo $SANDBOX_ID")["output"] == "equals\n"


def test_workdir_is_where_commands_start(start_agent, tmp_path):
    agent = start_agent("--workdir", str(tmp_path))
    with agent.connect() as client:
        assert client.exec("pwd -P")["output"].strip() == os.path.realpath(tmp_path)


def test_user_is_the_default_for_commands(start_agent):
    agent = start_agent("--user", "nobody")
    with agent.connect() as client:
        home = pwd.getpwnam("nobody").pw_dir
        assert client.exec("id -un; echo $HOME $USER $LOGNAME")["output"] == f"nobody\n{home} nobody nobody\n"
        assert client.exec("id -un", user="root")["output"] == "root\n"


def test_umask(start_agent):
    agent = start_agent("--umask", "0077")
    with agent.connect() as client:
        assert client.exec("umask; touch private; stat -c %a private")["output"] == "0077\n600\n"


def test_the_log_is_json_line_by_line(start_agent):
    agent = start_agent("--log-level", "debug")
    with agent.connect() as client:
        client.exec("echo hi; printf 'a\\377'")
        client.call_error("exec", {"argv": ["/no/such\n\x7f☕"]})
    for line in agent.log_text().splitlines():
        entry = json.loads(line)
        assert entry["level"] in ("debug", "info", "warn", "error") and entry["part"] and entry["event"]
