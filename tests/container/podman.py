"""Containers of the tests: a podman with a store of its own, so that a person's images and containers stay as they are.

Every container carries a label and a name of its own and is removed when its test ends, whatever happened.
"""

import http.client
import json
import os
import resource
import socket
import subprocess
import tempfile
import time
import uuid

from helpers import processes
from helpers.client import Client
from helpers.wait import wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.environ.get("SANDKEEPER_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sandkeeper"
)

# Several test runs may share the store: each container says which process it belongs to, by number and start.
_OWN = f"{os.getpid()}-{processes.started(os.getpid())}"
_KEY = "sandkeeper-test"
LABEL = f"{_KEY}={_OWN}"
PORT = 4001

# Options for as many descriptors as this machine lets a container have. One --ulimit takes the place of all that
# containers.conf says.
_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
MANY_FILES = ["--ulimit", f"nofile={min(_FILES, 65536)}:{_FILES}", "--ulimit", "nproc=4096:4096"]

_PODMAN = ["podman", "--root", os.path.join(CACHE, "podman"), "--runroot", "/run/sandkeeper-test-podman"]
_ENVIRONMENT = {**os.environ, "CONTAINERS_CONF": os.path.join(HERE, "containers.conf")}


def podman(*arguments, check=True, timeout=120, **options):
    """Runs podman and returns the CompletedProcess, its output as text. Not here: conmon leaves a file called oom where it
    was started when a container's memory has run out."""
    options.setdefault("cwd", CACHE)
    options.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run(
        [*_PODMAN, *arguments], env=_ENVIRONMENT, capture_output=True, text=True, errors="replace", timeout=timeout,
        check=False, **options,
    )  # fmt: skip
    if check and done.returncode != 0:
        raise AssertionError(f"podman {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def build(tag, dockerfile, context, timeout=900, **build_arguments):
    """Builds an image. docker's format, because the other one knows no HEALTHCHECK."""
    arguments = [word for name, value in build_arguments.items() for word in ("--build-arg", f"{name}={value}")]
    podman(
        "build", "--format", "docker", "--network", "host", "--layers", *arguments, "-t", tag, "-f", dockerfile, context,
        timeout=timeout,
    )  # fmt: skip


def inspect(name, template):
    return podman("inspect", "--format", template, name).stdout.strip()


def remove_left_over():
    """The containers of this run, and of runs that are no more."""
    listed = podman("ps", "--all", "--filter", f"label={_KEY}", "--format", f'{{{{.Names}}}} {{{{index .Labels "{_KEY}"}}}}')
    for line in listed.stdout.splitlines():
        name, owner = line.split()
        pid, _, started = owner.partition("-")
        if owner == _OWN or processes.started(int(pid)) != int(started):
            podman("rm", "--force", "--ignore", "--time", "0", name, check=False)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Container:
    """A running container. arguments: what stands behind the image's name. options: podman run's own. unix: the agent is
    reached through a socket in a shared directory (the test passes --listen unix:/run/agent/sock), else through a
    published port. wait: until /health answers 200."""

    def __init__(self, image, *arguments, options=(), unix=False, wait=True, timeout=30.0):
        self.name = f"sandkeeper-test-{uuid.uuid4().hex[:12]}"
        self.shared = tempfile.mkdtemp(prefix="sandkeeper-container-")
        os.chmod(self.shared, 0o777)
        self.unix_path = os.path.join(self.shared, "sock") if unix else None
        self.port = None
        self.started = time.monotonic()
        network = [] if unix or any(str(o).startswith("--network") for o in options) else ["-p", f"127.0.0.1::{PORT}"]
        try:
            podman(
                "run", "--detach", "--name", self.name, "--label", LABEL, "-v", f"{self.shared}:/run/agent",
                *network, *options, image, *arguments,
            )  # fmt: skip
            if wait and network:
                self.find_port()
            if wait:
                self.wait_ready(timeout)
        except BaseException as error:
            logs = self.logs()
            self.remove()
            raise AssertionError(f"{error}\nthe container's output:\n{logs[-4000:]}") from error

    def find_port(self, inside=PORT):
        self.port = int(podman("port", self.name, str(inside)).stdout.strip().rpartition(":")[2])

    # Its state

    def is_running(self):
        return inspect(self.name, "{{.State.Running}}") == "true"

    def exit_code(self, timeout=30.0):
        """Waits for its end."""
        return int(podman("wait", self.name, timeout=timeout).stdout.strip())

    def logs(self):
        done = podman("logs", self.name, check=False)
        return done.stdout + done.stderr

    @property
    def pid(self):
        """Of its process 1, as the machine sees it."""
        pid = int(inspect(self.name, "{{.State.Pid}}"))
        assert pid > 0, f"the container does not run; its output:\n{self.logs()[-4000:]}"
        return pid

    def zombies(self):
        return [pid for pid in processes.descendants(self.pid) if (processes.stat(pid) or {}).get("state") == "Z"]

    def wait_ready(self, timeout=30.0):
        def ready():
            assert self.is_running(), f"the container ended with {inspect(self.name, '{{.State.ExitCode}}')}"
            try:
                return self.http("GET", "/health", timeout=2.0)[0] == 200
            except OSError:
                return False

        wait_until(ready, timeout, "/health to answer 200", interval=0.05)

    def wait_log(self, text, timeout=10.0):
        wait_until(lambda: text in self.logs(), timeout, lambda: f"{text!r} in its output:\n{self.logs()}", 0.05)

    # Clients

    def http(self, method, path, body=None, headers=None, timeout=10.0):
        if self.unix_path:
            connection = _UnixConnection(self.unix_path, timeout)
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def health(self):
        return json.loads(self.http("GET", "/health")[2])

    def connect(self, token=None):
        options = {"additional_headers": {"Authorization": f"Bearer {token}"}} if token else {}
        if self.unix_path:
            return Client("ws://localhost/ws", unix=True, path=self.unix_path, **options)
        return Client(f"ws://127.0.0.1:{self.port}/ws", **options)

    def run(self, command=None, timeout=30.0, **params):
        """One exec on a connection of its own; its result."""
        with self.connect() as client:
            return client.exec(command, timeout, **params)

    # Its end

    def exec(self, *words, options=(), check=True, timeout=30.0):
        """podman exec: a process that the agent knows nothing of."""
        return podman("exec", *options, self.name, *words, check=check, timeout=timeout)

    def signal(self, name):
        podman("kill", "--signal", name, self.name)

    def seconds_to_end(self, signal="TERM", timeout=20.0):
        """Sends the signal to process 1 and measures until it is gone. Without podman in between, whose own commands
        take some tenths of a second."""
        pid = self.pid
        began = time.monotonic()
        os.kill(pid, getattr(__import__("signal"), f"SIG{signal}"))
        wait_until(lambda: not processes.is_alive(pid), timeout, "process 1 to end", interval=0.005)
        return time.monotonic() - began

    def remove(self):
        podman("rm", "--force", "--ignore", "--time", "0", self.name, check=False)
        subprocess.run(["rm", "-rf", self.shared], check=False)
