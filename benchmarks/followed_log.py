"""Speed of following a request log that arrives line by line in a Kafka topic, step by step.

The cost of a step, in addition to its new lines, is parsing the held-back lines again and Spark's planning. The first
step is a large backlog, as when following starts late, and is not counted.
"""

from __future__ import annotations

import heapq
import re
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory_udf.backend.backend import Backend, SparkBackend
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.sources.follow_topic import LogSteps
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOLD_MS = 10_000
# The number of measured steps, and the fraction of the lines that they have together.
STEPS, COUNTED_FRACTION = 3, 0.6

MESSAGES = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())])
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}.\d{2}:\d{2}:\d{2}.\d+")

Message = tuple[str, int, int, str]


def measure(
    backend: Backend, paths: Sequence[str], folder: Path, floor: float, hold_ms: int = HOLD_MS
) -> dict[str, Any]:
    """Follow request logs in steps, and return what was measured; times are in seconds.

    Args:
        backend: Backend that executes the steps.
        paths: The logs, whose lines are merged in time order.
        folder: Folder of the tables.
        floor: The time, in seconds per line, of only reading the log and writing its table.
        hold_ms: Time for which lines are held back, in milliseconds.

    Returns:
        `first`: the time of the first step, which the other values leave out. `steps`: the time of each further step.
        `import` and `processor`: the sum of these times, and their CPU time. `lines`: the number of lines in these
        steps. `ratio`: their time per line as a multiple of `floor`.
    """
    messages = list(heapq.merge(*(_messages(number, Path(path)) for number, path in enumerate(paths))))
    each = int(len(messages) * COUNTED_FRACTION / STEPS)
    first = len(messages) - each * STEPS
    portions = [messages[:first], *(messages[at : at + each] for at in range(first, len(messages), each))]
    steps = _steps(backend, str(folder / "out"), hold_ms)
    taken, used = [], []
    for number, portion in enumerate(portions):
        spark = backend.spark if isinstance(backend, SparkBackend) else None
        rows = None if spark is None else _rows(spark, portion, folder / f"portion-{number}")
        began, before = time.monotonic(), processor_seconds()
        if rows is None:
            steps.run(backend, LocalDataset.of(_table(portion)), number)
        else:
            steps.write(rows, number)
        taken.append(time.monotonic() - began)
        used.append(processor_seconds() - before)
    counted, lines = taken[1:], each * STEPS
    measured = {"lines": lines, "first": taken[0], "steps": counted, "import": sum(counted), "processor": sum(used[1:])}
    return {**measured, "ratio": sum(counted) / lines / floor}


def processor_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended. A running JVM is not counted."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _steps(backend: Backend, out: str, hold_ms: int) -> LogSteps:
    layout, topic = Layout(out), KafkaTopic("localhost:9092", "broker-log", Messages.REQUEST_LOG)
    for name in ("events", "rejected_events", "recorded"):
        backend.delta(layout.table(name)).create(layout.table(name), TABLES[name])
    options = RequestLogOptions([topic.topic], out, hold_ms=hold_ms)
    return LogSteps(backend, layout, Run("followed", "ingest", {}, {}), topic, options, f"{out}/_kafka/held")


def _messages(file: int, path: Path) -> Iterator[Message]:
    """Yield the file's lines with time stamp, partition, offset and text, in the order of a topic."""
    last = ""
    for offset, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        stamp = _STAMP.search(line)
        last = max(last, stamp[0] if stamp else last)
        yield last, file, offset, line


def _rows(spark: SparkSession, messages: Sequence[Message], place: Path) -> DataFrame:
    """Return the messages in one file per partition, as Spark's Kafka source would return them."""
    place.mkdir(parents=True)
    for file in sorted({message[1] for message in messages}):
        pq.write_table(_table([message for message in messages if message[1] == file]), place / f"{file}.parquet")
    return spark.read.parquet(str(place))


def _table(messages: Sequence[Message]) -> pa.Table:
    columns: Iterable[Sequence[Any]] = zip(*(message[1:] for message in messages), strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, MESSAGES, strict=True)]
    return pa.Table.from_arrays(arrays, schema=MESSAGES)


def report(name: str, figure: dict[str, Any], show_cpu: bool) -> str:
    """Return the figures of `measure` as one line of text; `show_cpu` adds the CPU time."""
    rate = figure["lines"] / figure["import"]
    steps = ", ".join(f"{taken:.1f}" for taken in figure["steps"])
    cpu = f"; {figure['lines'] / figure['processor']:,.0f} per CPU second" if show_cpu else ""
    return (
        f"{name}: {figure['ratio']:.2f} x its floor "
        f"({figure['lines']:,} lines, {rate:,.0f} per second{cpu}; "
        f"steps of {steps} s; the first, with the backlog, {figure['first']:.1f} s)"
    )
