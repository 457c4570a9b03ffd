"""Fixtures of the end-to-end tests. SANDKEEPER_BINARY names the program under test (build/sandkeeper without it)."""

import os

import pytest

from helpers.agent import ATTACH, BINARY, Agent, AttachedAgent
from helpers.silence import Silence


def pytest_report_header():
    return f"agent under test: {BINARY}"


def pytest_sessionstart():
    if not os.access(BINARY, os.X_OK):
        pytest.exit(f"{BINARY} is missing: build it first, or name another in SANDKEEPER_BINARY", returncode=2)


class _Shared:
    """One agent for all ordinary tests. When a test kills it, that test fails and the next one gets a new agent."""

    def __init__(self):
        self.agent = None

    def get(self):
        if self.agent is None:
            self.agent = AttachedAgent(ATTACH) if ATTACH else Agent("--sandbox-id", "e2e-sandbox")
        return self.agent

    def check(self):
        agent = self.agent
        if agent is not None and not agent.is_running():
            self.agent = None
            log = agent.log_tail()
            agent.kill()
            pytest.fail(f"the agent died in this test with {agent.process.returncode}; its log:\n{log}")


@pytest.fixture(scope="session")
def _shared():
    shared = _Shared()
    yield shared
    if shared.agent is not None:
        shared.agent.stop()


@pytest.fixture
def agent(_shared):
    """An agent with default options. Tests share it: leave nothing running that a later test could notice."""
    yield _shared.get()
    _shared.check()


@pytest.fixture
def client(agent):
    """A JSON-RPC session with the shared agent."""
    with agent.connect() as connected:
        yield connected


@pytest.fixture
def start_agent():
    """start_agent(*options, ...) -> a fresh Agent, stopped and checked at the end of the test."""
    started = []

    def start(*options, **arguments):
        agent = Agent(*options, **arguments)
        started.append(agent)
        return agent

    yield start
    failures = []
    for agent in started:
        try:
            agent.stop()
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, "\n".join(failures)


@pytest.fixture(scope="module")
def module_agents():
    """As start_agent, for agents that the tests of one file share."""
    started = []

    def start(*options, **arguments):
        agent = Agent(*options, **arguments)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        agent.stop()


def pytest_collection_modifyitems(items):
    """The silent minute is begun first and looked at last, so that it costs no time of its own."""
    items.sort(key=lambda item: item.path.name == "test_silence.py")


@pytest.fixture(scope="session", autouse=True)
def silence(request):
    if not any(item.path.name == "test_silence.py" for item in request.session.items):
        yield None
        return
    silence = Silence()
    yield silence
    silence.agent.stop()
