"""Spark's daemon for Python workers, preloaded while Spark's JVM starts.

Spark starts a daemon process that forks a Python worker for each task slot. Each worker would then import pandas, Arrow
and the rules, which delays the first batch by two seconds. Here a process imports them as soon as the job starts, and
waits for Spark's daemon to hand over its streams, environment and working directory. From then on it is the daemon, and
its forks have everything imported. The process that Spark started waits for its end.

    the job ──starts──► preloaded process ◄──streams── Spark's daemon ◄──starts── Spark's JVM
                             └──forks──► workers

Spark's daemon continues as usual if there is no preloaded process, or it has exited, has another Python, or serves
another daemon already.
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

# The variable of the JVM's environment with the path of the socket.
SOCKET_VARIABLE = "PURGATORY_WORKERS"
# The argument that distinguishes the preloaded process from Spark's daemon.
_PRELOAD = "ready"
_PRELOADED_MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.state",
    "purgatory_udf.streaming.stateful_adapter",
    "purgatory_udf.streaming.partition_rules",
    "purgatory_udf.streaming.group_rules",
)
_WARM_UP_MODULE = "purgatory_udf.rules.warm_up"
_ROOT = Path(__file__).resolve().parents[2]
_STREAMS = (0, 1, 2)
_ACCEPTED = b"taken"
_CHUNK_BYTES = 1 << 16


def start(socket_path: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the preloaded process. It exits when its stdin is closed, unless it has become Spark's daemon."""
    # Spark sets this for its workers: a task has one core.
    given = {"OMP_NUM_THREADS": "1", **environ, "PYTHONUNBUFFERED": "YES"}
    given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", __name__, _PRELOAD, socket_path]
    # A separate process group, as for Spark's daemon, so that an interrupt of the job does not reach it.
    return subprocess.Popen(command, env=given, stdin=subprocess.PIPE, process_group=0)


def main(arguments: Sequence[str]) -> None:
    """Run as the preloaded process or as Spark's daemon."""
    if arguments[:1] == [_PRELOAD]:
        _preload_and_wait(arguments[1])
    else:
        _run_daemon(os.environ.get(SOCKET_VARIABLE))


def _preload_and_wait(socket_path: str) -> None:
    with socket.socket(socket.AF_UNIX) as waiting:
        try:
            waiting.bind(f"{socket_path}.")
            waiting.listen(1)
            # Renamed after listen(), so that a connection to an existing path is accepted.
            os.rename(f"{socket_path}.", socket_path)
        except OSError:
            # The starting process has exited and removed the folder, or the path is too long for a socket.
            return
        _load_modules()
        listener = waiting.fileno()
        readable, _, _ = select.select([listener, sys.stdin.fileno()], [], [])
        if listener not in readable:
            return
        daemon, _ = waiting.accept()
    state, streams = _receive_process_state(daemon)
    if state["python"] != sys.executable:
        return
    for stream, number in zip(streams, _STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(state["environ"])
    os.chdir(state["folder"])
    sys.path[:], sys.argv[:] = state["path"], state["arguments"]
    daemon.sendall(_ACCEPTED)
    # The connection stays open until this process exits, which the other process waits for.
    _run_spark_daemon()


def _load_modules() -> None:
    # Nothing of this is freed: the garbage collector need not scan it, and forked workers share its memory.
    gc.disable()
    for name in _PRELOADED_MODULES:
        import_module(name)
    import_module(_WARM_UP_MODULE).load()
    gc.freeze()
    gc.enable()


def _receive_process_state(daemon: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive the state and the streams of Spark's daemon."""
    received, streams, _, _ = socket.recv_fds(daemon, _CHUNK_BYTES, len(_STREAMS))
    while not received.endswith(b"\n"):
        more = daemon.recv(_CHUNK_BYTES)
        if not more:
            raise EOFError("Spark's daemon has exited")
        received += more
    return json.loads(received), streams


def _run_daemon(socket_path: str | None) -> None:
    # Spark's daemon does this first.
    os.setpgid(0, 0)
    if socket_path is None or not _hand_over(socket_path):
        _run_spark_daemon()


def _hand_over(socket_path: str) -> bool:
    """Hand over to the preloaded process and wait for its end; return False if that fails."""
    state = {
        "python": sys.executable,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
    }
    with socket.socket(socket.AF_UNIX) as ready:
        try:
            ready.connect(socket_path)
            message = json.dumps(state).encode() + b"\n"
            socket.send_fds(ready, [message[:_CHUNK_BYTES]], _STREAMS)
            ready.sendall(message[_CHUNK_BYTES:])
            if ready.recv(len(_ACCEPTED)) != _ACCEPTED:
                return False
        except OSError:
            return False
        # Spark uses these streams to stop the daemon, and to notice its end; only the other process may hold them.
        for number in (0, 1):
            os.close(number)
        ready.recv(1)
    return True


def _run_spark_daemon() -> None:
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main(sys.argv[1:])
