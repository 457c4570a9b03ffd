"""docs/protocol.md 1 and 6, as far as the SDKs need it to attach."""

import json
import socket

import pytest

from helpers.raw_ws import RawWebSocket


@pytest.mark.parametrize("path", ["/api/v1/sandbox/e2e-sandbox", "/api/v1/sandboxes/e2e-sandbox"])
def test_info(agent, path):
    status, headers, body = agent.http("GET", path)
    answer = json.loads(body)
    assert status == 200 and answer["code"] == 0
    assert headers["Content-Type"].startswith("application/json")
    assert answer["data"]["id"] == "e2e-sandbox"
    assert answer["data"]["status"] == "active"


@pytest.mark.parametrize("path", ["/api/v1/sandbox/other", "/api/v1/sandboxes/other"])
def test_another_id_is_not_found(agent, path):
    status, _, body = agent.http("GET", path)
    assert status == 404 and json.loads(body)["code"] == 404


@pytest.mark.parametrize(
    "path", ["/ws", "/api/v1/sandboxes/e2e-sandbox/connect", "/api/v1/sandbox/e2e-sandbox/connect", "/ws?x=y"]
)
def test_the_paths_of_a_session(agent, path):
    with agent.connect(path) as client:
        assert client.exec("echo hi")["output"] == "hi\n"


@pytest.mark.parametrize("path", ["/api/v1/sandboxes/other/connect", "/api/v1/sandbox/other/connect", "/wss", "/"])
def test_other_paths_are_no_session(agent, path):
    with pytest.raises(AssertionError, match="no upgrade: HTTP/1.1 404"):
        RawWebSocket(("127.0.0.1", agent.port), path)


def test_the_host_name_is_the_default_id(start_agent):
    agent = start_agent()
    assert json.loads(agent.http("GET", f"/api/v1/sandbox/{socket.gethostname()}")[2])["data"]["status"] == "active"
    assert start_agent(env={"SANDBOX_ID": "from-environment"}).http("GET", "/api/v1/sandbox/from-environment")[0] == 200
