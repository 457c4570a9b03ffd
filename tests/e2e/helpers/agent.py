"""The agent as a process of its own: started, watched and ended as a container's runtime would do it."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import uuid

from . import processes
from .client import Client
from .raw_ws import RawWebSocket
from .wait import wait_until

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BINARY = os.path.abspath(os.environ.get("SANDKEEPER_BINARY", os.path.join(ROOT, "build", "sandkeeper")))

# Every process that an agent of these tests starts carries this variable, with a value of that agent alone.
MARK = "E2E_MARK"

SANITIZER_REPORT = re.compile(r"AddressSanitizer|LeakSanitizer|UndefinedBehaviorSanitizer|runtime error:|==\d+==ERROR")


def _is_sanitized():
    try:
        with open(BINARY, "rb") as file:
            return b"__asan_init" in file.read()
    except OSError:
        return False


SANITIZED = _is_sanitized()

# Under ASAN every step costs several times more and the loops only look for memory errors, which the first rounds show.
SANITIZED_REDUCTION = 10


def rounds(n):
    """How often a heavy loop runs: as the test says on the plain build, a tenth of it under ASAN."""
    return max(1, n // SANITIZED_REDUCTION) if SANITIZED else n


class Agent:
    """options: the command line behind the program's name. env: variables over this process's own (None removes);
    clean_env: nothing else. prefix: a program that starts the agent (its words). preexec_fn, user, pass_fds, stdin: as in
    subprocess. listen: the address; a list of options replaces it. program: another one that takes the same options."""

    def __init__(
        self,
        *options,
        env=None,
        clean_env=False,
        prefix=(),
        listen=("--listen", "127.0.0.1:0"),
        wait=True,
        program=BINARY,
        **popen,
    ):
        self.program = program
        self.directory = tempfile.mkdtemp(prefix="sandkeeper-e2e-")
        self.workdir = os.path.join(self.directory, "work")
        os.mkdir(self.workdir)
        os.chmod(self.directory, 0o755)
        os.chmod(self.workdir, 0o777)
        self.mark = uuid.uuid4().hex
        self.log_path = os.path.join(self.directory, "stderr")
        self.stopped = False

        environment = {} if clean_env else {k: v for k, v in os.environ.items() if not k.startswith("SANDKEEPER_")}
        # A small quarantine, so that resident memory says something; every leak and error ends the agent with a report.
        small = "detect_leaks=1:quarantine_size_mb=2:thread_local_quarantine_size_kb=64"
        environment["ASAN_OPTIONS"] = ":".join(filter(None, [environment.get("ASAN_OPTIONS"), small]))
        environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
        environment[MARK] = self.mark
        environment.update(env or {})
        options = ["--log-format", "json", *listen, *options]
        if "--workdir" not in options and "SANDKEEPER_WORKDIR" not in environment:
            options += ["--workdir", self.workdir]
        popen.setdefault("stdin", subprocess.DEVNULL)
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*prefix, program, *options],
                env={name: value for name, value in environment.items() if value is not None},
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                **popen,
            )
        self.pid = self.process.pid
        self.address = self.port = None
        if wait:
            try:
                self.wait_ready()
                if prefix:
                    self.pid = self._find_own_pid()
            except BaseException:
                self.kill()
                raise

    def _find_own_pid(self):
        """The agent itself, below the program that started it."""
        for pid in [self.process.pid, *processes.descendants(self.process.pid)]:
            try:
                if os.path.samefile(f"/proc/{pid}/exe", self.program):
                    return pid
            except OSError:
                pass
        raise AssertionError("the agent's process was not found")

    def wait_ready(self, timeout=20.0):
        def listening():
            assert self.process.poll() is None, f"the agent ended with {self.process.returncode}:\n{self.log_text()}"
            return next(iter(self.events("gate", "listening")), None)

        found = wait_until(listening, timeout, lambda: f'the "listening" line; the log so far:\n{self.log_text()}')
        self.address, self.port = found["address"], found["port"]
        wait_until(lambda: self._health_status() == 200, timeout, "GET /health to answer 200")

    def _health_status(self):
        try:
            return self.http("GET", "/health")[0]
        except OSError:
            return None

    # What it says

    def log_text(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def events(self, part=None, event=None):
        """The lines of its log, in order; those of one part and event if given."""
        found = []
        for line in self.log_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and part in (None, entry.get("part")) and event in (None, entry.get("event")):
                found.append(entry)
        return found

    def is_running(self):
        return self.process.poll() is None

    def rss_kib(self):
        return processes.rss_kib(self.pid)

    def fd_count(self):
        return processes.fd_count(self.pid)

    # Clients

    def url(self, path="/ws"):
        return f"ws://127.0.0.1:{self.port}{path}"

    def connect(self, path="/ws", **options):
        return Client(self.url(path), **options)

    def raw(self, path="/ws", **options):
        return RawWebSocket(("127.0.0.1", self.port), path, **options)

    def http(self, method, path, body=None, headers=None, timeout=10.0):
        """(status, headers, body) of one HTTP request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def health(self):
        return json.loads(self.http("GET", "/health")[2])

    # Its end

    def signal(self, number):
        os.kill(self.pid, number)

    def left_over(self):
        """Processes of this agent that are still alive, itself not counted."""
        found = processes.with_environment(MARK, self.mark)
        return [pid for pid in found if pid not in (self.pid, self.process.pid)]

    def stop(self, timeout=10.0):
        """SIGTERM; it must end with exit code 0 in time, without a sanitizer's report, and leave no process behind."""
        if self.stopped:
            return
        try:
            if self.is_running():
                self.signal(signal.SIGTERM)
            self.check_ended(timeout)
        finally:
            self.kill()

    def check_ended(self, timeout=10.0, code=0):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the agent did not end within {timeout} s; its log:\n{self.log_tail()}") from None
        assert self.process.returncode == code, f"exit code {self.process.returncode}; its log:\n{self.log_tail()}"
        report = SANITIZER_REPORT.search(self.log_text())
        assert not report, f"a sanitizer's report:\n{self.log_text()[report.start():][:8000]}"
        left = {pid: processes.cmdline(pid) for pid in self.left_over()}
        assert not left, f"processes were left behind: {left}"

    def log_tail(self):
        text = self.log_text()
        report = SANITIZER_REPORT.search(text)
        return text[report.start() :][:8000] if report else text[-4000:]

    def kill(self):
        """Removes every trace, without a question."""
        self.stopped = True
        for pid in [*self.left_over(), self.pid, self.process.pid]:
            if pid == self.process.pid and self.process.poll() is not None:
                continue
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


# The folder with the log of an agent that runs already, as process 1 of the container that the tests run in too
# (tests/container/test_e2e.py). The shared agent is that one then.
ATTACH = os.environ.get("SANDKEEPER_ATTACH")


class _Elsewhere:
    """Stands for the process of an agent that somebody else has started."""

    pid = 1
    returncode = None

    @staticmethod
    def poll():
        return None if processes.is_alive(1) else 0


class AttachedAgent(Agent):
    def __init__(self, directory):  # pylint: disable=super-init-not-called
        self.directory = directory
        self.log_path = os.path.join(directory, "stderr")
        self.workdir = os.readlink("/proc/1/cwd")
        self.mark = processes.environ(1)[MARK]
        self.process = _Elsewhere()
        self.pid = self.process.pid
        self.stopped = False
        self.wait_ready()

    def left_over(self):
        """Without the tests themselves, which are the image's own command."""
        own = {os.getpid(), os.getppid(), 1}
        return [pid for pid in super().left_over() if pid not in own]

    def stop(self, timeout=10.0):
        """It lives as long as the tests do."""

    def kill(self):
        pass
