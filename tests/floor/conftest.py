"""The network floor without an agent behind it: tests/helpers/net_server, built beside the program under test."""

import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))

from helpers.agent import BINARY, Agent  # noqa: E402  pylint: disable=wrong-import-position

NET_SERVER = os.path.join(os.path.dirname(BINARY), "tests", "helpers", "net_server")


def pytest_report_header():
    return f"server under test: {NET_SERVER}"


def pytest_sessionstart():
    if not os.access(NET_SERVER, os.X_OK):
        pytest.exit(f"{NET_SERVER} is missing: scripts/build tests/helpers/net_server", returncode=2)


@pytest.fixture
def start_server():
    """start_server(*options, ...) -> a fresh net_server, stopped and checked at the end of the test."""
    started = []

    def start(*options, **arguments):
        server = Agent(*options, program=NET_SERVER, **arguments)
        started.append(server)
        return server

    yield start
    failures = []
    for server in started:
        try:
            server.stop()
        except AssertionError as failure:
            failures.append(str(failure))
    assert not failures, "\n".join(failures)


@pytest.fixture
def server(start_server):
    return start_server()
