"""The Dockerfiles, the examples and the ways into an image, as docs/containers.md says."""

import os
import re

import podman as containers
import pytest
import yaml
from helpers.client import RpcError
from helpers.wait import wait_until

DOCKER = os.path.join(containers.ROOT, "docker")


@pytest.mark.parametrize("name", ["python", "node", "alpine", "busybox", "nonroot", "readonly"])
def test_example(start, example, name):
    options = {"readonly": ["--read-only", "--tmpfs", "/work:mode=1777"], "node": ["--publish", "127.0.0.1::3000"]}
    container = start(example(name), options=options.get(name, []))
    programs = {"python": "python3 -c 'print(6*7)'", "node": "node -e 'console.log(6*7)'"}
    assert container.run(programs.get(name, "echo $((6*7))"))["output"] == "42\n"
    containers.podman("healthcheck", "run", container.name)
    assert containers.inspect(container.name, "{{.State.Healthcheck.Status}}") == "healthy"
    assert container.seconds_to_end() < 2.0
    assert container.exit_code() == 0


def test_example_distroless(start, example):
    container = start(example("distroless"))
    assert container.run(argv=["/sandkeeper", "--version"])["output"].startswith("sandkeeper ")
    with pytest.raises(RpcError):
        container.run("echo hi")
    containers.podman("healthcheck", "run", container.name)


def test_the_healthcheck_fails_when_the_agent_is_stuck(start, example):
    container = start(example("busybox"))
    container.signal("STOP")
    try:
        done = containers.podman("healthcheck", "run", container.name, check=False, timeout=60)
        assert done.returncode != 0
        assert containers.inspect(container.name, "{{.State.Healthcheck.Log}}") != "[]"
    finally:
        container.signal("CONT")


def test_an_image_from_scratch_is_small(static_image):
    assert int(containers.inspect(static_image, "{{.Size}}")) <= 1_000_000


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "command"), [("Dockerfile.static", None), ("Dockerfile", "echo hi")])
def test_dockerfile(start, name, command):
    image = f"from-{name.lower()}"
    containers.build(image, os.path.join(DOCKER, name), containers.ROOT)
    container = start(image)
    words = {"command": command} if command else {"argv": ["/sandkeeper", "--version"]}
    assert container.run(**words)["exit_code"] == 0
    containers.podman("healthcheck", "run", container.name)
    if name == "Dockerfile.static":
        assert int(containers.inspect(image, "{{.Size}}")) <= 1_000_000


def test_install_brings_the_agent_by_a_volume(start, static_image, volume):
    for _ in range(2):  # a second time replaces it
        done = containers.podman("run", "--rm", "-v", f"{volume}:/agent", static_image, "install", "/agent")
        assert done.stdout == "installed /agent/sandkeeper\n"
    container = start(
        "test/python", "--grace", "1s", options=["-v", f"{volume}:/agent:ro", "--entrypoint", "/agent/sandkeeper"]
    )
    assert container.run("python3 -c 'print(1)'")["output"] == "1\n"
    done = container.exec("/agent/sandkeeper", "health")
    assert re.fullmatch(r"healthy: 127\.0\.0\.1:4001: 200 \{.*\}\n", done.stdout)


def test_install_says_what_is_wrong(static_image):
    cases = [(["install"], 2), (["install", "/a/b"], 1), (["install", "/sandkeeper"], 1), (["install", "a", "b"], 2)]
    for words, code in cases:
        done = containers.podman("run", "--rm", "--no-healthcheck", static_image, *words, check=False)
        assert done.returncode == code, words
        assert len(done.stderr.splitlines()) == 1


def test_health_says_what_is_wrong(static_image):
    cases = [([], 1), (["--url", "nonsense"], 2), (["--timeout", "-1"], 2), (["--what"], 2), (["--url", "unix:/no"], 1)]
    for words, code in cases:
        done = containers.podman("run", "--rm", "--no-healthcheck", static_image, "health", *words, check=False)
        assert done.returncode == code, words
        assert len((done.stdout + done.stderr).splitlines()) == 1


def test_health_follows_the_environment(start, example):
    options = ["--env", "SANDKEEPER_PORT=4567", "--publish", "127.0.0.1::4567"]
    container = start(example("busybox"), options=options, wait=False)
    container.find_port(4567)
    container.wait_ready()
    containers.podman("healthcheck", "run", container.name)


def test_the_compose_example_is_one():
    with open(os.path.join(DOCKER, "examples", "compose.yaml"), encoding="utf-8") as file:
        services = yaml.safe_load(file)["services"]
    assert services["brought"]["entrypoint"] == ["/agent/sandkeeper"]
    assert services["agent"]["command"] == ["install", "/agent"]


def test_the_kubernetes_example_runs(static_image, tmp_path):
    """`podman kube play` runs the pod: init container, volumes, security context. What it does not know of is left out
    (secrets of the cluster, sleep hooks), and the base image is the one at hand."""
    with open(os.path.join(DOCKER, "examples", "kubernetes.yaml"), encoding="utf-8") as file:
        pod = yaml.safe_load(file)
    name = f"sandkeeper-test-{os.urandom(4).hex()}"
    pod["metadata"]["name"] = name
    container = pod["spec"]["containers"][0]
    assert {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"} <= set(container)
    for key in ("startupProbe", "readinessProbe", "lifecycle", "ports"):
        del container[key]
    container["image"] = "localhost/test/python"
    container["imagePullPolicy"] = "Never"
    pod["spec"]["initContainers"][0]["image"] = f"localhost/{static_image}"
    pod["spec"]["initContainers"][0]["imagePullPolicy"] = "Never"
    token = tmp_path / "token"
    token.write_text("sesame\n")
    token.chmod(0o644)
    for volume in pod["spec"]["volumes"]:
        if volume["name"] == "token":
            del volume["secret"]
            volume["hostPath"] = {"path": str(tmp_path), "type": "Directory"}
    path = tmp_path / "pod.yaml"
    path.write_text(yaml.safe_dump(pod))
    tmp_path.chmod(0o755)
    containers.podman("kube", "play", str(path))
    inside = f"{name}-{container['name']}"
    try:
        wait_until(
            lambda: containers.podman("exec", inside, "/agent/sandkeeper", "health", check=False).returncode == 0, 20,
            lambda: containers.podman("logs", inside, check=False),
        )  # fmt: skip
        assert containers.inspect(inside, "{{.HostConfig.ReadonlyRootfs}}") == "true"
        assert containers.podman("exec", inside, "id", "-u").stdout == "1000\n"
        # With a token configured everything else is closed.
        script = (
            "import socket; s = socket.create_connection(('127.0.0.1', 4001));"
            "s.sendall(b'GET /metrics HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n'); print(s.recv(12))"
        )
        assert "401" in containers.podman("exec", inside, "python3", "-c", script).stdout
    finally:
        containers.podman("pod", "rm", "--force", "--time", "0", name, check=False)
