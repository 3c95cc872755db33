"""Imports against their floor: JSON Lines and request logs, each beside the same lines only read and decoded, and the
same table only written; a request log that is followed, beside the floor of the log that is read whole.

    python -m benchmarks.ingest                                   # a made trace, the request logs of the tests
    python -m benchmarks.ingest --trace my.jsonl --log broker-*/kafka-request.log --isr metadata.txt
    python -m benchmarks.ingest --json now.json --compare before.json

Floor and import take turns in one process, after one of each that is not counted; medians and their ratio are what
counts, and no number of one machine says anything of another. All is done without Spark, by as many processes as there
are cores, as `ingest` does where so much is small (`purgatory_udf/backend/input_size.py`); `--spark` has Spark do it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from benchmarks import log_followed
from purgatory_udf.backend import dialect
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.lines.log_files import find_logs
from purgatory_udf.sources.request_log.lines.log_line import MARKER
from purgatory_udf.sources.trace_files.import_report import IngestOptions
from purgatory_udf.sources.trace_files.input_files import InputFile, find_files
from purgatory_udf.sources.trace_files.text_lines import HERE_BYTES, PIECE_BYTES, Piece, byte_pieces, in_tasks, lines_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
COUNTED = pa.schema([("lines", pa.int64())])
_MARK = MARKER.encode()

Figures = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--events", type=int, default=200_000, help="of the made trace")
    options.add_argument("--trace", nargs="+", help="JSON Lines instead of the made trace")
    options.add_argument("--log", nargs="+", help="request logs instead of those of the tests")
    options.add_argument("--isr", help="dump of the metadata log beside the request logs")
    options.add_argument("--spark", action="store_true", help="as Spark does it, in this process")
    options.add_argument("--runs", type=int, default=3, help="of each; medians are compared")
    options.add_argument("--json", help="write the figures to this file")
    options.add_argument("--compare", help="figures of an earlier run: is the ratio to the floor better or worse?")
    asked = options.parse_args(arguments)
    from purgatory_udf.launch.spark_session import session_for

    with tempfile.TemporaryDirectory() as scratch, nullcontext() if asked.spark else dialect.locally():
        spark = session_for("benchmark-ingest")
        folder = Path(scratch)
        logs = asked.log or _recorded(folder)
        figures = {
            "jsonl": _json_lines(spark, asked.trace or [_made(folder, asked.events)], folder, asked.runs),
            "request-log": _request_logs(spark, logs, asked.isr, folder, asked.runs),
        }
        whole = figures["request-log"]
        floor = (whole["read"] + whole["write"]) / whole["lines"]
        figures["request-log, followed"] = log_followed.figures(spark, logs, folder / "followed", floor)
        for name, figure in figures.items():
            print(log_followed.sentence(figure) if "steps" in figure else _sentence(name, figure))
    if asked.compare:
        before = json.loads(Path(asked.compare).read_text(encoding="utf-8"))
        for name in figures.keys() & before.keys():
            change = figures[name]["ratio"] / before[name]["ratio"]
            print(
                f"{name}: {figures[name]['ratio']:.2f} x its floor, before {before[name]['ratio']:.2f}: x {change:.2f}"
            )
    if asked.json:
        Path(asked.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def _json_lines(spark: SparkSession, paths: list[str], folder: Path, runs: int) -> Figures:
    from purgatory_udf.launch.spark_session import session_for
    from purgatory_udf.sources.trace_files.trace_import import ingest

    def take_in(out: str) -> int:
        # Without Spark, a session holds what was asked of it.
        return ingest(session_for("benchmark-ingest"), IngestOptions(paths, out)).lines

    return _measured(spark, find_files(paths, ("",)), take_in, msgspec.json.decode, folder / "jsonl", runs)


def _request_logs(spark: SparkSession, paths: list[str], isr: str | None, folder: Path, runs: int) -> Figures:
    from purgatory_udf.launch.spark_session import session_for
    from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log

    def take_in(out: str) -> int:
        options = RequestLogOptions(paths, out, isr=isr)
        return ingest_request_log(session_for("benchmark-ingest"), options).report.counts["lines"]

    def decode(line: bytes) -> object:
        start = line.find(_MARK)
        return msgspec.json.decode(line[start + len(_MARK) : line.rfind(b"}") + 1]) if start >= 0 else None

    return _measured(spark, find_logs(paths), take_in, decode, folder / "log", runs)


def _measured(
    spark: SparkSession,
    files: list[InputFile],
    take_in: Callable[[str], int],
    decode: Callable[[bytes], object],
    folder: Path,
    runs: int,
) -> Figures:
    names = (f"{folder}/{number}" for number in count())
    first = next(names)
    lines = take_in(first)
    events = f"{first}/events"
    _read(spark, files, decode)
    taken: dict[str, list[float]] = {"import": [], "read": [], "write": [], "processor": []}
    for _ in range(runs):
        before = log_followed.processor()
        taken["import"].append(_seconds(lambda: take_in(next(names))))
        taken["processor"].append(log_followed.processor() - before)
        taken["read"].append(_seconds(lambda: _read(spark, files, decode)))
        taken["write"].append(_seconds(lambda: _write(spark, events, next(names))))
    medians = {name: statistics.median(each) for name, each in taken.items()}
    floor = medians["read"] + medians["write"]
    size = sum(file.size for file in files)
    return {"lines": lines, "bytes": size, **medians, "ratio": medians["import"] / floor, "runs": taken}


def _seconds(run: Callable[[], object]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began


def _read(spark: SparkSession, files: list[InputFile], decode: Callable[[bytes], object]) -> int:
    """The lines read and their JSON decoded, by as many tasks as an import has."""
    from purgatory_udf.backend.task_runner import spread

    def work(piece: Piece) -> Iterator[pa.RecordBatch]:
        lines = 0
        for chunk in lines_of(piece):
            for line in chunk.items:
                if line:
                    decode(line)
            lines += len(chunk.items)
        yield pa.RecordBatch.from_pylist([{"lines": lines}], schema=COUNTED)

    each = HERE_BYTES if dialect.is_local() else PIECE_BYTES
    counted = spread(spark, in_tasks(byte_pieces(files, each), each), work, COUNTED).collect()
    return sum(int(row.lines) for row in counted)


def _write(spark: SparkSession, events: str, to: str) -> None:
    """The table that an import has made, written once more."""
    spark.read.format("delta").load(events).write.format("delta").save(to)


def _made(folder: Path, events: int) -> str:
    """The bundled sample again and again, each time later."""
    sample = [json.loads(line) for line in (ROOT / "conf/sample/trace.jsonl").read_bytes().splitlines()]
    lasts = sample[-1]["time_us"] - sample[0]["time_us"] + 1_000
    path = folder / "made.jsonl"
    with path.open("wb") as file:
        for number in range(events):
            event = sample[number % len(sample)]
            later = number // len(sample) * lasts
            file.write(msgspec.json.encode({**event, "time_us": event["time_us"] + later}) + b"\n")
    return str(path)


def _recorded(folder: Path) -> list[str]:
    """Unpacked: an import reads packed files, too, but then that is what is measured."""
    from tests.support import recorded

    paths = [folder / f"request-{broker}.log" for broker in (1, 2, 3)]
    for path in paths:
        path.write_text("".join(recorded.lines(recorded.file("traces", "W3-groups-k39", path.name))), encoding="utf-8")
    return list(map(str, paths))


def _sentence(name: str, figure: Figures) -> str:
    rate = figure["lines"] / figure["import"]
    parts = f"import {figure['import']:.2f} s, reading {figure['read']:.2f}, writing {figure['write']:.2f}"
    if dialect.is_local():
        parts += f"; {figure['lines'] / figure['processor']:,.0f} lines for each second of a processor"
    spread = f"{min(figure['runs']['import']):.1f} to {max(figure['runs']['import']):.1f}"
    counts = f"{figure['lines']:,} lines, {rate:,.0f} a second"
    return f"{name}: {figure['ratio']:.2f} times its floor ({counts}; {parts}; imports took {spread})"


if __name__ == "__main__":
    sys.exit(main())
