"""Parallel work on the machine's cores, in this process and in forked ones, which exit when the work is done.

Results come back as Arrow in shared memory. Inputs need no transfer, because a fork has a copy of the memory; `work`
may therefore be any function. It must neither query DuckDB nor write Delta tables, because their threads do not survive
a fork. A fork costs milliseconds, depending on the memory of the parent, and its results have to be read. Neither cost
applies to parts that this process executes itself.

    numbers of parts ─────► each process, including this one, takes the next part when it is idle
    shared memory ◄──────── the batches of its parts
    this process ◄───────── number of the part, offsets of its batches    (one thread per forked process)
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import IO, TypeVar

import pyarrow as pa

from purgatory_udf.common.errors import NeedsSparkError

Part = TypeVar("Part")
Work = Callable[[Part], Iterable[pa.RecordBatch]]

_NUMBER = struct.Struct("<q")
# Number of a part, and the offsets of its batches (begin, end) in shared memory.
_MADE = struct.Struct("<qqq")
# In place of a part: an error, or the end of the work.
_FAILED, _DONE = -1, -2
# Name of the threads that wait for the exit of a forked process.
EXIT = "exit of a forked process"
# Linux: signal for a child when its parent exits.
_PR_SET_PDEATHSIG = 1
# Map all pages at once, instead of one by one on access.
_MAPPED = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_POPULATE", 0)


def cores() -> int:
    """Return the number of processes to use: one per core on Linux; one on other systems, where forks are not safe."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def release_free_memory() -> None:
    """Return unused memory to the operating system; Arrow and the C library would keep it for later steps."""
    pa.default_memory_pool().release_unused()
    # Only glibc has this function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def run_parallel(work: Work[Part], parts: Sequence[Part]) -> list[list[pa.RecordBatch]]:
    """Return the batches of `work` for each part, in the order of the parts. Raises what `work` raises."""
    count = min(cores(), len(parts))
    if count < 2:
        return [list(work(part)) for part in parts]
    processes = _Processes(work, parts, count - 1)
    try:
        made = processes.run()
    finally:
        processes.end()
    return [made[number] for number in range(len(parts))]


class _Processes:
    """Executes parts in this process and in `count` forked ones."""

    def __init__(self, work: Work[Part], parts: Sequence[Part], count: int) -> None:
        self._work, self._parts = work, parts
        self._made: dict[int, list[pa.RecordBatch]] = {}
        self._errors: list[BaseException] = []
        self._queue_end, self._feed_end = os.pipe()
        ends = [os.pipe() for _ in range(count)]
        self._outputs = [os.fdopen(reading, "rb") for reading, _ in ends]
        # Shared memory needs no copy for the transfer, and no copy-on-write after the next fork.
        self._shared = [_anonymous_file() for _ in range(count)]
        sys.stdout.flush()
        sys.stderr.flush()
        self._ids = []
        parent = os.getpid()
        for (_, writing), shared in zip(ends, self._shared, strict=True):
            forked = os.fork()
            if not forked:
                others = {self._feed_end, *(output.fileno() for output in self._outputs), *(end for _, end in ends)}
                _serve(work, parts, self._queue_end, writing, shared, others - {writing}, parent)
            self._ids.append(forked)
        for _, writing in ends:
            os.close(writing)
        each = zip(self._outputs, self._shared, strict=True)
        self._threads = [threading.Thread(target=self._read, args=ends, daemon=True) for ends in each]
        self._threads.append(threading.Thread(target=self._feed, daemon=True))

    def run(self) -> dict[int, list[pa.RecordBatch]]:
        """Execute all parts, and return the batches of each by its number. Raises the first error of a part."""
        for thread in self._threads:
            thread.start()
        while not self._errors and (number := _next(self._queue_end)) is not None:
            self._made[number] = list(self._work(self._parts[number]))
        # After an error, the remaining parts are abandoned.
        if not self._errors:
            for thread in self._threads:
                thread.join()
        for error in self._errors:
            raise error
        return self._made

    def end(self) -> None:
        """Kill the forked processes and free all resources."""
        os.close(self._queue_end)
        for process in self._ids:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            # The exit of a process takes 10 ms, in which its memory is freed.
            threading.Thread(target=os.waitpid, args=(process, 0), name=EXIT, daemon=True).start()
        for thread in self._threads:
            thread.join()
        for file in (*self._outputs, *self._shared):
            file.close()

    def _read(self, output: IO[bytes], shared: IO[bytes]) -> None:
        try:
            _read(output, shared, self._made)
        except BaseException as error:
            self._errors.append(error)

    def _feed(self) -> None:
        """Write the numbers of the parts to the queue; stop after an error.

        This runs in a separate thread, because the pipe holds only few numbers.
        """
        with suppress(BrokenPipeError):
            for number in range(len(self._parts)):
                os.write(self._feed_end, _NUMBER.pack(number))
        os.close(self._feed_end)


def _next(queue: int) -> int | None:
    """Take and return the number of the next part; None at the end."""
    packed_number = os.read(queue, _NUMBER.size)
    return _NUMBER.unpack(packed_number)[0] if packed_number else None


def _read(output: IO[bytes], shared: IO[bytes], made: dict[int, list[pa.RecordBatch]]) -> None:
    places: dict[int, tuple[int, int]] = {}
    while len(head := output.read(_MADE.size)) == _MADE.size:
        number, begin, end = _MADE.unpack(head)
        if number == _FAILED:
            raise pickle.loads(_mapped(shared, end)[begin:end])
        if number == _DONE:
            content = _mapped(shared, end)
            made.update((number, _unpacked(content[begin:end])) for number, (begin, end) in places.items())
            return
        places[number] = begin, end
    raise NeedsSparkError("a worker process was killed, possibly because memory ran out")


def _anonymous_file() -> IO[bytes]:
    """Return an anonymous file in memory, or a temporary file if the system does not support that."""
    return os.fdopen(os.memfd_create("made"), "wb") if hasattr(os, "memfd_create") else TemporaryFile()


def _mapped(shared: IO[bytes], size: int) -> pa.Buffer:
    """Map `size` bytes of a file into memory. The mapping exists as long as any buffer refers to it."""
    return pa.py_buffer(mmap.mmap(shared.fileno(), size, _MAPPED, mmap.PROT_READ) if size else b"")


def _serve(
    work: Work[Part],
    parts: Sequence[Part],
    queue: int,
    writing: int,
    shared: IO[bytes],
    others: Iterable[int],
    parent: int,
) -> None:
    """Execute parts until none are left, report their batches, and exit. The main function of a forked process.

    Args:
        work: The work for a part.
        parts: All parts.
        queue: File descriptor from which the numbers of the next parts are read.
        writing: File descriptor to which the batches of a part are reported.
        shared: File for the batches themselves.
        others: File descriptors to close.
        parent: Id of the parent; the process exits if the parent no longer exists.
    """
    status = 1
    try:
        # A child inherits the lock of the output folder, so it must not outlive its parent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        for end in others:
            os.close(end)
        # Objects of the parent need no garbage collection here.
        gc.freeze()
        with os.fdopen(writing, "wb") as output:
            try:
                while (number := _next(queue)) is not None:
                    begin = shared.tell()
                    _pack(work(parts[number]), shared)
                    _report(output, number, begin, shared)
                _report(output, _DONE, shared.tell(), shared)
            except Exception as error:
                begin = shared.tell()
                shared.write(_pickled(error))
                _report(output, _FAILED, begin, shared)
        status = 0
    finally:
        # Skip the exit handlers, which belong to the parent.
        os._exit(status)


def _report(output: IO[bytes], number: int, begin: int, shared: IO[bytes]) -> None:
    shared.flush()
    output.write(_MADE.pack(number, begin, shared.tell()))
    output.flush()


def _pack(batches: Iterable[pa.RecordBatch], shared: IO[bytes]) -> None:
    writer = None
    for batch in batches:
        writer = writer or pa.ipc.new_stream(shared, batch.schema)
        writer.write_batch(batch)
    if writer is not None:
        writer.close()


def _unpacked(content: pa.Buffer) -> list[pa.RecordBatch]:
    if not content.size:
        return []
    with pa.ipc.open_stream(content) as reader:
        return list(reader)


def _pickled(error: Exception) -> bytes:
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return packed
