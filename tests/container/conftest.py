"""Fixtures of the container tests: `scripts/test container` installs podman, builds the static agent and makes the base
images, then calls pytest. SANDKEEPER_STATIC names the static program (build-static/sandkeeper without it)."""

import os
import shutil
import sys
import tempfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "e2e")]

import podman as containers  # noqa: E402

STATIC = os.path.abspath(
    os.environ.get("SANDKEEPER_STATIC", os.path.join(containers.ROOT, "build-static", "sandkeeper"))
)

# How each example is built here: no registry of images is reached, so bases made of Debian's packages stand in.
EXAMPLES = {
    "python": "test/python",
    "node": "test/node",
    "alpine": "test/alpine",
    "busybox": "test/busybox",
    "distroless": "test/empty",
    "nonroot": "debian:bookworm-slim",
    "readonly": "debian:bookworm-slim",
}


def pytest_sessionstart():
    if not os.access(STATIC, os.X_OK):
        pytest.exit(f"{STATIC} is missing: scripts/build --static makes it", returncode=2)
    if shutil.which("podman") is None:
        pytest.exit("podman is missing: scripts/test container installs it", returncode=2)
    containers.remove_left_over()


def pytest_sessionfinish():
    containers.remove_left_over()


@pytest.fixture(scope="session")
def static_image():
    """`sandkeeper`: what the last stage of docker/Dockerfile.static makes, from the program built outside."""
    with open(os.path.join(containers.ROOT, "docker", "Dockerfile.static"), encoding="utf-8") as file:
        last_stage = file.read().rpartition("FROM scratch")[2]
    text = "FROM scratch" + last_stage.replace("--from=build /image/", "image/")
    with tempfile.TemporaryDirectory() as context:
        os.makedirs(os.path.join(context, "image", "work"))
        shutil.copy(STATIC, os.path.join(context, "image", "sandkeeper"))
        path = os.path.join(context, "Dockerfile")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        containers.build("sandkeeper", path, context)
    return "sandkeeper"


@pytest.fixture(scope="session")
def example(static_image):
    """example(name) -> the image of docker/examples/NAME."""
    made = {}

    def image(name):
        if name not in made:
            context = os.path.join(containers.ROOT, "docker", "examples", name)
            made[name] = f"example-{name}"
            containers.build(made[name], os.path.join(context, "Dockerfile"), context, BASE=EXAMPLES[name])
        return made[name]

    return image


@pytest.fixture
def start():
    """start(image, *arguments, ...) -> a running podman.Container, removed when the test ends."""
    started = []

    def run(image, *arguments, **options):
        container = containers.Container(image, *arguments, **options)
        started.append(container)
        return container

    yield run
    for container in started:
        container.remove()


@pytest.fixture
def volume():
    """The name of a fresh podman volume."""
    name = f"sandkeeper-test-{os.urandom(6).hex()}"
    containers.podman("volume", "create", name)
    yield name
    containers.podman("volume", "rm", "--force", name, check=False)
