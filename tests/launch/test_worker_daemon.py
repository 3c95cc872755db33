"""Spark's daemon for Python workers: out of a process that has loaded, or by itself where there is none."""

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


def _daemon(place: Path | None) -> subprocess.Popen[bytes]:
    """As Spark starts it."""
    environ = _ENVIRON | ({worker_daemon.PLACE: str(place)} if place else {})
    command = [sys.executable, "-m", worker_daemon.__name__, "pyspark.worker"]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _forked_by(daemon: subprocess.Popen[bytes]) -> int:
    """Call for a worker as Spark does; whose child it is."""
    assert daemon.stdout is not None
    port = int.from_bytes(daemon.stdout.read(4), "big")
    with socket.create_connection(("127.0.0.1", port)) as called:
        worker = int.from_bytes(called.recv(4, socket.MSG_WAITALL), "big")
        status = Path(f"/proc/{worker}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid"))


def _begun(place: Path) -> subprocess.Popen[bytes]:
    process = worker_daemon.begin(str(place), _ENVIRON)
    while not place.exists():
        assert process.poll() is None
    return process


def test_workers_are_forked_by_the_process_that_has_loaded_what_they_need(tmp_path: Path) -> None:
    ready = _begun(tmp_path / "here")
    first, second = _daemon(tmp_path / "here"), None
    try:
        assert _forked_by(first) == ready.pid
        # It serves one; whoever comes later is on its own.
        second = _daemon(tmp_path / "here")
        assert _forked_by(second) == second.pid
        # As Spark tells its daemon that it is over.
        for daemon in (first, second):
            daemon.communicate()
        ready.wait()
    finally:
        for process in (ready, first, second):
            if process is not None:
                process.kill()


def test_a_process_that_nobody_called_ends_with_whoever_began_it(tmp_path: Path) -> None:
    ready = _begun(tmp_path / "here")
    ready.communicate()
    assert ready.returncode == 0


def test_a_daemon_of_another_python_is_sparks_own(tmp_path: Path) -> None:
    ready = _begun(tmp_path / "here")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(str(tmp_path / "here"))
        socket.send_fds(daemon, [json.dumps({"python": "/usr/bin/another"}).encode() + b"\n"], [0, 1, 2])
        assert daemon.recv(1) == b""
    assert ready.wait() == 0
    ready.communicate()


@pytest.mark.parametrize("place", ["nowhere", "nobody", "deaf"])
def test_a_daemon_that_nobody_takes_over_from_is_sparks_own(place: str, tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    if place != "nowhere":
        listening.bind(str(tmp_path / place))
    if place == "deaf":
        listening.listen(1)
    daemon = _daemon(tmp_path / place)
    if place == "deaf":
        # It has been called, and ends without an answer.
        listening.accept()[0].close()
    listening.close()
    assert _forked_by(daemon) == daemon.pid
    daemon.communicate()


def test_without_a_place_it_is_sparks_own() -> None:
    daemon = _daemon(None)
    assert _forked_by(daemon) == daemon.pid
    daemon.communicate()
