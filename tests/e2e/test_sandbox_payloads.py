"""What create, update and configure carry out: payloads, the environment, and limits. docs/protocol.md section 6."""

import concurrent.futures
import json
import os

import pytest

from helpers.control import Control, with_limits
from helpers.wait import wait_until


@pytest.fixture
def box(start_agent):
    return Control(start_agent("--sandbox-id", "box"))


def env(**variables):
    return {"api": "/api/v1/env", "body": variables}


def file(path, content, query=""):
    return {"api": f"/files?path={path}{query}", "body": content}


def rpc(method, **params):
    return {"api": "/rpc", "body": {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}}


def shell(box, command):
    with box.agent.connect() as client:
        return client.exec(command)["output"]


# The environment


def test_env_is_for_later_commands(box):
    with box.agent.connect() as client:
        early = client.start_exec("read line; echo \"[$COLOR]\"", stdin=True)
        early.wait_for("exec.start")
        assert box.configure(env(COLOR="red", EMPTY="", TEXT="a b\n☕'\"$x")).data["id"] == "box"
        client.call("exec_input", {"cmd_id": early.wait_for("exec.start")["cmd_id"], "data": "\n", "eof": True})
        assert early.result()["output"] == "[]\n"
        assert client.exec("printf %s \"$TEXT\"")["output"] == "a b\n☕'\"$x"
        assert client.exec("echo $COLOR [${EMPTY-unset}]")["output"] == "red []\n"
        assert client.exec("echo $COLOR", env={"COLOR": "blue"})["output"] == "blue\n"


def test_env_in_both_places(box):
    box.configure({"api": "/api/v1/env", "envs": {"A": "1"}}).data
    box.configure({"api": "/api/v1/env", "envs": {"B": "2"}, "body": {"C": "3"}}).data
    assert shell(box, "echo $A $B ${C-unset}") == "1 2 unset\n"
    box.configure(env(A="2", B=None)).data
    assert shell(box, "echo $A ${B-unset}") == "2 unset\n"
    box.configure({"api": "/api/v1/env", "envs": {}, "body": {"A": "3"}}).data
    box.configure({"api": "/api/v1/env", "envs": {}}).data
    assert shell(box, "echo $A") == "3\n"


def test_env_route(box):
    assert box.call("POST", "/api/v1/env", {"ROUTE": "yes"}).data == {}
    assert shell(box, "echo $ROUTE") == "yes\n"
    answer = box.call("GET", "/api/v1/env")
    answer.fails(405)
    assert "POST" in answer.headers["Allow"]


WRONG_VARIABLES = [
    ({"": "x"}, "name"),
    ({"A=B": "x"}, "name"),
    ({"A": 1}, '"A"'),
    ({"A": True}, '"A"'),
    ({"A": ["x"]}, '"A"'),
    ({"A": "x\0y"}, "NUL"),
    ({"A\0B": "x"}, "NUL"),
    ({"SANDBOX_ID": "x"}, "SANDBOX_ID"),
    ({"SANDKEEPER_RUN": "x"}, "SANDKEEPER_RUN"),
]


@pytest.mark.parametrize("variables, word", WRONG_VARIABLES)
def test_wrong_variables_set_none(box, variables, word):
    variables = {"GOOD": "1", **variables}
    box.call("POST", "/api/v1/env", variables).fails(400, word)
    box.configure({"api": "/api/v1/env", "envs": variables}).fails(400, word)
    assert shell(box, "echo ${GOOD-unset}") == "unset\n"


def test_an_environment_too_large_to_start_anything_is_refused(box):
    box.call("POST", "/api/v1/env", {"BIG": "x" * 131072}).fails(413, "BIG", "131071")
    for i in range(8):
        answer = box.call("POST", "/api/v1/env", {f"BIG{i}": "x" * 130000})
        if answer.status != 200:
            break
    answer.fails(413, "524288")
    assert shell(box, "echo fine") == "fine\n"
    assert box.call("POST", "/api/v1/env", {f"BIG{n}": None for n in range(8)}).data == {}
    assert shell(box, "env | grep -c BIG") == "0\n"


# Order and failure


def test_in_order(box):
    steps = [file("log", "one\n")]
    steps += [rpc("exec", command=f"echo {word} >> log") for word in ("two", "three")]
    steps += [env(WORD="four"), rpc("exec", command="echo $WORD >> log"), file("log", "five\n", "&append=1")]
    assert box.configure(*steps).data["status"] == "active"
    assert shell(box, "cat log") == "one\ntwo\nthree\nfour\nfive\n"


def test_all_apis(box):
    box.configure(
        {"api": "/files?path=odd%20name%25&mode=0640", "body": "#!/bin/sh\n"},
        {"api": "/rpc", "body": [rpc("mkdir", path="a/b")["body"], rpc("write", path="a/b/c", content="x")["body"]]},
        {"api": "/prompt", "body": {"prompt": "hello"}},
        {"api": "/api/v1/env", "body": {}},
    ).data
    assert shell(box, "stat -c %a 'odd name%'; cat a/b/c") == "640\nx"


FAILURES = [
    (rpc("exec", command="echo why; exit 3"), "exit code 3: why"),
    (rpc("exec", command="true", working_dir="/no/such"), "/no/such"),
    (rpc("read", path="no-such-file"), "no-such-file"),
    (rpc("nothing"), "nothing"),
    ({"api": "/rpc", "body": [rpc("stat", path="/")["body"], rpc("read", path="no-such")["body"]]}, "no-such"),
    ({"api": "/rpc", "body": {"no": "request"}}, "jsonrpc"),
    (file("/proc/no/such", "x"), "/proc/no/such"),
    ({"api": "/files", "body": "x"}, "path"),
    ({"api": "/files?path=%zz", "body": "x"}, "hex"),
    ({"api": "/prompt", "body": {"prompt": ""}}, "prompt"),
]


@pytest.mark.parametrize("payload, word", FAILURES)
def test_the_first_failure_stops_and_is_named(box, payload, word):
    api = payload["api"].split("?")[0]
    message = box.configure(env(FIRST="1"), payload, env(LAST="1")).fails(400, f"payloads[1] ({api}): ", word)
    assert len(message) < 3000
    assert shell(box, "echo ${FIRST-unset} ${LAST-unset}") == "1 unset\n"


WRONG_PAYLOADS = [
    ({"api": "/nowhere", "body": {}}, "/nowhere"),
    ({"api": "/metrics"}, "/metrics"),
    ({"api": "/health"}, "/health"),
    ({"api": "/api/v1/sandbox/box/configure", "body": {}}, "configure"),
    ({"api": "/api/v1/envs", "body": {}}, "/api/v1/envs"),
    ({"api": "http://127.0.0.1/rpc", "body": {}}, "127.0.0.1"),
    ({"api": 5}, "api"),
    ({"body": {}}, "api"),
    ({"api": "/rpc"}, "body"),
    ({"api": "/rpc", "body": "text"}, "body"),
    ({"api": "/api/v1/env"}, "body"),
    ({"api": "/api/v1/env", "body": ["x"]}, "body"),
    ({"api": "/api/v1/env", "envs": ["x"]}, "envs"),
    ({"api": "/rpc", "body": {}, "envs": {"A": "1"}}, "envs"),
    ({"api": "/files?path=x", "body": {}}, "body"),
    ({"api": "/prompt", "body": []}, "body"),
    ("text", "payloads[1]"),
    (None, "payloads[1]"),
]


@pytest.mark.parametrize("payload, word", WRONG_PAYLOADS)
def test_wrong_payloads_are_seen_before_anything_is_done(box, payload, word):
    box.configure(env(FIRST="1"), payload).fails(400, "payloads[1]", word)
    box.update(payloads=[env(FIRST="1"), payload]).fails(400, "payloads[1]", word)
    box.create("ann", payloads=[env(FIRST="1"), payload]).fails(400, "payloads[1]", word)
    assert shell(box, "echo ${FIRST-unset}") == "unset\n"
    assert box.info()["user_id"] == ""


def test_at_most_64(box):
    assert box.configure(*[env(N=str(n)) for n in range(64)]).data
    assert shell(box, "echo $N") == "63\n"
    box.configure(*[env(N="65")] * 65).fails(400, "64")


def test_a_failed_create_leaves_it_unclaimed(box):
    box.create("ann", labels={"a": "1"}, ttl_hours=1, spec={"image": "x"}, payloads=[rpc("exec", command="exit 1")]).fails(
        400, "payloads[0]"
    )
    info = box.info()
    assert info["user_id"] == "" and info["labels"] == {} and info["spec"] == {}
    assert info["allocated_at"] == "" and info["expire_at"] == ""
    assert box.create("bob").data["sandbox"]["user_id"] == "bob"


def test_a_failed_create_gives_the_old_end_back(start_agent):
    box = Control(start_agent("--sandbox-id", "box", "--ttl", "1h"))
    before = box.info()["expire_at"]
    box.create("ann", ttl_hours=5, payloads=[rpc("exec", command="exit 1")]).fails(400)
    assert box.info()["expire_at"] == before


def test_large_and_loud_answers(box):
    """What a payload answers is looked at piece by piece, and however long it is only the reason is kept."""
    noise = "head -c 3000000 /dev/urandom"
    assert box.configure(rpc("exec", command=noise)).data
    message = box.configure(rpc("exec", command=f"{noise}; exit 9")).fails(400, "exit code 9")
    assert len(message) < 3000
    batch = [rpc("exec", command=noise)["body"]] * 20
    assert box.configure({"api": "/rpc", "body": batch}).data
    box.configure({"api": "/rpc", "body": [*batch, rpc("exec", command="sleep 0.1; exit 8")["body"]]}).fails(400, "exit code 8")


def test_a_failure_behind_much_talk(start_agent):
    talk = "head -c 9000000 /dev/zero | tr '\\0' x | fold -w 99; exit 7"
    box = Control(start_agent("--sandbox-id", "box", "--prompt-handler", talk))
    box.configure({"api": "/prompt", "body": {"prompt": "hi"}}).fails(400, "exited with code 7")


def test_a_payload_as_long_as_it_may_be(box):
    content = "☕" * 80000
    body = json.dumps({"payloads": [file("long", content)]}, ensure_ascii=False)
    assert box.post("configure", body.encode("utf-8")).data
    assert shell(box, "wc -c < long") == "240000\n"
    box.configure(file("long", "x" * 300000)).fails(413)


# Stored payloads


def test_configure_without_payloads_does_those_of_create_again(box):
    assert box.configure().data  # there are none
    box.create("ann", payloads=[file("log", "created\n", "&append=1")]).data
    box.configure().data
    box.post("configure").data
    assert shell(box, "cat log") == "created\n" * 3
    box.configure(file("log", "once\n", "&append=1")).data
    box.configure().data
    assert shell(box, "cat log") == "created\n" * 3 + "once\ncreated\n"
    box.update(payloads=[file("log", "updated\n", "&append=1")]).data
    box.configure().data
    assert shell(box, "tail -n 2 log") == "updated\n" * 2
    box.update(payloads=[]).data
    before = shell(box, "cat log")
    box.configure().data
    assert shell(box, "cat log") == before


# While something else happens


def test_a_stop_ends_a_payload_under_way(box):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        configure = pool.submit(box.configure, rpc("exec", command="touch up; sleep 60"), env(LAST="1"))
        wait_until(lambda: os.path.exists(f"{box.agent.workdir}/up"), what="the payload to run")
        assert box.stop().data["status"] == "stopped"
        configure.result().fails(400, "payloads[0]", "143")
    box.start()
    assert shell(box, "echo ${LAST-unset}") == "unset\n"


def test_stopped_and_configured(box):
    box.stop()
    box.configure(env(A="1")).fails(409, "stopped", "start it")
    box.configure().fails(409, "stopped")
    box.update(payloads=[env(A="1")]).fails(409, "stopped")
    assert box.info()["status"] == "stopped"


def test_a_client_that_leaves_does_not_undo_its_create(box):
    gate = f"{box.agent.workdir}/gate"
    os.mkfifo(gate)
    with pytest.raises(TimeoutError):
        body = {"user_id": "ann", "payloads": [rpc("exec", command="touch up; cat gate"), env(DONE="1")]}
        box.call("POST", "/api/v1/sandbox/create", body, timeout=0.5)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        again = pool.submit(box.create, "ann")
        with open(gate, "w", encoding="utf-8"):
            pass
        assert again.result().data["sandbox"]["user_id"] == "ann"
    assert shell(box, "echo $DONE") == "1\n"


def test_creates_wait_for_the_claim_under_way(box):
    """The first one's payloads fail: the next in line claims it."""
    gate = f"{box.agent.workdir}/gate"
    os.mkfifo(gate)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(box.create, "ann", payloads=[rpc("exec", command="touch up; cat gate; exit 1")])
        wait_until(lambda: os.path.exists(f"{box.agent.workdir}/up"), what="the payload to run")
        second = pool.submit(box.create, "bob")
        assert box.info()["user_id"] == "ann"  # answered while both wait
        with open(gate, "w", encoding="utf-8"):
            pass
        first.result().fails(400, "payloads[0]")
        assert second.result().data["sandbox"]["user_id"] == "bob"


def test_changes_are_done_one_after_the_other(box):
    def configure(n):
        return box.configure(rpc("exec", command=f"echo in {n} >> log; sleep 0.01; echo out {n} >> log"))

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        for answer in pool.map(configure, range(20)):
            assert answer.data
    lines = shell(box, "cat log").split("\n")[:-1]
    assert len(lines) == 40
    for entered, left in zip(lines[::2], lines[1::2]):
        assert entered.replace("in", "out") == left


def test_an_owner_need_not_wait_for_a_change(box):
    box.create("ann").data
    gate = f"{box.agent.workdir}/gate"
    os.mkfifo(gate)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        configure = pool.submit(box.configure, rpc("exec", command="cat gate"))
        assert box.create("ann").data["sandbox"]["user_id"] == "ann"
        box.create("bob").fails(409)
        with open(gate, "w", encoding="utf-8"):
            pass
        assert configure.result().data


def test_delete_with_a_payload_under_way(box):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        configure = pool.submit(box.configure, rpc("exec", command="touch up; sleep 60"))
        wait_until(lambda: os.path.exists(f"{box.agent.workdir}/up"), what="the payload to run")
        box.delete()
        configure.result().fails(400, "payloads[0]")
    box.agent.check_ended()


def test_term_with_a_payload_under_way(box):
    """The end comes in the middle of everything: nothing leaks and nobody is touched twice."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(box.configure, rpc("exec", command="touch up; sleep 60"), env(A="1")) for _ in range(3)]
        wait_until(lambda: os.path.exists(f"{box.agent.workdir}/up"), what="the payload to run")
        box.agent.stop()
        for call in calls:
            try:
                assert call.result().status in (400, 409, 503)
            except OSError:
                pass  # cut off by the agent's end


# Limits


def test_limits_that_cannot_be_set(box):
    """Without a cgroup of its own an update is refused; a create notes what was asked for, and says so."""
    data = box.create("ann", spec={"cpu": "500m", "memory": "1Gi"}).data
    assert data["sandbox"]["spec"] == {"cpu": "500m", "memory": "1Gi"}
    if data["warnings"]:
        box.update(spec={"cpu": "2"}).fails(409, data["warnings"][0].split(":")[0])
        assert box.info()["spec"] == {"cpu": "500m", "memory": "1Gi"}


@pytest.fixture
def limited(start_agent, tmp_path):
    """An agent that may set limits."""
    return Control(start_agent("--sandbox-id", "box", prefix=with_limits(tmp_path)))


def limits(box):
    root = f"/proc/{box.agent.pid}/root/sys/fs/cgroup"
    with open(f"/proc/{box.agent.pid}/cgroup", encoding="utf-8") as lines:
        path = next(line.removeprefix("0::").strip() for line in lines if line.startswith("0::"))

    def read(name):
        with open(f"{root}{path}/{name}", encoding="utf-8") as content:
            return content.read().split("\n")[0]

    return read("cpu.max"), read("memory.max")


@pytest.mark.mount
def test_limits(limited):
    data = limited.create("ann", spec={"cpu": "500m", "memory": "768Mi"}).data
    assert data["warnings"] == [] and data["sandbox"]["spec"] == {"cpu": "500m", "memory": "768Mi"}
    assert limits(limited) == ("50000 100000", str(768 << 20))
    assert limited.update(spec={"cpu": "2"}).data["spec"] == {"cpu": "2", "memory": "768Mi"}
    assert limits(limited) == ("200000 100000", str(768 << 20))
    assert limited.update(spec={"memory": "4Gi"}, payloads=[env(A="1")]).data["spec"] == {"cpu": "2", "memory": "4Gi"}
    assert limits(limited) == ("200000 100000", str(4 << 30))
    assert shell(limited, "echo $A") == "1\n"


@pytest.mark.mount
def test_limits_that_would_kill(limited):
    limited.update(spec={"cpu": "1", "memory": "12Mi"}).fails(409, "memory", "10485760")
    assert limits(limited) == ("max 100000", "max")
    assert limited.info()["spec"] == {}


WRONG_UPDATES = [
    ({}, 400, "at least one"),
    ({"unknown": 1}, 400, "at least one"),
    ({"spec": {}}, 400, "at least one"),
    ({"spec": {"cpu": ""}, "image": ""}, 400, "at least one"),
    ({"image": "debian:13"}, 409, "cannot change its image"),
    ({"spec": {"image": "debian:13"}}, 409, "cannot change its image"),
    ({"spec": {"cpu": "2"}, "image": "debian:13"}, 409, "cannot change its image"),
    ({"image": 5}, 400, "image"),
    ({"spec": {"cpu": "2x"}}, 400, "spec.cpu"),
    ({"spec": {"memory": "2gi"}}, 400, "spec.memory"),
    ({"spec": []}, 400, "spec"),
    ({"payloads": {}}, 400, "payloads"),
]


@pytest.mark.mount
@pytest.mark.parametrize("body, status, word", WRONG_UPDATES)
def test_wrong_updates(limited, body, status, word):
    limited.update(**body).fails(status, word)
    assert limits(limited) == ("max 100000", "max")
    assert json.dumps(limited.info()["spec"]) == "{}"
