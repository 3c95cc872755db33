"""Imports against their floor: reading and decoding the same lines, and writing the same table.

    python -m benchmarks.ingest                                   # a generated trace, the request logs of the tests
    python -m benchmarks.ingest --trace my.jsonl --log broker-*/kafka-request.log --isr metadata.txt
    python -m benchmarks.ingest --json now.json --compare before.json

The imports are those of JSON Lines, of request logs, and of a request log that is followed; the floor of the latter is
that of reading it at once. Runs are interleaved in one process after a warm-up. Medians are compared, as absolute times
of one machine mean little on another. Everything runs without Spark in as many processes as there are cores, as small
inputs of `ingest` do (`purgatory_udf/launch/backend_choice.py`); with `--spark` it runs in Spark.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from benchmarks import followed_log, saved_figures
from benchmarks.saved_figures import Figures
from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.log_files import find_logs
from purgatory_udf.sources.request_log.logged_request import MARKER
from purgatory_udf.sources.trace_files.input_files import InputFile, find_files
from purgatory_udf.sources.trace_files.text_lines import PIECE_BYTES, Piece, byte_pieces, in_tasks, lines_of
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions

if TYPE_CHECKING:
    pass

ROOT = Path(__file__).resolve().parents[1]
LINE_COUNT = pa.schema([("lines", pa.int64())])
_MARK = MARKER.encode()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all imports and print one line each."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=200_000, help="events of the generated trace [default: 200000]")
    options.add_argument("--trace", nargs="+", help="JSON Lines files instead of the generated trace")
    options.add_argument("--log", nargs="+", help="request logs instead of the tests' own")
    options.add_argument("--isr", help="dump of the metadata log for the request logs")
    options.add_argument("--spark", action="store_true", help="run the import with a Spark session of this process")
    options.add_argument(
        "--runs", type=int, default=3, help="runs of each measurement; medians are compared [default: 3]"
    )
    saved_figures.add_options(options)
    given = options.parse_args(arguments)
    from purgatory_udf.launch.backend_choice import open_local, spark_opener

    backend = spark_opener("benchmark-ingest")() if given.spark else open_local()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        logs = given.log or _recorded_logs(folder)
        figures = {
            "jsonl": _json_lines(backend, given.trace or [_write_trace(folder, given.events)], folder, given.runs),
            "request-log": _request_logs(backend, logs, given.isr, folder, given.runs),
        }
        whole = figures["request-log"]
        floor = (whole["read"] + whole["write"]) / whole["lines"]
        figures["request-log, followed"] = followed_log.measure(backend, logs, folder / "followed", floor)
        for name, figure in figures.items():
            report = followed_log.report if "steps" in figure else _report
            print(report(name, figure, not given.spark))
    saved_figures.finish(figures, given)
    return 0


def _json_lines(backend: Backend, paths: list[str], folder: Path, runs: int) -> Figures:
    from purgatory_udf.sources.trace_files.trace_import import ingest

    def run_import(out: str) -> int:
        return ingest(backend, IngestOptions(paths, out)).lines

    return _measure(backend, find_files(paths, ("",)), run_import, msgspec.json.decode, folder / "jsonl", runs)


def _request_logs(backend: Backend, paths: list[str], isr: str | None, folder: Path, runs: int) -> Figures:
    from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log

    def run_import(out: str) -> int:
        options = RequestLogOptions(paths, out, isr=isr)
        return ingest_request_log(backend, options).report.counts["lines"]

    def decode(line: bytes) -> object:
        start = line.find(_MARK)
        return msgspec.json.decode(line[start + len(_MARK) : line.rfind(b"}") + 1]) if start >= 0 else None

    return _measure(backend, find_logs(paths), run_import, decode, folder / "log", runs)


def _measure(
    backend: Backend,
    files: list[InputFile],
    run_import: Callable[[str], int],
    decode: Callable[[bytes], object],
    folder: Path,
    runs: int,
) -> Figures:
    names = (f"{folder}/{number}" for number in count())
    first = next(names)
    lines = run_import(first)
    events = f"{first}/events"
    _read(backend, files, decode)
    taken: dict[str, list[float]] = {"import": [], "read": [], "write": [], "processor": []}
    for _ in range(runs):
        before = followed_log.processor_seconds()
        taken["import"].append(_seconds(lambda: run_import(next(names))))
        taken["processor"].append(followed_log.processor_seconds() - before)
        taken["read"].append(_seconds(lambda: _read(backend, files, decode)))
        taken["write"].append(_seconds(lambda: _write(backend, events, next(names))))
    medians = {name: statistics.median(each) for name, each in taken.items()}
    floor = medians["read"] + medians["write"]
    size = sum(file.size for file in files)
    return {"lines": lines, "bytes": size, **medians, "ratio": medians["import"] / floor, "runs": taken}


def _seconds(run: Callable[[], object]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began


def _read(backend: Backend, files: list[InputFile], decode: Callable[[bytes], object]) -> int:
    """Read the lines and decode their JSON, in as many tasks as an import; return the number of lines."""

    def work(piece: Piece) -> Iterator[pa.RecordBatch]:
        lines = 0
        for chunk in lines_of(piece):
            for line in chunk.items:
                if line:
                    decode(line)
            lines += len(chunk.items)
        yield pa.RecordBatch.from_pylist([{"lines": lines}], schema=LINE_COUNT)

    each = backend.piece_bytes or PIECE_BYTES
    counted = backend.run_tasks(in_tasks(byte_pieces(files, each), each), work, LINE_COUNT).collect().to_pylist()
    return sum(row["lines"] for row in counted)


def _write(backend: Backend, events: str, to: str) -> None:
    """Copy the table `events`, the result of an import, to a new table at the path `to`."""
    if isinstance(backend, SparkBackend):
        backend.spark.read.format("delta").load(events).write.format("delta").save(to)
    else:
        store = backend.delta(events)
        store.append(to, store.read(events))


def _write_trace(folder: Path, events: int) -> str:
    """Write a trace that repeats the bundled sample, each time later; return its path."""
    sample = [json.loads(line) for line in (ROOT / "conf/sample/trace.jsonl").read_bytes().splitlines()]
    length_us = sample[-1]["time_us"] - sample[0]["time_us"] + 1_000
    path = folder / "trace.jsonl"
    with path.open("wb") as file:
        for number in range(events):
            event = sample[number % len(sample)]
            delay_us = number // len(sample) * length_us
            file.write(msgspec.json.encode({**event, "time_us": event["time_us"] + delay_us}) + b"\n")
    return str(path)


def _recorded_logs(folder: Path) -> list[str]:
    """Return the tests' request logs, uncompressed: decompression would be measured as well."""
    from tests.support import recorded

    paths = [folder / f"request-{broker}.log" for broker in (1, 2, 3)]
    for path in paths:
        path.write_text(
            "".join(recorded.lines(recorded.data_file("traces", "W3-groups-k39", path.name))), encoding="utf-8"
        )
    return list(map(str, paths))


def _report(name: str, figure: Figures, show_cpu: bool) -> str:
    rate = figure["lines"] / figure["import"]
    parts = f"import {figure['import']:.2f} s, reading {figure['read']:.2f}, writing {figure['write']:.2f}"
    if show_cpu:
        parts += f"; {figure['lines'] / figure['processor']:,.0f} lines per CPU second"
    spread = f"{min(figure['runs']['import']):.1f} to {max(figure['runs']['import']):.1f}"
    counts = f"{figure['lines']:,} lines, {rate:,.0f} per second"
    return f"{name}: {figure['ratio']:.2f} x its floor ({counts}; {parts}; imports took {spread} s)"


if __name__ == "__main__":
    sys.exit(main())
