"""Replays a trace of one batch in this process: with the adapter, rules and sink of a stream, but without Spark.

Each group gets all of its events in one call, so it needs no earlier state, no timers and no watermark. The writes of
the batch have the same transaction ids as in a stream, so an interrupted run can be resumed here, and writes only the
missing tables.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from purgatory_udf.backend.backend import Backend, LocalBackend
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch import backend_choice
from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.batch_sink import LocalChunks, Sink
from purgatory_udf.streaming.event_source import EventTable, Survey, TraceSource
from purgatory_udf.streaming.run_resumption import SINGLE_BATCH_GROUPING, ReplayOptions
from purgatory_udf.streaming.stateful_adapter import OutputChunk, call_rules, input_chunk_function

log = logging.getLogger(__name__)

_CHUNKS = pa.schema(
    [
        ("table", pa.string()),
        ("group", pa.string()),
        ("time_us", pa.int64()),
        ("rows", pa.int64()),
        ("payload", pa.binary()),
    ]
)


def require_single_batch(backend: Backend, options: ReplayOptions, layout: Layout, events: EventTable) -> None:
    """Check that this process can replay the trace.

    Args:
        backend: This process.
        options: Options of the replay.
        layout: The run's tables, possibly of an interrupted run.
        events: The table of events.

    Raises:
        NeedsSparkError: The run needs a stream or too much memory.
    """
    known = None if options.overwrite else run_records.load(backend, layout.table("runs"), "replay")
    if options.follow or options.config.grouping not in ("auto", SINGLE_BATCH_GROUPING):
        raise NeedsSparkError("the replay runs as a stream, because of --follow or the setting grouping")
    if known is not None and (
        known.configuration.get("grouping") != SINGLE_BATCH_GROUPING
        or backend.files.exists(f"{layout.internal}/checkpoints")
    ):
        raise NeedsSparkError(f"{layout.out}: the run there was started as a stream")
    if events.survey.events > options.config.batch_events:
        raise NeedsSparkError(
            f"{events.survey.events:,} events are more than one batch (batch_events is {options.config.batch_events:,})"
        )
    if events.most_watches() > backend_choice.REPLAYED_WATCHES:
        raise NeedsSparkError(
            f"{events.path}: more than {backend_choice.REPLAYED_WATCHES:,} watches, which may not fit in memory"
        )


class NoState:
    """Group state for a trace of one batch: without earlier state, and never read again."""

    exists = False
    hasTimedOut = False  # noqa: N815

    @property
    def get(self) -> tuple[Any, ...]:
        """Raise an error, because there is no state."""
        raise AssertionError("there is no state")

    def update(self, value: tuple[Any, ...]) -> None:
        """Ignore the state: no later call needs it."""

    def remove(self) -> None:
        """Ignore the removal."""

    def setTimeoutTimestamp(self, ms: int) -> None:  # noqa: N802
        """Ignore the timer: the call advances the clock past all deadlines."""

    def getCurrentWatermarkMs(self) -> int:  # noqa: N802
        """Return the watermark that a stream has before its first event."""
        return 0


@dataclass(frozen=True)
class LocalQuery:
    """A query over a trace of one batch, executed by this process."""

    backend: LocalBackend
    title: str
    source: TraceSource
    sink: Sink

    def to_end(self, survey: Survey) -> None:
        """Replay all events and write the tables."""
        if code_cache.needs_warm_up():
            log.info("compiling the engine (once for each version; up to a minute)")
            warm_up.main()
        log.info("%s: replaying %s events", self.title, f"{survey.events:,}")
        rules = self.sink.rules
        rows = self.source.read(self.backend)
        packed = input_chunk_function(rules)(iter(rows.select(rules.input_columns(rows.column_names)).to_batches()))
        payloads: dict[str, list[bytes]] = defaultdict(list)
        for batch in packed:
            for group, payload in zip(batch.column("group").to_pylist(), batch.column("payload"), strict=True):
                payloads[group].append(payload.as_py())
        chunks = pa.Table.from_pylist([chunk._asdict() for chunk in self._chunks(payloads)], schema=_CHUNKS)
        self.sink.process(LocalChunks(chunks), 0)

    def _chunks(self, payloads: dict[str, list[bytes]]) -> Iterator[OutputChunk]:
        for group, values in payloads.items():
            yield from call_rules(self.sink.rules, group, values, NoState())
