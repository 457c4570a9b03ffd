"""Cases 14 to 17 of what goes wrong with output."""

import base64

import pytest

from helpers.agent import rounds


@pytest.mark.timeout(300)
def test_case_14_the_last_bytes_before_the_exit(client):
    expected = "".join(f"{n:07d}\n" for n in range(1, 25_001))
    assert len(expected) == 200_000
    for _ in range(rounds(1000)):
        call = client.start_exec("seq -f %07.0f 1 25000")
        result = call.result()
        assert call.names()[-1] == "exec.done"
        assert call.text() == expected
        assert result["output"] == expected and call.notifications[-1][1]["output"] == expected
        client.forget(call)


def test_case_14_a_short_word_before_the_exit(client):
    for _ in range(rounds(1000)):
        call = client.start("exec", {"argv": ["/bin/echo", "hello"]})
        result = call.result()
        assert call.names() == ["exec.start", "exec.stdout", "exec.done"]
        assert call.text() == result["output"] == "hello\n"
        client.forget(call)


def test_case_14_on_both_streams_at_once(client):
    calls = [client.start_exec("seq 1 10000 & seq 1 10000 >&2; wait", output="split") for _ in range(rounds(100))]
    expected = "".join(f"{n}\n" for n in range(1, 10_001))
    for call in calls:
        result = call.result(60)
        assert call.names()[-1] == "exec.done"
        assert call.text() == call.text("stderr") == result["stdout"] == result["stderr"] == expected


EXACT = {
    "no newline": b"abc",
    "blank lines": b"\n\n a \n\n",
    "CRLF": b"a\r\nb\r\n\r",
    "NUL inside": b"a\0b\0\0c\n",
    "NUL only": b"\0",
    "many NUL": b"\0" * 1000,
    "control characters": bytes(range(1, 32)) + b"\x7f",
    "quotes": b"\"'\\/\b\f\t",
    "escapes": b"\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "line separators": "\u2028\u2029\x85".encode(),
    "beyond the BMP": "😀𝄞\U0010ffff".encode(),
    "byte order mark": "\ufeffa".encode(),
    "no characters": "\ufffe\uffff\ufdd0".encode(),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_case_15_text_is_byte_equal(client, name, stream):
    content = EXACT[name]
    octal = "".join(f"\\{byte:03o}" for byte in content)
    command = f"printf '{octal}'" + (" >&2" if stream == "stderr" else "")
    call = client.start_exec(command)
    result = call.result()
    assert call.text(stream).encode() == content
    assert result["output"].encode() == content
    assert result[f"{stream}_bytes"] == len(content)
    exact = client.exec(command, encoding="base64")
    assert base64.b64decode(exact["output"]) == content


def test_case_16_a_character_is_never_cut_at_a_read_border(client):
    for shift in ("", "x", "xx"):
        call = client.start_exec(f"printf '{shift}'; yes ☕ | tr -d '\\n' | head -c 300000")
        result = call.result()
        assert call.text() == result["output"] == shift + "☕" * 100_000


def test_case_16_a_character_written_in_two_pieces(client):
    call = client.start_exec("printf '\\342'; sleep .2; printf '\\230\\225'")
    result = call.result()
    assert result["output"] == "☕"
    assert [params["data"] for name, params in call.notifications if name == "exec.stdout"] == ["☕"]


def test_case_16_a_character_written_byte_by_byte_between_others(client):
    call = client.start_exec("printf 'a\\360'; sleep .1; printf '\\237'; sleep .1; printf '\\230'; sleep .1; printf '\\200b'")
    result = call.result()
    assert result["output"] == call.text() == "a😀b"
    assert "\ufffd" not in call.text()


def test_case_16_pieces_of_both_streams_do_not_mix(client):
    command = "printf '\\342'; printf '\\303' >&2; sleep .1; printf '\\230\\225'; printf '\\274' >&2"
    call = client.start_exec(command, output="split")
    result = call.result()
    assert (call.text(), call.text("stderr")) == ("☕", "ü")
    assert (result["stdout"], result["stderr"]) == ("☕", "ü")


@pytest.mark.parametrize("piece, expected", [("\\342", 1), ("\\342\\230", 1), ("\\360\\237\\230", 1), ("\\303", 1)])
def test_case_16_a_truncated_character_at_the_end(client, piece, expected):
    call = client.start_exec(f"printf 'end{piece}'")
    result = call.result()
    assert call.text() == result["output"] == "end" + "\ufffd" * expected
    assert call.names()[-1] == "exec.done"


INVALID = {
    "a\\377b\\000c": "a\ufffdb\0c",
    "\\377\\376": "\ufffd\ufffd",
    "\\342\\230a": "\ufffda",
    "\\200\\277": "\ufffd\ufffd",
    "\\300\\257": "\ufffd\ufffd",
    "\\355\\240\\200": "\ufffd\ufffd\ufffd",
    "\\364\\220\\200\\200": "\ufffd\ufffd\ufffd\ufffd",
    "\\370\\210\\200\\200\\200": "\ufffd" * 5,
    "x\\342\\202\\342\\202\\254y": "x\ufffd€y",
}


@pytest.mark.parametrize("octal", INVALID)
def test_case_17_invalid_bytes_do_not_break_the_stream(client, octal):
    call = client.start_exec(f"printf '{octal}'")
    result = call.result()
    assert call.text() == result["output"] == INVALID[octal]
    assert call.names()[-1] == "exec.done"


def test_case_17_random_bytes(client):
    """What Python's decoder makes of them, in one piece, is what comes."""
    call = client.start_exec("head -c 400000 /dev/urandom | tee random", encoding="base64")
    content = base64.b64decode(call.result()["output"])
    again = client.start_exec("cat random")
    result = again.result()
    expected = content.decode("utf-8", errors="replace")
    assert again.text() == expected
    assert result["output"] == expected


def test_case_17_random_bytes_written_in_small_pieces(client):
    call = client.start_exec("dd if=/dev/urandom bs=7 count=3000 status=none of=pieces; dd if=pieces bs=7 status=none")
    call.result()
    content = base64.b64decode(client.exec("cat pieces", encoding="base64")["output"])
    assert call.text() == content.decode("utf-8", errors="replace")


def test_offsets_count_the_bytes_of_each_stream(client):
    call = client.start_exec("for n in 1 2 3; do printf '☕'; printf 'ab' >&2; sleep 0.1; done")
    call.result()
    for stream, size in (("stdout", 3), ("stderr", 2)):
        offsets = [params["offset"] for name, params in call.notifications if name == f"exec.{stream}"]
        assert offsets == [0, size, 2 * size]


def test_output_of_many_commands_at_once(client):
    calls = [client.start_exec(f"yes {n} | head -c 100000") for n in range(50)]
    for n, call in enumerate(calls):
        expected = (f"{n}\n" * 50_001)[:100_000]
        assert call.result(60)["output"] == expected
        assert call.text() == expected
