"""POST /prompt: requests, the echo handler, bodies and places. docs/protocol.md, section 5. What handlers may do is in
test_prompt_handler.py."""

import base64
import json
import pathlib
import time

import pytest

from helpers.agent import SANITIZED
from helpers.puck_reader import PuckError, PuckReader, await_ready, text_of
from helpers.raw_http import RawHttp
from helpers.wait import wait_until

MAX = 64 * 1024 * 1024
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def post(agent, body, headers=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return agent.http("POST", "/prompt", data, headers, timeout=60)


def body_of_length(length):
    """A request of exactly that many bytes."""
    empty = len(json.dumps({"prompt": ""}))
    return json.dumps({"prompt": "x" * (length - empty)}).encode()


# ---- echo ----


def test_echo_answers_a_fresh_image(agent):
    status, headers, body = post(agent, {"prompt": "hello\nworld", "options": {"model": "any"}})
    assert status == 200
    assert headers["Content-Type"] == "application/x-ndjson"
    assert headers["Cache-Control"] == "no-cache"
    assert headers["Transfer-Encoding"] == "chunked"
    assert body == b'{"type":"text","text":"hello\\n"}\n{"type":"text","text":"world"}\n{"type":"done"}\n'


def test_health_names_the_handler_but_tells_no_command(start_agent):
    for handler, name in [("echo", "echo"), ("none", "none"), ("cat # secret-key", "command")]:
        agent = start_agent("--prompt-handler", handler)
        assert agent.health()["prompt_handler"] == name
        assert b"secret-key" not in agent.http("GET", "/health")[2]


def test_echo_of_blocks(agent):
    prompt = [
        {"type": "text", "text": "one\ntwo\n"},
        {"type": "file", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
        {"type": "file", "media_type": "text/markdown", "text": "# title\n"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "three"},
    ]
    with PuckReader(agent.port) as puck:
        events = puck.prompt(prompt)
    assert [event["type"] for event in events] == ["text"] * 5 + ["done"]
    assert [event["text"] for event in events[:-1]] == [
        "one\n",
        "two\n",
        f"[image/png, {len(PNG)} bytes, looks like image/png]\n",
        "[text/markdown, 8 bytes, looks like text/plain]\n",
        "three",
    ]


@pytest.mark.parametrize("text", ["☕" * 100000, 'a"\\\n\t\r\u0000\u2028😀', "\n\n\n", "x" * 65536, "é" + "x" * 200000])
def test_echo_is_exact(agent, text):
    with PuckReader(agent.port) as puck:
        events = puck.prompt(text)
    assert text_of(events) == text
    assert events[-1] == {"type": "done"}
    assert max(len(event.get("text", "").encode()) for event in events) <= 65536


def test_strider_names_its_text_differently(start_agent):
    agent = start_agent("--prompt-text-type", "text_chunk")
    with PuckReader(agent.port) as puck:
        assert puck.prompt("hi") == [{"type": "text_chunk", "text": "hi"}, {"type": "done"}]


def test_a_hundred_thousand_events(agent):
    line = "x" * 73 + "\n"  # an event of 100 bytes
    with PuckReader(agent.port) as puck:
        events = puck.prompt(line * 100000)
    assert len(events) == 100001
    assert all(event == {"type": "text", "text": line} for event in events[:-1])


def test_fifty_prompts_on_one_connection(agent):
    with RawHttp(agent.port) as http:
        for i in range(50):
            http.request("POST", "/prompt", json.dumps({"prompt": f"number {i}"}).encode())
            status, _, body = http.read_answer()
            assert status == 200
            assert json.loads(body.split(b"\n")[0])["text"] == f"number {i}"


def test_none_is_501(start_agent):
    agent = start_agent("--prompt-handler", "none")
    status, headers, body = post(agent, {"prompt": "hi"})
    assert status == 501
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == {"error": "this sandbox has no handler for prompts (--prompt-handler none)"}


def test_puck_waits_for_the_agent(start_agent):
    agent = start_agent(wait=False)
    wait_until(lambda: list(agent.events("gate", "listening")), what="the listening line")
    agent.port = agent.events("gate", "listening")[0]["port"]
    await_ready(agent.port)
    agent.wait_ready()


# ---- requests that are refused ----

MISSING = "Missing or invalid 'prompt' field"
FILE = {"type": "file", "media_type": "text/plain"}


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ({}, MISSING),
        ({"options": {}}, MISSING),
        ({"prompt": ""}, MISSING),
        ({"prompt": None}, MISSING),
        ({"prompt": []}, MISSING),
        ({"prompt": {}}, MISSING),
        ({"prompt": 5}, MISSING),
        ({"prompt": True}, MISSING),
        ([], MISSING),
        ("text", MISSING),
        ({"prompt": ["text"]}, "prompt[0]: it takes an object"),
        ({"prompt": [{"type": "text", "text": "a"}, None]}, "prompt[1]: it takes an object"),
        ({"prompt": [{}]}, 'prompt[0].type: it takes "text" or "file"'),
        ({"prompt": [{"type": "image", "data": ""}]}, 'prompt[0].type: it takes "text" or "file"'),
        ({"prompt": [{"type": 5}]}, 'prompt[0].type: it takes "text" or "file"'),
        ({"prompt": [{"type": "text"}]}, "prompt[0].text: it takes a string"),
        ({"prompt": [{"type": "text", "text": 5}]}, "prompt[0].text: it takes a string"),
        ({"prompt": [{"type": "text", "text": None}]}, "prompt[0].text: it takes a string"),
        (
            {"prompt": [{"type": "file", "data": ""}]},
            'prompt[0].media_type: it takes a media type, such as "image/png"',
        ),
        (
            {"prompt": [{"type": "file", "media_type": "", "data": ""}]},
            'prompt[0].media_type: it takes a media type, such as "image/png"',
        ),
        ({"prompt": [FILE]}, "prompt[0].data: it is missing; a file block has data (base64) or text"),
        ({"prompt": [{**FILE, "data": "", "text": ""}]}, "prompt[0]: it takes data or text, not both"),
        ({"prompt": [{**FILE, "data": 5}]}, "prompt[0].data: it takes a string in base64"),
        ({"prompt": [{**FILE, "text": []}]}, "prompt[0].text: it takes a string"),
        ({"prompt": [{**FILE, "text": "ok"}, {**FILE, "data": "YQ=="}, {**FILE, "data": "YQ="}]}, "prompt[2].data: it "),
        ({"prompt": [{**FILE, "data": "a b"}]}, "prompt[0].data: it is no base64 at offset 1"),
        ({"prompt": [{**FILE, "text": "x"}] * 1001}, "prompt: it takes at most 1000 file blocks"),
        ({"prompt": "a", "options": []}, "options: it takes an object"),
        ({"prompt": "a", "options": {"top": [float("nan")]}}, "options: a number in it is none of JSON's"),
        ({"prompt": "a", "options": {"timeout": "5"}}, "options: timeout: it takes a number"),
        ({"prompt": "a", "options": {"timeout": -1}}, "options: timeout: it takes a number"),
        (b"", "parse error: the message is empty"),
        (b"{", "parse error: the message ends in the middle of its JSON"),
        (b'{"prompt":"a"} x', "parse error: "),
        (b'{"prompt":"\xff"}', "parse error: "),
        (b"[" * 100000, "parse error: nested deeper than 64 levels"),
    ],
    ids=str,
)
def test_bad_requests(agent, request_body, message):
    status, headers, body = post(agent, request_body)
    answer = json.loads(body)
    assert (status, list(answer)) == (400, ["error"])
    assert answer["error"].startswith(message)
    assert headers["Content-Type"] == "application/json"
    assert post(agent, {"prompt": "still there"})[0] == 200


def test_other_methods(agent):
    for method in ["GET", "PUT", "DELETE", "HEAD"]:
        status, headers, _ = agent.http(method, "/prompt")
        assert (status, headers["Allow"]) == (405, "POST, OPTIONS")


# ---- bodies ----


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_largest_body(agent, chunked):
    body = body_of_length(MAX)
    with RawHttp(agent.port, timeout=100) as http:
        if chunked:
            http.head("POST", "/prompt", ["Transfer-Encoding: chunked"])
            for at in range(0, MAX, 1 << 20):
                http.chunk(body[at : at + (1 << 20)])
            http.send(b"0\r\n\r\n")
        else:
            http.request("POST", "/prompt", body)
        status, _ = http.read_head()
        assert status == 200
        text = 0
        rest = b""
        while chunk := http.read_chunk():
            *lines, rest = (rest + chunk).split(b"\n")
            text += sum(len(json.loads(line).get("text", "")) for line in lines)
        assert text == MAX - len(json.dumps({"prompt": ""}))
    if not SANITIZED:  # what a large prompt took is given back
        wait_until(lambda: agent.rss_kib() < 20 * 1024, what=lambda: f"{agent.rss_kib()} KiB to go")


def test_one_byte_more_by_length(agent):
    """It is refused by its announcement, and one that waits for 100 Continue never has to send it."""
    with RawHttp(agent.port) as http:
        http.head("POST", "/prompt", [f"Content-Length: {MAX + 1}", "Expect: 100-continue"])
        status, _, answer = http.read_json()
        assert status == 413
        assert str(MAX) in answer["message"]


def test_one_byte_more_in_chunks(agent):
    body = body_of_length(MAX + 1)
    with RawHttp(agent.port, timeout=100) as http:
        http.head("POST", "/prompt", ["Transfer-Encoding: chunked"])
        try:
            for at in range(0, len(body), 1 << 20):
                http.chunk(body[at : at + (1 << 20)])
            http.send(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have been enough
        assert http.read_head()[0] == 413
    assert post(agent, {"prompt": "still there"})[0] == 200


def test_expect_100_continue(agent):
    body = json.dumps({"prompt": "hi"}).encode()
    with RawHttp(agent.port) as http:
        http.head("POST", "/prompt", [f"Content-Length: {len(body)}", "Expect: 100-continue"])
        assert http.read_head()[0] == 100
        http.send(body)
        status, _, answer = http.read_answer()
        assert status == 200
        assert answer.endswith(b'{"type":"done"}\n')


def test_body_cut_anywhere(agent):
    body = json.dumps({"prompt": "hi"}).encode()
    for n in range(len(body)):
        with RawHttp(agent.port) as http:
            http.head("POST", "/prompt", [f"Content-Length: {len(body)}"])
            http.send(body[:n])
    assert post(agent, {"prompt": "still there"})[0] == 200


def test_bodies_together_have_a_limit(start_agent):
    agent = start_agent("--max-message", "1M", "--max-buffered", "1M")
    piece = b'{"prompt":"' + b"x" * 600000
    with RawHttp(agent.port) as first, RawHttp(agent.port) as second:
        first.head("POST", "/prompt", ["Content-Length: 1000000"])
        first.send(piece)
        wait_until(lambda: b"http_buffered_bytes 600011" in agent.http("GET", "/metrics")[2], what="the first body")
        second.head("POST", "/prompt", [f"Content-Length: {len(piece) + 2}"])
        second.send(piece + b'"}')
        status, headers, answer = second.read_json()
        assert (status, headers["retry-after"]) == (429, "1")
        assert "--max-buffered" in answer["message"]
    wait_until(lambda: b"http_buffered_bytes 0\n" in agent.http("GET", "/metrics")[2], what="the bodies to be freed")
    assert post(agent, piece + b'"}')[0] == 200


@pytest.mark.timeout(150)
def test_slow_body_holds_no_place_and_is_cut(start_agent):
    """A byte a second: others go on meanwhile, and after some 20 s the connection is closed."""
    agent = start_agent("--prompt-concurrency", "1")
    body = json.dumps({"prompt": "x" * 1000}).encode()
    with RawHttp(agent.port, timeout=1) as slow:
        slow.head("POST", "/prompt", [f"Content-Length: {len(body)}"])
        began = time.monotonic()
        answered = 0
        for byte in body:
            assert time.monotonic() - began < 90, "the slow body was never cut"
            try:
                slow.send(bytes([byte]))
                slow.socket.recv(1)  # returns only when the connection is over
                break
            except TimeoutError:
                with PuckReader(agent.port) as puck:
                    assert puck.prompt("hi")[-1] == {"type": "done"}
                    answered += 1
            except OSError:
                break
    assert answered >= 10


# ---- places ----


@pytest.fixture
def waiting_agent(start_agent):
    """Its handler prints one event and waits until its stdin's prompt names a file that exists."""

    def start(*options):
        agent = start_agent("--prompt-handler", """echo '{"type":"begun"}'; until [ -e go ]; do sleep 0.02; done""", *options)
        agent.go = pathlib.Path(agent.workdir, "go").touch
        return agent

    return start


def start_waiting(agent):
    puck = PuckReader(agent.port)
    events = puck.start("hi").events()
    assert next(events) == {"type": "begun"}
    return puck, events


def test_places(waiting_agent):
    agent = waiting_agent("--prompt-concurrency", "2")
    readers = [start_waiting(agent) for _ in range(2)]
    status, headers, body = post(agent, {"prompt": "hi"})
    assert (status, headers["Retry-After"]) == (429, "1")
    assert json.loads(body) == {"error": "2 prompts run at once, which is the limit (--prompt-concurrency)"}
    assert agent.health()["status"] == "ok"
    agent.go()
    for puck, events in readers:
        assert list(events) == [{"type": "done"}]
        puck.close()
    with PuckReader(agent.port) as puck:  # the place is free as soon as the end has been read
        assert puck.prompt("hi")[-1] == {"type": "done"}


def test_no_place_spares_the_upload(waiting_agent):
    agent = waiting_agent("--prompt-concurrency", "1")
    puck, events = start_waiting(agent)
    with RawHttp(agent.port) as http:
        http.head("POST", "/prompt", ["Content-Length: 60000000", "Expect: 100-continue"])
        assert http.read_head()[0] == 429
    agent.go()
    assert list(events) == [{"type": "done"}]
    puck.close()


def test_a_refused_prompt_gives_its_place_back(start_agent):
    agent = start_agent("--prompt-concurrency", "1")
    for _ in range(5):
        assert post(agent, {"prompt": 5})[0] == 400
        assert post(agent, {"prompt": [{**FILE, "data": "!"}]})[0] == 400
    assert post(agent, {"prompt": "hi"})[0] == 200


def test_default_is_four_places(waiting_agent):
    agent = waiting_agent()
    readers = [start_waiting(agent) for _ in range(4)]
    with pytest.raises(PuckError) as refused, PuckReader(agent.port) as puck:
        puck.start("one too many")
    assert refused.value.status == 429
    agent.go()
    for puck, events in readers:
        assert list(events) == [{"type": "done"}]
        puck.close()
