"""Spark's Python workers, out of a process that has loaded what they need while Spark was still starting.

For tasks in Python Spark starts a process, its daemon, and that forks a worker when one is wanted. Each worker then
loads pandas, Arrow and the rules by itself, for two seconds, and the first batch waits. Here a process loads them as
soon as there is a job, and waits for Spark's daemon to hand it what Spark has given that: streams, environment, place.
From then on it is the daemon, and forks workers that have everything. The daemon that Spark knows waits for its end.

    the job ──starts──► this, which loads ◄──streams── Spark's daemon ◄──starts── Spark's JVM
                             └──forks──► workers

Where there is none, or it has ended, or is of another Python, or a daemon already, Spark's daemon is as it always is.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Where it waits, in the environment of Spark's JVM.
PLACE = "PURGATORY_WORKERS"
# What tells this process from Spark's daemon.
_READY = "ready"
_LOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.state",
    "purgatory_udf.streaming.stateful_adapter",
    "purgatory_udf.streaming.partition_rules",
    "purgatory_udf.streaming.group_rules",
)
_RULES = "purgatory_udf.rules.warm_up"
_ROOT = Path(__file__).resolve().parents[2]
_STREAMS = (0, 1, 2)
_TAKEN = b"taken"
_AT_ONCE = 1 << 16


def begin(place: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Load, and wait at that place. It ends when its stdin does, unless it has become Spark's daemon."""
    # As Spark gives its workers: a task is a core.
    given = {"OMP_NUM_THREADS": "1", **environ, "PYTHONUNBUFFERED": "YES"}
    given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", __name__, _READY, place]
    # A group of its own, as Spark's daemon has: what interrupts the job is not meant for it.
    return subprocess.Popen(command, env=given, stdin=subprocess.PIPE, process_group=0)


def main(arguments: Sequence[str]) -> None:
    if arguments[:1] == [_READY]:
        _ready(arguments[1])
    else:
        _be_daemon(os.environ.get(PLACE))


def _ready(place: str) -> None:
    with socket.socket(socket.AF_UNIX) as waiting:
        try:
            waiting.bind(f"{place}.")
            waiting.listen(1)
            # Whoever finds it is heard.
            os.rename(f"{place}.", place)
        except OSError:
            # Whoever began it has ended, with the folder; or the place has too long a name.
            return
        _load()
        here = waiting.fileno()
        readable, _, _ = select.select([here, sys.stdin.fileno()], [], [])
        if here not in readable:
            return
        daemon, _ = waiting.accept()
    told, streams = _told(daemon)
    if told["python"] != sys.executable:
        return
    for stream, number in zip(streams, _STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(told["environ"])
    os.chdir(told["folder"])
    sys.path[:], sys.argv[:] = told["path"], told["arguments"]
    daemon.sendall(_TAKEN)
    # Until this process ends the other one hears nothing more.
    _manage()


def _load() -> None:
    # What is loaded stays: nobody looks through it for what is not reached any more, and workers share it for as long.
    gc.disable()
    for name in _LOADED:
        import_module(name)
    import_module(_RULES).load()
    gc.freeze()
    gc.enable()


def _told(daemon: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """What Spark's daemon tells, and its streams."""
    said, streams, _, _ = socket.recv_fds(daemon, _AT_ONCE, len(_STREAMS))
    while not said.endswith(b"\n"):
        more = daemon.recv(_AT_ONCE)
        if not more:
            raise EOFError("Spark's daemon has ended")
        said += more
    return json.loads(said), streams


def _be_daemon(place: str | None) -> None:
    # As Spark's own does first.
    os.setpgid(0, 0)
    if place is None or not _handed_over(place):
        _manage()


def _handed_over(place: str) -> bool:
    """Whether a process has taken over; this one has then waited for its end."""
    told = {
        "python": sys.executable,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
    }
    with socket.socket(socket.AF_UNIX) as ready:
        try:
            ready.connect(place)
            said = json.dumps(told).encode() + b"\n"
            socket.send_fds(ready, [said[:_AT_ONCE]], _STREAMS)
            ready.sendall(said[_AT_ONCE:])
            if ready.recv(len(_TAKEN)) != _TAKEN:
                return False
        except OSError:
            return False
        # Spark hears of the other's end, and that of the job, by these.
        for number in (0, 1):
            os.close(number)
        ready.recv(1)
    return True


def _manage() -> None:
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main(sys.argv[1:])
