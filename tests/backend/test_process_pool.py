"""Interrupts of processes that fork or spawn others."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT

import pyarrow as pa
import pytest

from purgatory_udf.backend import process_pool

# Called in this process after each fork, as the functions that modules of Python register.
_after_fork: list[Callable[[], None]] = []
os.register_at_fork(after_in_parent=lambda: [call() for call in _after_fork])


@pytest.mark.usefixtures("handled_interrupts")
def test_interrupt_at_fork_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_pool, "cores", lambda: 2)
    monkeypatch.setattr(f"{__name__}._after_fork", [lambda: os.kill(os.getpid(), signal.SIGINT)])
    done = []

    def work(part: int) -> Iterator[pa.RecordBatch]:
        done.append(part)
        return iter(())

    with pytest.raises(KeyboardInterrupt):
        process_pool.run_parallel(work, [1, 2, 3])
    assert not done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("handled_interrupts")
def test_forked_process_ignores_interrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent receives the same signal, and kills it."""
    monkeypatch.setattr(process_pool, "cores", lambda: 2)
    parent, schema = os.getpid(), pa.schema([("part", pa.int64())])
    # One part is for each process.
    waiting, ready = os.pipe()

    def work(part: int) -> Iterator[pa.RecordBatch]:
        if os.getpid() == parent:
            assert select.select([waiting], [], [], 30)[0], "the forked process has ended"
        else:
            os.kill(os.getpid(), signal.SIGINT)
            os.write(ready, b"x")
        yield pa.record_batch([pa.array([part])], schema)

    made = process_pool.run_parallel(work, [1, 2])
    assert [batch.column("part").to_pylist() for part in made for batch in part] == [[1], [2]]
    os.close(waiting)
    os.close(ready)


# Where pytest runs in a process that ignores interrupts, the script would ignore them, too.
_SPAWNS = """
import gc, signal, sys
from purgatory_udf.backend.process_pool import spawned_processes

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.set_threshold(5000, 50, 100)
    try:
        with spawned_processes(2) as pool:
            if sys.argv[1] == "started":
                assert pool.submit(gc.get_threshold).result() == (5000, 50, 100)
            waiting = pool.submit(signal.pause)
            print("ready", flush=True)
            waiting.result()
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("state", ["starting", "started"])
def test_interrupt_ends_spawned_processes_silently(tmp_path: Path, state: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SPAWNS)
    command = [sys.executable, str(script), state]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, stdout=PIPE, stderr=STDOUT, text=True, env=environ, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == "interrupted\n"


def test_killed_spawned_process_is_reported() -> None:
    with pytest.raises(ChildProcessError, match="killed"), process_pool.spawned_processes(1) as pool:
        pool.submit(os._exit, 1).result()
