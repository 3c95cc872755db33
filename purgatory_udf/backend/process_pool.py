"""Work in parts, side by side on the machine's cores: this process takes parts, and so do others, which are forked when
there is work, and end with it.

What a part makes comes back as Arrow in memory that both share; what it is made of needs no way there, for a fork has
it all. So work may be any function, and read whatever lies in memory. It must neither ask DuckDB nor write tables:
their threads stay behind. A fork costs milliseconds, by the memory of who forks, and what it has made others more on
its way back: one core's share has neither.

    numbers of parts ─────► each process, this one too, takes the next when it is done with one
    shared memory ◄──────── its batches, behind those of its other parts
    this process ◄───────── which part, and where its batches lie    (a thread reads from each)
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
# The part, and from where to where what it has come to lies.
_MADE = struct.Struct("<qqq")
# In the place of a part: what went wrong, and that nothing did.
_FAILED, _DONE = -1, -2
# Of Linux: who forked a process and dies has it die, too.
_PR_SET_PDEATHSIG = 1
# All at once, instead of page by page when it is read.
_MAPPED = getattr(mmap, "MAP_SHARED", 0) | getattr(mmap, "MAP_POPULATE", 0)


def cores() -> int:
    """How many processes are worth it. Elsewhere a fork may lack what threads of the system's libraries do."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def side_by_side(work: Work[Part], parts: Sequence[Part]) -> list[list[pa.RecordBatch]]:
    """What `work` makes of each part, in the order of the parts. What it raises is raised here."""
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
    """This one, and `count` others."""

    def __init__(self, work: Work[Part], parts: Sequence[Part], count: int) -> None:
        self._work, self._parts = work, parts
        self._made: dict[int, list[pa.RecordBatch]] = {}
        self._wrong: list[BaseException] = []
        self._taking, self._giving = os.pipe()
        ends = [os.pipe() for _ in range(count)]
        self._outputs = [os.fdopen(reading, "rb") for reading, _ in ends]
        # What lies in there is neither copied on its way nor, at the next fork, page by page.
        self._shared = [_nameless() for _ in range(count)]
        sys.stdout.flush()
        sys.stderr.flush()
        self._ids = []
        parent = os.getpid()
        for (_, writing), shared in zip(ends, self._shared, strict=True):
            forked = os.fork()
            if not forked:
                others = {self._giving, *(output.fileno() for output in self._outputs), *(end for _, end in ends)}
                _serve(work, parts, self._taking, writing, shared, others - {writing}, parent)
            self._ids.append(forked)
        for _, writing in ends:
            os.close(writing)
        each = zip(self._outputs, self._shared, strict=True)
        self._threads = [threading.Thread(target=self._read, args=ends, daemon=True) for ends in each]
        self._threads.append(threading.Thread(target=self._give, daemon=True))

    def run(self) -> dict[int, list[pa.RecordBatch]]:
        """What all parts came to."""
        for thread in self._threads:
            thread.start()
        while not self._wrong and (number := _next(self._taking)) is not None:
            self._made[number] = list(self._work(self._parts[number]))
        # Where something went wrong, parts are left, which nobody is to wait for.
        if not self._wrong:
            for thread in self._threads:
                thread.join()
        for error in self._wrong:
            raise error
        return self._made

    def end(self) -> None:
        """None of them outlives this."""
        os.close(self._taking)
        for process in self._ids:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        for thread in self._threads:
            thread.join()
        for file in (*self._outputs, *self._shared):
            file.close()

    def _read(self, output: IO[bytes], shared: IO[bytes]) -> None:
        try:
            _read(output, shared, self._made)
        except BaseException as error:
            self._wrong.append(error)

    def _give(self) -> None:
        """A pipe holds only some thousand numbers. Where nobody takes any, something went wrong."""
        with suppress(BrokenPipeError):
            for number in range(len(self._parts)):
                os.write(self._giving, _NUMBER.pack(number))
        os.close(self._giving)


def _next(taking: int) -> int | None:
    """The number of a part that nobody has taken; None where there is none."""
    said = os.read(taking, _NUMBER.size)
    return _NUMBER.unpack(said)[0] if said else None


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
    raise NeedsSparkError("a process that took part was killed, perhaps for want of memory")


def _nameless() -> IO[bytes]:
    """A file in memory, or, where there is none of that kind, one on the disk."""
    return os.fdopen(os.memfd_create("made"), "wb") if hasattr(os, "memfd_create") else TemporaryFile()


def _mapped(shared: IO[bytes], size: int) -> pa.Buffer:
    """It lives as long as anything of it does."""
    return pa.py_buffer(mmap.mmap(shared.fileno(), size, _MAPPED, mmap.PROT_READ) if size else b"")


def _serve(
    work: Work[Part],
    parts: Sequence[Part],
    taking: int,
    writing: int,
    shared: IO[bytes],
    others: Iterable[int],
    parent: int,
) -> None:
    """All that a forked process does."""
    status = 1
    try:
        # It holds the output's lock as long as it lives, and so must not live longer.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        for end in others:
            os.close(end)
        # What was there before the fork is nobody's garbage here.
        gc.freeze()
        with os.fdopen(writing, "wb") as output:
            try:
                while (number := _next(taking)) is not None:
                    begin = shared.tell()
                    _pack(work(parts[number]), shared)
                    _tell(output, number, begin, shared)
                _tell(output, _DONE, shared.tell(), shared)
            except Exception as error:
                begin = shared.tell()
                shared.write(_pickled(error))
                _tell(output, _FAILED, begin, shared)
        status = 0
    finally:
        # What a process does at its end is the other's to do.
        os._exit(status)


def _tell(output: IO[bytes], number: int, begin: int, shared: IO[bytes]) -> None:
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
