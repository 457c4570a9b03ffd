"""Token and Origin: who may come in. docs/protocol.md, section 1."""

import base64
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import websockets.exceptions

from helpers.agent import BINARY, ROOT
from helpers.raw_http import RawHttp
from helpers.wait import wait_until

TOKEN = "s3cret-Token.0123456789_abcdef~"

# How a client may show a token.
PLACES = {
    "authorization": lambda token: {"Authorization": f"Bearer {token}"},
    "x-access-token": lambda token: {"X-Access-Token": token},
    "x-api-key": lambda token: {"X-API-Key": token},
    "subprotocol": lambda token: {"Sec-WebSocket-Protocol": f"bearer.{token}"},
}

WRONG = {
    "wrong": "0000000-00000.0000000000_000000~",
    "empty": "",
    "prefix": TOKEN[:-1],
    "one character": TOKEN[:1],
    "longer": TOKEN + "x",
    "other case": TOKEN.upper(),
    "last character": TOKEN[:-1] + "!",
}

# Every route and method of the agent: the path, and what the right token gets. Paths of the control plane name another
# sandbox, so that nothing happens to this one.
ROUTES = [
    ("GET", "/files?path=/etc/hostname-of-nobody", 404),
    ("HEAD", "/files?path=/etc/hostname-of-nobody", 404),
    ("PUT", "/files?path=", 400),
    ("DELETE", "/files?path=/etc/hostname-of-nobody", 404),
    ("GET", "/metrics", 200),
    ("HEAD", "/metrics", 200),
    ("POST", "/prompt", 400),
    ("POST", "/rpc", 200),
    ("GET", "/api/v1/sandbox/other", 404),
    ("HEAD", "/api/v1/sandbox/other", 404),
    ("POST", "/api/v1/sandbox/other/stop", 404),
    ("PUT", "/api/v1/sandbox/other", 404),
    ("PATCH", "/api/v1/sandbox/other", 404),
    ("DELETE", "/api/v1/sandbox/other", 404),
    ("GET", "/api/v1/sandboxes", 200),
    ("HEAD", "/api/v1/sandboxes", 200),
    ("POST", "/api/v1/sandboxes", 200),
    ("PUT", "/api/v1/sandboxes", 405),
    ("PATCH", "/api/v1/sandboxes", 405),
    ("DELETE", "/api/v1/sandboxes", 405),
    ("GET", "/api/v1/sandboxes/other", 404),
    ("HEAD", "/api/v1/sandboxes/other", 404),
    ("POST", "/api/v1/sandboxes/other/stop", 404),
    ("PUT", "/api/v1/sandboxes/other", 404),
    ("PATCH", "/api/v1/sandboxes/other", 404),
    ("DELETE", "/api/v1/sandboxes/other", 404),
    ("POST", "/api/v1/env", 200),
    ("GET", "/admin/pool/status", 200),
    ("HEAD", "/admin/pool/status", 200),
    ("POST", "/admin/rolling/start", 409),
    ("PUT", "/admin/pool/status", 405),
    ("PATCH", "/admin/pool/status", 405),
    ("DELETE", "/admin/pool/status", 405),
]

# What is no route, or not in this way: nobody without a token learns even that.
ODD = [
    ("GET", "/", 404),
    ("GET", "/no/such/path", 404),
    ("POST", "/no/such/path", 404),
    ("GET", "/rpc", 405),
    ("GET", "/prompt", 405),
    ("DELETE", "/metrics", 405),
    ("OPTIONS", "/rpc", 204),
    ("OPTIONS", "/no/such/path", 404),
    ("GET", "/ws", 426),
    ("POST", "/ws", 405),
    ("GET", "/api/v1/sandboxes/other/connect", 404),
]

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"0123456789abcdef").decode(),
}
SESSIONS = ["/ws", "/api/v1/sandboxes/box/connect", "/api/v1/sandbox/box/connect", "/ws?max_message=65536"]


@pytest.fixture(scope="module")
def guarded():
    """One agent with a token for all of these tests."""
    from helpers.agent import Agent

    agent = Agent("--sandbox-id", "box", "--log-level", "debug", env={"SANDKEEPER_TOKEN": TOKEN})
    yield agent
    assert TOKEN not in agent.log_text()
    agent.stop()


def ask(agent, method, path, headers):
    """(status, headers, body) on a connection of its own, with exactly these headers."""
    with RawHttp(agent.port) as http:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if method in ("POST", "PUT", "PATCH"):
            lines.append("Content-Length: 0")
        http.head(method, path, lines)
        status, answer_headers = http.read_head()
        if status == 101 or method == "HEAD":
            return status, answer_headers, b""
        return status, answer_headers, http.read_exactly(int(answer_headers.get("content-length", 0)))


def assert_refused(answer, method="GET"):
    status, headers, body = answer
    assert status == 401
    assert headers["www-authenticate"] == "Bearer"
    assert headers["content-type"] == "application/json"
    if method != "HEAD":
        assert json.loads(body)["code"] == 401
    assert TOKEN.encode() not in body


def test_the_table_has_every_route():
    """A route that is new in the agent must be added above."""
    source = pathlib.Path(ROOT, "agent/api/api.c").read_text()
    methods = dict(re.findall(r'#define (\w+) "([A-Z ]+)"', source))
    known = set()
    for words, path in re.findall(r"\{\.methods = (\w+|\"[A-Z ]+\"),\s*\.path = \"([^\"]+)\"", source):
        for method in methods.get(words, words.strip('"')).split():
            known.add((method, path))
    assert len(known) > 20
    covered = {("GET", "/health"), ("HEAD", "/health")}
    for method, path, _ in ROUTES:
        path = path.partition("?")[0]
        exact = (method, path) in known
        covered |= {(m, p) for m, p in known if m == method and (p == path if exact else p[:-1] in path and p[-1] == "*")}
    assert known == covered


@pytest.mark.parametrize(("method", "path", "status"), ROUTES + ODD)
def test_routes(guarded, method, path, status):
    assert_refused(ask(guarded, method, path, {}), method)
    for place in PLACES.values():
        for token in WRONG.values():
            assert_refused(ask(guarded, method, path, place(token)), method)
        assert ask(guarded, method, path, place(TOKEN))[0] == status


@pytest.mark.parametrize("path", SESSIONS)
def test_sessions(guarded, path):
    assert_refused(ask(guarded, "GET", path, UPGRADE))
    for name, place in PLACES.items():
        for token in WRONG.values():
            assert_refused(ask(guarded, "GET", path, {**UPGRADE, **place(token)}))
        status, headers, _ = ask(guarded, "GET", path, {**UPGRADE, **place(TOKEN)})
        assert status == 101
        assert headers.get("sec-websocket-protocol") == (f"bearer.{TOKEN}" if name == "subprotocol" else None)


def test_health_is_open(guarded):
    for method in ("GET", "HEAD"):
        for headers in ({}, PLACES["authorization"]("wrong"), {"Origin": "https://elsewhere.example"}):
            assert ask(guarded, method, "/health", headers)[0] == 200


@pytest.mark.parametrize(
    ("headers", "right"),
    [
        ({"Authorization": f"bearer {TOKEN}"}, True),
        ({"Authorization": f"BEARER   {TOKEN}"}, True),
        ({"Authorization": TOKEN}, False),
        ({"Authorization": f"Basic {TOKEN}"}, False),
        ({"Authorization": f"Bearer {TOKEN} x"}, False),
        ({"Authorization": f"Bearer\t{TOKEN}"}, False),
        ({"authorization": f"Bearer {TOKEN}"}, True),
        ({"X-API-KEY": TOKEN}, True),
        ({"X-Access-Token": f"Bearer {TOKEN}"}, False),
        ({"Authorization": "Bearer wrong", "X-API-Key": TOKEN}, True),
        ({"Sec-WebSocket-Protocol": f"chat, bearer.wrong , bearer.{TOKEN}"}, True),
        ({"Sec-WebSocket-Protocol": f"bearer{TOKEN}"}, False),
        ({"Sec-WebSocket-Protocol": f"Bearer.{TOKEN}"}, False),
        ({"Cookie": f"token={TOKEN}"}, False),
    ],
    ids=str,
)
def test_ways_to_write_it(guarded, headers, right):
    assert ask(guarded, "GET", "/metrics", headers)[0] == (200 if right else 401)


def test_the_token_is_not_taken_from_the_query(guarded):
    for name in ("token", "access_token", "api_key"):
        assert ask(guarded, "GET", f"/metrics?{name}={TOKEN}", {})[0] == 401


def test_each_request_of_a_connection_needs_it(guarded):
    with RawHttp(guarded.port) as http:
        for right in (True, False, True, False):
            http.head("GET", "/metrics", [f"X-API-Key: {TOKEN if right else 'wrong'}"])
            assert http.read_answer()[0] == (200 if right else 401)


def test_refused_bodies_are_not_taken(guarded):
    """Nobody without a token makes the agent hold 64 MiB, or waits for 100 Continue in vain."""
    for path in ("/prompt", "/rpc", "/files?path=/tmp/x"):
        with RawHttp(guarded.port) as http:
            method = "PUT" if path.startswith("/files") else "POST"
            http.head(method, path, ["Content-Length: 50000000", "Expect: 100-continue"])
            assert http.read_head()[0] == 401


def test_with_the_client_library(guarded):
    with guarded.connect(additional_headers=PLACES["authorization"](TOKEN)) as client:
        assert client.exec("echo hi")["output"] == "hi\n"
    with guarded.connect(subprotocols=[f"bearer.{TOKEN}"]) as client:
        assert client.ws.subprotocol == f"bearer.{TOKEN}"
        assert client.exec("echo hi")["output"] == "hi\n"
    with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
        guarded.connect()
    assert refused.value.response.status_code == 401


# ---- where it must not be ----


def test_children_do_not_get_it(start_agent):
    for handler in ("env", '["/usr/bin/env"]'):
        agent = start_agent("--prompt-handler", handler, env={"SANDKEEPER_TOKEN": TOKEN, "SANDKEEPER_GRACE": "1"})
        headers = PLACES["x-api-key"](TOKEN)
        answer = agent.http("POST", "/prompt", b'{"prompt":"hi"}', headers)[2].decode()
        assert "PATH=" in answer
        with agent.connect(additional_headers=headers) as client:
            output = client.exec("env; cat /proc/self/environ")["output"]
            seen = client.exec("cat /proc/$PPID/environ /proc/$PPID/cmdline")["output"]
        assert "PATH=" in output
        assert "sandkeeper" in seen
        assert TOKEN not in seen
        for text in (answer, output):
            assert TOKEN not in text
            assert "SANDKEEPER_TOKEN" not in text
            assert "SANDKEEPER_GRACE" not in text


def test_it_is_not_in_the_process_environment(guarded):
    environ = pathlib.Path(f"/proc/{guarded.pid}/environ").read_bytes()
    assert b"E2E_MARK=" in environ
    assert TOKEN.encode() not in environ


def test_it_is_in_no_answer(guarded):
    headers = PLACES["x-api-key"](TOKEN)
    answers = [ask(guarded, method, path, headers) for method, path, _ in ROUTES + ODD]
    answers.append(ask(guarded, "GET", f"/no/{TOKEN[:5]}", headers))
    assert TOKEN not in str(answers)


def test_token_file(start_agent, tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    agent = start_agent("--token-file", str(path), "--log-level", "debug")
    assert ask(agent, "GET", "/metrics", {})[0] == 401
    assert ask(agent, "GET", "/metrics", PLACES["authorization"](TOKEN))[0] == 200
    assert TOKEN not in agent.log_text()


@pytest.mark.parametrize("with_token", [True, False])
def test_no_core_dump_with_a_token(tmp_path, with_token):
    """prctl(2), PR_SET_DUMPABLE: without it the files in /proc/PID belong to root, with it to the process's user."""
    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    binary = shutil.copy(BINARY, tmp_path / "sandkeeper")  # the build folder may not be everyone's
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.geteuid() and parent != parent.parent and str(parent).startswith("/tmp/pytest"):
            parent.chmod(0o755)
    environment = {"ASAN_OPTIONS": "detect_leaks=0", "SANDKEEPER_LOG_FORMAT": "json"}
    if with_token:
        environment["SANDKEEPER_TOKEN"] = TOKEN
    words = [binary, "--listen", "127.0.0.1:0"]
    with open(tmp_path / "log", "w") as log:
        agent = subprocess.Popen(
            words, env=environment, user=uid, group=uid, extra_groups=[], stderr=log, cwd="/", stdin=subprocess.DEVNULL
        )
    try:
        wait_until(lambda: '"listening"' in (tmp_path / "log").read_text(), what="the agent to listen")
        owner = os.stat(f"/proc/{agent.pid}/environ").st_uid
        assert owner == (0 if with_token else uid)
    finally:
        agent.terminate()
        assert agent.wait(10) == 0


# ---- Origin ----

ELSEWHERE = "https://elsewhere.example"


def test_page_of_another_origin_is_refused(agent):
    for method, path, _ in ROUTES:
        for origin in (ELSEWHERE, "null", "http://localhost:1", "http://127.0.0.1", "garbage", ""):
            status, headers, body = ask(agent, method, path, {"Origin": origin})
            assert status == 403, (method, path, origin)
            assert "access-control-allow-origin" not in headers
            if method != "HEAD":
                assert json.loads(body)["code"] == 403
    for path in SESSIONS[:1]:
        assert ask(agent, "GET", path, {**UPGRADE, "Origin": ELSEWHERE})[0] == 403
    assert ask(agent, "GET", "/health", {"Origin": ELSEWHERE})[0] == 200


def test_own_page_and_programs_may(agent):
    for headers in ({}, {"Origin": "http://localhost"}, {"Origin": "http://localhost:80"}, {"Origin": "HTTP://LOCALHOST"}):
        assert ask(agent, "GET", "/metrics", headers)[0] == 200
        assert ask(agent, "GET", "/ws", {**UPGRADE, **headers})[0] == 101


@pytest.fixture
def opened(start_agent):
    return start_agent("--allow-origin", ELSEWHERE, "--allow-origin", "http://localhost:3000")


def test_allowed_origin(opened):
    for origin in (ELSEWHERE, "http://localhost:3000"):
        status, headers, _ = ask(opened, "GET", "/metrics", {"Origin": origin})
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (200, origin, "Origin")
        assert ask(opened, "GET", "/ws", {**UPGRADE, "Origin": origin})[0] == 101
    for origin in ("https://elsewhere.example:8443", "http://elsewhere.example", "https://elsewhere.example.org"):
        assert ask(opened, "GET", "/metrics", {"Origin": origin})[0] == 403
    # The answer to a failed call may be read by the page too.
    status, headers, _ = ask(opened, "GET", "/files?path=/nothing", {"Origin": ELSEWHERE})
    assert (status, headers["access-control-allow-origin"]) == (404, ELSEWHERE)


PREFLIGHTS = [
    ("/rpc", "POST", "POST, OPTIONS"),
    ("/prompt", "POST", "POST, OPTIONS"),
    ("/files", "PUT", "GET, HEAD, PUT, DELETE, OPTIONS"),
    ("/files", "DELETE", "GET, HEAD, PUT, DELETE, OPTIONS"),
]


def preflight(agent, path, method, origin=ELSEWHERE):
    return ask(
        agent,
        "OPTIONS",
        path,
        {
            "Origin": origin,
            "Access-Control-Request-Method": method,
            "Access-Control-Request-Headers": "authorization, content-type",
        },
    )


@pytest.mark.parametrize(("path", "method", "allow"), PREFLIGHTS)
def test_preflight(opened, path, method, allow):
    status, headers, body = preflight(opened, path, method)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == ELSEWHERE
    assert headers["access-control-allow-methods"] == allow
    assert headers["access-control-allow-headers"] == "authorization, content-type"
    assert preflight(opened, path, method, "https://other.example")[0] == 403


def test_a_page_can_use_what_preflight_promised(opened):
    headers = {"Origin": ELSEWHERE, "Content-Type": "application/json"}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "exec", "params": {"command": "echo hi"}})
    status, answer_headers, answer = opened.http("POST", "/rpc", body, headers)
    assert status == 200
    assert answer_headers["Access-Control-Allow-Origin"] == ELSEWHERE
    assert json.loads(answer)["result"]["output"] == "hi\n"
    status, answer_headers, answer = opened.http("POST", "/prompt", '{"prompt":"hi"}', headers)
    assert (status, answer_headers["Access-Control-Allow-Origin"]) == (200, ELSEWHERE)
    path = f"{opened.workdir}/page"
    status, answer_headers, _ = opened.http("PUT", f"/files?path={path}", b"content", headers)
    assert (status, answer_headers["Access-Control-Allow-Origin"]) == (201, ELSEWHERE)
    assert opened.http("GET", f"/files?path={path}", headers=headers)[2] == b"content"


def test_every_origin(start_agent):
    agent = start_agent("--allow-origin", "*")
    status, headers, _ = ask(agent, "GET", "/metrics", {"Origin": ELSEWHERE})
    assert (status, headers["access-control-allow-origin"]) == (200, ELSEWHERE)


def test_preflight_carries_no_token(start_agent):
    """A browser sends none with it; the call itself needs it."""
    agent = start_agent("--allow-origin", ELSEWHERE, env={"SANDKEEPER_TOKEN": TOKEN})
    for path, method, _ in PREFLIGHTS:
        assert preflight(agent, path, method)[0] == 204
    assert preflight(agent, "/rpc", "POST", "https://other.example")[0] == 401
    assert ask(agent, "GET", "/metrics", {"Origin": ELSEWHERE})[0] == 401
    assert ask(agent, "GET", "/metrics", {"Origin": ELSEWHERE, **PLACES["authorization"](TOKEN)})[0] == 200
