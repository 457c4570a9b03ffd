"""Case 34 and its like: images and limits under which the agent must still work, or say clearly why not."""

import os

import podman as containers
import pytest
from helpers import processes
from helpers.client import RpcError


def run_echo(agent):
    result = agent.run("echo hi")
    assert (result["exit_code"], result["output"]) == (0, "hi\n")


def test_case_34_read_only_root_without_tmp(start, example):
    agent = start(example("busybox"), options=["--read-only", "--read-only-tmpfs=false"])
    run_echo(agent)
    with agent.connect() as client:
        with pytest.raises(RpcError) as caught:
            client.call("write", {"path": "/work/file", "content": "x"})
        assert caught.value.kind == "permission_denied"
        assert client.call("read", {"path": "/etc/passwd"})["content"].startswith("root:")


def test_read_only_root_with_a_work_directory(start, example):
    agent = start(example("readonly"), options=["--read-only", "--tmpfs", "/work:mode=1777", "--tmpfs", "/tmp:mode=1777"])
    with agent.connect() as client:
        client.call("write", {"path": "file", "content": "kept\n"})
        assert client.exec("cat file; pwd")["output"] == "kept\n/work\n"


def test_case_34_random_uid_without_passwd_entry(start, example):
    agent = start(example("busybox"), options=["--user", "123456:0", "--passwd=false", "--cap-drop", "ALL"])
    result = agent.run("id -u; echo $HOME; echo $USER")
    assert result["output"] == "123456\n/\n123456\n"


def test_case_34_no_shell_in_the_image(start, static_image):
    agent = start(static_image)
    assert agent.run(argv=["/sandkeeper", "--version"])["exit_code"] == 0
    with pytest.raises(RpcError) as caught:
        agent.run("echo hi")
    assert caught.value.kind == "spawn_failed"
    assert "/bin/sh" in caught.value.message
    assert agent.health()["status"] == "ok"


def test_no_capabilities_and_no_new_privileges(start, example):
    agent = start(example("busybox"), options=["--cap-drop", "ALL", "--security-opt", "no-new-privileges"])
    run_echo(agent)


def test_non_root_user_is_refused_root(start, example):
    agent = start(example("nonroot"), options=["--cap-drop", "ALL", "--security-opt", "no-new-privileges"])
    assert agent.run("id -un; pwd")["output"] == "sandbox\n/home/sandbox\n"
    for params in ({"sudo": True}, {"user": "root"}):
        with pytest.raises(RpcError) as caught:
            agent.run("id -u", **params)
        assert caught.value.kind in ("spawn_failed", "permission_denied"), caught.value
    run_echo(agent)


def test_unix_socket_without_a_network(start, example):
    agent = start(example("busybox"), "--listen", "unix:/run/agent/sock", options=["--network", "none"], unix=True)
    run_echo(agent)
    done = agent.exec("sandkeeper", "health", "--url", "unix:/run/agent/sock")
    assert done.stdout.startswith("healthy: unix:/run/agent/sock: 200 ")


def test_ipv6_off(start, example):
    agent = start(example("busybox"), options=["--sysctl", "net.ipv6.conf.all.disable_ipv6=1"])
    run_echo(agent)


@pytest.mark.parametrize("options", [["--init"], ["--pid", "host"]], ids=["init", "pid-host"])
def test_not_process_1(start, example, options):
    agent = start(example("busybox"), options=options)
    with agent.connect() as client:
        assert client.exec("cat /proc/1/cmdline")["output"].find("sandkeeper") != 0
        for _ in range(50):
            client.exec("(sleep 0.05 &); true")
        # Orphans come to the agent, a subreaper, and are reaped there.
        result = client.exec("(sleep 0.01; cat /proc/self/stat > orphan) & exit 3")
        assert result["exit_code"] == 3
    assert agent.seconds_to_end() < 2.0
    assert agent.exit_code() == 0


def test_without_proc(start, example):
    agent = start(
        example("busybox"), "-c", "umount -l /proc; exec /bin/sandkeeper", options=["--privileged", "--entrypoint", "/bin/sh"]
    )
    run_echo(agent)
    assert agent.run("exit 7")["exit_code"] == 7
    with agent.connect() as client:
        call = client.start_exec("sleep 100 & echo ready; sleep 100", timeout=0.5)
        assert call.error().kind == "timed_out"
    agent.wait_log("/proc")
    assert agent.seconds_to_end() < 2.0


def test_an_out_of_memory_kill_is_told(start, example):
    agent = start(example("python"), options=["--memory", "64m"])
    result = agent.run(argv=["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"], timeout=60)
    assert (result["reason"], result["signal"], result["oom_killed"]) == ("signaled", "SIGKILL", True)
    result = agent.run("kill -9 $$")
    assert (result["signal"], result["oom_killed"]) == ("SIGKILL", False)
    run_echo(agent)


def test_a_child_of_the_command_runs_out_of_memory(start, example):
    agent = start(example("python"), options=["--memory", "64m"])
    program = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    result = agent.run(f"python3 -c '{program}'; exit $?", timeout=60)
    assert (result["exit_code"], result["reason"], result["oom_killed"]) == (137, "exited", True)


def test_the_pids_limit_is_an_error_not_the_end(start, example):
    agent = start(example("busybox"), options=["--pids-limit", "24"])
    with agent.connect() as client:
        sleepers, failures = [], []
        for _ in range(40):
            call = client.start_exec(None, argv=["sleep", "100"], detached=True)
            answer = call.wait()
            (failures if "error" in answer else sleepers).append(answer)
        assert failures, "the limit was never reached"
        for answer in failures:
            assert answer["error"]["data"]["kind"] in ("spawn_failed", "busy"), answer
        assert agent.health()["status"] == "ok"
        for answer in sleepers:
            client.call("kill", {"cmd_id": answer["result"]["cmd_id"], "signal": "KILL"})
        for answer in sleepers:
            client.call("exec_logs", {"cmd_id": answer["result"]["cmd_id"]})
        assert client.exec("echo hi")["output"] == "hi\n"


def test_without_shared_memory_and_language(start, example):
    agent = start(example("busybox"), options=["--ipc", "none", "--unsetenv-all"])
    assert agent.run("echo é; ls -d /dev/shm || true")["output"].startswith("é\n")


def test_cgroup_version_2_tree_only(start, example):
    unified = "/sys/fs/cgroup/unified"
    source = unified if os.path.ismount(unified) else "/sys/fs/cgroup"
    agent = start(example("busybox"), options=["-v", f"{source}:/sys/fs/cgroup:ro"])
    run_echo(agent)
    assert agent.run("kill -9 $$")["oom_killed"] is False


def test_without_any_cgroup(start, example):
    agent = start(example("busybox"), options=["--tmpfs", "/sys/fs/cgroup"])
    assert agent.run("kill -9 $$")["oom_killed"] is False


def test_the_container_has_only_one_process_at_rest(start, example):
    agent = start(example("busybox"))
    run_echo(agent)
    assert processes.descendants(agent.pid) == []


def test_the_agent_is_the_last_to_be_killed_for_memory(start, example):
    agent = start(example("busybox"))
    agent_score = int(agent.exec("cat", "/proc/1/oom_score_adj").stdout)
    assert int(agent.run("cat /proc/self/oom_score_adj")["output"]) > agent_score


def test_probe_as_docker_runs_it(start, example):
    agent = start(example("busybox"))
    containers.podman("healthcheck", "run", agent.name)
    assert containers.inspect(agent.name, "{{.State.Healthcheck.Status}}") == "healthy"
