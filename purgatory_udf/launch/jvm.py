"""Spark's JVM as a child of the job's process.

spark-submit first starts its JVM, then the job's Python process, and waits until that has imported its modules. Here
the job starts the JVM and continues, so that both start at the same time. They connect when the job first needs Spark.
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

from purgatory_udf.backend import spark_workers
from purgatory_udf.common.errors import UserError

# The primary resource that spark-submit uses for an interactive Python process.
PYSPARK_SHELL = "pyspark-shell"
# With these variables set, pyspark connects to a running JVM.
GATEWAY_PORT, GATEWAY_SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_POLL_SECONDS = 0.01
# How long a JVM may take to exit after its stdin is closed.
_JVM_EXIT_TIMEOUT_SECONDS = 30
# It does not notice while it imports modules.
_WORKERS_EXIT_TIMEOUT_SECONDS = 1
_PR_SET_PDEATHSIG = 1


class _Jvm:
    """A JVM that was started. The address of its gateway is known once it is up."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="purgatory-")
        self._gateway_file = Path(self._folder.name, "gateway")
        self._workers_socket = str(Path(self._folder.name, "workers"))
        self._workers: subprocess.Popen[bytes] | None = None
        jvm_environ = {
            **environ,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._gateway_file),
            spark_workers.SOCKET_VARIABLE: self._workers_socket,
        }
        parent, prctl = os.getpid(), getattr(ctypes.CDLL(None), "prctl", None)

        def bind_to_parent() -> None:
            # If this process is killed, the kernel kills the JVM, because the lock on the output is released too.
            # Without prctl the JVM exits when its stdin is closed, a moment later.
            if prctl is not None:
                prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        # The JVM exits when its stdin is closed.
        self._process = subprocess.Popen(command, env=jvm_environ, stdin=subprocess.PIPE, preexec_fn=bind_to_parent)

    def preload_workers(self) -> None:
        """Load the modules of the Python workers while the JVM starts."""
        self._workers = spark_workers.preload(self._workers_socket)

    def gateway_address(self) -> tuple[int, str]:
        """Wait until the JVM is up; return the port and the secret of its gateway.

        Raises:
            UserError: The JVM has exited.
        """
        while not self._gateway_file.exists():
            if self._process.poll() is not None:
                status = self._process.returncode
                raise UserError(f"Spark's JVM did not start; its exit status is {status}, and its messages are above")
            time.sleep(_POLL_SECONDS)
        written = self._gateway_file.read_bytes()
        (port,), rest = struct.unpack_from(">i", written), written[4:]
        (length,) = struct.unpack_from(">i", rest)
        return port, rest[4 : 4 + length].decode()

    def terminate(self) -> None:
        self._process.terminate()

    def shut_down(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_JVM_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._workers is not None:
            self._end_workers(self._workers)
        self._folder.cleanup()

    @staticmethod
    def _end_workers(process: subprocess.Popen[bytes]) -> None:
        """End the preloaded process: as the daemon it has ended with the JVM, else it ends when its stdin is closed."""
        try:
            process.communicate(timeout=_WORKERS_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


_jvm: _Jvm | None = None


def start(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Start the JVM of this process and return.

    `environ` is the environment of the JVM; this process adopts it as well.
    """
    global _jvm
    # Before the JVM starts, so that a signal during its start stops the job in the same order.
    atexit.register(_shut_down)
    signal.signal(signal.SIGTERM, _handle_sigterm)
    _jvm = _Jvm(command, environ)
    os.environ.update(environ)


def wait_until_ready() -> None:
    """Wait until the JVM that was started is up, and set the variables by which pyspark connects to it."""
    if _jvm is not None and GATEWAY_PORT not in os.environ:
        # Not before: until then this process imported its own modules beside the JVM.
        _jvm.preload_workers()
        port, secret = _jvm.gateway_address()
        os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET] = str(port), secret


def _shut_down() -> None:
    _silence_stderr()
    if _jvm is not None:
        _jvm.shut_down()


def _handle_sigterm(number: int, _: object) -> NoReturn:
    _silence_stderr()
    if _jvm is not None:
        _jvm.terminate()
    sys.exit(128 + number)


def _silence_stderr() -> None:
    """Discard stderr: Spark's threads would report that the JVM does not respond."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
