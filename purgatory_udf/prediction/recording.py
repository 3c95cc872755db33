"""A recording as data frames: fetches, produces, appends and leaders, and the window that a scenario is fitted to.

Times are milliseconds since the first event of the recording, with microseconds as fraction. `read_recording` reads the
tables; everything else works on Arrow tables and needs no JVM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.backend.backend import Backend, Session, backend_of
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.contract.overrides import MARKER_SENDERS
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.event_source import EventTable

EVENT_COLUMNS = (
    *("time_us", "seq", "broker", "type", "client_id", "acks", "timeout_ms", "replica_id", "max_wait_ms", "min_bytes"),
    *("max_bytes", "partitions", "topic", "partition", "change", "offset", "bytes", "replicas", "isr", "min_isr"),
    "group",
)
REQUEST_COLUMNS = EVENT_COLUMNS[:11]
# The name of clients without a client id, which Kafka allows.
NO_CLIENT_ID = "(no client id)"
RECORDED_COLUMNS = (
    *("operation_id", "written_at", "recorded_outcome", "recorded_remote_ms", "recorded_local_ms"),
    *("recorded_bytes", "recorded_complete"),
)


@dataclass(frozen=True)
class PartitionLeader:
    """The leader and the replicas of a partition from the time `at` on."""

    at: float
    key: int
    leader: int
    replicas: tuple[int, ...]
    min_isr: int


@dataclass(frozen=True)
class Recording:
    """The data frames of a recording.

    Attributes:
        keys: The partitions.
        leaders: Leaders over time.
        key_sets: The distinct sets of partitions of fetches, as indices into `keys`.
        fetches: A row per fetch: `client`, `broker`, `tried` (time of the first try), `waited`, `handled` (duration of
            the handling before it), `answered`, `written`, `outcome`, `bytes`, `replica`, `min_bytes`, `max_wait`,
            `max_bytes`, `most` (maximum bytes per partition) and `keys` (an index into `key_sets`).
        produces: A row per produce: the same first nine columns, `acks` and `timeout`.
        batches: The batches that produces appended: `request` (a row of `produces`), `key` (an index into `keys`),
            `base` (offset), `records`, `bytes`.
        others: Appends without a produce: `at`, `key`, `bytes`.
        groups: The group of each consumer.
    """

    keys: list[TopicPartition]
    leaders: list[PartitionLeader]
    key_sets: list[tuple[int, ...]]
    fetches: pd.DataFrame
    produces: pd.DataFrame
    batches: pd.DataFrame
    others: pd.DataFrame
    groups: dict[str, str]

    def leaders_at(self, at: float) -> dict[int, PartitionLeader]:
        """Return the leader of each partition at the time `at` (ms), or its first later one, by index into `keys`."""
        by_key: dict[int, PartitionLeader] = {}
        for leader in self.leaders:
            if leader.at <= at or leader.key not in by_key:
                by_key[leader.key] = leader
        return by_key


def build_recording(events: pa.Table, recorded: pa.Table, out: str = ".") -> Recording:
    """Build a recording from the tables `events` and `recorded` of an imported request log.

    `out` is the folder of the tables, for error messages.

    Raises:
        UserError: A table is empty.
    """
    for name, table in (("recorded", recorded), ("events", events)):
        if not table.num_rows:
            raise UserError(f"{out}: the table {name} is empty; import a request log (ingest --from request-log)")
    events = events.sort_by("seq")
    # A whole millisecond, so that times keep their position relative to the broker's timer.
    begin_us = pc.min(events["time_us"]).as_py() // 1000 * 1000
    # Transaction markers are appends without a client's produce.
    marks = pc.fill_null(pc.match_like(events["client_id"], MARKER_SENDERS.replace("*", "%")), False)
    requests_table = events.filter(pc.and_not(pc.is_in(events["type"], pa.array(["fetch", "produce"])), marks))
    names, lists = _keys_named(requests_table)
    requests = _requests(requests_table, recorded, begin_us)
    changes = events.filter(pc.equal(events["type"], "partition"))
    keys = _Keys()
    key_of = np.array([keys.place(topic, number) for topic, number in names], dtype=np.int64)
    lists["key"] = key_of[lists["name"].to_numpy()] if len(lists) else np.empty(0, dtype=np.int64)
    leads = _leaders(changes, keys, begin_us)
    leaders = [*leads, *_assumed_leaders(lists.assign(broker=requests_table["broker"].to_numpy()[lists["row"]]), leads)]
    key_sets, fetch_keys = _key_sets(requests, lists)
    produces = requests[requests["type"] == "produce"].reset_index(drop=True)
    most = lists.groupby("row")["max_bytes"].max().reindex(requests.loc[requests["type"] == "fetch", "row"])
    fetches = requests[requests["type"] == "fetch"].assign(keys=fetch_keys, most=most.to_numpy()).reset_index(drop=True)
    batches = _batches(produces, lists)
    written = lists.assign(at=(requests_table["time_us"].to_numpy()[lists["row"]] - begin_us) / 1000)
    produced = pc.equal(requests_table["type"], "produce").to_numpy()
    written = written[produced[written["row"]] & ~written["row"].isin(requests["row"])]
    others = _other_appends(changes, keys, batches, begin_us, written)
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


def _keys_named(requests_table: pa.Table) -> tuple[list[tuple[str, int]], pd.DataFrame]:
    """Return the distinct partitions, and a frame with a row for each partition of each request.

    Its columns are `row` (of the request), `name` (an index into the partitions), and the partition's fields.
    """
    column = requests_table["partitions"].combine_chunks()
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


def _requests(requests_table: pa.Table, recorded: pa.Table, begin_us: int) -> pd.DataFrame:
    frame = requests_table.drop_columns(["partitions"]).select(
        [name for name in REQUEST_COLUMNS if name in requests_table.column_names]
    )
    requests = frame.to_pandas().rename(
        columns={"client_id": "client", "replica_id": "replica", "max_wait_ms": "max_wait", "timeout_ms": "timeout"}
    )
    requests["row"] = np.arange(len(requests))
    outcomes = recorded.select([name for name in RECORDED_COLUMNS if name in recorded.column_names]).to_pandas()
    written_us = pc.cast(pc.cast(recorded["written_at"], pa.timestamp("us", tz="UTC")), pa.int64()).to_numpy()
    outcomes["written"] = (written_us - begin_us) / 1000
    requests = requests.merge(outcomes, left_on="seq", right_on="operation_id", how="inner")
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
    """Return the distinct sets of partitions of fetches, and for each fetch the index of its set.

    A set is a sorted tuple of indices of partitions. `lists` has a row for each partition of each request, as
    `_keys_named` returns it.
    """
    of_row = lists.groupby("row")["key"].agg(lambda keys: tuple(sorted(keys)))
    rows = requests.loc[requests["type"] == "fetch", "row"]
    wanted = of_row.reindex(rows)
    sets = [keys if isinstance(keys, tuple) else () for keys in wanted]
    places: dict[tuple[int, ...], int] = {}
    return_places = np.array([places.setdefault(key_set, len(places)) for key_set in sets], dtype=np.int64)
    return list(places), return_places


def _batches(produces: pd.DataFrame, lists: pd.DataFrame) -> pd.DataFrame:
    appended = lists.merge(
        pd.DataFrame({"row": produces["row"], "request": np.arange(len(produces))}), on="row", how="inner"
    )
    records = (appended["last_offset"] - appended["base_offset"] + 1).clip(lower=1)
    batches = pd.DataFrame(
        {"request": appended["request"], "key": appended["key"], "base": appended["base_offset"], "records": records}
    )
    batches["bytes"] = appended["bytes"]
    return batches.astype(np.int64)


def _leaders(changes: pa.Table, keys: _Keys, begin_us: int) -> list[PartitionLeader]:
    leader_changes = changes.filter(pc.equal(changes["change"], "leader"))
    rows = leader_changes.select(["time_us", "broker", "topic", "partition", "replicas", "isr", "min_isr"]).to_pylist()
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


def _assumed_leaders(lists: pd.DataFrame, leads: list[PartitionLeader]) -> list[PartitionLeader]:
    """Return assumed leaders of partitions without a `leader` event: the brokers that get most of their requests."""
    leaderless = lists[~lists["key"].isin([led.key for led in leads])]
    request_counts = (
        leaderless.groupby(["key", "broker"]).size().sort_values(ascending=False, kind="stable").reset_index()
    )
    most = request_counts.drop_duplicates("key").sort_values("key")
    pairs = zip(most["key"].tolist(), most["broker"].tolist(), strict=True)
    return [PartitionLeader(0.0, int(key), int(broker), (int(broker),), 1) for key, broker in pairs]


def _other_appends(
    changes: pa.Table, keys: _Keys, batches: pd.DataFrame, begin_us: int, written: pd.DataFrame
) -> pd.DataFrame:
    """Return the appends without a client's produce: other rises of a log end, and coordinators' writes (`written`)."""
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
    """Return the consumer group of each client id; of a client of several groups, the last one."""
    group_events = events.filter(pc.is_valid(events["group"])).select(["client_id", "group"]).to_pylist()
    return {row["client_id"]: row["group"] for row in group_events if row["client_id"]}


# The first events of a recording that a fit uses, which bounds its memory.
MAX_EVENTS = 3_000_000


# The outcome, times and size of requests as the request log has them.
_RECORDED = "SELECT {columns} FROM recorded t WHERE t.api IN ('FETCH', 'PRODUCE') AND t.operation_id < {most}"
# The same of operations that a replay completed or expired.
_REPLAYED = """
SELECT t.operation_id, t.completed_at AS written_at,
  CASE WHEN t.watched THEN 'completed' ELSE 'at_once' END AS recorded_outcome,
  CAST(t.wait_ms AS DOUBLE) AS recorded_remote_ms, CAST(0 AS DOUBLE) AS recorded_local_ms,
  t.bytes AS recorded_bytes, true AS recorded_complete
FROM completions t WHERE t.kind IN ('fetch', 'produce') AND t.operation_id < {most}
UNION ALL
SELECT t.operation_id, t.expired_at, 'expired', CAST(t.wait_ms AS DOUBLE), CAST(0 AS DOUBLE), t.bytes, true
FROM expirations t
WHERE t.kind IN ('fetch', 'produce') AND NOT t.after_end AND t.operation_id < {most}
"""


def read_recording(session: Session, out: str, events: str | None = None) -> Recording:
    """Read the first `MAX_EVENTS` events of a recording from the tables under `out`, or from another `events` table.

    Raises:
        UserError: A table is missing or empty, or the table of events is another one.
    """
    backend, layout = backend_of(session), Layout(out)
    path = events or layout.table("events")
    EventTable(backend, path).require()
    columns = ", ".join(f"t.{name}" for name in EVENT_COLUMNS)
    trace = backend.query(f"SELECT {columns} FROM events t WHERE t.seq < {MAX_EVENTS}", {"events": path})
    return build_recording(trace, _recorded(backend, layout), out)


def _recorded(backend: Backend, layout: Layout) -> pa.Table:
    """Return the outcomes of requests: from the request log, or otherwise from a replay.

    Raises:
        UserError: The folder has neither.
    """
    path, completions = layout.table("recorded"), layout.table("completions")
    if backend.delta(path).is_table(path):
        columns = ", ".join(f"t.{name}" for name in RECORDED_COLUMNS)
        return backend.query(_RECORDED.format(columns=columns, most=MAX_EVENTS), {"recorded": path})
    if backend.delta(completions).is_table(completions):
        tables = {name: layout.table(name) for name in ("completions", "expirations")}
        return backend.query(_REPLAYED.format(most=MAX_EVENTS), tables)
    raise UserError(
        f"{path}: no such table, and no replay in the same folder; run ingest --from request-log, or replay"
    )


# Clients that are present for less than this share of the recording are left out.
MIN_PRESENCE = 0.6
# Time for a client to catch up after its start, in milliseconds.
SETTLING_MS = 2000
MIN_WINDOW_MS = 5000


@dataclass(frozen=True)
class RecordingWindow:
    """A period of the recording, in milliseconds.

    Attributes:
        begin: Start of the period.
        end: End of the period.
        absent: Clients that are left out, because they are not present throughout.
        moves: Times at which leaders moved while all other clients were present.
    """

    begin: float
    end: float
    absent: tuple[str, ...] = ()
    moves: tuple[float, ...] = ()

    @property
    def length(self) -> float:
        return self.end - self.begin

    def select(self, frame: pd.DataFrame, time: str) -> pd.DataFrame:
        """Return the rows of `frame` with a time, in its column `time`, in this window."""
        return frame[(frame[time] >= self.begin) & (frame[time] < self.end)]


def steady_window(recording: Recording) -> RecordingWindow:
    """Return the longest period in which all clients are present and no leader moves.

    Raises:
        UserError: No client is present throughout, or the period is shorter than `MIN_WINDOW_MS`.
    """
    columns = ["client", "tried", "answered"]
    requests = pd.concat([recording.fetches[columns], recording.produces[columns]])
    spans = requests.groupby("client").agg(first=("tried", "min"), last=("answered", "max"))
    duration = np.ptp(np.array([requests["tried"].min(), requests["answered"].max()]))
    present = spans[(spans["last"] - spans["first"]) >= MIN_PRESENCE * duration]
    if present.empty:
        raise UserError(
            f"the recording has no client that is present for at least {MIN_PRESENCE:.0%} "
            f"of its {duration / 1000:.1f} s; "
            "record a period with steady clients"
        )
    begin, end = float(present["first"].max()), float(present["last"].min())
    moves = [at for at in _moves(recording.leaders) if begin < at < end]
    # The longest period between moves of leaders.
    settled = [(since + SETTLING_MS, until) for since, until in pairwise([begin, *moves, end])]
    begin, end = max(settled, key=lambda period: period[1] - period[0])
    window = RecordingWindow(begin, end, tuple(sorted(set(spans.index) - set(present.index))), tuple(moves))
    if window.length < MIN_WINDOW_MS:
        steady = " without a move of a leader" if moves else ""
        raise UserError(
            f"the recording shows all clients{steady} for only {max(0, window.length) / 1000:.1f} s; a scenario needs "
            f"at least {MIN_WINDOW_MS / 1000:.0f} s: record for longer"
        )
    return window


def _moves(leaders: Iterable[PartitionLeader]) -> list[float]:
    """Return the times in milliseconds at which any partition got another leader, in ascending order."""
    leader: dict[int, int] = {}
    moments = set()
    for lead in sorted(leaders, key=lambda led: led.at):
        if leader.setdefault(lead.key, lead.leader) != lead.leader:
            moments.add(lead.at)
            leader[lead.key] = lead.leader
    return sorted(moments)
