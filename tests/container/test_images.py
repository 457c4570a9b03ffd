"""The Dockerfiles, the examples and the ways into an image, as docs/containers.md says."""

import os
import re

import podman as containers
import pytest
import yaml
from helpers.client import RpcError

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


def _as_podman_options(pod, container, volumes):
    """What a kubelet makes of one container of the pod, as far as the agent notices."""
    security = {**pod["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] and security["allowPrivilegeEscalation"] is False
    options = ["--user", f"{security['runAsUser']}:{security['runAsGroup']}", "--security-opt", "no-new-privileges"]
    options += [f"--cap-drop={name}" for name in security["capabilities"]["drop"]]
    options += ["--read-only", "--read-only-tmpfs=false"] if security["readOnlyRootFilesystem"] else []
    for mount in container["volumeMounts"]:
        options += ["-v", f"{volumes[mount['name']]}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"]
    for variable in container.get("env", []):
        options += ["--env", f"{variable['name']}={variable.get('value', 'from-the-pod')}"]
    return options


def test_the_kubernetes_example_runs(start, static_image, tmp_path):
    with open(os.path.join(DOCKER, "examples", "kubernetes.yaml"), encoding="utf-8") as file:
        pod = yaml.safe_load(file)["spec"]
    tmp_path.chmod(0o755)
    volumes = {}
    for volume in pod["volumes"]:
        path = volumes[volume["name"]] = tmp_path / volume["name"]
        path.mkdir()
        os.chown(path, 0, pod["securityContext"]["fsGroup"])
        path.chmod(0o2775)
    (volumes["token"] / "token").write_text("sesame\n")

    (init,) = pod["initContainers"]
    options = _as_podman_options(pod, init, volumes)
    done = containers.podman("run", "--rm", "--no-healthcheck", *options, static_image, *init["args"])
    assert done.stdout == "installed /agent/sandkeeper\n"

    (sandbox,) = pod["containers"]
    command, *arguments = sandbox["command"]
    options = [*_as_podman_options(pod, sandbox, volumes), "--entrypoint", command]
    container = start("test/python", *arguments, options=options)
    for probe in ("startupProbe", "readinessProbe"):
        assert container.http("GET", sandbox[probe]["httpGet"]["path"])[0] == 200
    assert container.exec(*sandbox["livenessProbe"]["exec"]["command"]).stdout.startswith("healthy")
    assert container.http("GET", "/metrics")[0] == 401
    with container.connect(token="sesame") as client:
        client.call("write", {"path": "file", "content": "kept\n"})
        assert client.exec("cat /work/file; id -u; echo $SANDBOX_ID")["output"] == "kept\n1000\nfrom-the-pod\n"
        assert "sesame" not in client.exec("env")["output"]
    assert container.seconds_to_end() < pod["terminationGracePeriodSeconds"]
    assert container.exit_code() == 0
