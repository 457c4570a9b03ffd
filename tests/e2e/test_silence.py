"""Case 22 and the pings of docs/protocol.md 3.3. They take a minute of doing nothing, so conftest.py begins them with the
run and puts these tests at its end."""

import pytest

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def seen(silence):
    return silence.finish()


def test_case_22_a_silent_stream_survives_a_proxy_that_cuts_idle_connections(seen):
    assert seen["proxy"]["result"]["output"] == "before\nafter\n"
    assert seen["cut"] is False


def test_an_idle_connection_is_pinged_every_20_seconds(seen):
    first, second, third = seen["pings"]
    for interval in (first, second - first, third - second):
        assert 15 < interval < 27, seen["pings"]


def test_a_client_that_does_not_answer_pings_is_dropped(seen):
    assert 15 < seen["mute ping"] < 27
    assert 15 < seen["mute end"] - seen["mute ping"] < 27
