"""A client of the early Node dialect (tests/node): the token as a subprotocol, and /api/v1/sandbox/create and list."""

import os

import pytest

from helpers import clients

pytestmark = [pytest.mark.clients, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def node_client():
    clients.build("node")
    return os.path.join(clients.BUILT, "node", "client.js")


@pytest.mark.parametrize("token", ["", "node-secret"])
def test_all_of_it(node_client, start_agent, tmp_path, token):
    options = ["--sandbox-id", "box"]
    if token:
        (tmp_path / "token").write_text(token)
        options += ["--token-file", str(tmp_path / "token")]
    agent = start_agent(*options)
    words = ["node", node_client, f"http://127.0.0.1:{agent.port}", "box", *([token] if token else [])]
    found = clients.run(*words)

    assert (found["created"]["id"], found["created"]["labels"]) == ("box", {"team": "red"})
    assert found["items"] == ["box"] and found["pagination"]["total"] == 1
    assert found["protocol"] == f"bearer.{token or 'anything'}"
    assert 524288 <= found["output"] <= 524289
    assert found["truncated"] == (found["output"] < 524289)
    assert found["streamed"] == 524289
    assert found["kinds"] == ["exec.start", "exec.stdout", "exec.stderr", "exec.done"] and found["exitCode"] == 3
    assert (found["stopped"], found["refused"], found["again"]) == ("stopped", -32009, "again\n")
    assert found["another"].startswith("404: ")
    assert found["update"].startswith("409: ") and "image" in found["update"]
    assert found["rolling"].startswith("409: ") and found["pool"]["active"] == 1
    assert (found["deleted"], found["closeCode"]) == ("destroying", 1001)
    agent.check_ended()
