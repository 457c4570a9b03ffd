"""The handlers in examples/: the one in five lines of shell, and the one that asks a model, here a small fake server."""

import base64
import contextlib
import http.server
import json
import os
import re
import subprocess
import threading

import pytest

from helpers.agent import ROOT
from helpers.puck_reader import PuckReader, text_of

SHELL_HANDLER = os.path.join(ROOT, "examples", "prompt-handler.sh")
MODEL_HANDLER = os.path.join(ROOT, "examples", "prompt_handler.py")
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def test_curl_in_the_readme(start_agent):
    """Each line behind a dollar sign is run, and prints what stands below it."""
    agent = start_agent()
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        (session,) = re.findall(r"^```console\n(.*?)^```$", file.read(), re.DOTALL | re.MULTILINE)
    _, *steps = re.split(r"^\$ ", session, flags=re.MULTILINE)
    assert len(steps) == 2
    for step in steps:
        command, _, expected = step.partition("\n")
        command = command.replace("localhost:4001", f"127.0.0.1:{agent.port}")
        printed = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=30, check=True).stdout
        assert printed.rstrip("\n") == expected.rstrip("\n")


def test_five_lines_of_shell(start_agent):
    with open(SHELL_HANDLER) as file:
        code = [line for line in file if not line.startswith("#")]
    assert len(code) == 5
    agent = start_agent("--prompt-handler", SHELL_HANDLER)
    with PuckReader(agent.port) as puck:
        events = puck.prompt("hi")
    assert [event["type"] for event in events] == ["tool_start", "tool_done", "text", "done"]
    assert "your request has 40 bytes" in text_of(events)


class FakeModel:
    """Answers chat completions with what `script` yields: text to send, or an event to wait for."""

    def __init__(self):
        self.requests = []
        self.script = []
        self.status = 200
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fake.requests.append((self.path, dict(self.headers), json.loads(body)))
                self.send_response(fake.status)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    for step in fake.script:
                        if isinstance(step, threading.Event):
                            step.wait(30)
                        else:
                            self.wfile.write(step.encode())
                            self.wfile.flush()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def model():
    fake = FakeModel()
    yield fake
    fake.close()


def delta(text):
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + "\n\n"


DONE = "data: [DONE]\n\n"


@pytest.fixture
def ask(start_agent, model):
    def start(prompt, options=None, **environment):
        env = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "key-1", "OPENAI_MODEL": "small", **environment}
        agent = start_agent("--prompt-handler", MODEL_HANDLER, env={"http_proxy": None, "HTTP_PROXY": None, **env})
        return PuckReader(agent.port).start(prompt, options)

    return start


def test_words_come_as_the_model_says_them(ask, model):
    said = threading.Event()
    model.script = [
        ": a comment\n\n",
        'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n',
        delta("Grüße"),
        said,
        delta(" an alle\n"),
        'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
        DONE,
    ]
    with ask("hi", {"temperature": 0.5, "system": "be kind", "unknown": 1}) as puck:
        events = puck.events()
        assert next(events) == {"type": "text", "text": "Grüße"}
        said.set()  # the model goes on only after its first word has arrived
        assert list(events) == [{"type": "text", "text": " an alle\n"}, {"type": "done"}]
    ((path, headers, body),) = model.requests
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer key-1"
    assert body == {
        "model": "small",
        "stream": True,
        "temperature": 0.5,
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}],
    }


def test_files_reach_the_model(ask, model):
    model.script = [delta("a picture"), DONE]
    prompt = [
        {"type": "text", "text": "what is this?"},
        {"type": "file", "media_type": "image/jpeg", "data": base64.b64encode(PNG).decode()},
        {"type": "file", "media_type": "text/markdown", "text": "# ☕"},
    ]
    with ask(prompt, {"model": "large"}, OPENAI_API_KEY=None) as puck:
        assert text_of(puck.events()) == "a picture"
    ((_, headers, body),) = model.requests
    assert "Authorization" not in headers
    assert body["model"] == "large"
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what is this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(PNG).decode()}},
                {"type": "text", "text": "# ☕"},
            ],
        }
    ]


def failure(puck):
    """What the error event says, behind what came before it."""
    *_, error, done = puck.events()
    assert (error["type"], done) == ("error", {"type": "done"})
    return error["message"].removeprefix("handler exited with code 1: ")


def test_refusal_of_the_api(ask, model):
    model.status = 429
    model.script = ['{"error":{"message":"slow down"}}']
    with ask("hi") as puck:
        assert failure(puck) == 'the API answers 429: {"error":{"message":"slow down"}}'


def test_error_in_the_stream(ask, model):
    model.script = [delta("so far"), 'data: {"error":{"message":"overloaded"}}\n\n']
    with ask("hi") as puck:
        assert failure(puck) == "the API says: overloaded"


def test_answer_that_is_cut(ask, model):
    model.script = [delta("so far")]
    with ask("hi") as puck:
        assert failure(puck) == "the API's answer ended in the middle"


def test_no_api(ask):
    with ask("hi", OPENAI_BASE_URL="http://127.0.0.1:1") as puck:
        assert failure(puck).startswith("the API cannot be reached: ")


def test_no_model(ask):
    with ask("hi", OPENAI_MODEL=None) as puck:
        assert failure(puck) == "no model: set OPENAI_MODEL, or give options.model"


def test_silent_api(ask, model):
    never = threading.Event()
    model.script = [never]
    with ask("hi", OPENAI_TIMEOUT="0.3") as puck:
        assert failure(puck) == "the API cannot be reached: timed out"
    never.set()
