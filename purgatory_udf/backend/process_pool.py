"""Parallel work on the machine's cores, in this process and in forked ones, which exit or wait when the work is done.

Results come back as Arrow in shared memory. Inputs need no transfer, because a fork has a copy of the memory; `work`
may therefore be any function. It must neither query DuckDB nor write Delta tables, because their threads do not survive
a fork. A fork costs milliseconds, depending on the memory of the parent, and its results have to be read. Neither cost
applies to parts that this process executes itself.

    queue ────────► each process, including this one, takes the number of the next part when it is idle
    shared file ◄── a forked process writes the batches of its parts (`call_transfer`)
    output ◄─────── and reports the number of the part, and the offsets of its batches; or an error
    calls ────────► within `kept_processes`: the next work and its parts, until the end of this pipe

The queue is one pipe for all processes. Shared file, output and calls exist for each forked process, and this process
reads each output in a thread.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, NoReturn, TypeVar

import pyarrow as pa

from purgatory_udf.backend.call_transfer import (
    CallWriter,
    SharedPlace,
    align,
    mapped,
    read_batches,
    read_call,
    shared_file,
    write_batches,
)
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
    pool, call = _pool_for(work, parts, count - 1)
    try:
        made = pool.run(work, parts, call)
    except BaseException:
        _Kept.pool = None
        pool.end()
        raise
    if not _Kept.is_wanted:
        pool.end()
    return [made[number] for number in range(len(parts))]


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
    return _Kept.pool is not None


class _Kept:
    """The pool that waits for further work, if it is wanted."""

    is_wanted = False
    pool: _Pool | None = None


def _pool_for(work: Work[Part], parts: Sequence[Part], count: int) -> tuple[_Pool, bytes | None]:
    """Return a pool with `count` forked processes or more, and the serialized call if they have not inherited it."""
    if _Kept.pool is not None:
        call = _Kept.pool.serialized(work, parts) if count <= _Kept.pool.count else None
        if call is not None:
            return _Kept.pool, call
        _end_kept()
    pool = _Pool(work, parts, count, is_kept=_Kept.is_wanted)
    if _Kept.is_wanted:
        _Kept.pool = pool
    return pool, None


def _end_kept() -> None:
    pool, _Kept.pool = _Kept.pool, None
    if pool is not None:
        pool.end()


@dataclass(frozen=True)
class _Worker:
    """A forked process and its pipes, as the parent uses them.

    `number` is that of its shared file: 1 for the first process, because 0 is the file of inputs.
    """

    number: int
    id: int
    calls: IO[bytes]
    output: IO[bytes]


class _Pool:
    """Executes parts in this process and in `count` forked ones, which inherit the first call's work and parts.

    If they are kept, they wait for further calls.
    """

    def __init__(self, work: Work[Part], parts: Sequence[Part], count: int, is_kept: bool) -> None:
        self.count = count
        self._made: dict[int, list[pa.RecordBatch]] = {}
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._queue, feed = os.pipe()
        self._feed_end = os.fdopen(feed, "wb", 0)
        self._writer = CallWriter()
        # Shared memory needs no copy for the transfer, and no copy-on-write after the next fork.
        self._files = [self._writer.inputs, *(shared_file() for _ in range(count))]
        self._workers: list[_Worker] = []
        sys.stdout.flush()
        sys.stderr.flush()
        for number in range(1, count + 1):
            self._workers.append(self._forked(work, parts, number))
        if not is_kept:
            self._end_calls()

    def _forked(self, work: Work[Part], parts: Sequence[Part], number: int) -> _Worker:
        """Fork a process that executes parts."""
        (calls_end, calls), (output, output_end) = _pipe(), _pipe()
        parent = os.getpid()
        process = os.fork()
        if not process:
            # If it kept these open, the pipes would not end when this process closes them.
            of_others = (end for worker in self._workers for end in (worker.calls, worker.output))
            child = _Child(self._queue, calls_end, output_end, self._files, number)
            child.serve(work, parts, [self._feed_end, calls, output, *of_others], parent)
        calls_end.close()
        output_end.close()
        return _Worker(number, process, calls, output)

    def serialized(self, work: Work[Part], parts: Sequence[Part]) -> bytes | None:
        """Return a further call for the forked processes; None if a fork is faster, or it cannot be pickled."""
        return self._writer.serialized((work, parts))

    def run(self, work: Work[Part], parts: Sequence[Part], call: bytes | None) -> dict[int, list[pa.RecordBatch]]:
        """Execute all parts, and return the batches of each by its number. Raises the first error of a part.

        Args:
            work: The work for a part.
            parts: All parts.
            call: The same for the forked processes (`serialized`); None if they have inherited it.
        """
        self._made = made = {}
        threads = [threading.Thread(target=self._read, args=(worker,), daemon=True) for worker in self._workers]
        threads.append(threading.Thread(target=self._feed, args=(len(parts),), daemon=True))
        if call is not None:
            self._send(call)
        for thread in threads:
            thread.start()
        self._threads = threads
        while not self._errors and (number := _next(self._queue)) is not None:
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
        os.close(self._queue)
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.id, signal.SIGKILL)
            # The exit of a process takes 10 ms, in which its memory is freed.
            threading.Thread(target=os.waitpid, args=(worker.id, 0), name=EXIT, daemon=True).start()
        for thread in self._threads:
            thread.join()
        for file in (self._feed_end, *(worker.output for worker in self._workers), *self._files):
            file.close()

    def _send(self, call: bytes) -> None:
        # The end of a killed process shows when its results are read.
        with suppress(BrokenPipeError):
            for worker in self._workers:
                worker.calls.write(_NUMBER.pack(len(call)) + call)
                worker.calls.flush()

    def _end_calls(self) -> None:
        for worker in self._workers:
            with suppress(BrokenPipeError):
                worker.calls.close()

    def _read(self, worker: _Worker) -> None:
        """Read the batches that a process made, until it has no more parts."""
        try:
            content, place = self._read_parts(worker.output, worker.number)
            self._writer.add_result(content, place)
        except BaseException as error:
            self._errors.append(error)

    def _read_parts(self, output: IO[bytes], file: int) -> tuple[pa.Buffer, SharedPlace]:
        """Read the batches from a shared file; return the memory that they are in, and its place."""
        shared = self._files[file]
        places: dict[int, tuple[int, int]] = {}
        while len(head := output.read(_MADE.size)) == _MADE.size:
            number, begin, end = _MADE.unpack(head)
            if number == _FAILED:
                raise pickle.loads(mapped(shared, begin, end))
            if number == _DONE:
                content = mapped(shared, begin, end)
                for part, (first, last) in places.items():
                    self._made[part] = read_batches(content[first - begin : last - begin])
                return content, SharedPlace(file, begin, end)
            places[number] = begin, end
        raise NeedsSparkError("a worker process was killed, possibly because memory ran out")

    def _feed(self, count: int) -> None:
        """Write the numbers of the parts to the queue, and its end once for each process; stop after an error.

        This runs in a separate thread, because the pipe holds only few numbers.
        """
        with suppress(BrokenPipeError):
            for number in (*range(count), *[_DONE] * (1 + self.count)):
                self._feed_end.write(_NUMBER.pack(number))


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """Return the reading and the writing side of a new pipe."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")


def _next(queue: int) -> int | None:
    """Take and return the number of the next part; None at the end."""
    packed_number = os.read(queue, _NUMBER.size)
    number: int = _NUMBER.unpack(packed_number)[0] if packed_number else _DONE
    return None if number == _DONE else number


@dataclass(frozen=True)
class _Child:
    """The code that a forked process executes, and its pipes.

    Attributes:
        queue: Pipe with the numbers of the next parts.
        calls: Pipe with further calls, until its end.
        output: Pipe to which the batches of parts are reported.
        files: The shared files of the pool.
        number: Number of its own file, to which it writes batches.
    """

    queue: int
    calls: IO[bytes]
    output: IO[bytes]
    files: Sequence[IO[bytes]]
    number: int

    def serve(self, work: Work[Part], parts: Sequence[Part], unused: Iterable[IO[bytes]], parent: int) -> NoReturn:
        """Execute parts until none are left, then those of further calls, and exit.

        Args:
            work: The work for a part of the first call.
            parts: All parts of the first call.
            unused: Pipes of the parent, which this process closes.
            parent: Id of the parent; the process exits if the parent no longer exists.
        """
        status = 1
        try:
            # A child inherits the lock of the output folder, so it must not outlive its parent.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                for end in unused:
                    end.close()
                _Kept.is_wanted, _Kept.pool = False, None
                # Objects of the parent need no garbage collection here.
                gc.freeze()
                self._execute(work, parts)
                del work, parts
                while len(head := self.calls.read(_NUMBER.size)) == _NUMBER.size:
                    self._execute(*read_call(self.calls.read(*_NUMBER.unpack(head)), self.files))
                status = 0
        finally:
            # Skip the exit handlers, which belong to the parent.
            os._exit(status)

    def _execute(self, work: Work[Part], parts: Sequence[Part]) -> None:
        """Execute parts until none are left, and report their batches."""
        shared = self.files[self.number]
        first = align(shared, mmap.PAGESIZE)
        try:
            while (number := _next(self.queue)) is not None:
                begin = shared.tell()
                write_batches(work(parts[number]), shared)
                self._report(number, begin)
            self._report(_DONE, first)
        except Exception as error:
            begin = shared.tell()
            shared.write(_pickled(error))
            self._report(_FAILED, begin)

    def _report(self, number: int, begin: int) -> None:
        """Report what the shared file contains from `begin` on."""
        shared = self.files[self.number]
        shared.flush()
        self.output.write(_MADE.pack(number, begin, shared.tell()))
        self.output.flush()


def _pickled(error: Exception) -> bytes:
    """Return an error as it can be unpickled; if it cannot, another one with its traceback."""
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return packed
