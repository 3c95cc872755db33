"""Spark's daemon of Python workers: its workers have the modules and the engine loaded."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from purgatory_udf.backend import spark_workers

ROOT = Path(__file__).resolve().parents[2]


def test_workers_are_forked_with_engine_loaded() -> None:
    command = [sys.executable, "-m", spark_workers.__name__, "pyspark.worker"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe) as daemon:
        assert daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")
        # Each connection starts a worker, which first sends its process id.
        with socket.create_connection(("127.0.0.1", port)) as connection:
            worker = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            libraries = Path(f"/proc/{worker}/maps").read_text()
            assert worker != daemon.pid
            assert {name for name in ("libarrow", "llvmlite") if name in libraries} == {"libarrow", "llvmlite"}
        # Spark closes the daemon's stdin to stop it.
        daemon.communicate()
