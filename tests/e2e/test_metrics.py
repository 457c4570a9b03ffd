"""GET /metrics: Prometheus' text format, checked by Prometheus' own tool, and what the numbers say. docs/protocol.md,
section 7."""

import os
import re
import subprocess

import pytest

from helpers import processes
from helpers.agent import ROOT
from helpers.raw_http import RawHttp
from helpers.wait import wait_until


@pytest.fixture(scope="session")
def promtool():
    subprocess.run([os.path.join(ROOT, "scripts", "install-promtool")], check=True, timeout=110)
    return os.path.join(ROOT, "build-aux", "promtool")


def scrape(agent):
    status, headers, body = agent.http("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return body.decode()


def read(text):
    """Name with labels -> value."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, value = line.rsplit(" ", 1)
        assert name not in found
        found[name] = float(value)
    return found


def values(agent):
    return read(scrape(agent))


def test_promtool_has_no_complaint(start_agent, promtool):
    agent = start_agent("--prompt-handler", "exit 1")
    with agent.connect() as client:
        client.exec("echo out; echo err >&2; exit 3")
    agent.http("POST", "/prompt", b'{"prompt":"hi"}')
    for path in ("/health", "/no/such/path", "/ws"):
        agent.http("GET", path)
    for text in (scrape(start_agent()), scrape(agent)):
        checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_promtool_would_complain(promtool):
    """The check above can fail."""
    text = "# TYPE things counter\nthings 1\n"
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert checked.returncode != 0


FAMILIES = {
    "sandkeeper_build_info": "gauge",
    "sandkeeper_uptime_seconds": "gauge",
    "sandkeeper_commands_running": "gauge",
    "sandkeeper_commands_kept": "gauge",
    "sandkeeper_commands_started_total": "counter",
    "sandkeeper_commands_failed_total": "counter",
    "sandkeeper_commands_ended_total": "counter",
    "sandkeeper_spawn_duration_seconds": "histogram",
    "sandkeeper_output_bytes_total": "counter",
    "sandkeeper_output_dropped_bytes_total": "counter",
    "sandkeeper_log_memory_bytes": "gauge",
    "sandkeeper_orphans_reaped_total": "counter",
    "sandkeeper_prompts_running": "gauge",
    "sandkeeper_prompts_total": "counter",
    "sandkeeper_websocket_sessions": "gauge",
    "sandkeeper_websocket_buffered_bytes": "gauge",
    "sandkeeper_http_connections": "gauge",
    "sandkeeper_http_requests_in_flight": "gauge",
    "sandkeeper_http_buffered_bytes": "gauge",
    "sandkeeper_http_requests_total": "counter",
    "sandkeeper_health_duration_seconds": "histogram",
    "sandkeeper_workers": "gauge",
    "sandkeeper_workers_busy": "gauge",
    "sandkeeper_workers_written_off": "gauge",
    "sandkeeper_worker_jobs_waiting": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_start_time_seconds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
}


def test_families_and_documentation(agent):
    text = scrape(agent)
    assert dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)) == FAMILIES
    assert re.findall(r"^# HELP (\S+) \S", text, re.M) == list(dict.fromkeys(re.findall(r"^# TYPE (\S+)", text, re.M)))
    with open(os.path.join(ROOT, "docs", "protocol.md")) as file:
        documented = set(re.findall(r"`((?:sandkeeper|process)_[a-z_]+)", file.read()))
    assert documented == set(FAMILIES)


def test_version(agent):
    (name,) = [name for name in values(agent) if name.startswith("sandkeeper_build_info")]
    assert name == f'sandkeeper_build_info{{version="{agent.health()["version"]}"}}'


def test_commands(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("head -c 1000 /dev/zero; head -c 77 /dev/zero >&2")
        client.exec("kill -9 $$")
        client.call_error("exec", {"command": "sleep 60", "timeout": 0.1})
        client.call_error("exec", {"command": "sleep 60", "idle_timeout": 0.1})
        client.call_error("exec", {"argv": ["/no/such/program"]})
        client.exec("head -c 3000000 /dev/zero", stream=False)
        running = client.start_exec("sleep 60", cmd_id="running")
        running.wait_for("exec.start")
        seen = values(agent)
        assert seen["sandkeeper_commands_started_total"] == 7
        assert seen["sandkeeper_commands_failed_total"] == 1
        assert seen["sandkeeper_commands_running"] == 1
        assert seen["sandkeeper_commands_kept"] == 5
        ended = {reason: seen[f'sandkeeper_commands_ended_total{{reason="{reason}"}}'] for reason in
                 ("exited", "signaled", "timed_out", "idle_timed_out")}
        assert ended == {"exited": 2, "signaled": 1, "timed_out": 1, "idle_timed_out": 1}
        assert seen['sandkeeper_output_bytes_total{stream="stdout"}'] == 3001000
        assert seen['sandkeeper_output_bytes_total{stream="stderr"}'] == 77
        assert seen["sandkeeper_output_dropped_bytes_total"] == 3000000 - 512 * 1024
        assert 512 * 1024 <= seen["sandkeeper_log_memory_bytes"] < 1024 * 1024
        assert seen["sandkeeper_websocket_sessions"] == 1
        client.call("kill", {"cmd_id": "running"})
        running.result()


def test_histograms(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        for _ in range(5):
            client.exec("true")
    asked = values(agent)["sandkeeper_health_duration_seconds_count"]
    for _ in range(7):
        agent.health()
    seen = values(agent)
    for family, count in [("sandkeeper_spawn_duration_seconds", 5), ("sandkeeper_health_duration_seconds", asked + 7)]:
        buckets = [
            (float(re.search(r'le="([^"]+)"', name).group(1)), value)
            for name, value in seen.items()
            if name.startswith(f"{family}_bucket")
        ]
        assert buckets == sorted(buckets)
        assert [value for _, value in buckets] == sorted(value for _, value in buckets)
        assert buckets[-1] == (float("inf"), count)
        assert seen[f"{family}_count"] == count
        assert 0 < seen[f"{family}_sum"] < 10 * count


def test_orphans(start_agent):
    agent = start_agent()
    with agent.connect() as client:
        client.exec("for i in 1 2 3 4 5; do (sleep 0.05 &); done")
    wait_until(lambda: values(agent)["sandkeeper_orphans_reaped_total"] >= 5, what="five orphans to be reaped")


def test_prompts(start_agent):
    agent = start_agent("--prompt-handler", "case $(cat) in *good*) ;; *) exit 1 ;; esac")
    agent.http("POST", "/prompt", b'{"prompt":"good"}')
    agent.http("POST", "/prompt", b'{"prompt":"bad"}')
    agent.http("POST", "/prompt", b'{"prompt":""}')
    seen = values(agent)
    outcomes = {outcome: seen[f'sandkeeper_prompts_total{{outcome="{outcome}"}}'] for outcome in
                ("done", "failed", "left", "refused")}
    assert outcomes == {"done": 1, "failed": 1, "left": 0, "refused": 1}
    assert seen["sandkeeper_commands_started_total"] == 0  # they are not the clients' commands


def test_requests_by_route_and_code(start_agent):
    agent = start_agent()
    agent.http("GET", "/files?path=/nothing")
    agent.http("GET", "/files?path=/nothing-else")
    agent.http("DELETE", "/files?path=/nothing")
    agent.http("GET", "/no/such/path")
    agent.http("GET", "/api/v1/sandbox/other")
    with RawHttp(agent.port) as http:  # leaves before its answer
        http.request("POST", "/rpc", b'{"jsonrpc":"2.0","id":1,"method":"exec","params":{"command":"sleep 60"}}')
        wait_until(lambda: agent.health()["commands"]["running"] == 1, what="its command to run")
    left = 'sandkeeper_http_requests_total{route="/rpc",code="499"}'
    wait_until(lambda: values(agent).get(left) == 1, what="the client's leaving to be counted")
    seen = values(agent)
    assert seen['sandkeeper_http_requests_total{route="/files",code="404"}'] == 3
    assert seen['sandkeeper_http_requests_total{route="none",code="404"}'] == 1
    assert seen['sandkeeper_http_requests_total{route="/api/v1/sandbox/*",code="404"}'] == 1
    assert seen["sandkeeper_http_requests_in_flight"] == 1  # this one
    assert seen["sandkeeper_http_connections"] >= 1


def test_strange_requests_make_no_new_series(start_agent):
    """Names and paths that clients make up must not fill the agent's memory, or Prometheus'."""
    agent = start_agent()
    for i in range(100):
        agent.http("GET", f"/path{i}")
        agent.http(f"M{i}", f"/rpc?x={i}")
    series = [name for name in values(agent) if name.startswith("sandkeeper_http_requests_total")]
    assert len(series) < 10


def test_half_received_messages(start_agent):
    agent = start_agent()
    with RawHttp(agent.port) as http:
        http.head("POST", "/rpc", ["Content-Length: 1000"])
        http.send(b"x" * 400)
        wait_until(lambda: values(agent)["sandkeeper_http_buffered_bytes"] == 400, what="400 bytes to be held")
    wait_until(lambda: values(agent)["sandkeeper_http_buffered_bytes"] == 0, what="them to be let go")


def test_process(agent):
    seen = values(agent)
    assert abs(seen["process_resident_memory_bytes"] / 1024 - agent.rss_kib()) < 4096
    assert abs(seen["process_open_fds"] - agent.fd_count()) <= 2
    assert 0 < seen["process_cpu_seconds_total"] <= processes.cpu_seconds(agent.pid) + 0.1
    uptime = agent.health()["uptime_ms"] / 1000
    assert abs(seen["sandkeeper_uptime_seconds"] - uptime) < 5
    assert seen["process_max_fds"] >= 1024


def test_head(agent):
    status, headers, body = agent.http("HEAD", "/metrics")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000
