"""The control-plane calls of docs/protocol.md, section 6, as a client sends them."""

import json
from urllib.parse import quote

JSON = {"Content-Type": "application/json"}

_WRITABLE_CGROUP = r"""
mount -t tmpfs none /sys/fs/cgroup && cd /sys/fs/cgroup || exit 99
path=$(sed -n 's/^0:://p' /proc/self/cgroup); mkdir -p ".$path"
echo max 100000 > ".$path/cpu.max"; echo max > ".$path/memory.max"; echo 10485760 > ".$path/memory.current"
cd "$1" && shift && exec "$@"
"""


def with_limits(directory):
    """A prefix for an Agent that may set limits: in a mount namespace of its own, /sys/fs/cgroup looks like a cgroup v2
    of which 10 MiB are in use. Such tests are marked `mount`."""
    return ["unshare", "--mount", "sh", "-c", _WRITABLE_CGROUP, "sh", str(directory)]


class Answer:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.text = body.decode("utf-8")  # strict
        self.json = json.loads(self.text) if self.text else None

    @property
    def data(self):
        """Of a call that went well: the envelope is checked, the data returned."""
        assert self.status == 200, f"{self.status}: {self.text}"
        assert self.json["code"] == 0 and self.json["message"] == "ok" and self.json["request_id"], self.text
        return self.json["data"]

    def fails(self, status, *words):
        """Of a call that was refused: HTTP status, the same code in the body, and a message that has the words."""
        assert self.status == status, f"{self.status}: {self.text}"
        assert self.json["code"] == status, self.text
        for word in words:
            assert word in self.json["message"], self.json["message"]
        return self.json["message"]


class Control:
    def __init__(self, agent, sandbox_id="box"):
        self.agent = agent
        self.id = sandbox_id

    def call(self, method, path, body=None, headers=None, timeout=30.0):
        """`body`: an object, sent as JSON; str and bytes are sent as they are."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if body is not None:
            headers = {**JSON, **headers}
        return Answer(*self.agent.http(method, path, body, headers, timeout))

    def path(self, call="", plural=False):
        return f"/api/v1/sandbox{'es' if plural else ''}/{quote(self.id, safe='')}{call}"

    def create(self, user_id="ann", **fields):
        return self.call("POST", "/api/v1/sandbox/create", {"user_id": user_id, **fields})

    def list(self, **filters):
        return self.call("POST", "/api/v1/sandbox/list", filters)

    def info(self):
        return self.call("GET", self.path()).data

    def post(self, call, body=None, **options):
        return self.call("POST", self.path("/" + call), body, **options)

    def stop(self):
        return self.post("stop", {})

    def start(self):
        return self.post("start", {})

    def restart(self):
        return self.post("restart", {})

    def extend(self, **body):
        return self.post("extend", body)

    def configure(self, *payloads):
        return self.post("configure", {"payloads": list(payloads)} if payloads else {})

    def update(self, **body):
        return self.call("PATCH", self.path(), body)

    def delete(self):
        return self.call("DELETE", self.path())
