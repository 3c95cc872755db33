"""Spark's JVM as the child of the job's own process: the two get ready at the same time.

Spark's own order is the other way round: its JVM starts a job's Python when it is up, and waits while that loads what
it needs. On one machine both are the same user's, and neither need wait for the other before they have to talk.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import worker_daemon

# What Spark calls an application that is a Python process of somebody's.
SHELL = "pyspark-shell"
# Where that process looks for a JVM that is there already.
PORT, SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_A_MOMENT_SECONDS = 0.01
# A JVM that was told to end has little to do.
_PATIENCE_SECONDS = 30
# Workers' process hears nothing while it loads.
_WORKERS_END_WITHIN_SECONDS = 1
_PR_SET_PDEATHSIG = 1


class _Jvm:
    """Started, and not yet heard of."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="purgatory-")
        self._told = Path(self._folder.name, "gateway")
        self._place = str(Path(self._folder.name, "workers"))
        self._workers: subprocess.Popen[bytes] | None = None
        told = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._told)}
        given = {**environ, **told, worker_daemon.PLACE: self._place}
        parent, set_fate = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

        def bound() -> None:
            # Whoever kills this process kills the JVM with it, for the output's lock is gone as well. Where there is no
            # such call, the JVM ends as its stdin does, a moment later.
            if set_fate is not None:
                set_fate(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        # It ends when its stdin does.
        self._process = subprocess.Popen(command, env=given, stdin=subprocess.PIPE, preexec_fn=bound)

    def arrived(self) -> tuple[int, str]:
        """Port and secret, when it is up."""
        while not self._told.exists():
            if self._process.poll() is not None:
                raise UserError(f"Spark's JVM did not start (its status was {self._process.returncode})")
            time.sleep(_A_MOMENT_SECONDS)
        said = self._told.read_bytes()
        (port,), rest = struct.unpack_from(">i", said), said[4:]
        (length,) = struct.unpack_from(">i", rest)
        return port, rest[4 : 4 + length].decode()

    def begin_workers(self) -> None:
        self._workers = worker_daemon.begin(self._place, os.environ)

    def release(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def terminate(self) -> None:
        self._process.terminate()

    def ended(self) -> None:
        self.release()
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._workers is not None:
            self._let_workers_go(self._workers)
        self._folder.cleanup()

    @staticmethod
    def _let_workers_go(process: subprocess.Popen[bytes]) -> None:
        """Spark's daemon hears of the JVM's end, and has its workers end; one that nobody called hears of this end."""
        try:
            process.communicate(timeout=_WORKERS_END_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


_jvm: _Jvm | None = None


def begin(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start the JVM of this process, and go on."""
    global _jvm
    # Before there is a JVM: a signal that comes as it starts ends the job in the same order.
    atexit.register(_end)
    signal.signal(signal.SIGTERM, _terminated)
    _jvm = _Jvm(command, environ)
    os.environ.update(environ)


def arrive() -> None:
    """Wait until the JVM that was begun is up; its place is then where Spark looks for it."""
    if _jvm is not None and PORT not in os.environ:
        # While the JVM gets up; before, this process had to load what it needs itself.
        _jvm.begin_workers()
        port, secret = _jvm.arrived()
        os.environ[PORT], os.environ[SECRET] = str(port), secret


def daemon() -> str | None:
    """The module of Spark's daemon for Python workers, where these have been loaded ahead."""
    return worker_daemon.__name__ if _jvm is not None else None


def release() -> None:
    """Spark is not needed any more: the JVM ends while the job does what is left."""
    if _jvm is not None:
        _jvm.release()


def _end() -> None:
    _be_silent()
    if _jvm is not None:
        _jvm.ended()


def _terminated(number: int, _: object) -> NoReturn:
    _be_silent()
    if _jvm is not None:
        _jvm.terminate()
    sys.exit(128 + number)


def _be_silent() -> None:
    """All has been said; threads of Spark's would add that the JVM does not answer any more."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
