"""Conversion of fetches: each is an operation, and shows the reader's position in each partition.

Many fetches of many sessions are converted at once, as columns. Only the sessions' partitions, which each fetch
changes, are resolved one fetch after the other; what a fetch shows of each of its partitions is one row of the columns:

    fetches          start, end of handling, wait, …                     one row per fetch
    entries          topic, partition, offset, …                         one row per partition listed in a line
    places           fetch, entry                                        one row per partition of each fetch
    data             fetch, topic, partition, high watermark, …          one row per partition in a response

A consumer that reads from a follower (KIP-392) may read up to the follower's own high watermark. The follower learns it
from its leader's responses (`ReplicaFetcherThread.processPartitionData`), and it is at most the end of the follower's
log. So the offsets for which the follower's consumers wait are shown by the leader's lines, not the follower's:

    leader    ── response: records, high watermark ───────── next fetch: end of the follower's log
    follower                  └ records appended, high watermark set, waiting fetches checked
                                (`completeDelayedFetchRequests`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from purgatory_udf.contract.value_types import INT64
from purgatory_udf.sources.request_log import compiled_parser
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import (
    COMPLETION_SPREAD_US,
    MIN_TURNAROUND_US,
    READ_TO_RESPONSE_US,
    TIMER_EARLY_US,
    Report,
)
from purgatory_udf.sources.request_log.cluster_context import Context
from purgatory_udf.sources.request_log.fact_kinds import (
    AttemptRun,
    Booleans,
    ConsumerRead,
    Fact,
    FactBlock,
    FactsOfPartitions,
    FollowerDelivery,
    HighWatermarkReading,
    Integers,
    Key,
    LocalStart,
    OpenRun,
    PartitionError,
    ReaderPosition,
    SingleFact,
)
from purgatory_udf.sources.request_log.fetch_sessions import (
    NEVER,
    FollowerTracker,
    SessionKeys,
    SessionState,
    partitions_of_sessions,
)
from purgatory_udf.sources.request_log.kafka_protocol import (
    FetchColumns,
    FetchPartitionData,
    bounds_of,
    distinct,
)
from purgatory_udf.sources.request_log.logged_request import (
    AT_ONCE,
    COMPLETED,
    EXPIRED,
    RECORDED_OUTCOME,
    ConvertedColumns,
    either,
    follower_read_times,
    named_errors,
    structs_of,
)

READ_COMMITTED = 1

# Largest number of attempts in one fact.
MAX_ATTEMPTS = 10_000

# Up to this version of FETCH, a batch larger than `max_bytes` is not returned.
LAST_HARD_LIMIT_VERSION = 2

# Number of fetches for which compiled code is loaded, unless it is loaded already.
_WORTHWHILE_FETCHES = 10_000

# No wait is longer; products with this number of milliseconds still fit into 64 bits.
_LONGEST_MS = 2**50

# Fields of a partition that is not in the response; see `FetchColumns.fetched`.
_NO_DATA = [-1, -1, errors.NONE, -1, 0, -1, -1, -1]

# Broker, and the key by which the fetches of a session are grouped.
SessionName = tuple[int, str]

Numbered = TypeVar("Numbered")

# The fields of the event of a fetch, in the order of its JSON. Numbers that the contract rejects fit as well.
FETCH = pa.struct(
    [
        ("time_us", pa.int64()),
        ("replica_id", pa.int64()),
        ("max_wait_ms", pa.int64()),
        ("min_bytes", pa.int64()),
        ("max_bytes", pa.int64()),
        ("isolation", pa.string()),
        (
            "partitions",
            pa.list_(
                pa.struct(
                    [
                        ("topic", pa.string()),
                        ("partition", pa.int64()),
                        ("fetch_offset", pa.int64()),
                        ("max_bytes", pa.int64()),
                        ("current_leader_epoch", pa.int64()),
                        ("preferred_replica", pa.int64()),
                    ]
                )
            ),
        ),
        ("hard_max_bytes", pa.bool_()),
        ("client_id", pa.string()),
    ]
)
_PARTITIONS = FETCH.field("partitions").type


@dataclass(frozen=True, slots=True)
class Fetches:
    """Fetches as columns, those of a session one after the other and in order of handling.

    `session_bounds` are the first fetch of each session, and the number of fetches. `bodies` are bodies and responses;
    see `Request` for the other columns.
    """

    sessions: Sequence[SessionName]
    session_bounds: Integers
    broker: Integers
    file: Integers
    line: Integers
    version: Integers
    client_id: pa.Array
    arrival_us: Integers
    start_us: Integers
    local_us: Integers
    remote_us: Integers
    answered_us: Integers
    written_us: Integers
    bodies: FetchColumns

    def __len__(self) -> int:
        return len(self.broker)


class FetchConverter:
    """Converts fetches of sessions; each session's fetches must come in order of handling.

    Attempts to fetch from an offset are held back until the reader fetches from another one, because only the next
    fetch shows whether an attempt found records. `take_empty_attempts` returns the attempts of a session that are known
    to be empty, and `finish` the others.

    `snapshot` and `resume` carry a session to the next step of a followed log; call `take_empty_attempts` before
    `snapshot`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._states: dict[SessionName, SessionState] = defaultdict(SessionState)
        self._keys: _Numbers[Key] = _Numbers()

    def convert(self, fetches: Fetches, report: Report, *, needs_operations: bool = True) -> ConvertedColumns:
        """Convert the next fetches of one or more sessions. `report` counts what could not be derived."""
        resolved = self._resolved(fetches)
        return _Conversion(self._context, fetches, resolved, self._states, self._keys, report).result(needs_operations)

    def take_empty_attempts(self, name: SessionName) -> FactsOfPartitions:
        """Remove and return all attempts of a session but the latest of each partition. They are known to be empty."""
        earlier = ((key, run.take_all_but_last()) for key, run in self._states[name].runs.items())
        return {(name[0], key): [attempts] for key, attempts in earlier if attempts is not None}

    def finish(self, name: SessionName) -> FactsOfPartitions:
        """End a session and return its attempts that are still held back."""
        state = self._states.pop(name, None)
        return {(name[0], key): [run.to_run()] for key, run in state.runs.items()} if state else {}

    def snapshot(self, name: SessionName) -> dict[str, Any]:
        """Return the state of a session as JSON values, from which `resume` restores it."""
        state = self._states[name]
        return {
            "partitions": [[*key, *entry] for key, entry in zip(state.keys, state.entries.tolist(), strict=True)],
            "complete": state.complete,
            "tries": [[*key, *msgspec.structs.astuple(run.last)] for key, run in state.runs.items()],
            "read_us": state.read_us,
            "copies": state.follower.snapshot(),
        }

    def resume(self, name: SessionName, state: dict[str, Any]) -> None:
        """Restore the state of a session from a `snapshot`."""
        keys = [(topic, partition) for topic, partition, *_ in state["partitions"]]
        entries = np.array([entry for _, _, *entry in state["partitions"]], np.int64).reshape(-1, 4)
        runs = {(topic, partition): OpenRun(*run) for topic, partition, *run in state["tries"]}
        follower = FollowerTracker.resumed(state["copies"])
        self._states[name] = SessionState(keys, entries, state["complete"], runs, state["read_us"], follower)

    def _resolved(self, fetches: Fetches) -> _Resolved:
        """Find the partitions of each fetch, and update the sessions."""
        if len(fetches) >= _WORTHWHILE_FETCHES:
            compiled_parser.use()
        bodies, states = fetches.bodies, list(map(self._states.__getitem__, fetches.sessions))
        earlier_bounds = bounds_of([len(state.keys) for state in states])
        listed_bounds = bodies.listed_bounds + earlier_bounds[-1]
        entries = np.concatenate([*(state.entries for state in states), bodies.listed[:, 2:]])
        earlier = _integers(self._keys[key] for state in states for key in state.keys)
        entry_keys = np.concatenate([earlier, self._numbers_of(bodies, bodies.listed)])
        forgotten, data_keys = (self._numbers_of(bodies, rows) for rows in (bodies.forgotten, bodies.fetched))
        has_records = bodies.fetched[:, 4] != 0
        with_records = data_keys[has_records], bounds_of(has_records)[bodies.fetched_bounds]
        found = partitions_of_sessions(
            fetches.session_bounds,
            bodies.limits[:, 5],
            bodies.limits[:, 6] != errors.NONE,
            np.array([state.complete for state in states], bool),
            SessionKeys(entry_keys, earlier_bounds, listed_bounds, forgotten, bodies.forgotten_bounds, *with_records),
            len(self._keys),
        )
        keys = list(self._keys)
        lefts = zip(states, pairwise(found.left_bounds.tolist()), found.left_complete.tolist(), strict=True)
        for state, (first, last), complete in lefts:
            left = found.left[first:last]
            state.keys, state.entries = [keys[key] for key in entry_keys[left].tolist()], entries[left]
            state.complete = complete
        return _Resolved(entries, entry_keys, data_keys, listed_bounds, found.places, found.bounds, found.complete)

    def _numbers_of(self, bodies: FetchColumns, rows: Integers) -> Integers:
        """Return the numbers of the partitions in rows of `bodies`. New partitions are numbered in the rows' order."""
        topics, partitions = rows[:, 0], rows[:, 1]
        width = 1 + int(partitions.max(initial=0))
        places = np.arange(len(rows))
        if partitions.min(initial=0) >= 0 and len(bodies.topics) * width <= INT64:
            # Each partition is in many rows, and is looked up once.
            _, places = distinct(topics * width + partitions, len(bodies.topics) * width)
        # Of equal places, the last one is assigned: the first row of each partition.
        firsts = np.zeros(1 + int(places.max(initial=-1)), np.int64)
        firsts[places[::-1]] = np.arange(len(rows))[::-1]
        order = np.argsort(firsts)
        chosen = firsts[order]
        keys = zip(map(bodies.topics.__getitem__, topics[chosen].tolist()), partitions[chosen].tolist(), strict=True)
        numbers = np.empty(len(firsts), np.int64)
        numbers[order] = np.fromiter(map(self._keys.__getitem__, keys), np.int64, len(firsts))
        return numbers[places]


class _Numbers(dict[Numbered, int]):
    """Numbers values in the order in which they are first looked up."""

    def __missing__(self, value: Numbered) -> int:
        number = self[value] = len(self)
        return number


class _Resolved(NamedTuple):
    """The partitions of fetches.

    Attributes:
        entries: Partitions as in the lines: offset, maximum bytes, leader epoch and log start.
        entry_keys: The number of each entry's topic and partition.
        data_keys: The number of topic and partition of each partition in a response.
        listed: The bounds of the entries that each fetch lists.
        places: The entries of all fetches, one fetch after the other.
        bounds: The bounds of each fetch's places.
        complete: Whether all partitions of the fetch are known.
    """

    entries: Integers
    entry_keys: Integers
    data_keys: Integers
    listed: Integers
    places: Integers
    bounds: Integers
    complete: Booleans


class _Conversion:
    """One call of `FetchConverter.convert`."""

    def __init__(
        self,
        context: Context,
        fetches: Fetches,
        resolved: _Resolved,
        states: Mapping[SessionName, SessionState],
        keys: _Numbers[Key],
        report: Report,
    ) -> None:
        self._context, self._fetches, self._resolved, self._states = context, fetches, resolved, states
        self._report = report
        self._facts: FactsOfPartitions = {}
        bodies = fetches.bodies
        self._session = np.repeat(np.arange(len(fetches.sessions)), np.diff(fetches.session_bounds))
        self._brokers, self._broker = np.unique(fetches.broker, return_inverse=True)
        limits = np.ascontiguousarray(bodies.limits.T)
        self._replica, self._max_wait, self._min_bytes, self._max_bytes, isolation, _, self._error = limits
        self._committed = isolation == READ_COMMITTED
        self._waited = fetches.remote_us != 0
        # Partitions of responses.
        self._data_fetch = np.repeat(np.arange(len(fetches)), np.diff(bodies.fetched_bounds))
        columns = np.ascontiguousarray(bodies.fetched[:, 2:7].T)
        self._data_error, self._high_watermark, self._bytes, self._diverging, self._preferred = columns
        # Partitions of fetches.
        self._place_fetch = np.repeat(np.arange(len(fetches)), np.diff(resolved.bounds))
        columns = np.ascontiguousarray(resolved.entries.T)
        self._entry_offset, self._entry_bytes, self._entry_epoch, self._entry_log_start = columns
        self._offset = self._entry_offset[resolved.places]
        # Names: lines may have ids instead.
        names = context.names
        self._named: _Numbers[Key] = _Numbers()
        self._raw_keys = list(keys)
        self._name_of = _integers(self._named[names.get(topic, topic), partition] for topic, partition in keys)
        self._data_key, self._place_key = resolved.data_keys, resolved.entry_keys[resolved.places]
        self._converted = resolved.complete | (np.diff(resolved.bounds) > 0) | (self._error != 0)
        self._data_converted = self._converted[self._data_fetch]
        # The broker left these partitions out, their logs had diverged, or it answered with an error.
        self._is_read = np.ones(len(resolved.places), bool)
        self._has_diverged, self._has_failed = np.zeros((2, len(resolved.places)), bool)
        self._at_once = np.zeros(len(fetches), bool)
        self._redirected: dict[int, int] = {}

    def result(self, needs_operations: bool) -> ConvertedColumns:
        fetches, report, converted = self._fetches, self._report, self._converted
        complete, failed = self._resolved.complete, self._error != 0
        report.count("session_unknown", int(np.sum(~converted)))
        report.count("session_partial", int(np.sum(converted & ~complete)))
        report.count("session_error", int(np.sum(converted & failed)))
        self._apply_exceptions()
        report.count("diverging", int(np.sum(self._at_once)))
        self._add_attempts()
        self._add_positions()
        self._add_deliveries()
        self._add_high_watermarks()
        if self._context.tiered:
            self._add_tiered_facts()
        if self._context.follower_reads:
            self._add_follower_copies()
        expired, recorded = self._recorded()
        rows = {
            "time_us": fetches.local_us,
            "broker": fetches.broker,
            "file": fetches.file,
            "line": fetches.line,
        }
        if needs_operations:
            rows |= {"fetch": self._events(), "recorded": recorded()}
        columns = {name: pa.array(column) for name, column in rows.items()}
        if not converted.all():
            columns = {name: column.filter(pa.array(converted)) for name, column in columns.items()}
        return ConvertedColumns(
            "fetch",
            columns,
            self._max_wait[converted],
            fetches.remote_us[converted],
            expired[converted],
            self._facts,
        )

    def _add(self, kind: type[SingleFact], fetch: Integers, key: Integers, *columns: Any) -> None:
        """Add facts about named partitions, one for each row of the columns, to those of the fetches' brokers."""
        of_partition = self._broker[fetch] * len(self._named) + key
        order = _stable_order(of_partition)
        rows = np.stack(columns)[:, order]
        self._add_sorted(of_partition[order], lambda first, last: [FactBlock.of(kind, rows[:, first:last])])

    def _add_sorted(self, of_partition: Integers, made: Callable[[int, int], Iterable[Fact]]) -> None:
        """Add the facts that `made` returns for consecutive rows of the same partition."""
        names = list(self._named)
        borders = [0, *(np.flatnonzero(np.diff(of_partition)) + 1).tolist(), len(of_partition)]
        for first, last in pairwise(borders) if len(of_partition) else ():
            broker, name = divmod(int(of_partition[first]), len(names))
            self._facts.setdefault((int(self._brokers[broker]), names[name]), []).extend(made(first, last))

    def _apply_exceptions(self) -> None:
        """Apply the errors, points of divergence and redirections in responses, and add the facts of the errors."""
        is_special = (self._data_error != 0) | (self._diverging >= 0) | (self._preferred >= 0)
        by_fetch: dict[int, list[int]] = {}
        for number in np.flatnonzero(is_special & self._data_converted).tolist():
            by_fetch.setdefault(int(self._data_fetch[number]), []).append(number)
        for fetch, numbers in by_fetch.items():
            waited = bool(self._waited[fetch])
            keys = self._data_key[numbers].tolist()
            of_data = zip(keys, *self._fetches.bodies.fetched[numbers, 2:].T.tolist(), strict=True)
            failed, diverging, preferred = dict[int, int](), dict[int, int](), dict[int, int]()
            for key, error, _, _, end_offset, replica, _ in of_data:
                failed |= {key: error} if error else {}
                diverging |= {key: end_offset} if end_offset >= 0 else {}
                preferred |= {key: replica} if replica >= 0 else {}
            excluded = {key for key, error in failed.items() if self._is_excluded(error, key, fetch)}
            self._report.count("left_out_partition", len(excluded))
            # The broker answers such a fetch at once, even without data. No event has epochs, so none of its bytes are
            # required in the replay.
            self._at_once[fetch] = bool(diverging) and not waited
            for place in range(self._resolved.bounds[fetch], self._resolved.bounds[fetch + 1]):
                key = int(self._place_key[place])
                self._is_read[place] = key not in excluded
                self._has_failed[place] = key in failed
                if key in diverging:
                    # A follower with a diverging log has the leader's records below the point of divergence only.
                    self._has_diverged[place] = True
                    self._offset[place] = min(self._offset[place], diverging[key])
                if key in preferred and not waited:
                    self._redirected[place] = preferred[key]
            broker = int(self._fetches.broker[fetch])
            for key, error in failed.items():
                if key not in excluded:
                    failure = PartitionError(*self._failure(error, fetch))
                    self._facts.setdefault((broker, self._name(key)), []).append(failure)

    def _is_excluded(self, error: int, key: int, fetch: int) -> bool:
        """Return whether the broker excluded the partition before it read the log, so the fetch does not contain it."""
        if error in errors.EXCLUDED_FROM_FETCH:
            return True
        if error != errors.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        # Excluded if the topic was deleted before the fetch was handled, but not if it was deleted during the wait.
        topic, partition = self._raw_keys[key]
        changes = self._context.changes.get((self._context.name(topic), partition), [])
        return any(change.deleted and change.at_us < self._fetches.start_us[fetch] for change in changes)

    def _failure(self, error: int, fetch: int) -> tuple[int, int]:
        """Return the time of an error, and its code."""
        # If an error completed the wait, it shows the time of the change; at the deadline the change may be older.
        fetches = self._fetches
        remote_us = int(fetches.remote_us[fetch])
        if error == errors.FENCED_LEADER_EPOCH and 0 < remote_us < int(self._max_wait[fetch]) * 1000:
            # The epoch was current on arrival, so the leadership has changed. Kafka checks the epoch before the leader.
            error = errors.NOT_LEADER_OR_FOLLOWER
        return int(fetches.answered_us[fetch] if remote_us else fetches.local_us[fetch]), error

    def _add_attempts(self) -> None:
        """Add the runs of attempts that have ended; those that may continue stay in the sessions' states."""
        fetches = self._fetches
        # An open transaction hides records from read_committed consumers, so their attempts prove nothing.
        proves = ~self._committed
        # A fetch that had to wait for the first byte found no record.
        known_empty = (fetches.remote_us > 0) & (self._min_bytes <= 1) & proves
        places = np.flatnonzero(self._is_read & ~self._has_diverged)
        fetch = self._place_fetch[places]
        open_runs = [
            (number, self._named[key], run)
            for number, name in enumerate(fetches.sessions)
            for key, run in self._states[name].runs.items()
        ]
        lengths = [len(run.times) for *_, run in open_runs]

        def column(of_runs: Iterable[int], of_places: Any) -> Any:
            return np.concatenate([np.repeat(np.array(list(of_runs), of_places.dtype), lengths), of_places])

        session = column((session for session, *_ in open_runs), self._session[fetch])
        name = column((name for _, name, _ in open_runs), self._name_of[self._place_key[places]])
        times = [np.frombuffer(run.times, np.int64) for *_, run in open_runs]
        at_us = np.concatenate([*times, fetches.local_us[fetch]])
        replica = column((run.replica for *_, run in open_runs), self._replica[fetch])
        offset = column((run.offset for *_, run in open_runs), self._offset[places])
        empty = column((run.empty for *_, run in open_runs), known_empty[fetch])
        proves = column((True for _ in open_runs), proves[fetch])
        if not len(at_us):
            return
        of_reader = session * len(self._named) + name
        order = _stable_order(of_reader)
        of_reader, at_us, replica, offset = of_reader[order], at_us[order], replica[order], offset[order]
        empty, proves = empty[order], proves[order]
        # The reader fetches from the same offset again, so the attempt before was empty.
        again = np.zeros(len(order) + 1, bool)
        again[1:-1] = (of_reader[1:] == of_reader[:-1]) & (offset[1:] == offset[:-1]) & proves[1:]
        starts = ~again[:-1]
        starts[1:] |= replica[1:] != replica[:-1]
        first = np.flatnonzero(starts)
        if np.max(np.diff([*first, len(order)])) > MAX_ATTEMPTS:
            number = np.arange(len(order)) - np.repeat(first, np.diff([*first, len(order)]))
            first = np.flatnonzero(number % MAX_ATTEMPTS == 0)
        after = np.append(first[1:], len(order))
        run_empty = empty[after - 1] | again[after]
        is_last = np.append(of_reader[first][1:] != of_reader[first][:-1], True)
        columns = replica[first], offset[first], run_empty, first, after
        kept = zip(*(column[is_last].tolist() for column in columns), strict=True)
        self._keep_runs(
            of_reader[first[is_last]],
            [
                AttemptRun(replica, offset, empty, at_us[begin:end].tobytes())
                for replica, offset, empty, begin, end in kept
            ],
        )
        # The broker of each session, in place of the session.
        session, name = np.divmod(of_reader[first], len(self._named))
        brokers = np.searchsorted(self._brokers, _integers(broker for broker, _ in fetches.sessions))
        of_partition = brokers[session] * len(self._named) + name
        order = _stable_order(of_partition)
        order = order[~is_last[order]]
        runs = np.stack([replica[first], offset[first], run_empty, after - first])[:, order]
        bounds = bounds_of(runs[3])
        times = at_us[np.repeat(first[order] - bounds[:-1], runs[3]) + np.arange(bounds[-1])]

        def ended(begin: int, end: int) -> list[Fact]:
            return [FactBlock.of_runs(runs[:, begin:end], times[bounds[begin] : bounds[end]])]

        self._add_sorted(of_partition[order], ended)

    def _keep_runs(self, of_reader: Integers, runs: Sequence[AttemptRun]) -> None:
        """Keep the latest run of attempts of each session and partition; `of_reader` are the numbers of both."""
        names, sessions = list(self._named), self._fetches.sessions
        for session in sessions:
            self._states[session].runs = {}
        for reader, run in zip(of_reader.tolist(), runs, strict=True):
            number, name = divmod(reader, len(names))
            self._states[sessions[number]].runs[names[name]] = OpenRun.of(run)

    def _add_positions(self) -> None:
        """Add the reader's position in each listed partition. These are the partitions with a new offset.

        Partitions that were answered with an error at once are left out, because they prove nothing.
        """
        fetches, places = self._fetches, self._resolved.places
        # Places that are not listed are entries of earlier fetches.
        moved = np.flatnonzero((places >= self._resolved.listed[self._place_fetch]) & self._is_read)
        fetch = self._place_fetch[moved]
        count = np.bincount(fetch, minlength=len(fetches))
        number = np.arange(len(moved)) - (np.cumsum(count) - count)[fetch]
        read_us = self._read_before()[fetch]
        shown = ~self._has_failed[moved] | self._waited[fetch]
        moved, fetch, number, read_us = moved[shown], fetch[shown], number[shown], read_us[shown]
        arrival, start, local = fetches.arrival_us[fetch], fetches.start_us[fetch], fetches.local_us[fetch]
        at, wake = follower_read_times(start, local, number, count[fetch])
        replica, entry = self._replica[fetch], places[moved]
        follows = replica >= 0

        def of_followers(column: Integers, otherwise: Any) -> Integers:
            return np.where(follows, column, otherwise)

        self._add(
            ReaderPosition,
            fetch,
            self._name_of[self._place_key[moved]],
            of_followers(at, arrival),
            of_followers(wake, arrival),
            of_followers(local, arrival),
            of_followers(np.minimum(read_us, arrival - MIN_TURNAROUND_US), arrival),
            of_followers(replica, -1),
            self._offset[moved],
            of_followers(self._entry_log_start[entry], -1),
            of_followers(start, -1),
            of_followers(self._entry_epoch[entry], -1),
        )

    def _read_before(self) -> Integers:
        """Return for each fetch when the log was read for the previous response of its session."""
        fetches = self._fetches
        before = np.full(len(fetches), NEVER, np.int64)
        converted = np.flatnonzero(self._converted)
        read_us = np.where(self._waited, fetches.answered_us, fetches.local_us)[converted]
        session = self._session[converted]
        starts = np.append(True, session[1:] != session[:-1])[: len(session)]
        earlier = _integers(self._states[name].read_us for name in fetches.sessions)
        before[converted] = np.where(starts, earlier[session], np.append(NEVER, read_us[:-1])[: len(session)])
        for name, last_us in zip(fetches.sessions, _last_of_each(session, read_us, earlier).tolist(), strict=True):
            self._states[name].read_us = last_us
        return before

    def _add_high_watermarks(self) -> None:
        """Add the high watermarks in the responses, with the times between which the broker may have read them.

        A broker reads the log when a waiting fetch completes. If the fetch did not wait, it reads the log during the
        handling of the request; for a consumer, at the end of the handling.
        """
        fetches = self._fetches
        key = self._name_of[self._data_key]
        shown = (self._high_watermark >= 0) & (self._data_error == 0) & self._data_converted
        if self._context.tiered:
            # If a fetch waited for remote storage, it read the log on arrival: see `partitions.tiered_reads`.
            waits_apart = (self._waited & (self._replica < 0))[self._data_fetch]
            shown &= ~(waits_apart & self._is_tiered()[key])
        fetch = self._data_fetch[shown]
        waited, answered, local = self._waited[fetch], fetches.answered_us[fetch], fetches.local_us[fetch]
        since = np.where(self._replica[fetch] >= 0, fetches.start_us[fetch], local - READ_TO_RESPONSE_US)
        self._add(
            HighWatermarkReading,
            fetch,
            key[shown],
            np.where(waited, answered - READ_TO_RESPONSE_US, since),
            np.where(waited, answered + COMPLETION_SPREAD_US, local),
            self._high_watermark[shown],
        )

    def _add_deliveries(self) -> None:
        sent = np.flatnonzero((self._bytes > 0) & self._data_converted & (self._replica >= 0)[self._data_fetch])
        fetch = self._data_fetch[sent]
        key = self._name_of[self._data_key[sent]]
        self._add(FollowerDelivery, fetch, key, self._fetches.answered_us[fetch], self._bytes[sent])

    def _is_tiered(self) -> Booleans:
        """Return for each named partition whether its topic is tiered."""
        return np.array([topic in self._context.tiered for topic, _ in self._named], bool)

    def _add_tiered_facts(self) -> None:
        """Add facts about tiered partitions: consumers' reads, and local log starts from followers' fetches."""
        fetches = self._fetches
        read = np.flatnonzero(self._is_read)
        slots = np.arange(len(read)) - np.searchsorted(read, self._resolved.bounds[self._place_fetch[read]])
        is_tiered = self._is_tiered()[self._name_of[self._place_key[read]]]
        places = zip(self._data_fetch.tolist(), self._data_key.tolist(), strict=True)
        answered = dict(zip(places, fetches.bodies.fetched.tolist(), strict=True))
        for place, slot in zip(read[is_tiered].tolist(), slots[is_tiered].tolist(), strict=True):
            number, raw_key = int(self._place_fetch[place]), int(self._place_key[place])
            _, _, error, high_watermark, size, _, _, last_stable = answered.get((number, raw_key), _NO_DATA)
            remote_us, local_us = int(fetches.remote_us[number]), int(fetches.local_us[number])
            offset = int(self._offset[place])
            fact: Fact
            if self._replica[number] >= 0:
                if error != errors.OFFSET_MOVED_TO_TIERED_STORAGE:
                    continue
                fact = LocalStart(local_us, offset + 1, False)
            elif remote_us or size or error == errors.UNKNOWN_SERVER_ERROR:
                fact = ConsumerRead(
                    local_us,
                    int(fetches.start_us[number]),
                    int(fetches.answered_us[number]) if remote_us else local_us,
                    remote_us,
                    offset,
                    int(self._min_bytes[number]),
                    int(self._entry_bytes[self._resolved.places[place]]),
                    size,
                    error,
                    high_watermark,
                    last_stable,
                    bool(self._committed[number]),
                    int(fetches.file[number]),
                    int(fetches.line[number]),
                    slot,
                )
            else:
                continue
            self._facts.setdefault((int(fetches.broker[number]), self._name(raw_key)), []).append(fact)

    def _name(self, raw_key: int) -> Key:
        topic, partition = self._raw_keys[raw_key]
        return self._context.name(topic), partition

    def _add_follower_copies(self) -> None:
        """Add the facts about followers' own logs, which belong to the followers' brokers."""
        fetches, bounds = self._fetches, self._resolved.bounds
        for number in np.flatnonzero(self._converted & (self._replica >= 0)).tolist():
            places = np.arange(bounds[number], bounds[number + 1])
            places = places[self._is_read[places]]
            raw_keys = (self._raw_keys[key] for key in self._place_key[places].tolist())
            ends = dict(zip(raw_keys, self._offset[places].tolist(), strict=True))
            follower = self._states[fetches.sessions[self._session[number]]].follower
            times = int(fetches.arrival_us[number]), int(fetches.answered_us[number])
            rows = slice(*fetches.bodies.fetched_bounds[number : number + 2].tolist())
            keys = (self._raw_keys[key] for key in self._data_key[rows].tolist())
            data = zip(keys, fetches.bodies.fetched[rows, 2:].tolist(), strict=True)
            fetched = (FetchPartitionData(*key, *fields) for key, fields in data)
            for (topic, partition), copied in follower.advance(*times, ends, fetched):
                key = int(self._replica[number]), (self._context.name(topic), partition)
                self._facts.setdefault(key, []).append(copied)

    def _recorded(self) -> tuple[Booleans, Callable[[], pa.Array]]:
        """Return whether each fetch expired, and a function that returns the recorded outcomes; see `RecordedOutcome`.

        A fetch that waited has expired if it returned less than `min_bytes` and no error ended it before its timeout.
        On every recording this agrees with the broker's own counter of expirations, to within two.
        """
        fetches = self._fetches
        first_error, timed_out = self._error.copy(), (self._error == errors.REQUEST_TIMED_OUT).astype(np.int64)
        for number in np.flatnonzero(self._data_error).tolist():
            fetch, error = self._data_fetch[number], self._data_error[number]
            first_error[fetch] = first_error[fetch] or error
            timed_out[fetch] += error == errors.REQUEST_TIMED_OUT
        bounds = np.searchsorted(self._data_fetch, np.arange(len(fetches) + 1))
        size = np.diff(np.append(0, np.cumsum(self._bytes))[bounds])
        in_time = fetches.remote_us < np.clip(self._max_wait, -_LONGEST_MS, _LONGEST_MS) * 1000 - TIMER_EARLY_US
        expired = self._waited & (size < self._min_bytes) & ((first_error == 0) | ~in_time)

        def recorded() -> pa.Array:
            columns = {
                "api": pa.repeat("FETCH", len(fetches)),
                "kind": either(self._replica >= 0, "follower fetch", "consumer fetch"),
                "outcome": pc.if_else(expired, EXPIRED, either(self._waited, COMPLETED, AT_ONCE)),
                "remote_ms": fetches.remote_us / 1000,
                "local_ms": (fetches.local_us - fetches.start_us) / 1000,
                "written_us": fetches.written_us,
                "error": named_errors(first_error),
                "bytes": size,
                "timed_out": timed_out,
                "generation": pa.nulls(len(fetches)),
                "complete": self._resolved.complete,
            }
            return structs_of(columns, RECORDED_OUTCOME)

        return expired, recorded

    def _events(self) -> pa.Array:
        """Return the event of each fetch (FETCH)."""
        fetches = self._fetches
        columns = {
            "time_us": fetches.local_us,
            "replica_id": self._replica,
            "max_wait_ms": self._max_wait,
            "min_bytes": np.where(self._at_once, 0, np.maximum(0, self._min_bytes)),
            "max_bytes": np.maximum(0, self._max_bytes),
            "isolation": either(self._committed, "read_committed", "read_uncommitted"),
            "partitions": self._event_partitions(),
            "hard_max_bytes": fetches.version <= LAST_HARD_LIMIT_VERSION,
            # An empty client id is left out.
            "client_id": pc.if_else(pc.equal(fetches.client_id, ""), pa.scalar(None, pa.string()), fetches.client_id),
        }
        return structs_of(columns, FETCH)

    def _event_partitions(self) -> pa.Array:
        """Return the list of each fetch's partitions in its event."""
        is_read = self._is_read
        entries, key = self._resolved.places[is_read], self._name_of[self._place_key[is_read]]
        preferred = np.full(len(is_read), -1)
        preferred[list(self._redirected)] = list(self._redirected.values())
        topics, partitions = zip(*self._named, strict=True) if self._named else ((), ())
        columns = {
            "topic": pa.array(topics, pa.string()).take(pa.array(key)),
            "partition": np.array(partitions, np.int64)[key],
            "fetch_offset": np.maximum(0, self._offset[is_read]),
            "max_bytes": np.maximum(0, self._entry_bytes[entries]),
            "current_leader_epoch": np.maximum(-1, self._entry_epoch[entries]),
            "preferred_replica": pa.array(preferred[is_read], mask=preferred[is_read] < 0),
        }
        bounds = np.append(0, np.cumsum(is_read))[self._resolved.bounds]
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), structs_of(columns, _PARTITIONS.value_type))


def _stable_order(numbers: Integers) -> Integers:
    """Return the places of the numbers in ascending order; equal numbers keep their order. No number is negative.

    numpy sorts numbers of 16 bits in linear time, eight times as fast as larger ones.
    """
    order = np.argsort(numbers.astype(np.uint16), kind="stable")
    high = numbers >> 16
    return order[_stable_order(high[order])] if high.any() else order


def _integers(values: Iterable[int]) -> Integers:
    return np.array(list(values), np.int64)


def _columns(rows: Iterable[Sequence[int]], count: int) -> Sequence[Integers]:
    """Return the columns of rows of numbers, of which there may be none."""
    columns = list(zip(*rows, strict=True)) or [()] * count
    return [np.array(column, np.int64) for column in columns]


def _last_of_each(group: Integers, values: Integers, otherwise: Integers) -> Integers:
    """Return the last value of each group, or its value of `otherwise` if it has none."""
    last = otherwise.copy()
    last[group] = values
    return last
