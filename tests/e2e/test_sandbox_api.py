"""The control-plane calls, docs/protocol.md section 6: what they answer, and every way in which they refuse."""

import concurrent.futures
import datetime
import json
import urllib.parse

import pytest

from helpers.control import Answer, Control

INFO = {
    "id": str,
    "user_id": str,
    "namespace": str,
    "status": str,
    "ip": str,
    "preview_url": str,
    "preview_host": str,
    "port": int,
    "image_tag": str,
    "spec": dict,
    "labels": dict,
    "created_at": str,
    "allocated_at": str,
    "expire_at": str,
    "last_active_at": str,
}

# Every call that names a sandbox: path behind the id, and its methods.
CALLS = {
    "": ["GET", "HEAD", "PATCH", "DELETE"],
    "/stop": ["POST"],
    "/start": ["POST"],
    "/restart": ["POST"],
    "/extend": ["POST"],
    "/configure": ["POST"],
}


def parse_time(text):
    assert text.endswith("Z")
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))


@pytest.fixture
def box(start_agent):
    """The calls to a fresh agent whose sandbox is named box."""
    return Control(start_agent("--sandbox-id", "box"))


# What a client is told


def test_info(box):
    info = box.info()
    assert {name: type(value) for name, value in info.items()} == INFO
    assert info["id"] == "box" and info["user_id"] == "" and info["status"] == "active"
    assert info["spec"] == {} and info["labels"] == {}
    assert info["allocated_at"] == "" and info["expire_at"] == ""
    assert info["port"] == box.agent.port
    assert info["preview_url"] == f"http://127.0.0.1:{box.agent.port}" and info["preview_host"] == ""
    age = datetime.datetime.now(datetime.timezone.utc) - parse_time(info["created_at"])
    assert datetime.timedelta(0) <= age < datetime.timedelta(minutes=2)
    assert parse_time(info["last_active_at"]) >= parse_time(info["created_at"])


def test_both_spellings_and_head(box):
    assert box.call("GET", box.path(plural=True)).data["id"] == "box"
    assert box.call("GET", box.path() + "/").data["id"] == "box"
    head = box.call("HEAD", box.path())
    assert head.status == 200 and head.text == "" and int(head.headers["Content-Length"]) > 100


def test_preview_options(start_agent):
    agent = start_agent("--preview-url", "https://box.example/x", "--preview-host", "box.example", "--sandbox-id", "box")
    info = Control(agent).info()
    assert info["preview_url"] == "https://box.example/x" and info["preview_host"] == "box.example"


def test_last_active_moves_with_commands(box):
    before = box.info()["last_active_at"]
    with box.agent.connect() as client:
        client.exec("sleep 0.05")
        after = box.info()["last_active_at"]
        assert parse_time(after) > parse_time(before)
        assert box.info()["last_active_at"] == after  # looking is no activity
        client.call("exec", {"command": "sleep 60", "detached": True})
        assert parse_time(box.info()["last_active_at"]) >= parse_time(after)


def test_request_id(box):
    ids = {box.call("GET", box.path()).json["request_id"] for _ in range(5)}
    assert len(ids) == 5
    assert box.call("GET", box.path(), headers={"X-Request-ID": "mine-1.2:3_4"}).json["request_id"] == "mine-1.2:3_4"
    for odd in ('a"b', "a b", "x" * 129):
        assert box.call("GET", box.path(), headers={"X-Request-ID": odd}).json["request_id"] != odd
    assert box.call("GET", "/api/v1/sandbox/none", headers={"X-Request-ID": "e"}).json["request_id"] == "e"


@pytest.mark.parametrize("sandbox_id", ["create", "list", "a b", "ü/☕", "%41", "a?b#c&d=e", "'\"\\", "..", "x" * 200])
def test_odd_ids(start_agent, sandbox_id):
    box = Control(start_agent("--sandbox-id", sandbox_id), sandbox_id)
    assert box.info()["id"] == sandbox_id
    assert box.call("GET", box.path(plural=True)).data["id"] == sandbox_id
    assert box.stop().data["status"] == "stopped"
    assert box.start().data["status"] == "active"
    assert box.create().data["sandbox"]["id"] == sandbox_id
    assert box.list().data["items"][0]["id"] == sandbox_id
    for plural in (False, True):
        with box.agent.connect(box.path("/connect", plural)) as client:
            assert client.exec("echo $SANDBOX_ID")["output"] == f"{sandbox_id}\n"


# Claiming it


def test_create(box):
    before = datetime.datetime.now(datetime.timezone.utc)
    data = box.create("ann", labels={"team": "red", "a\"b": "☕"}, ttl_hours=2, spec={"image": "debian:12"}).data
    info = data["sandbox"]
    assert data["warnings"] == []
    assert info["user_id"] == "ann" and info["labels"] == {"team": "red", "a\"b": "☕"}
    assert info["spec"] == {"image": "debian:12"} and info["status"] == "active"
    allocated = parse_time(info["allocated_at"])
    assert parse_time(info["expire_at"]) - allocated == datetime.timedelta(hours=2)
    assert datetime.timedelta(seconds=-1) < allocated - before < datetime.timedelta(minutes=1)
    assert box.info() == info


def test_create_again_changes_nothing(box):
    first = box.create("ann", labels={"a": "1"}, ttl_hours=1).data["sandbox"]
    again = box.create("ann", labels={"a": "2", "b": "3"}, ttl_hours=20, spec={"image": "other"}).data["sandbox"]
    assert {**again, "last_active_at": ""} == {**first, "last_active_at": ""}
    assert "ann" in box.create("bob").fails(409, "box", "ann")
    assert box.info()["user_id"] == "ann"


def test_fifty_creates_at_once_claim_it_once(box):
    payload = {"api": "/files?path=claims&append=1", "body": "claimed\n"}
    users = ["ann", "bob"] * 25
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda user: box.create(user, payloads=[payload], labels={"of": user}), users))
    owner = box.info()["user_id"]
    assert owner in ("ann", "bob")
    for user, answer in zip(users, answers):
        if user == owner:
            assert answer.data["sandbox"]["labels"] == {"of": owner}
        else:
            answer.fails(409, owner)
    with open(f"{box.agent.workdir}/claims", encoding="utf-8") as file:
        assert file.read() == "claimed\n"


# Lists


FILTERS = [
    ({}, 1, 1),
    ({"user_id": "ann"}, 1, 1),
    ({"user_id": "bob"}, 0, 0),
    ({"status": "active"}, 1, 1),
    ({"status": "stopped"}, 0, 0),
    ({"status": "unheard of"}, 0, 0),
    ({"user_id": "ann", "status": "active"}, 1, 1),
    ({"user_id": "", "status": ""}, 1, 1),
    ({"limit": 1}, 1, 1),
    ({"limit": 5, "offset": 0}, 1, 1),
    ({"offset": 1}, 1, 0),
    ({"offset": 1000, "limit": 1000}, 1, 0),
]


@pytest.mark.parametrize("filters, total, shown", FILTERS)
def test_list(box, filters, total, shown):
    box.create("ann")
    query = urllib.parse.urlencode(filters)
    answers = [box.list(**filters), box.call("GET", f"/api/v1/sandboxes?{query}")]
    if not set(filters) == {"user_id"}:
        answers.append(box.call("POST", "/api/v1/sandboxes", filters))
    for answer in answers:
        data = answer.data
        assert [item["id"] for item in data["items"]] == ["box"] * shown
        assert data["pagination"] == {
            "total": total,
            "limit": filters.get("limit", 20),
            "offset": filters.get("offset", 0),
            "has_more": False,
        }


def test_nobodys_sandbox_is_in_no_users_list(box):
    assert box.list(user_id="ann").data["items"] == []
    assert len(box.list().data["items"]) == 1


@pytest.mark.parametrize(
    "body, sides",
    [
        ({}, {"items"}),
        ({"status": "active"}, {"items"}),
        ({"limit": 3}, {"items"}),
        ({"offset": 0}, {"items"}),
        ({"user_id": "ann", "limit": 3}, {"items"}),
        ({"user_id": "ann"}, {"sandbox", "items"}),
        ({"user_id": "ann", "unknown": 1}, {"sandbox", "items"}),
        ({"user_id": "ann", "labels": {}}, {"sandbox"}),
        ({"user_id": "ann", "spec": {}}, {"sandbox"}),
        ({"user_id": "ann", "payloads": []}, {"sandbox"}),
        ({"user_id": "ann", "ttl_hours": 1, "limit": 3}, {"sandbox"}),
    ],
)
def test_one_path_for_create_and_list(box, body, sides):
    data = box.call("POST", "/api/v1/sandboxes", body).data
    assert {"sandbox", "items"} & set(data) == sides
    assert ("pagination" in data) == ("items" in sides)
    assert box.info()["user_id"] == ("ann" if "sandbox" in sides else "")
    if sides == {"sandbox", "items"}:
        assert data["items"] == [data["sandbox"]]


def test_one_path_refuses_like_create(box):
    box.call("POST", "/api/v1/sandboxes", {"labels": {}}).fails(400, "user_id")
    box.call("POST", "/api/v1/sandboxes", {"user_id": ""}).fails(400, "user_id")
    box.create("ann")
    box.call("POST", "/api/v1/sandboxes", {"user_id": "bob"}).fails(409, "ann")


# Times


@pytest.mark.parametrize(
    "body, hours",
    [({}, 12), ({"hours": 0}, 12), ({"hours": 1}, 1), ({"hours": 100}, 100), ({"seconds": 1800}, 0.5), ({"seconds": 86400}, 24)],
)
def test_extend(box, body, hours):
    before = datetime.datetime.now(datetime.timezone.utc)
    first = parse_time(box.extend(**body).data["expire_at"])
    span = datetime.timedelta(hours=hours)
    assert datetime.timedelta(seconds=-1) < first - before - span < datetime.timedelta(minutes=1)
    assert parse_time(box.extend(**body).data["expire_at"]) - first == span
    assert parse_time(box.info()["expire_at"]) - first == span


# Refusals

WRONG_CREATES = [
    ({}, "user_id"),
    ({"user_id": ""}, "user_id"),
    ({"user_id": None}, "user_id"),
    ({"user_id": 5}, "user_id"),
    ({"user_id": ["ann"]}, "user_id"),
    ({"user_id": "a\0b"}, "user_id"),
    ({"user_id": "a" * 1025}, "user_id"),
    ({"user_id": "ann", "ttl_hours": -1}, "ttl_hours"),
    ({"user_id": "ann", "ttl_hours": 1.5}, "ttl_hours"),
    ({"user_id": "ann", "ttl_hours": "1"}, "ttl_hours"),
    ({"user_id": "ann", "ttl_hours": 10**9}, "ttl_hours"),
    ({"user_id": "ann", "labels": []}, "labels"),
    ({"user_id": "ann", "labels": {"a": 1}}, 'labels: "a"'),
    ({"user_id": "ann", "labels": {"a": None}}, 'labels: "a"'),
    ({"user_id": "ann", "labels": {str(i): "" for i in range(257)}}, "labels"),
    ({"user_id": "ann", "spec": "big"}, "spec"),
    ({"user_id": "ann", "spec": {"cpu": 2}}, "cpu"),
    ({"user_id": "ann", "spec": {"cpu": "two"}}, "spec.cpu"),
    ({"user_id": "ann", "spec": {"cpu": "0"}}, "spec.cpu"),
    ({"user_id": "ann", "spec": {"cpu": "1m"}}, "spec.cpu"),
    ({"user_id": "ann", "spec": {"cpu": "1001"}}, "spec.cpu"),
    ({"user_id": "ann", "spec": {"memory": "4GB"}}, "spec.memory"),
    ({"user_id": "ann", "spec": {"memory": "-1Gi"}}, "spec.memory"),
    ({"user_id": "ann", "payloads": {}}, "payloads"),
    ({"user_id": "ann", "payloads": ["x"]}, "payloads[0]"),
    ({"user_id": "ann", "payloads": [{}]}, "payloads[0]: api"),
    ({"user_id": "ann", "payloads": [{"api": "/nowhere", "body": {}}]}, "/nowhere"),
]


@pytest.mark.parametrize("body, word", WRONG_CREATES)
def test_wrong_create(box, body, word):
    box.call("POST", "/api/v1/sandbox/create", body).fails(400, word)
    assert box.info()["user_id"] == ""


@pytest.mark.parametrize(
    "body, word",
    [
        ({"hours": -1}, "hours"),
        ({"hours": "1"}, "hours"),
        ({"hours": 0.5}, "hours"),
        ({"hours": 10**7}, "hours"),
        ({"seconds": 0}, "seconds"),
        ({"seconds": -5}, "seconds"),
        ({"seconds": 86401}, "seconds"),
        ({"seconds": "60"}, "seconds"),
        ({"hours": 1, "seconds": 60}, "not both"),
    ],
)
def test_wrong_extend(box, body, word):
    box.extend(**body).fails(400, word)
    assert box.info()["expire_at"] == ""


@pytest.mark.parametrize(
    "field, values",
    [("user_id", [5, {}]), ("status", [5, True]), ("limit", [-1, 1001, "5", 1.5]), ("offset", [-1, "0", 10**10])],
)
def test_wrong_list(box, field, values):
    for value in values:
        box.list(**{field: value}).fails(400, field)


@pytest.mark.parametrize("query", ["limit=-1", "limit=1001", "limit=x", "limit=1.5", "offset=%2B1", "offset=99999999999999999999"])
def test_wrong_list_query(box, query):
    box.call("GET", f"/api/v1/sandboxes?{query}").fails(400, query.split("=")[0])
    box.call("GET", f"/api/v1/sandboxes?user_id=a%00b").fails(400, "user_id")


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b" {} "])
def test_bodies_that_say_nothing(box, body):
    assert box.post("stop", body).data["status"] == "stopped"
    assert box.post("start", body).data["status"] == "active"


POSTS = ["/api/v1/sandbox/create", "/api/v1/sandbox/list", "/api/v1/sandboxes"]
POSTS += [f"/api/v1/sandbox/box{call}" for call in CALLS if call]


@pytest.mark.parametrize("path", [*POSTS, "/api/v1/env"])
def test_bodies_that_are_no_object(box, path):
    for body in (b"{", b"x", b"[]", b'"text"', b"5", b"{}{}", b'{"a":}', b"\xff\xfe", b'{"a":"\xff"}', b"[" * 100):
        box.call("POST", path, body).fails(400, "body")
    assert box.info()["status"] == "active"


@pytest.mark.parametrize("path", [*POSTS, "/api/v1/env"])
def test_content_types(box, path):
    for wrong in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", "multipart/form-data; boundary=x"):
        box.call("POST", path, {}, {"Content-Type": wrong}).fails(415, "Content-Type", wrong[:20])
    right = ("application/json; charset=utf-8", "Application/JSON", "application/problem+json", "application/json;")
    for content_type in right:
        assert box.call("POST", path, {}, {"Content-Type": content_type}).status != 415
    assert box.call("POST", path).status != 415  # without a body there is no type


@pytest.mark.parametrize("path", POSTS)
def test_too_long_bodies(box, path):
    body = json.dumps({"unknown": "x" * (256 * 1024)})
    box.call("POST", path, body).fails(413, str(256 * 1024))
    fits = json.dumps({"unknown": "x" * (256 * 1024 - 20)})
    assert box.call("POST", path, fits).status != 413


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def test_methods(box, call, method):
    path = box.path(call)
    if method in CALLS[call]:
        box.call(method, f"/api/v1/sandbox/other{call}", {}) if method == "HEAD" else box.call(
            method, f"/api/v1/sandbox/other{call}", {}
        ).fails(404, "other", "box")
        return
    answer = box.call(method, path, {})
    assert answer.status == 405 and answer.headers["Allow"] == ", ".join(CALLS[call])
    if method != "HEAD":
        answer.fails(405, method)


@pytest.mark.parametrize(
    "method, path, allow",
    [
        ("GET", "/api/v1/sandbox/create", "POST"),
        ("DELETE", "/api/v1/sandbox/list", "POST"),
        ("PUT", "/api/v1/sandboxes", "GET, HEAD, POST"),
        ("PATCH", "/api/v1/sandboxes", "GET, HEAD, POST"),
        ("POST", "/admin/pool/status", "GET, HEAD"),
        ("PUT", "/admin/pool/status", "GET, HEAD"),
        ("DELETE", "/admin/rolling/start", "POST"),
        ("GET", "/admin/rolling/start", "POST"),
    ],
)
def test_methods_of_the_others(box, method, path, allow):
    answer = box.call(method, path)
    answer.fails(405, method)
    assert answer.headers["Allow"] == allow


@pytest.mark.parametrize(
    "path",
    ["/api/v1/sandbox/box/nothing", "/api/v1/sandbox/box/stop/now", "/api/v1/sandbox//box", "/api/v1/sandbox/box//stop",
     "/api/v1/sandboxes/create", "/api/v1/sandboxes/box/nothing", "/api/v1/sandboxx", "/api/v1/sandbox/Box",
     "/api/v1/sandbox/bo", "/api/v1/sandbox/boxx", "/api/v1/sandbox/box%00", "/api/v1/sandbox/" + "x" * 3000,
     "/admin/pool", "/admin/nothing", "/admin/"],
)  # fmt: skip
def test_paths_that_are_none(box, path):
    for method in ("GET", "POST"):
        assert box.call(method, path, {} if method == "POST" else None).fails(404)


def test_a_percent_sign_that_says_nothing(box):
    for path in ("/api/v1/sandbox/%", "/api/v1/sandbox/bo%7", "/api/v1/sandbox/%zz/stop", "/api/v1/sandboxes?user_id=%"):
        status, _, body = box.agent.http("GET", path)
        assert status == 400 and json.loads(body)["code"] == 400
    assert box.call("GET", "/api/v1/sandbox/%62%6f%78").data["id"] == "box"


def test_refused_calls_change_nothing_and_the_next_ones_work(box):
    for _ in range(20):
        box.call("POST", "/api/v1/sandbox/create", b"{").fails(400)
    assert box.create().data["sandbox"]["user_id"] == "ann"


# The pool


def test_pool_status(box):
    expected = {
        "total": 1,
        "active": 1,
        "warm": 0,
        "creating": 0,
        "deleting": 0,
        "deleted": 0,
        "warm_pool_size": 0,
        "max_total": 1,
        "utilization": 1,
        "warm_ratio": 0,
        "healthy": True,
        "health_message": "",
        "last_scale_at": None,
        "last_allocate_at": None,
    }
    assert box.call("GET", "/admin/pool/status").data == expected
    allocated = box.create().data["sandbox"]["allocated_at"]
    box.stop()
    stopped = {**expected, "active": 0, "utilization": 0, "last_allocate_at": allocated}
    assert box.call("GET", "/admin/pool/status").data == stopped


def test_rolling_updates(box):
    assert box.call("GET", "/admin/rolling/status").data == {"phase": "idle", "progress": 0}
    box.call("POST", "/admin/rolling/start", {"image": "new"}).fails(409, "cannot replace its own image")
    box.call("POST", "/admin/rolling/cancel").fails(409, "no rolling update")


def test_all_of_it_needs_the_token(start_agent, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret-of-this-test\n")
    box = Control(start_agent("--sandbox-id", "box", "--token-file", str(token)))
    calls = [(method, box.path(call)) for call, methods in CALLS.items() for method in methods if method != "HEAD"]
    calls += [("POST", path) for path in POSTS] + [("GET", "/api/v1/sandboxes"), ("POST", "/api/v1/env")]
    calls += [("GET", "/admin/pool/status"), ("POST", "/admin/rolling/start")]
    for method, path in calls:
        status, _, body = box.agent.http(method, path, "{}", {"Content-Type": "application/json"})
        assert status == 401 and json.loads(body)["code"] == 401, path
    answer = Answer(*box.agent.http("GET", box.path(), headers={"Authorization": "Bearer secret-of-this-test"}))
    assert answer.data["status"] == "active"
