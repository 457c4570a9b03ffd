"""A client that does what the Go SDK does, with the library that it is built on (tests/go). The SDK itself is in no
registry that tests reach."""

import os

import pytest

from helpers import clients
from helpers.agent import SANITIZED

pytestmark = [pytest.mark.clients, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def go_client():
    clients.build("go")
    return os.path.join(clients.BUILT, "go-client")


@pytest.fixture
def run(go_client, start_agent):
    """run(scenario) -> what the client found, with an agent of its own."""

    def run_it(scenario, *options, token=""):
        run_it.agent = start_agent("--sandbox-id", "box", "--grace", "1s", *options)
        base = f"http://127.0.0.1:{run_it.agent.port}"
        return clients.run(go_client, "-base", base, "-token", token, scenario)

    return run_it


@pytest.mark.parametrize("token", ["", "go-secret"])
def test_lifecycle(run, tmp_path, token):
    options = []
    if token:
        (tmp_path / "token").write_text(token)
        options = ["--token-file", str(tmp_path / "token")]
    found = run("lifecycle", *options, token=token)
    created = found["created"]
    assert (created["id"], created["user_id"], created["status"]) == ("box", "ann", "active")
    assert created["labels"] == {"team": "red"} and created["spec"] == {"image": "debian:12"} and created["expire_at"]
    shown = {name.removeprefix("list "): len(listed["items"]) for name, listed in found.items() if "list " in name}
    assert shown == {"all": 1, "own": 1, "stopped": 0, "page": 0}
    assert found["list all"]["pagination"] == {"total": 1, "has_more": False}
    assert "409" in found["create by another"] and "ann" in found["create by another"]
    assert found["color"] == "green\n"

    went_well = ("extend", "configure", "stop", "start", "restart", "delete")
    assert {name: found[name] for name in went_well} == dict.fromkeys(went_well, "")
    refused = {
        "extend too far": "400",
        "update nothing": "400",
        "update image": "409",
        "exec while stopped": "-32009",
        "update while stopped": "409",
        "configure while stopped": "409",
        "rolling start": "409",
        "another id": "404",
    }
    assert {name: code in found[name] for name, code in refused.items()} == dict.fromkeys(refused, True)
    assert (found["pool"]["total"], found["pool"]["active"], found["pool"]["healthy"]) == (1, 1, True)
    assert found["last"]["expire_at"] > created["expire_at"] and found["last"]["status"] == "active"
    assert found["close code"] == 1001
    run.agent.check_ended()


def test_commands(run):
    found = run("commands")
    assert found["kinds"] == ["exec.start", "exec.stdout", "exec.stderr", "exec.done"]
    assert found["streams"] == {"exec.stdout": "out\n", "exec.stderr": "err\n"}
    assert (found["done"]["output"], found["done"]["exit_code"]) == ("out\nerr\n", 3)
    assert found["kill"] == "" and found["pid"] > 0
    assert (found["killed"]["output"], found["killed"]["exit_code"]) == ("begun\n", 128 + 9)
    assert found["wrong"] == 0


def test_read_stream_drops_nothing(run):
    """The SDK throws away what does not fit into 64 places: with an ordinary consumer everything does."""
    found = run("files")
    assert {name: (read["length"], read["equal"]) for name, read in found.items()} == {
        "64 chunks": (4 << 20, True),
        "1 MiB": (30 << 20, True),
        "default": (30 << 20, True),
    }
    assert found["64 chunks"]["tries"] == found["1 MiB"]["tries"] == 1


def test_64_streams_with_a_slow_consumer_lose_nothing(run):
    found = run("slow")
    assert (found["streams"], found["lost"], found["failed"]) == (64, 0, 0)
    assert run.agent.rss_kib() < (400_000 if SANITIZED else 80_000)
