"""Random small traces with few partitions, few offsets, many ties, and every type of event.

They include what no real broker logs: watermarks that decrease, log ends that do not move, truncations within a batch,
followers ahead of their leader, and leaders without a known offset. Every engine has to agree with the reference on
them.

A seeded generator writes the events, which is fast. Hypothesis chooses the seed and a subset of the events, so that a
failing trace still shrinks to the events that matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from purgatory_udf.common.configuration import Config

Event = dict[str, Any]
Choice = TypeVar("Choice")

TOPICS = ("t", "u")
FOLLOWERS = (1, 2, 3)

# Most events are within few milliseconds; occasional pauses leave time for expirations, gauges and wheels.
_STEPS_US = (0, 0, 0, 0, 1, 250, 250, 250, 1_000, 1_000, 1_000, 3_000, 3_000, 7_500)
_PAUSES_US = (40_000, 230_000, 900_000)
_STARTS_US = (1, 1_000, 199_999, 1_600_000_123_456_789)
_DELAYS_MS = (-1, 0, 1, 2, 5, 10, 19, 20, 21, 40, 100, 100, 450, 450, 450, 450)
_TIMEOUTS_MS = tuple(delay for delay in _DELAYS_MS if delay >= 0)
_SIZES = (0, 1, 10, 10, 25, 50, 100)
_LIMITS = (0, 5, 40, 1_000, 1_000, 1_000_000)

# Offsets at one time are close to each other and increase with the trace, so that watermarks keep crossing the awaited
# ones.
_NEAR = 6
_EVENTS_PER_OFFSET = 8


@dataclass(frozen=True)
class Shape:
    """The size of a trace; `tiered`: with events of remote storage; `pauses`: brokers stand still at times."""

    brokers: tuple[int, ...] = (1, 2)
    partitions: int = 3
    events: int = 60
    tiered: bool = False
    pauses: bool = True


_USUALLY_TRUE: SearchStrategy[bool] = st.sampled_from([False, *[True] * 11])


@st.composite
def traces(draw: st.DrawFn, shape: Shape = Shape()) -> list[Event]:
    """Return events of partitions and topics in random order; `seq` does not follow time."""
    size = draw(st.integers(1, shape.events))
    written = _Writer(draw(st.integers(0, 2**32)), shape).trace(size)
    kept = draw(st.lists(_USUALLY_TRUE, min_size=size, max_size=size))
    return [event for event, keep in zip(written, kept, strict=True) if keep] or written[:1]


def seeded(seed: int, shape: Shape = Shape()) -> list[Event]:
    """Return the trace of a seed, in order."""
    events = _Writer(seed, shape).trace(shape.events)
    return sorted(events, key=lambda event: (event["time_us"], event["seq"]))


def configs() -> SearchStrategy[Config]:
    """Settings that change outcomes or gauges."""
    delays: SearchStrategy[Any] = st.sampled_from([None, None, None, 0, 7, 100, "x0.5", "x3"])
    intervals = st.sampled_from([0, 1, 2, 5, 1000])
    waiting = st.fixed_dictionaries({"timeout_ms": delays, "purge_interval": intervals})
    least = st.sampled_from([None, None, None, 0, 1, 60, "x2"])
    fetch = st.fixed_dictionaries(
        {
            "max_wait_ms": delays,
            "min_bytes": least,
            "follower": st.fixed_dictionaries({"max_wait_ms": delays, "min_bytes": least}),
            "max_bytes": st.sampled_from([1, 40, 1_000, 57_671_680]),
            "purge_interval": intervals,
        }
    )
    sections = {"produce": waiting, "fetch": fetch, "delete_records": waiting, "create_topics": waiting}
    remote_waits = st.sampled_from([None, 0, 20, 450])
    sections["remote_fetch"] = st.fixed_dictionaries(
        {"max_wait_ms": remote_waits, "reads": st.sampled_from(["all", "all", "first"]), "purge_interval": intervals}
    )
    sections["list_offsets"] = st.fixed_dictionaries(
        {"request_timeout_ms": st.sampled_from([0, 20, 450]), "purge_interval": intervals}
    )
    sections["what_if"] = st.one_of(st.just([]), st.lists(_rules(delays, least), max_size=3))
    return st.fixed_dictionaries({**sections, "drain": st.booleans()}).map(Config.model_validate)


def _rules(delays: SearchStrategy[Any], least: SearchStrategy[Any]) -> SearchStrategy[Event]:
    """Return what-if rules for some of the requests. The first matching rule applies."""
    asked = {
        "produce.timeout_ms": delays,
        "fetch.max_wait_ms": delays,
        "fetch.consumer.min_bytes": least,
        "fetch.follower.max_wait_ms": delays,
        "delete_records.timeout_ms": delays,
        "create_topics.timeout_ms": delays,
    }
    some = st.fixed_dictionaries({}, optional=asked).filter(bool)
    scope = {"client_id": st.just("c*"), "topic": st.sampled_from(["t", "[uv]"]), "broker": st.sampled_from([0, 1])}
    return st.fixed_dictionaries({"settings": some}, optional=scope)


class _Writer:
    """Generates one trace."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self._random = Random(seed)
        # Pauses replace other events, which are the same with and without pauses.
        self._random_pauses = Random(f"{seed} pauses") if shape.pauses else None
        self._paused: set[int] = set()
        self._brokers = shape.brokers
        self._partitions = tuple((TOPICS[number % 2], number // 2) for number in range(shape.partitions))
        self._written = 0
        self._tiered = shape.tiered

    def trace(self, size: int) -> list[Event]:
        # The mixture varies: some traces are almost only requests, others almost only rare events.
        weights = [self._random.random(), 2 * self._random.random(), self._random.random()]
        now_us, events = self._pick(_STARTS_US), []
        for seq in self._random.sample(range(1, size + 1), size):
            now_us += self._pick(_PAUSES_US if self._random.random() < 0.04 else _STEPS_US)
            write: Callable[[], Event] = self._random.choices(
                (self._request, self._progress, self._rare_event), weights
            )[0]
            if self._tiered and self._random.random() < 0.4:
                write = self._remote_event
            broker = self._mostly_first(self._brokers)
            event = write()
            events.append({"time_us": now_us, "seq": seq, "broker": broker, **(self._pause(broker) or event)})
            self._written += 1
        self._random.shuffle(events)
        return events

    def _pause(self, broker: int) -> Event | None:
        """Return an event that pauses or resumes the broker, or usually None."""
        is_paused = broker in self._paused
        if self._random_pauses is None or self._random_pauses.random() > (0.2 if is_paused else 0.04):
            return None
        self._paused ^= {broker}
        return {"type": "resumed" if is_paused else "paused"}

    def _pick(self, choices: tuple[Choice, ...]) -> Choice:
        return self._random.choice(choices)

    def _mostly_first(self, choices: tuple[Choice, ...]) -> Choice:
        """Return the first choice half of the time, so that events meet at one partition."""
        return choices[0] if self._random.random() < 0.5 else self._pick(choices)

    def _offset(self, near: int = _NEAR) -> int:
        return self._random.randint(0, near) + self._written // _EVENTS_PER_OFFSET

    def _offset_ahead(self) -> int:
        """Return an offset that is usually not reached yet, or -1 for none."""
        return -1 if self._random.random() < 0.1 else self._offset() + self._pick((0, 0, 1))

    # Frequent events.

    def _progress(self) -> Event:
        return self._pick(
            (self._log_end, self._log_end, self._high_watermark, self._high_watermark, self._replica_end)
        )()

    def _log_end(self) -> Event:
        batches = self._pick((None, 1, 1, 2))
        return self._change("log_end", offset=self._offset(), bytes=self._pick(_SIZES), batches=batches)

    def _high_watermark(self) -> Event:
        return self._change("high_watermark", offset=self._offset(_NEAR + 2))

    def _replica_end(self) -> Event:
        return self._change("replica_end", replica_id=self._pick(FOLLOWERS), offset=self._offset())

    # Rare events.

    def _rare_event(self) -> Event:
        at_offset = self._pick(("last_stable", "log_start", "segment_roll", "truncate"))
        status = self._pick(("online", "online", "not_leader", "offline", "deleted", "stopped", "stopped"))
        rare_events: tuple[Callable[[], Event], ...] = (
            lambda: self._change(at_offset, offset=self._offset()),
            lambda: self._change(at_offset, offset=self._offset()),
            lambda: self._change(status),
            self._leader,
            lambda: self._change("isr", isr=self._in_sync()),
            lambda: self._change(self._pick(("throttled", "unthrottled")), replica_id=self._pick(FOLLOWERS)),
            lambda: {"type": "clock"},
        )
        return self._pick(rare_events)()

    # Events of remote storage.

    def _remote_event(self) -> Event:
        status = self._pick(("online", "follower", "none", "not_leader", "offline", "deleted"))
        remote_events: tuple[Callable[[], Event], ...] = (
            *[lambda: self._change("local_log_start", offset=self._offset())] * 3,
            lambda: self._change(status, wake=self._pick((None, True, False))),
            lambda: self._change("online", wake=False),
            lambda: {"type": "remote_quota", "exhausted": self._random.random() < 0.5},
            lambda: {"type": "reader_queue", "full": self._random.random() < 0.3},
            *[lambda: self._end_of_read("remote_read", bytes=self._pick(_SIZES))] * 3,
            *[lambda: self._end_of_read("remote_lookup", offset=self._pick((None, 3)))] * 3,
            *[self._list_offsets] * 3,
        )
        return self._pick(remote_events)()

    def _end_of_read(self, kind: str, **fields: Any) -> Event:
        topic, partition = self._mostly_first(self._partitions)
        error = self._pick((None, "NONE", "NONE", "OFFSET_OUT_OF_RANGE", "A_NEW_ERROR"))
        place = {"topic": topic, "partition": partition}
        return {"type": kind, "request_id": self._pick(("r", "s")), **place, "error": error, **fields}

    def _list_offsets(self) -> Event:
        return {
            "type": "list_offsets",
            "request_id": self._pick(("r", "s")),
            "timeout_ms": self._pick(_DELAYS_MS),
            "isolation": "read_uncommitted",
            "partitions": self._parts(lambda: {"timestamp": self._pick((-1, 0, 5, 5))}),
        }

    def _leader(self) -> Event:
        return self._change(
            "leader",
            leader_epoch=self._pick((None, 0, 1, 2)),
            replicas=None,
            isr=self._pick((None, self._in_sync())),
            min_isr=self._pick((None, 0, 1, 2, 3)),
        )

    def _in_sync(self) -> list[int]:
        return self._random.sample(FOLLOWERS, self._random.randint(0, 3))

    def _change(self, change: str, **fields: Any) -> Event:
        topic, partition = self._mostly_first(self._partitions)
        return {"type": "partition", "topic": topic, "partition": partition, "change": change, **fields}

    # Requests.

    def _request(self) -> Event:
        write = self._pick((self._produce, self._produce, self._fetch, self._fetch, self._fetch, self._rare_request))
        return {"request_id": self._pick(("r", "s")), "client_id": self._pick((None, "c")), **write()}

    def _rare_request(self) -> Event:
        return self._pick((self._delete_records, self._delete_records, self._create_topics))()

    def _parts(self, part: Callable[[], Event]) -> list[Event]:
        size = min(len(self._partitions), self._pick((0, *[1] * 8, *[2] * 8, 3, 3, 4)))
        partitions = self._random.sample(self._partitions, size)
        if self._random.random() < 0.5:
            partitions.sort()
        return [{"topic": topic, "partition": partition, **part()} for topic, partition in partitions]

    def _produce(self) -> Event:
        return {
            "type": "produce",
            "acks": self._pick((-1, -1, -1, -1, -1, -1, 0, 1, 2)),
            "timeout_ms": self._pick(_TIMEOUTS_MS),
            "partitions": self._parts(self._produced),
        }

    def _produced(self) -> Event:
        error = self._pick(("NONE",) * 14 + (None, "MESSAGE_TOO_LARGE", "NOT_LEADER_OR_FOLLOWER", "A_NEW_ERROR"))
        if error == "MESSAGE_TOO_LARGE":
            return {"base_offset": None, "last_offset": None, "bytes": None, "error": error}
        last_offset = self._offset_ahead()
        return {"base_offset": 0, "last_offset": last_offset, "bytes": self._pick(_SIZES), "error": error}

    def _fetch(self) -> Event:
        return {
            "type": "fetch",
            "replica_id": self._pick((-1, -1, -1, -1, -2, *FOLLOWERS, *FOLLOWERS)),
            "max_wait_ms": self._pick(_DELAYS_MS),
            "min_bytes": self._pick((0, 1, 1, 10, 30, 60, 120, 1_000)),
            "max_bytes": self._pick(_LIMITS),
            "hard_max_bytes": self._pick((None, False, False, True)),
            "isolation": self._pick(("read_uncommitted", "read_committed")),
            "partitions": self._parts(self._fetched),
        }

    def _fetched(self) -> Event:
        return {
            "fetch_offset": self._offset(self._pick((1, 3, 3, _NEAR))),
            "max_bytes": self._pick(_LIMITS),
            "current_leader_epoch": self._pick((-1, -1, -1, -1, 0, 1, 2)),
            "throttled": self._random.random() < 0.2,
            "preferred_replica": 2 if self._random.random() < 0.04 else None,
        }

    def _delete_records(self) -> Event:
        offset = self._offset_ahead
        return {
            "type": "delete_records",
            "timeout_ms": self._pick(_TIMEOUTS_MS),
            "partitions": self._parts(lambda: {"offset": offset()}),
        }

    def _create_topics(self) -> Event:
        topics = self._random.sample(TOPICS, self._pick((0, 1, 1, 1, 2)))
        return {
            "type": "create_topics",
            "timeout_ms": self._pick(_DELAYS_MS),
            "topics": [{"topic": topic, "partitions": self._pick((1, 1, 2))} for topic in topics],
        }
