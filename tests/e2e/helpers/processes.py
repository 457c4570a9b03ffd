"""A look into /proc. Every function takes a process that may be gone at any moment."""

import os
import re


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def cmdline(pid):
    """The words of its command line; empty for a zombie, and for a process that is gone."""
    words = _read(pid, "cmdline").split(b"\0")[:-1]
    return [word.decode(errors="replace") for word in words]


def environ(pid):
    pairs = (entry.partition(b"=") for entry in _read(pid, "environ").split(b"\0") if entry)
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def stat(pid):
    """state, ppid, pgrp, session and the used clock ticks, or None when it is gone."""
    text = _read(pid, "stat")
    if not text:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return {
        "state": fields[0].decode(),
        "ppid": int(fields[1]),
        "pgrp": int(fields[2]),
        "session": int(fields[3]),
        "ticks": int(fields[11]) + int(fields[12]),
    }


def started(pid):
    """Clock ticks since boot at its start: with the number it names a process for good. 0 when it is gone."""
    text = _read(pid, "stat")
    return int(text[text.rindex(b")") + 2 :].split()[19]) if text else 0


def is_alive(pid):
    """Runs or sleeps: neither gone nor a zombie."""
    found = stat(pid)
    return found is not None and found["state"] not in "ZX"


def children(pid):
    return [child for child in pids() if (stat(child) or {}).get("ppid") == pid]


def descendants(pid):
    found, queue = [], [pid]
    while queue:
        for child in children(queue.pop()):
            found.append(child)
            queue.append(child)
    return found


def zombies(parent):
    return [pid for pid in children(parent) if (stat(pid) or {}).get("state") == "Z"]


def with_environment(name, value):
    """Living processes that have this variable in the environment they were started with."""
    wanted = f"{name}={value}".encode()
    return [pid for pid in pids() if wanted in _read(pid, "environ").split(b"\0") and is_alive(pid)]


def with_words(*words):
    """Living processes whose command line is exactly these words."""
    return [pid for pid in pids() if cmdline(pid) == list(words) and is_alive(pid)]


def _status_kib(pid, field):
    match = re.search(rf"^{field}:\s+(\d+) kB".encode(), _read(pid, "status"), re.M)
    return int(match.group(1)) if match else 0


def rss_kib(pid):
    return _status_kib(pid, "VmRSS")


def peak_rss_kib(pid):
    return _status_kib(pid, "VmHWM")


def reset_peak_rss(pid):
    """From here on VmHWM counts anew (proc(5), clear_refs)."""
    with open(f"/proc/{pid}/clear_refs", "w") as file:
        file.write("5")


def fds(pid):
    """number -> what it points to."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            pass
    return found


def fd_count(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_seconds(pid):
    found = stat(pid)
    return found["ticks"] / os.sysconf("SC_CLK_TCK") if found else 0.0
