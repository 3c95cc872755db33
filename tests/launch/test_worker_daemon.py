"""Spark's daemon for Python workers: the preloaded process, or the usual daemon if there is none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.launch import worker_daemon

ROOT = Path(__file__).resolve().parents[2]
_ENVIRON = os.environ | {"PYTHONPATH": str(ROOT)}


def _daemon(socket_path: Path | None) -> subprocess.Popen[bytes]:
    """Start the daemon as Spark does."""
    environ = _ENVIRON | ({worker_daemon.SOCKET_VARIABLE: str(socket_path)} if socket_path else {})
    command = [sys.executable, "-m", worker_daemon.__name__, "pyspark.worker"]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _forked_by(daemon: subprocess.Popen[bytes]) -> int:
    """Request a worker as Spark does; return the process id of its parent."""
    assert daemon.stdout is not None
    port = int.from_bytes(daemon.stdout.read(4), "big")
    with socket.create_connection(("127.0.0.1", port)) as called:
        worker = int.from_bytes(called.recv(4, socket.MSG_WAITALL), "big")
        status = Path(f"/proc/{worker}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid"))


def _preloaded(socket_path: Path) -> subprocess.Popen[bytes]:
    process = worker_daemon.start(str(socket_path), _ENVIRON)
    while not socket_path.exists():
        assert process.poll() is None
    return process


def test_workers_are_forked_by_preloaded_process(tmp_path: Path) -> None:
    ready = _preloaded(tmp_path / "here")
    first, second = _daemon(tmp_path / "here"), None
    try:
        assert _forked_by(first) == ready.pid
        # It serves one daemon; a second one forks its own workers.
        second = _daemon(tmp_path / "here")
        assert _forked_by(second) == second.pid
        # Closing stdin, as Spark does, stops the daemon.
        for daemon in (first, second):
            daemon.communicate()
        ready.wait()
    finally:
        for process in (ready, first, second):
            if process is not None:
                process.kill()


def test_unused_process_exits_with_its_parent(tmp_path: Path) -> None:
    ready = _preloaded(tmp_path / "here")
    ready.communicate()
    assert ready.returncode == 0


def test_daemon_of_another_python_is_refused(tmp_path: Path) -> None:
    ready = _preloaded(tmp_path / "here")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(str(tmp_path / "here"))
        socket.send_fds(daemon, [json.dumps({"python": "/usr/bin/another"}).encode() + b"\n"], [0, 1, 2])
        assert daemon.recv(1) == b""
    assert ready.wait() == 0
    ready.communicate()


@pytest.mark.parametrize("socket_path", ["nowhere", "nobody", "deaf"])
def test_daemon_works_without_preloaded_process(socket_path: str, tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    if socket_path != "nowhere":
        listening.bind(str(tmp_path / socket_path))
    if socket_path == "deaf":
        listening.listen(1)
    daemon = _daemon(tmp_path / socket_path)
    if socket_path == "deaf":
        # It accepts the connection and closes it without a response.
        listening.accept()[0].close()
    listening.close()
    assert _forked_by(daemon) == daemon.pid
    daemon.communicate()


def test_daemon_works_without_socket_variable() -> None:
    daemon = _daemon(None)
    assert _forked_by(daemon) == daemon.pid
    daemon.communicate()
