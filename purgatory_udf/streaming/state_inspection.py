"""Reads the watcher lists in a checkpoint from Spark's state store, by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from purgatory_udf.backend.backend import Backend, SparkBackend, backend_of
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import COMMAND
from purgatory_udf.rules.engine.loop.arena import LINGERING, SETTLED
from purgatory_udf.rules.engine.loop.codes import key_parts
from purgatory_udf.rules.engine.loop.engine_state import State
from purgatory_udf.rules.engine.loop.state_codec import decode_state
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = "key STRING, open BIGINT, oldest_ms BIGINT, next_deadline_ms BIGINT, bytes BIGINT"


@dataclass(frozen=True)
class Inspection:
    """Watcher lists by key, in descending order of open watches, and their totals."""

    rows: list[tuple[str, int, int | None, int | None, int]]
    keys: int
    open: int
    bytes: int

    def lines(self) -> list[str]:
        head = ("key", "open", "oldest", "next deadline", "bytes")
        body = [(key, f"{n:,}", _moment(oldest), _moment(due), f"{size:,}") for key, n, oldest, due, size in self.rows]
        widths = [max(len(row[column]) for row in [head, *body]) for column in range(len(head))]
        left = {0, 2, 3}
        lines = [
            "  ".join(
                cell.ljust(width) if column in left else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in [head, *body]
        ]
        each = f", {self.bytes / self.open:,.0f} bytes per open watch" if self.open else ""
        more = f" ({self.keys - len(self.rows):,} more keys)" if self.keys > len(self.rows) else ""
        return [*lines, f"{self.open:,} open watches on {self.keys:,} keys, {self.bytes:,} bytes{each}{more}"]


def inspect(session: SparkSession | Backend, checkpoint: str, limit: int) -> Inspection:
    """Return the watcher lists of a checkpoint.

    Args:
        session: The Spark session that reads the state store.
        checkpoint: The checkpoint of the partition query, or its output folder.
        limit: Number of keys to list.

    Raises:
        UserError: The checkpoint has no state.
    """
    backend = backend_of(session)
    path = checkpoint
    inner = Layout(checkpoint).checkpoint("partitions")
    if backend.files.exists(inner):
        path = inner
    if not backend.files.exists(f"{path.rstrip('/')}/state"):
        raise UserError(f"{checkpoint}: {_missing_state_reason(backend, checkpoint)}")
    assert isinstance(backend, SparkBackend)
    spark = backend.spark
    # The state store reader needs a coordinator, which a session creates when its streams are listed.
    assert spark.streams.active is not None
    states = spark.read.format("statestore").load(path)
    value = "value.groupState" if "groupState" in states.select("value.*").columns else "value"
    rows = states.select(f"{value}.state", f"{value}.waiting").mapInPandas(_by_key, _SCHEMA).cache()
    totals = rows.selectExpr("count(*) AS keys", "sum(open) AS open", "sum(bytes) AS bytes").first()
    assert totals is not None
    listed = rows.orderBy(rows.open.desc(), rows.next_deadline_ms, rows.key).limit(limit).collect()
    return Inspection([tuple(row) for row in listed], totals.keys, totals.open or 0, totals.bytes or 0)


def _missing_state_reason(backend: Backend, out: str) -> str:
    without_spark = run_records.ran_without_spark(backend, Layout(out).table("runs"), "replay")
    if without_spark is None:
        return "no checkpoint of a replay there (the folder state is missing)"
    if without_spark:
        return (
            "the trace was replayed in one process, which leaves no state; a stream leaves one: "
            f"{COMMAND} --master 'local[*]' replay … --overwrite"
        )
    return "its replay has no state: its stream has not started yet, or the trace has no operations"


def _by_key(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        for value, waiting in zip(frame["state"], frame["waiting"], strict=True):
            size = len(value) + (len(waiting) if waiting is not None else 0)
            yield _watcher_lists(decode_state(bytes(value)), size)


def _watcher_lists(state: State, size: int) -> pd.DataFrame:
    """Return the watcher lists of a group. Its `size` in bytes is divided among the keys in proportion to watches."""
    waiting = state.parts[(state.parts["queue"] != SETTLED) & (state.parts["duplicate"] == 0)]
    waiting = waiting[state.operations["state"][waiting["operation"]] != LINGERING]
    operations = state.operations[waiting["operation"]]
    count = np.bincount(waiting["key"], minlength=len(state.names))
    weight = (count + 1) / (count + 1).sum()
    rows = []
    for number, name in enumerate(state.names):
        of_partition = operations[waiting["key"] == number]
        broker, partition, topic = key_parts(name)
        oldest = int(of_partition["t"].min()) // 1000 if len(of_partition) else None
        due = int(of_partition["deadline"].min()) if len(of_partition) else None
        rows.append(
            (f"broker {broker}: {topic}-{partition}", len(of_partition), oldest, due, round(size * weight[number]))
        )
    table = pd.DataFrame(rows, columns=["key", "open", "oldest_ms", "next_deadline_ms", "bytes"])
    return table.astype({"oldest_ms": "Int64", "next_deadline_ms": "Int64"})


def _moment(ms: int | None) -> str:
    if ms is None:
        return "-"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
