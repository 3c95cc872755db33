"""Parallel work on the machine's cores, in this process and in forked ones, which exit or wait when the work is done.

Results come back as Arrow in shared memory. Inputs need no transfer, because a fork has a copy of the memory; `work`
may therefore be any function. It must neither query DuckDB nor write Delta tables, because their threads do not survive
a fork. A fork costs milliseconds, depending on the memory of the parent, and its results have to be read. Neither cost
applies to parts that this process executes itself. Within `kept_processes`, forked processes wait for further work,
which they get pickled, with the buffers of Arrow in shared memory.

    numbers of parts ─────► each process, including this one, takes the next part when it is idle
    shared memory ◄──────── the batches of its parts
    this process ◄───────── number of the part, offsets of its batches    (one thread per forked process)
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import marshal
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from tempfile import TemporaryFile
from types import CellType, FunctionType
from typing import IO, Any, TypeVar

import pyarrow as pa

from purgatory_udf.common.errors import NeedsSparkError

Part = TypeVar("Part")
Work = Callable[[Part], Iterable[pa.RecordBatch]]

_NUMBER = struct.Struct("<q")
# Number of a part, and the offsets of its batches (begin, end) in shared memory.
_MADE = struct.Struct("<qqq")
# In place of a part: an error, or the end of the work.
_FAILED, _DONE = -1, -2
# Largest size of pickled code, apart from its buffers: pickling more takes as long as a fork. Least size of a buffer
# that is shared.
_MOST_CODE, _LEAST_SHARED = 1 << 20, 256
# Alignment of buffers, as in Arrow's own.
_ALIGNED = 64
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
    processes, call = _Kept.processes, None
    if processes is not None:
        call = processes.pickled(work, parts) if count - 1 <= processes.count else None
        if call is None:
            _end_kept()
            processes = None
    if processes is None:
        processes = _Processes(work, parts, count - 1, is_kept=_Kept.is_wanted)
        _Kept.processes = processes if _Kept.is_wanted else None
    try:
        made = processes.run(work, parts, call)
    except BaseException:
        _Kept.processes = None
        processes.end()
        raise
    if not _Kept.is_wanted:
        processes.end()
    return [made[number] for number in range(len(parts))]


class _Kept:
    """The forked processes that wait for further work, if they are wanted."""

    is_wanted = False
    processes: _Processes | None = None


@contextmanager
def kept_processes() -> Iterator[None]:
    """Within this context, keep forked processes for further calls of `run_parallel`, and kill them at the end.

    This saves forks, after which each process copies the memory that it writes to. Inputs of later calls are pickled;
    if their code is large, the processes are forked again instead.
    """
    _Kept.is_wanted = True
    try:
        yield
    finally:
        _Kept.is_wanted = False
        _end_kept()


def has_kept_processes() -> bool:
    """Return whether forked processes wait for further work, so that it needs no fork."""
    return _Kept.processes is not None


def _end_kept() -> None:
    processes, _Kept.processes = _Kept.processes, None
    if processes is not None:
        processes.end()


class _Processes:
    """Executes parts in this process and in `count` forked ones, which inherit the first call's work and parts.

    If they are kept, they wait for further calls.
    """

    def __init__(self, work: Work[Part], parts: Sequence[Part], count: int, is_kept: bool) -> None:
        self.count = count
        self._made: dict[int, list[pa.RecordBatch]] = {}
        self._errors: list[BaseException] = []
        self._queue_end, self._feed_end = os.pipe()
        outputs, calls = ([os.pipe() for _ in range(count)] for _ in range(2))
        self._outputs = [os.fdopen(reading, "rb") for reading, _ in outputs]
        # Shared memory needs no copy for the transfer, and no copy-on-write after the next fork.
        self._inputs, self._shared = _anonymous_file(), [_anonymous_file() for _ in range(count)]
        # Results that are in shared memory already, with the place in their file, and its number.
        self._results: list[tuple[pa.Buffer, int, int]] = []
        self._threads: list[threading.Thread] = []
        files = [self._inputs, *self._shared]
        sys.stdout.flush()
        sys.stderr.flush()
        self._ids = []
        parent = os.getpid()
        for number, ((calls_end, _), (_, writing)) in enumerate(zip(calls, outputs, strict=True)):
            forked = os.fork()
            if not forked:
                unused = {self._feed_end, *chain(*outputs, *calls)} - {calls_end, writing}
                _serve(work, parts, self._queue_end, calls_end, writing, files, number, unused, parent)
            self._ids.append(forked)
        for end in (*(reading for reading, _ in calls), *(writing for _, writing in outputs)):
            os.close(end)
        self._calls = [os.fdopen(writing, "wb") for _, writing in calls]
        if not is_kept:
            self._end_calls()

    def pickled(self, work: Work[Part], parts: Sequence[Part]) -> bytes | None:
        """Return a further call for the forked processes, with its buffers in shared memory.

        Returns None if its code is large, or cannot be pickled.
        """
        places: list[tuple[int, int, int]] = []
        # The buffers are held, so that no other has the address of one of them.
        shared: dict[tuple[int, int], tuple[pa.Buffer, tuple[int, int, int]]] = {}

        def share(value: pickle.PickleBuffer) -> bool:
            buffer = pa.py_buffer(value)
            if buffer.size < _LEAST_SHARED:
                return True
            key = buffer.address, buffer.size
            if key not in shared:
                shared[key] = buffer, self._place_of(buffer)
            places.append(shared[key][1])
            return False

        code = _Limited()
        # The many new objects would start the garbage collection, which would find nothing.
        gc.disable()
        try:
            _Pickler(code, protocol=5, buffer_callback=share).dump((work, parts))
        except (AttributeError, OverflowError, RecursionError, TypeError, ValueError, pickle.PicklingError):
            return None
        finally:
            gc.enable()
        self._inputs.flush()
        return pickle.dumps((code.getvalue(), places))

    def _place_of(self, buffer: pa.Buffer) -> tuple[int, int, int]:
        """Return the file, begin and end of a buffer in shared memory; write it there if it is no part of a result."""
        for result, first, file in self._results:
            begin = first + buffer.address - result.address
            if first <= begin and begin + buffer.size <= first + result.size:
                return file, begin, begin + buffer.size
        begin = _align(self._inputs, _ALIGNED)
        self._inputs.write(buffer)
        return 0, begin, begin + buffer.size

    def run(self, work: Work[Part], parts: Sequence[Part], call: bytes | None) -> dict[int, list[pa.RecordBatch]]:
        """Execute all parts, and return the batches of each by its number. Raises the first error of a part.

        Args:
            work: The work for a part.
            parts: All parts.
            call: The same for the forked processes (`pickled`); None for those that they have inherited.
        """
        self._made = made = {}
        each = zip(self._outputs, self._shared, range(1, self.count + 1), strict=True)
        threads = [threading.Thread(target=self._read, args=ends, daemon=True) for ends in each]
        threads.append(threading.Thread(target=self._feed, args=(len(parts),), daemon=True))
        if call is not None:
            # The end of a killed process shows when its results are read.
            with suppress(BrokenPipeError):
                for to in self._calls:
                    to.write(_NUMBER.pack(len(call)) + call)
                    to.flush()
        for thread in threads:
            thread.start()
        self._threads = threads
        while not self._errors and (number := _next(self._queue_end)) is not None:
            made[number] = list(work(parts[number]))
        # After an error, the remaining parts are abandoned.
        if not self._errors:
            for thread in threads:
                thread.join()
        for error in self._errors:
            raise error
        return made

    def end(self) -> None:
        """Kill the forked processes and free all resources."""
        self._end_calls()
        os.close(self._queue_end)
        for process in self._ids:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            # The exit of a process takes 10 ms, in which its memory is freed.
            threading.Thread(target=os.waitpid, args=(process, 0), name=EXIT, daemon=True).start()
        for thread in self._threads:
            thread.join()
        os.close(self._feed_end)
        for file in (*self._outputs, *self._shared, self._inputs):
            file.close()

    def _end_calls(self) -> None:
        for to in self._calls:
            with suppress(BrokenPipeError):
                to.close()

    def _read(self, output: IO[bytes], shared: IO[bytes], file: int) -> None:
        try:
            self._results.append((*_read(output, shared, self._made), file))
        except BaseException as error:
            self._errors.append(error)

    def _feed(self, count: int) -> None:
        """Write the numbers of the parts to the queue, and its end once for each process; stop after an error.

        This runs in a separate thread, because the pipe holds only few numbers.
        """
        with suppress(BrokenPipeError):
            for number in (*range(count), *[_DONE] * (1 + self.count)):
                os.write(self._feed_end, _NUMBER.pack(number))


class _Limited(io.BytesIO):
    """Memory for pickled code. Raises OverflowError if the code is large, so that copying it takes long."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MOST_CODE:
            raise OverflowError("more code than a fork is worth")
        return super().write(data)


class _Pickler(pickle.Pickler):
    """Pickles functions within functions as well, for a process that has the same modules."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, FunctionType) or "<" not in value.__qualname__:
            return NotImplemented
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = value.__defaults__, value.__kwdefaults__
        return _function, (marshal.dumps(value.__code__), value.__module__, value.__qualname__, defaults, cells)


def _function(code: bytes, module: str, name: str, defaults: tuple[Any, Any], cells: list[Any]) -> FunctionType:
    """Return a function that `_Pickler` has pickled."""
    namespace = vars(importlib.import_module(module))
    function = FunctionType(marshal.loads(code), namespace, name, defaults[0], tuple(map(CellType, cells)))
    function.__kwdefaults__ = defaults[1]
    return function


def _next(queue: int) -> int | None:
    """Take and return the number of the next part; None at the end."""
    packed_number = os.read(queue, _NUMBER.size)
    number: int = _NUMBER.unpack(packed_number)[0] if packed_number else _DONE
    return None if number == _DONE else number


def _read(output: IO[bytes], shared: IO[bytes], made: dict[int, list[pa.RecordBatch]]) -> tuple[pa.Buffer, int]:
    """Read the batches that a process made; return the memory that they are in, and its place in the file."""
    places: dict[int, tuple[int, int]] = {}
    while len(head := output.read(_MADE.size)) == _MADE.size:
        number, begin, end = _MADE.unpack(head)
        if number == _FAILED:
            raise pickle.loads(_mapped(shared, begin, end))
        if number == _DONE:
            content = _mapped(shared, begin, end)
            for number, (first, last) in places.items():
                made[number] = _unpacked(content[first - begin : last - begin])
            return content, begin
        places[number] = begin, end
    raise NeedsSparkError("a worker process was killed, possibly because memory ran out")


def _anonymous_file() -> IO[bytes]:
    """Return an anonymous file in memory, or a temporary file if the system does not support that."""
    return os.fdopen(os.memfd_create("made"), "wb") if hasattr(os, "memfd_create") else TemporaryFile()


def _align(file: IO[bytes], width: int) -> int:
    """Move to the next place that is a multiple of `width`, and return it."""
    return file.seek(-(-file.tell() // width) * width)


def _mapped(shared: IO[bytes], begin: int, end: int) -> pa.Buffer:
    """Map a part of a file into memory. The mapping exists as long as any buffer refers to it."""
    if begin == end:
        return pa.py_buffer(b"")
    first = begin // mmap.PAGESIZE * mmap.PAGESIZE
    mapped = mmap.mmap(shared.fileno(), end - first, _MAPPED, mmap.PROT_READ, offset=first)
    return pa.py_buffer(mapped)[begin - first :]


def _serve(
    work: Work[Part],
    parts: Sequence[Part],
    queue: int,
    calls: int,
    writing: int,
    files: Sequence[IO[bytes]],
    number: int,
    unused: Iterable[int],
    parent: int,
) -> None:
    """Execute parts until none are left, report their batches, wait for further calls, and exit.

    The main function of a forked process.

    Args:
        work: The work for a part.
        parts: All parts.
        queue: File descriptor from which the numbers of the next parts are read.
        calls: File descriptor from which further calls are read, until its end.
        writing: File descriptor to which the batches of a part are reported.
        files: Shared memory for inputs of further calls, and for the batches of each process.
        number: Number of this process.
        unused: File descriptors to close.
        parent: Id of the parent; the process exits if the parent no longer exists.
    """
    status = 1
    try:
        # A child inherits the lock of the output folder, so it must not outlive its parent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        for end in unused:
            os.close(end)
        _Kept.is_wanted, _Kept.processes = False, None
        # Objects of the parent need no garbage collection here.
        gc.freeze()
        shared = files[number + 1]
        with os.fdopen(writing, "wb") as output, os.fdopen(calls, "rb") as further:
            while True:
                _execute(work, parts, queue, output, shared)
                del work, parts
                if len(head := further.read(_NUMBER.size)) < _NUMBER.size:
                    break
                work, parts = _unpickled(further.read(*_NUMBER.unpack(head)), files)
        status = 0
    finally:
        # Skip the exit handlers, which belong to the parent.
        os._exit(status)


def _execute(work: Work[Part], parts: Sequence[Part], queue: int, output: IO[bytes], shared: IO[bytes]) -> None:
    """Execute parts until none are left, and report their batches."""
    first = _align(shared, mmap.PAGESIZE)
    try:
        while (number := _next(queue)) is not None:
            begin = shared.tell()
            _pack(work(parts[number]), shared)
            _report(output, number, begin, shared)
        _report(output, _DONE, first, shared)
    except Exception as error:
        begin = shared.tell()
        shared.write(_pickled(error))
        _report(output, _FAILED, begin, shared)


def _unpickled(call: bytes, files: Sequence[IO[bytes]]) -> Any:
    """Return the work and the parts of a further call; see `_Processes.pickled`."""
    code, places = pickle.loads(call)
    mapped = {}
    for number, file in enumerate(files):
        of_file = [place[1:] for place in places if place[0] == number]
        if of_file:
            begin = min(begin for begin, _ in of_file) // mmap.PAGESIZE * mmap.PAGESIZE
            mapped[number] = begin, _mapped(file, begin, max(end for _, end in of_file))
    buffers = (mapped[number][1][begin - mapped[number][0] : end - mapped[number][0]] for number, begin, end in places)
    return pickle.loads(code, buffers=buffers)


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
