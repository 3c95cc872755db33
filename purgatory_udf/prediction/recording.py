"""A recording as the fit needs it: its fetches, produces and appends as frames, and who leads what.

Times are milliseconds since the recording's first event, wide enough for microseconds. The tables are read by Spark
(`spark_recording`) or any other reader of Arrow; nothing here needs a JVM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.dialect import functions as sf
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import MARKER_SENDERS
from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.storage import delta_tables
from purgatory_udf.storage.output_folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


EVENT_COLUMNS = (
    *("time_us", "seq", "broker", "type", "client_id", "acks", "timeout_ms", "replica_id", "max_wait_ms", "min_bytes"),
    *("max_bytes", "partitions", "topic", "partition", "change", "offset", "bytes", "replicas", "isr", "min_isr"),
    "group",
)
REQUEST_COLUMNS = EVENT_COLUMNS[:11]
# Kafka allows clients without one.
NO_CLIENT_ID = "(no client id)"
RECORDED_COLUMNS = (
    *("operation_id", "written_at", "recorded_outcome", "recorded_remote_ms", "recorded_local_ms"),
    *("recorded_bytes", "recorded_complete"),
)


@dataclass(frozen=True)
class PartitionLeader:
    """How a partition is led from some time on: by whom, and who follows."""

    at: float
    key: int
    leader: int
    replicas: tuple[int, ...]
    min_isr: int


@dataclass(frozen=True)
class Recording:
    """`fetches` and `produces` are requests: `client`, `broker`, `tried` (first try), `waited`, `handled` (how long its
    handling took before), `answered`, `written`, `outcome`, `bytes`; a fetch has `replica`, `min_bytes`, `max_wait`,
    `max_bytes`, `most` (of a partition, as most of them ask), and `keys`, a place in `key_sets`; a produce has `acks`,
    `timeout`.

    `batches` are what produces appended: `request` (the place of its produce), `key` (a place in `keys`), `records`,
    `bytes`. `others` are appends without a produce: `at`, `key`, `bytes`.
    """

    keys: list[TopicPartition]
    leaders: list[PartitionLeader]
    key_sets: list[tuple[int, ...]]
    fetches: pd.DataFrame
    produces: pd.DataFrame
    batches: pd.DataFrame
    others: pd.DataFrame
    groups: dict[str, str]

    def led(self, at: float) -> dict[int, PartitionLeader]:
        """By whom each partition was led at that time, or next."""
        by_key: dict[int, PartitionLeader] = {}
        for leader in self.leaders:
            if leader.at <= at or leader.key not in by_key:
                by_key[leader.key] = leader
        return by_key


def build_recording(events: pa.Table, recorded: pa.Table) -> Recording:
    """`events` and `recorded` as an import of a request log writes them, with at least the columns above."""
    if not recorded.num_rows:
        raise UserError("the table recorded is empty: a scenario is fitted to an imported request log")
    if not events.num_rows:
        raise UserError("the table events is empty: a scenario is fitted to an imported request log")
    events = events.sort_by("seq")
    # Whole, as the milliseconds of a broker's timer are.
    begin_us = pc.min(events["time_us"]).as_py() // 1000 * 1000
    # What ends transactions is appended, too: nobody sends it of himself.
    marks = pc.fill_null(pc.match_like(events["client_id"], MARKER_SENDERS.replace("*", "%")), False)
    asked = events.filter(pc.and_not(pc.is_in(events["type"], pa.array(["fetch", "produce"])), marks))
    names, lists = _keys_named(asked)
    requests = _requests(asked, recorded, begin_us)
    changes = events.filter(pc.equal(events["type"], "partition"))
    keys = _Keys()
    key_of = np.array([keys.place(topic, number) for topic, number in names], dtype=np.int64)
    lists["key"] = key_of[lists["name"].to_numpy()] if len(lists) else np.empty(0, dtype=np.int64)
    leads = _leaders(changes, keys, begin_us)
    leaders = [*leads, *_supposed(lists.assign(broker=asked["broker"].to_numpy()[lists["row"]]), leads)]
    key_sets, fetch_keys = _key_sets(requests, lists)
    produces = requests[requests["type"] == "produce"].reset_index(drop=True)
    most = lists.groupby("row")["max_bytes"].max().reindex(requests.loc[requests["type"] == "fetch", "row"])
    fetches = requests[requests["type"] == "fetch"].assign(keys=fetch_keys, most=most.to_numpy()).reset_index(drop=True)
    batches = _batches(produces, lists)
    written = lists.assign(at=(asked["time_us"].to_numpy()[lists["row"]] - begin_us) / 1000)
    produced = pc.equal(asked["type"], "produce").to_numpy()
    written = written[produced[written["row"]] & ~written["row"].isin(requests["row"])]
    others = _others(changes, keys, batches, begin_us, written)
    return Recording(keys.all, leaders, key_sets, fetches, produces, batches, others, _groups(events))


class _Keys:
    def __init__(self) -> None:
        self.all: list[TopicPartition] = []
        self._places: dict[TopicPartition, int] = {}

    def place(self, topic: str, partition: int) -> int:
        key = TopicPartition(topic, partition)
        if key not in self._places:
            self._places[key] = len(self.all)
            self.all.append(key)
        return self._places[key]


def _keys_named(asked: pa.Table) -> tuple[list[tuple[str, int]], pd.DataFrame]:
    """The partitions' names, and each request's partitions: `row` of the request, `name`, and their fields."""
    column = asked["partitions"].combine_chunks()
    flat = pc.list_flatten(column)
    lists = pd.DataFrame({"row": pc.list_parent_indices(column).to_numpy()})
    topics = pc.struct_field(flat, "topic").dictionary_encode()
    numbers = pc.struct_field(flat, "partition").to_numpy(zero_copy_only=False).astype(np.int64)
    width = int(numbers.max(initial=0)) + 1
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) * width + numbers
    distinct, places = np.unique(codes, return_inverse=True)
    lists["name"] = places
    for field in ("base_offset", "last_offset", "bytes", "max_bytes"):
        lists[field] = pc.struct_field(flat, field).to_numpy(zero_copy_only=False)
    names = topics.dictionary.to_pylist()
    return [(names[code // width], int(code % width)) for code in distinct], lists


def _requests(asked: pa.Table, recorded: pa.Table, begin_us: int) -> pd.DataFrame:
    frame = asked.drop_columns(["partitions"]).select([name for name in REQUEST_COLUMNS if name in asked.column_names])
    requests = frame.to_pandas().rename(
        columns={"client_id": "client", "replica_id": "replica", "max_wait_ms": "max_wait", "timeout_ms": "timeout"}
    )
    requests["row"] = np.arange(len(requests))
    did = recorded.select([name for name in RECORDED_COLUMNS if name in recorded.column_names]).to_pandas()
    written_us = pc.cast(pc.cast(recorded["written_at"], pa.timestamp("us", tz="UTC")), pa.int64()).to_numpy()
    did["written"] = (written_us - begin_us) / 1000
    requests = requests.merge(did, left_on="seq", right_on="operation_id", how="inner")
    requests["client"] = requests["client"].fillna("").replace("", NO_CLIENT_ID)
    requests["tried"] = (requests["time_us"] - begin_us) / 1000
    requests["waited"] = requests["recorded_remote_ms"].astype(float)
    requests["handled"] = requests["recorded_local_ms"].astype(float)
    requests["answered"] = requests["tried"] + requests["waited"]
    requests["outcome"] = requests["recorded_outcome"]
    requests["bytes"] = requests["recorded_bytes"].fillna(0).astype(np.int64)
    kept = ("type", "row", "client", "broker", "replica", "acks", "min_bytes", "max_wait", "max_bytes", "timeout")
    return requests[[*kept, "tried", "waited", "handled", "answered", "written", "outcome", "bytes"]]


def _key_sets(requests: pd.DataFrame, lists: pd.DataFrame) -> tuple[list[tuple[int, ...]], np.ndarray[Any, Any]]:
    """Each set of partitions that fetches are about, and the place of each fetch's."""
    of_row = lists.groupby("row")["key"].agg(lambda keys: tuple(sorted(keys)))
    rows = requests.loc[requests["type"] == "fetch", "row"]
    wanted = of_row.reindex(rows)
    sets = [keys if isinstance(keys, tuple) else () for keys in wanted]
    places: dict[tuple[int, ...], int] = {}
    return_places = np.array([places.setdefault(key_set, len(places)) for key_set in sets], dtype=np.int64)
    return list(places), return_places


def _batches(produces: pd.DataFrame, lists: pd.DataFrame) -> pd.DataFrame:
    mine = lists.merge(
        pd.DataFrame({"row": produces["row"], "request": np.arange(len(produces))}), on="row", how="inner"
    )
    records = (mine["last_offset"] - mine["base_offset"] + 1).clip(lower=1)
    batches = pd.DataFrame(
        {"request": mine["request"], "key": mine["key"], "base": mine["base_offset"], "records": records}
    )
    batches["bytes"] = mine["bytes"]
    return batches.astype(np.int64)


def _leaders(changes: pa.Table, keys: _Keys, begin_us: int) -> list[PartitionLeader]:
    said = changes.filter(pc.equal(changes["change"], "leader"))
    rows = said.select(["time_us", "broker", "topic", "partition", "replicas", "isr", "min_isr"]).to_pylist()
    return [
        PartitionLeader(
            (row["time_us"] - begin_us) / 1000,
            keys.place(row["topic"], row["partition"]),
            row["broker"],
            tuple(row["replicas"] or row["isr"] or [row["broker"]]),
            row["min_isr"] or 1,
        )
        for row in rows
    ]


def _supposed(lists: pd.DataFrame, leads: list[PartitionLeader]) -> list[PartitionLeader]:
    """A partition is led until told otherwise: by the broker that is asked of it most."""
    untold = lists[~lists["key"].isin([led.key for led in leads])]
    asked = untold.groupby(["key", "broker"]).size().sort_values(ascending=False, kind="stable").reset_index()
    most = asked.drop_duplicates("key").sort_values("key")
    pairs = zip(most["key"].tolist(), most["broker"].tolist(), strict=True)
    return [PartitionLeader(0.0, int(key), int(broker), (int(broker),), 1) for key, broker in pairs]


def _others(
    changes: pa.Table, keys: _Keys, batches: pd.DataFrame, begin_us: int, written: pd.DataFrame
) -> pd.DataFrame:
    """Appends that no client's produce tells of: the rest of what moved a log end, and what coordinators have `written`
    by produces of their own, which no line records."""
    ends = changes.filter(pc.and_(pc.equal(changes["change"], "log_end"), pc.greater(changes["bytes"], 0)))
    frame = ends.select(["time_us", "topic", "partition", "offset", "bytes"]).to_pandas()
    place = [keys.place(topic, int(number)) for topic, number in zip(frame["topic"], frame["partition"], strict=True)]
    frame["key"] = np.array(place, dtype=np.int64)
    produced = batches.assign(offset=batches["base"] + batches["records"])[["key", "offset"]].drop_duplicates()
    frame = frame.merge(produced, on=["key", "offset"], how="left", indicator=True)
    frame = frame[frame["_merge"] == "left_only"]
    at = (frame["time_us"] - begin_us) / 1000
    moved = pd.DataFrame({"at": at, "key": frame["key"], "bytes": frame["bytes"].astype(np.int64)})
    by_coordinators = written[["at", "key", "bytes"]].astype({"bytes": np.int64})
    return (
        pd.concat([moved, by_coordinators] if len(by_coordinators) else [moved])
        .sort_values("at", kind="stable")
        .reset_index(drop=True)
    )


def _groups(events: pa.Table) -> dict[str, str]:
    """Which group a client spoke for last."""
    said = events.filter(pc.is_valid(events["group"])).select(["client_id", "group"]).to_pylist()
    return {row["client_id"]: row["group"] for row in said if row["client_id"]}


# A recording's Delta tables, read into Arrow: what the fit works on fits one machine's memory.


# What a fit needs no more of: a recording's first events are enough.
MAX_EVENTS = 3_000_000


def read_recording(spark: SparkSession, out: str, events: str | None = None) -> Recording:
    """`events` is another table than the folder's own. Of a long recording, its first events."""
    layout = Layout(out)
    path = events or layout.table("events")
    if not delta_tables.is_table(spark, path):
        raise UserError(f"{path}: no such table (ingest makes it)")
    trace = spark.read.format("delta").load(path).where(f"seq < {MAX_EVENTS}").select(*EVENT_COLUMNS)
    return build_recording(trace.toArrow(), _recorded(spark, layout).select(*RECORDED_COLUMNS).toArrow())


def _recorded(spark: SparkSession, layout: Layout) -> DataFrame:
    """What the brokers did: as their logs say, else as the replay found."""
    path = layout.table("recorded")
    if delta_tables.is_table(spark, path):
        frame = spark.read.format("delta").load(path).where("api IN ('FETCH', 'PRODUCE')")
    elif delta_tables.is_table(spark, layout.table("completions")):
        frame = _replayed(spark, layout)
    else:
        raise UserError(
            f"{path}: no such table, nor a replay beside it (ingest --from request-log, or replay, makes one)"
        )
    return frame.where(sf.col("operation_id") < MAX_EVENTS)


def _replayed(spark: SparkSession, layout: Layout) -> DataFrame:
    completed = spark.read.format("delta").load(layout.table("completions")).where("kind IN ('fetch', 'produce')")
    expired = spark.read.format("delta").load(layout.table("expirations")).where("kind IN ('fetch', 'produce')")
    outcome = sf.when(sf.col("watched"), "completed").otherwise("at_once")
    columns = ("operation_id", sf.col("wait_ms").cast("double").alias("recorded_remote_ms"))
    both = completed.select(*columns, "bytes", sf.col("completed_at").alias("written_at"), outcome.alias("outcome"))
    both = both.union(
        expired.where("NOT after_end").select(*columns, "bytes", "expired_at", sf.lit("expired").alias("outcome"))
    )
    return both.select(
        "operation_id",
        "written_at",
        sf.col("outcome").alias("recorded_outcome"),
        "recorded_remote_ms",
        sf.lit(0.0).alias("recorded_local_ms"),
        sf.col("bytes").alias("recorded_bytes"),
        sf.lit(True).alias("recorded_complete"),
    )


# The stretch of a recording that a scenario is fitted to: everybody is there, and has caught up.


# A client that was there for less of the recording than this does not count.
MIN_PRESENCE = 0.6
# What a client needs at its beginning to catch up with what it had missed.
SETTLING_MS = 2000
MIN_WINDOW_MS = 5000


@dataclass(frozen=True)
class RecordingWindow:
    """Milliseconds of the recording's clock; `absent` are clients that were not there for most of it, `moves` when
    leaders moved while all others were."""

    begin: float
    end: float
    absent: tuple[str, ...] = ()
    moves: tuple[float, ...] = ()

    @property
    def length(self) -> float:
        return self.end - self.begin

    def of(self, frame: pd.DataFrame, time: str) -> pd.DataFrame:
        return frame[(frame[time] >= self.begin) & (frame[time] < self.end)]


def steady_window(recording: Recording) -> RecordingWindow:
    """From when the last client has begun until the first one leaves; no leader moves meanwhile."""
    columns = ["client", "tried", "answered"]
    requests = pd.concat([recording.fetches[columns], recording.produces[columns]])
    spans = requests.groupby("client").agg(first=("tried", "min"), last=("answered", "max"))
    whole = np.ptp(np.array([requests["tried"].min(), requests["answered"].max()]))
    present = spans[(spans["last"] - spans["first"]) >= MIN_PRESENCE * whole]
    if present.empty:
        raise UserError("no client was there for most of the recording: there is no steady stretch to fit to")
    begin, end = float(present["first"].max()), float(present["last"].min())
    moves = [at for at in _moves(recording.leaders) if begin < at < end]
    # Of the stretches between leaders' moves, the longest.
    settled = [(since + SETTLING_MS, until) for since, until in pairwise([begin, *moves, end])]
    begin, end = max(settled, key=lambda stretch: stretch[1] - stretch[0])
    window = RecordingWindow(begin, end, tuple(sorted(set(spans.index) - set(present.index))), tuple(moves))
    if window.length < MIN_WINDOW_MS:
        still = ", and no leader moved," if moves else ""
        raise UserError(
            f"the clients were all there together{still} for {max(0, window.length) / 1000:.1f} s only: "
            f"a scenario needs {MIN_WINDOW_MS / 1000:.0f} s at least"
        )
    return window


def _moves(leaders: Iterable[PartitionLeader]) -> list[float]:
    """When a partition got another leader than the one before."""
    leader: dict[int, int] = {}
    moments = set()
    for lead in sorted(leaders, key=lambda led: led.at):
        if leader.setdefault(lead.key, lead.leader) != lead.leader:
            moments.add(lead.at)
            leader[lead.key] = lead.leader
    return sorted(moments)
