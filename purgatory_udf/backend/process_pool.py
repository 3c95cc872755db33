"""Parallel work on the machine's cores: in forked processes, in threads, or in new processes.

A fork costs tens of milliseconds, because afterwards each process copies the memory that it writes to, and its results
have to be read. Threads have no such costs, but share the GIL, so they help if Arrow, numpy or compiled code does most
of the work. `spawned_processes` are for work of seconds that queries DuckDB, writes Delta tables, or is started by a
process with a JVM.

Results of forked processes come back as Arrow in shared memory. Inputs need no transfer, because a fork has a copy of
the memory; `work` may therefore be any function. It must neither query DuckDB nor write Delta tables, because their
threads do not survive a fork.

    queue ────────► each process, including this one, takes the number of the next part when it is idle
    shared file ◄── a forked process writes the batches of its parts
    output ◄─────── and reports the number of the part, and the offsets of its batches; or an error

The queue is one pipe for all processes. Shared file and output exist for each forked process, and this process reads
each output in a thread.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, Any, NoReturn, TypeVar

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
    return available_cores() if sys.platform == "linux" else 1


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def spawned_processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of `count` new processes in the `with` block. After an error, waiting tasks are dropped.

    They are spawned, not forked: a child forked from a process with a JVM may deadlock. They collect garbage as often
    as this process. They start with SIGINT blocked: at Ctrl-C, Python would print a stack trace.

    Raises:
        ChildProcessError: A process was killed.
    """
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin, gc.get_threshold())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            # Each task starts a process, because none is idle yet.
            for _ in range(count):
                pool.submit(int)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        yield pool
    except BrokenProcessPool as error:
        raise ChildProcessError("a process was killed, perhaps because memory ran out") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(*thresholds: int) -> None:
    gc.set_threshold(*thresholds)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def release_free_memory() -> None:
    """Return unused memory to the operating system; Arrow and the C library would keep it for later steps."""
    pa.default_memory_pool().release_unused()
    # Only glibc has this function.
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def run_parallel(work: Work[Part], parts: Sequence[Part], in_threads: bool = False) -> list[list[pa.RecordBatch]]:
    """Return the batches of `work` for each part, in the order of the parts. Raises what `work` raises.

    Args:
        work: The work for a part.
        parts: The parts.
        in_threads: Whether threads of this process execute them, instead of forked processes.
    """
    count = min(cores(), len(parts))
    if count < 2:
        return [list(work(part)) for part in parts]
    made = _made_by_threads(work, parts, count) if in_threads else _made_by_processes(work, parts, count)
    return [made[number] for number in range(len(parts))]


def _made_by_threads(work: Work[Part], parts: Sequence[Part], count: int) -> dict[int, list[pa.RecordBatch]]:
    made: dict[int, list[pa.RecordBatch]] = {}
    # Only one thread at a time can take the next number of an iterator.
    numbers, is_abandoned = iter(range(len(parts))), threading.Event()

    def execute() -> None:
        try:
            while not is_abandoned.is_set() and (number := next(numbers, None)) is not None:
                made[number] = list(work(parts[number]))
        except BaseException:
            is_abandoned.set()
            raise

    with ThreadPoolExecutor(count - 1) as threads:
        others = [threads.submit(execute) for _ in range(count - 1)]
        execute()
    for other in others:
        other.result()
    return made


def _made_by_processes(work: Work[Part], parts: Sequence[Part], count: int) -> dict[int, list[pa.RecordBatch]]:
    pool = _Pool(work, parts, count - 1)
    try:
        return pool.run(work, parts)
    finally:
        pool.end()


@dataclass(frozen=True)
class _Worker:
    """A forked process, its output and its shared file."""

    id: int
    output: IO[bytes]
    shared: IO[bytes]


class _Pool:
    """Executes parts in this process and in `count` forked ones."""

    def __init__(self, work: Work[Part], parts: Sequence[Part], count: int) -> None:
        self._made: dict[int, list[pa.RecordBatch]] = {}
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._queue, feed = os.pipe()
        self._feed_end = os.fdopen(feed, "wb", 0)
        self._workers: list[_Worker] = []
        sys.stdout.flush()
        sys.stderr.flush()
        for _ in range(count):
            self._workers.append(self._forked(work, parts))

    def _forked(self, work: Work[Part], parts: Sequence[Part]) -> _Worker:
        """Fork a process that executes parts."""
        # Shared memory needs no copy for the transfer, and no copy-on-write after the next fork.
        shared = _shared_file()
        reading, writing = os.pipe()
        output, output_end = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        parent = os.getpid()
        with _interrupts_deferred():
            process = os.fork()
            if not process:
                # If it kept these open, the pipes would not end when this process closes them.
                unused: list[IO[bytes]] = [self._feed_end, output, *(worker.output for worker in self._workers)]
                _Child(self._queue, output_end, shared).serve(work, parts, unused, parent)
        output_end.close()
        return _Worker(process, output, shared)

    def run(self, work: Work[Part], parts: Sequence[Part]) -> dict[int, list[pa.RecordBatch]]:
        """Execute all parts, and return the batches of each by its number. Raises the first error of a part."""
        made = self._made
        threads = [threading.Thread(target=self._read, args=(worker,), daemon=True) for worker in self._workers]
        threads.append(threading.Thread(target=self._feed, args=(len(parts),), daemon=True))
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
        os.close(self._queue)
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.id, signal.SIGKILL)
            # The exit of a process takes 10 ms, in which its memory is freed.
            threading.Thread(target=os.waitpid, args=(worker.id, 0), name=EXIT, daemon=True).start()
        for thread in self._threads:
            thread.join()
        self._feed_end.close()
        for worker in self._workers:
            worker.output.close()
            worker.shared.close()

    def _read(self, worker: _Worker) -> None:
        """Read the batches that a process made, until it has no more parts."""
        try:
            self._read_parts(worker)
        except BaseException as error:
            self._errors.append(error)

    def _read_parts(self, worker: _Worker) -> None:
        places: dict[int, tuple[int, int]] = {}
        while len(head := worker.output.read(_MADE.size)) == _MADE.size:
            number, begin, end = _MADE.unpack(head)
            if number == _FAILED:
                raise pickle.loads(_mapped(worker.shared)[begin:end])
            if number == _DONE:
                content = _mapped(worker.shared)
                for part, (first, last) in places.items():
                    self._made[part] = _read_batches(content[first:last])
                return
            places[number] = begin, end
        raise NeedsSparkError("a worker process was killed, possibly because memory ran out")

    def _feed(self, count: int) -> None:
        """Write the numbers of the parts to the queue, and its end once for each process; stop after an error.

        This runs in a separate thread, because the pipe holds only few numbers.
        """
        with suppress(BrokenPipeError):
            for number in (*range(count), *[_DONE] * (1 + len(self._workers))):
                self._feed_end.write(_NUMBER.pack(number))


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Handle signals after the `with` block; a process that is forked in it ignores them.

    Python calls functions of modules at a fork, and ignores their exceptions, also those of a handler that interrupts
    them: Ctrl-C would have no effect.
    """
    received: list[int] = []
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for handled, handler in handlers.items():
            signal.signal(handled, handler)
    for each in dict.fromkeys(received):
        handlers[each](each, None)


def _shared_file() -> IO[bytes]:
    """Return an anonymous file in memory, or a temporary file if the system does not support that."""
    return os.fdopen(os.memfd_create("made"), "wb") if hasattr(os, "memfd_create") else TemporaryFile()


def _mapped(file: IO[bytes]) -> pa.Buffer:
    """Map a file into memory. The mapping exists as long as any buffer refers to it."""
    size = os.fstat(file.fileno()).st_size
    return pa.py_buffer(mmap.mmap(file.fileno(), size, _MAPPED, mmap.PROT_READ) if size else b"")


def _read_batches(content: pa.Buffer) -> list[pa.RecordBatch]:
    """Return the record batches of a stream; they refer to the memory of `content`."""
    if not content.size:
        return []
    with pa.ipc.open_stream(content) as reader:
        return list(reader)


def _next(queue: int) -> int | None:
    """Take and return the number of the next part; None at the end."""
    packed_number = os.read(queue, _NUMBER.size)
    number: int = _NUMBER.unpack(packed_number)[0] if packed_number else _DONE
    return None if number == _DONE else number


@dataclass(frozen=True)
class _Child:
    """The code that a forked process executes.

    Attributes:
        queue: Pipe with the numbers of the next parts.
        output: Pipe to which the batches of parts are reported.
        shared: The file to which it writes the batches.
    """

    queue: int
    output: IO[bytes]
    shared: IO[bytes]

    def serve(self, work: Work[Part], parts: Sequence[Part], unused: Iterable[IO[bytes]], parent: int) -> NoReturn:
        """Execute parts until none are left, and exit.

        Args:
            work: The work for a part.
            parts: All parts.
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
                # Objects of the parent need no garbage collection here.
                gc.freeze()
                self._execute(work, parts)
                status = 0
        finally:
            # Skip the exit handlers, which belong to the parent.
            os._exit(status)

    def _execute(self, work: Work[Part], parts: Sequence[Part]) -> None:
        """Execute parts until none are left, and report their batches."""
        try:
            while (number := _next(self.queue)) is not None:
                begin = self.shared.tell()
                self._write(work(parts[number]))
                self._report(number, begin)
            self._report(_DONE, 0)
        except Exception as error:
            begin = self.shared.tell()
            self.shared.write(_pickled(error))
            self._report(_FAILED, begin)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write record batches as a stream; without batches, nothing is written."""
        writer = None
        for batch in batches:
            writer = writer or pa.ipc.new_stream(self.shared, batch.schema)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()

    def _report(self, number: int, begin: int) -> None:
        """Report what the shared file contains from `begin` on."""
        self.shared.flush()
        self.output.write(_MADE.pack(number, begin, self.shared.tell()))
        self.output.flush()


def _pickled(error: Exception) -> bytes:
    """Return an error as it can be unpickled; if it cannot, another one with its traceback."""
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        packed = pickle.dumps(RuntimeError("".join(traceback.format_exception(error))))
    return packed
