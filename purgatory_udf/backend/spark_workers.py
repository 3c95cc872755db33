"""Python workers of Spark: their daemon on one machine, and their memory settings.

Spark starts the daemon with the first task in Python, and the daemon forks one worker for each concurrent task. It
imports the modules of the workers before it forks them. The workers thus share its modules and the engine's compiled
code; loading them would take each worker one to two seconds of CPU time.

A job that starts Spark itself also forks a process for them while the JVM starts (`preload`). It has the modules that
the job has imported by then, and imports the rest. Spark's daemon then passes its streams, environment and folder to
that process, which continues as the daemon, and waits for its end. Without such a process the daemon imports the
modules.

The tables of one call are large, so the C library maps memory for each of them and unmaps it at the end. The kernel
then clears every page again and, on a virtual machine, the host allocates it again. That took up to a third of a call's
time (`retain_freed_memory`).

After each task, a worker runs a full garbage collection. Nearly all objects belong to modules that stay loaded; with
the compiled loop this took 0.09 s, more than a small task (`freeze_loaded_objects`).
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import NoReturn, ParamSpec, TypeVar

_MODULES = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.state",
    "purgatory_udf.streaming.event_source",
    "purgatory_udf.streaming.partition_rules",
    "purgatory_udf.streaming.group_rules",
)
_WARM_UP_MODULE = "purgatory_udf.rules.warm_up"
# Environment variable of the JVM and its daemon: the socket at which the preloaded process waits.
SOCKET_VARIABLE = "PURGATORY_WORKERS_SOCKET"
_STREAMS = (0, 1, 2)
_ACCEPTED = b"accepted"
_POLL_SECONDS = 0.01
Arguments = ParamSpec("Arguments")
Item = TypeVar("Item")

# Options of glibc's mallopt, numbered as in `malloc.h`.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
# Bytes of free memory to keep, and bytes to request in advance.
_KEPT_BYTES, _EXTRA_BYTES = 1 << 29, 1 << 26


class Preloaded:
    """A forked process that has loaded the modules. It ends with `end`, unless it has become Spark's daemon by then."""

    def __init__(self, process: int, stdin: int) -> None:
        self.id = process
        self._stdin = stdin

    def end(self, timeout: float) -> None:
        """Close the process's stdin and wait for its end; after `timeout` seconds, kill it."""
        os.close(self._stdin)
        latest = time.monotonic() + timeout
        while os.waitpid(self.id, os.WNOHANG) == (0, 0):
            if time.monotonic() > latest:
                os.kill(self.id, signal.SIGKILL)
            time.sleep(_POLL_SECONDS)


def preload(path: str) -> Preloaded | None:
    """Fork a process that loads the modules and waits for Spark's daemon at a socket.

    It has its own process group, as the daemon has, so that an interrupt of the job does not reach it. None is returned
    if a fork is not safe: this process has other threads, which may hold locks, or the system is not Linux.
    """
    if threading.active_count() > 1 or sys.platform != "linux":
        return None
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        _run_forked(path, reading)
    os.close(reading)
    return Preloaded(process, writing)


def _run_forked(path: str, stdin: int) -> NoReturn:
    """Run the forked process, without files, signal handlers and exit functions of the job."""
    status = 1
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for source, number in zip((stdin, nothing, nothing), _STREAMS, strict=True):
            os.dup2(source, number)
        # The JVM exits when its stdin is closed, in all processes.
        for number in map(int, os.listdir("/proc/self/fd")):
            if number not in _STREAMS:
                # The listing's own file is closed already.
                with suppress(OSError):
                    os.close(number)
        # The job's objects may be closed, or write in blocks; if they were freed, they would close the new files.
        _kept = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, 1) for number, mode in zip(_STREAMS, "rww", strict=True)
        )
        _run_preloaded(path)
        status = 0
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else 1
    finally:
        os._exit(status)


def _run_preloaded(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        _load_modules()
        replaced = _replace_daemon(listening)
    # The connection stays open as long as this process runs.
    if replaced is not None:
        _run_daemon()


def main() -> None:
    """Run Spark's daemon, in the preloaded process if there is one, until Spark closes its stdin."""
    # Spark's daemon gets its own process group later; until then, Ctrl-C would reach this process.
    os.setpgid(0, 0)
    if not _is_replaced(os.environ.get(SOCKET_VARIABLE)):
        _load_modules()
        _run_daemon()


def _run_daemon() -> None:
    from pyspark import daemon

    daemon.manager()


def _load_modules() -> None:
    # Nothing of this is freed: scanning it takes longer than importing it.
    gc.disable()
    for name in _MODULES:
        import_module(name)
    import_module(_WARM_UP_MODULE).load()
    gc.freeze()
    gc.enable()


def _replace_daemon(listening: socket.socket) -> socket.socket | None:
    """Wait for Spark's daemon and take over its streams, environment, folder and arguments; return the connection.

    None is returned if stdin was closed before, or the daemon runs in another Python.
    """
    readable, _, _ = select.select([listening, sys.stdin], [], [])
    if listening not in readable:
        return None
    connection, _ = listening.accept()
    first, streams, _, _ = socket.recv_fds(connection, 1 << 16, len(_STREAMS))
    with connection.makefile("rb") as rest:
        state = json.loads(first if first.endswith(b"\n") else first + rest.readline())
    if state["python"] != sys.executable:
        return None
    for stream, number in zip(streams, _STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(state["environ"])
    os.chdir(state["folder"])
    sys.path[:], sys.argv[:] = state["path"], state["arguments"]
    # As in workers of other daemons: Arrow reads the variable when it is loaded.
    import pyarrow as pa

    pa.set_cpu_count(int(os.environ.get("OMP_NUM_THREADS", "1")))
    connection.sendall(_ACCEPTED)
    return connection


def _is_replaced(path: str | None) -> bool:
    """Pass this daemon's streams and state to the preloaded process, and wait for its end.

    False is returned if there is no such process, it has ended, or it did not accept.
    """
    state = {
        "python": sys.executable,
        "environ": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
    }
    line = json.dumps(state).encode() + b"\n"
    if path is None:
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            sent = socket.send_fds(connection, [line], _STREAMS)
            connection.sendall(line[sent:])
            if connection.recv(len(_ACCEPTED)) != _ACCEPTED:
                return False
            # Spark notices the end of the process, and that process the end of Spark, by these streams.
            for number in (0, 1):
                os.close(number)
            connection.recv(1)
        except OSError:
            return False
    return True


@cache
def retain_freed_memory() -> None:
    """Make malloc keep freed memory for the next call. Does nothing if the C library is not glibc."""
    setting = getattr(ctypes.CDLL(None), "mallopt", None)
    if setting is not None:
        for name, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _EXTRA_BYTES)):
            setting(name, value)


class _Loaded:
    """The number of modules that were loaded at the last freeze."""

    modules = 0


def freeze_loaded_objects() -> None:
    """Exclude all existing objects from garbage collection, if modules have been loaded since the last call.

    It is called at the end of a task, when its modules are loaded. Without new modules it does nothing, because it
    would also exclude the task's garbage, which would then never be freed.
    """
    if len(sys.modules) > _Loaded.modules:
        _Loaded.modules = len(sys.modules)
        gc.freeze()


def freeze_in_workers(work: Callable[Arguments, Iterator[Item]]) -> Callable[Arguments, Iterator[Item]]:
    """Wrap the work of a task so that `freeze_loaded_objects` follows it in every process but the caller's.

    The caller's process may run the work, too, but must free all objects when it exits, because libraries warn about
    leftover objects.
    """
    caller = os.getpid()

    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
        yield from work(*args, **kwargs)
        if os.getpid() != caller:
            freeze_loaded_objects()

    return run


if __name__ == "__main__":
    main()
