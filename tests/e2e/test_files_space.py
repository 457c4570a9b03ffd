"""Full and read-only disks, bind mounts, and a killed agent: a write loses nothing. Each agent has a mount namespace of its
own, so the mounts end with it."""

import base64
import glob
import os
import socket
import subprocess

import pytest
from helpers.wait import wait_until

pytestmark = pytest.mark.mount

LARGE = 3 << 20


@pytest.fixture
def start_with_mounts(start_agent, tmp_path):
    """start(script): an agent that lives in the script's mounts; the script sees the directory as $D."""
    os.chmod(tmp_path, 0o755)

    def start(script, *options):
        prefix = ("unshare", "--mount", "sh", "-ec", f'D={tmp_path}; {script}; exec "$@"', "sh")
        agent = start_agent(*options, prefix=prefix)
        return agent, str(tmp_path)

    return start


@pytest.fixture
def small_disk(start_with_mounts):
    return start_with_mounts("mkdir $D/m; mount -t tmpfs -o size=1m tmpfs $D/m; printf 'old bytes' >$D/m/f")


def names(client, path):
    return [entry["name"] for entry in client.call("list_files", {"path": path})]


def url(path, **query):
    return f"/files?path={path}" + "".join(f"&{name}={value}" for name, value in query.items())


WRITES = {
    "write": ("write", {"content": "n" * LARGE}),
    "append": ("write", {"content": "n" * LARGE, "append": True}),
    "write_binary": ("write_binary", {"data": base64.b64encode(b"n" * LARGE).decode()}),
    "offset": ("write_binary", {"data": base64.b64encode(b"n" * LARGE).decode(), "offset": 4}),
    "edit": ("edit", {"old_text": "old", "new_text": "n" * LARGE}),
}


@pytest.mark.parametrize("linked", [False, True], ids=["replaced", "in_place"])
@pytest.mark.parametrize("kind", WRITES)
def test_case_24(small_disk, kind, linked):
    """Disk full: no_space, the old content there, no temporary file; and the space is free again."""
    agent, root = small_disk
    path = f"{root}/m/f"
    method, params = WRITES[kind]
    with agent.connect() as client:
        if linked:
            client.call("exec", {"command": f"ln {path} {root}/m/twin"})
        error = client.call_error(method, {"path": path, **params})
        assert error.code == -32007 and error.kind == "no_space" and path in error.message
        assert client.call("read", {"path": path})["content"] == "old bytes"
        assert names(client, f"{root}/m") == (["f", "twin"] if linked else ["f"])
        assert client.call("write", {"path": path, "content": "n" * 700_000})["bytes_written"] == 700_000


def test_case_24_new_file(small_disk):
    agent, root = small_disk
    with agent.connect() as client:
        assert client.call_error("write", {"path": f"{root}/m/new", "content": "n" * LARGE}).code == -32007
        assert names(client, f"{root}/m") == ["f"]


@pytest.mark.parametrize("append", [0, 1])
def test_case_24_put(small_disk, append):
    agent, root = small_disk
    status, _, answer = agent.http("PUT", url(f"{root}/m/f", append=append), body=b"n" * LARGE)
    assert status == 507 and b'"no_space"' in answer and f"{root}/m/f".encode() in answer
    with agent.connect() as client:
        assert client.call("read", {"path": f"{root}/m/f"})["content"] == "old bytes"
        assert names(client, f"{root}/m") == ["f"]


def test_move_to_a_full_disk(small_disk):
    agent, root = small_disk
    source = f"{agent.workdir}/large"
    with open(source, "wb") as file:
        file.write(b"n" * LARGE)
    with agent.connect() as client:
        error = client.call_error("move", {"source": source, "destination": f"{root}/m/large"})
        assert error.code == -32007 and names(client, f"{root}/m") == ["f"] and os.path.exists(source)


def test_read_only(start_with_mounts):
    agent, root = start_with_mounts(
        "mkdir $D/m; mount -t tmpfs tmpfs $D/m; printf old >$D/m/f; mount -o remount,ro $D/m"
    )
    with agent.connect() as client:
        for method, params in (
            ("write", {"path": f"{root}/m/f", "content": "x"}),
            ("write", {"path": f"{root}/m/new", "content": "x"}),
            ("edit", {"path": f"{root}/m/f", "old_text": "old", "new_text": "x"}),
            ("mkdir", {"path": f"{root}/m/d"}),
            ("remove", {"path": f"{root}/m/f"}),
        ):
            error = client.call_error(method, params)
            assert error.code == -32003 and error.data["errno"] == 30 and params["path"] in error.message
        assert client.call("read", {"path": f"{root}/m/f"})["content"] == "old"
    status, _, answer = agent.http("PUT", url(f"{root}/m/f"), body=b"x")
    assert status == 403 and b'"permission_denied"' in answer


def test_bind_mounted_file(start_with_mounts):
    """As a container runtime mounts /etc/hosts: it cannot be replaced, so it is written where it is."""
    agent, root = start_with_mounts("printf 'old and long' >$D/host; touch $D/hosts; mount --bind $D/host $D/hosts")
    with agent.connect() as client:
        path = f"{root}/hosts"
        assert client.call("write", {"path": path, "content": "new"}) == {"bytes_written": 3, "atomic": False}
        assert client.call("read", {"path": f"{root}/host"})["content"] == "new"
        result = client.call("edit", {"path": path, "old_text": "new", "new_text": "newer"})
        assert result["atomic"] is False and client.call("read", {"path": f"{root}/host"})["content"] == "newer"
        status, _, answer = agent.http("PUT", url(path), body=b"newest")
        assert status == 200 and b'"atomic":false' in answer
        assert client.call("read", {"path": f"{root}/host"})["content"] == "newest"
        assert names(client, root) == ["host", "hosts"]


def test_read_only_file_system_with_a_writable_mount_inside(start_with_mounts):
    """A file that may be written in a directory that may not."""
    agent, root = start_with_mounts(
        "mkdir $D/m; mount -t tmpfs tmpfs $D/m; touch $D/m/f; printf old >$D/host; mount --bind $D/host $D/m/f; "
        "mount -o remount,ro $D/m"
    )
    with agent.connect() as client:
        assert client.call("write", {"path": f"{root}/m/f", "content": "new"}) == {"bytes_written": 3, "atomic": False}
    status, _, _ = agent.http("PUT", url(f"{root}/m/f"), body=b"newer")
    assert status == 200
    with open(f"{root}/host", encoding="ascii") as file:
        assert file.read() == "newer"


def temporary_files(agent, root):
    """Those with a name, and those that only a descriptor of the agent leads to."""
    links = []
    for fd in glob.glob(f"/proc/{agent.pid}/fd/*"):
        try:
            links.append(os.readlink(fd))
        except OSError:
            pass
    return glob.glob(f"{root}/.sandkeeper-*") or [link for link in links if link.startswith(f"{root}/#")]


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_killed_while_it_writes(start_with_mounts, named):
    """kill -9 in the middle of an upload: the old content stands. A temporary file that had to have a name (here since
    there is no /proc) is removed at the next start."""
    agent, root = start_with_mounts("mkdir $D/tmp; mount --bind $D/tmp /var/tmp; printf old >$D/f")
    if named:
        mount = ["mount", "-t", "tmpfs", "tmpfs", "/proc"]
        subprocess.run(["nsenter", "--mount", "--target", str(agent.pid), *mount], check=True)
    with socket.create_connection(("127.0.0.1", agent.port), timeout=10) as upload:
        upload.sendall(f"PUT {url(root + '/f')} HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n".encode())
        upload.sendall(bytes(3_000_000))
        wait_until(lambda: temporary_files(agent, root), 10, "the temporary file")
        agent.kill()
    with open(f"{root}/f", encoding="ascii") as file:
        assert file.read() == "old"
    assert len(glob.glob(f"{root}/.sandkeeper-*")) == named

    second, _ = start_with_mounts("mount --bind $D/tmp /var/tmp")
    wait_until(lambda: not glob.glob(f"{root}/.sandkeeper-*"), 10, "the leftover to be removed")
    if named:
        wait_until(lambda: second.events("files"), 10, "the log to tell of it")
    second.stop()
    assert os.listdir(f"{root}/tmp") == [], "the record was left behind"
