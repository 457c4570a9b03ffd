"""The README's examples, run as a newcomer would: what it shows must work, and print what it says."""

import json
import os
import re
import socket
import subprocess
import sys

from helpers.agent import ROOT


def _read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def _blocks(language):
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", _read("README.md"), re.DOTALL | re.MULTILINE)
    return [text for found, text in fences if found == language]


def test_python_program_is_the_example():
    assert _blocks("python") == [_read("examples", "hello.py")]


def test_python_program_prints_what_the_readme_says(start_agent):
    agent = start_agent(env={"SANDBOX_ID": None})
    program = _read("examples", "hello.py").replace(":4001", f":{agent.port}").replace("localhost", "127.0.0.1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    [expected] = [block for block in _blocks("") if block.startswith("hello from")]
    assert done.stdout == expected.replace("HOSTNAME", socket.gethostname())


def test_websocket_tool_shows_what_the_readme_says(start_agent):
    agent = start_agent()
    [transcript] = [block for block in _blocks("") if block.startswith("> ")]
    lines = transcript.splitlines()
    request = lines[0].removeprefix("> ")
    shown = [line.removeprefix("< ") for line in lines[1:]]
    command = [sys.executable, "-m", "websockets", f"ws://127.0.0.1:{agent.port}/ws"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as tool:
        tool.stdin.write(request + "\n")
        tool.stdin.flush()
        answers = []
        for line in tool.stdout:
            # The tool moves the cursor about; a message is the rest of a line behind "< ".
            if "< {" in line:
                answers.append(json.loads(re.search(r"< (\{.*\})", line)[1]))
                if "result" in answers[-1]:
                    break
        tool.stdin.close()
        tool.stdout.read()
    assert len(answers) == len(shown)
    for answer, line in zip(answers, shown):
        # The README shortens ids and ends the long result with an ellipsis.
        expected = json.loads(line.replace(",…", ""))
        assert answer.get("method") == expected.get("method") and answer.get("id") == expected.get("id")
        part = "params" if "params" in expected else "result"
        for name, value in expected[part].items():
            assert name in answer[part], f"{name} is not in {answer}"
            if name not in ("cmd_id", "pid", "started_at"):
                assert answer[part][name] == value
