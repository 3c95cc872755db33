"""Every outcome, delivery, answer and state of random traces of share groups, as `tests/data/shares` has them.

The expected lines are those of this replay when it agreed with all outcomes recorded from Kafka's own classes. If an
intended change of the rules changes lines, read the difference before you run
`python -m tests.rules.reference.test_share_outcomes`.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from functools import cache
from itertools import accumulate, pairwise
from random import Random
from typing import Any

import pytest

from purgatory_udf.common.configuration import INT32_MAX, Config, load_config
from purgatory_udf.contract.outcome import TopicPartition
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.delayed_share_fetch import DelayedShareFetch
from purgatory_udf.rules.reference.reference_replay import Replayer, ShareReplay, ShareResults, replay
from purgatory_udf.rules.reference.share_broker import ShareBroker
from purgatory_udf.rules.reference.share_partition import SharePartition
from purgatory_udf.rules.reference.share_state import GroupKey
from tests.support import recorded
from tests.support.share_timeline import Event, ShareTimeline

TRACES = range(40)
STEPS = 90
PARTITIONS, MEMBERS = 3, 3
# Far from 0, so that milliseconds and microseconds are never equal by rounding.
START_US = 1_000_130_000
STATES = "AVAILABLE", "ACKNOWLEDGED", "ARCHIVED", "ARCHIVING"


class _RandomTrace:
    """Random requests of one share group on three partitions, and events of brokers that affect them.

    Only `Random.random` is used, because Python guarantees that its values do not change.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.timeline = ShareTimeline()
        self._ms = 10.0
        self._version = self._of("4.1", "4.2", "4.3", "4.4", "4.4")
        self._has_sessions, self._is_tiered = self._is(0.2), self._is(0.5)
        self._is_committed = self._is(0.4)
        self._end, self._start, self._next = ([0] * PARTITIONS for _ in range(3))
        self._held: list[tuple[int, int, int, int]] = []
        # The third session is older than the trace.
        self._epochs = [0, 0, INT32_MAX - 2]
        self._fetches: list[tuple[str, list[int]]] = []

    def _below(self, bound: int) -> int:
        return int(self._random.random() * bound)

    def _is(self, probability: float) -> bool:
        return self._random.random() < probability

    def _of(self, *values: Any) -> Any:
        return values[self._below(len(values))]

    def config(self) -> Config:
        settings = {
            "version": self._version,
            "state_write_ms": self._of(0, 5, 20),
            "dead_letter_write_ms": self._of("null", 0, 30),
            "max_sessions": self._of(2, 3) if self._has_sessions else "null",
            "reads": self._of("bytes", "bytes", "batches"),
            "purge_interval": self._of(3, 1000),
        }
        others = [f"remote_fetch.max_wait_ms={self._of(60, 300)}", f"remote_fetch.reads={self._of('all', 'first')}"]
        return load_config(None, [*(f"share.{name}={value}" for name, value in settings.items()), *others])

    def events(self) -> list[Event]:
        self._configure(0)
        for partition in range(PARTITIONS):
            if self._is(0.5):
                self._append(partition)
                self._state(partition)
            self.timeline.change(2, partition, "leader", offset=0, isr=[0])
            for _ in range(1 + self._below(4)):
                self._append(partition)
            if self._is_tiered and self._is(0.7):
                self.timeline.change(2, partition, "local_log_start", offset=self._below(self._end[partition] + 1))
        steps = (
            (self._fetch, 10), (self._acknowledge, 8), (self._append_one, 4), (self._change, 1.2), (self._release, 0.7),
            (self._remote, 6 if self._is_tiered else 0), (self._dead_letter, 1), (self._configure_again, 0.2),
        )  # fmt: skip
        bounds = list(accumulate(weight for _, weight in steps))
        for _ in range(STEPS):
            at = self._random.random() * bounds[-1]
            next(step for (step, _), bound in zip(steps, bounds, strict=True) if at < bound)()
            self._ms += self._of(0, 0.4, 1, 3, 10, 30)
        return [event | {"time_us": START_US + event["time_us"]} for event in self.timeline.events]

    def _configure(self, ms: float) -> None:
        limits = {
            "record_lock_duration_ms": self._of(40, 100, 250),
            "delivery_count_limit": self._of(1, 2, 3, 4, 5, 6),
            "partition_max_record_locks": self._of(5, 12, 30),
            "isolation": "read_committed" if self._is_committed else None,
            "dead_letter_queue": self._version == "4.4" and self._is(0.6),
        }
        reset = "earliest" if ms or self._is(0.8) else "latest"
        self.timeline.add(ms, "share_group", group="g", auto_offset_reset=reset, **limits)

    def _next_epoch(self, member: int) -> None:
        self._epochs[member] = 1 if self._epochs[member] == INT32_MAX else self._epochs[member] + 1

    def _configure_again(self) -> None:
        self._configure(self._ms)

    def _state(self, partition: int) -> None:
        first, states = self._below(4), []
        for _ in range(1 + self._below(4)):
            last = first + self._below(4)
            state = STATES[self._below(3 + (self._version == "4.4"))]
            count = self._below(3)
            states.append({"first_offset": first, "last_offset": last, "state": state, "delivery_count": count})
            first = last + 1 + self._of(0, 0, 1, 3)
        start = self._of(-1, 0, 0, states[0]["first_offset"])
        place = {"group": "g", "topic": "t", "partition": partition}
        self.timeline.add(1, "share_state", start_offset=start, states=states, **place)

    def _append(self, partition: int) -> None:
        count = 1 + self._below(6)
        self._end[partition] += count
        end, ms = self._end[partition], self._ms if self._ms > 10 else 2
        size = count * self._of(10, 25, 100)
        self.timeline.change(ms, partition, "log_end", offset=end, bytes=size, batches=self._of(1, 1, None))
        if self._is(0.03):
            self.timeline.change(ms, partition, "segment_roll", offset=end)
        if self._is_committed:
            aborted = [{"first_offset": end - count, "last_offset": end - 1}] if self._is(0.3) else None
            self.timeline.change(ms, partition, "last_stable", offset=end - self._of(0, 0, 2), aborted=aborted)
        self.timeline.change(ms, partition, "high_watermark", offset=end - self._of(0, 0, 0, 1))

    def _append_one(self) -> None:
        self._append(self._below(PARTITIONS))

    def _fetch(self) -> None:
        member, most = self._below(MEMBERS), self._of(1, 2, 3, 4, 5, 7, 10, 40)
        partitions = [each for each in range(PARTITIONS + 1) if self._is(0.5 if each < PARTITIONS else 0.02)]
        if not partitions and self._is(0.9):
            partitions = [self._below(PARTITIONS)]
        if self._is(0.2):
            partitions.reverse()
        name = f"f{len(self.timeline.events)}"
        fields: Event = {
            "max_wait_ms": self._of(0, 20, 60, 150, 400),
            "min_bytes": self._of(1, 1, 1, 100, 250, 600),
            "max_bytes": self._of(2, 60, 150, 301, 1000, 100_000),
            "max_records": 0 if self._is(0.02) else most,
            "batch_size": self._of(None, 1, 2, 3, 5),
            "acquire_mode": self._of(0, 0, 1),
            "session_epoch": -1 if self._is(0.05) else self._epochs[member] + (self._has_sessions and self._is(0.1)),
        }
        if self._is(0.15):
            fields |= self._acknowledgements(member)
        if self._is(0.03):
            fields["error"] = self._of("SHARE_SESSION_NOT_FOUND", "SHARE_SESSION_LIMIT_REACHED")
        reads = {each: {"state_read_ms": self._of(None, None, 20), "error": self._of(None, None, "NOT_COORDINATOR")}
                 for each in partitions if self._is(0.2)}  # fmt: skip
        self.timeline.fetch(self._ms, name, f"m{member}", partitions, reads=reads, **fields)
        self._next_epoch(member)
        self._fetches.append((name, [each for each in partitions if each < PARTITIONS]))
        for partition in partitions:
            if partition < PARTITIONS:
                first = self._next[partition]
                self._next[partition] = min(first + most, self._end[partition])
                if self._next[partition] > first:
                    self._held.append((member, partition, first, self._next[partition] - 1))

    def _acknowledgements(self, member: int) -> Event:
        ranges: list[Event] = []
        for each in [each for each in self._held if each[0] == member or self._is(0.05)][:2]:
            _, partition, first, last = each
            if self._is(0.8):
                self._held.remove(each)
            if self._is(0.4):
                first += self._below(last - first + 1)
                last = first + self._below(last - first + 1 + self._is(0.05))
            types = [self._of(1, 1, 1, 2, 2, 3, 0, 4)]
            if self._is(0.3):
                types = [self._of(0, 1, 1, 2, 3, 4) for _ in range(last - first + 1)]
            place = {"topic": "t", "partition": partition, "first_offset": first, "last_offset": last}
            ranges.append({**place, "types": types, "accepted": self._is(0.5)})
            if 2 in types and self._is(0.7):
                self._next[partition] = min(self._next[partition], first)
        fields = {"acknowledgements": ranges, "state_write_ms": self._of(None, 0, 8, 60)}
        return fields | ({} if self._is(0.85) or not ranges else self._errors(ranges[0]["partition"]))

    def _errors(self, partition: int) -> Event:
        error = self._of("NOT_COORDINATOR", "FENCED_STATE_EPOCH", "UNKNOWN_SERVER_ERROR", "NETWORK_EXCEPTION")
        return {"state_write_errors": [{"topic": "t", "partition": partition, "error": error}]}

    def _acknowledge(self) -> None:
        member = self._held[0][0] if self._held and self._is(0.7) else self._below(MEMBERS)
        fields = self._acknowledgements(member)
        if fields["acknowledgements"]:
            epoch = self._epochs[member] if self._has_sessions else None
            if self._has_sessions:
                self._next_epoch(member)
            self.timeline.add(
                self._ms, "share_acknowledge", request_id=f"a{len(self.timeline.events)}", client_id=f"m{member}",
                group="g", member_id=f"m{member}", session_epoch=epoch, **fields,
            )  # fmt: skip

    def _release(self) -> None:
        member = self._below(MEMBERS)
        errors = self._errors(0) if self._is(0.1) else {}
        closed = True if self._is(0.4) else None
        self.timeline.add(
            self._ms, "share_release", group="g", member_id=f"m{member}", connection_closed=closed,
            state_write_ms=self._of(None, 30), **errors,
        )  # fmt: skip
        self._epochs[member] = 0
        self._next = list(self._start)

    def _remote(self) -> None:
        partition = self._below(PARTITIONS)
        if self._fetches and self._is(0.8):
            name, partitions = self._of(*self._fetches[-3:])
            for partition in partitions:
                place = {"topic": "t", "partition": partition, "bytes": self._of(50, 200, 600)}
                error = "UNKNOWN_SERVER_ERROR" if self._is(0.1) else None
                last = self._of(None, self._end[partition] // 2, self._start[partition] + self._below(3))
                self.timeline.add(self._ms, "remote_read", request_id=name, last_offset=last, error=error, **place)
                self._ms += self._of(0, 0, 5)
        elif self._is(0.4):
            self.timeline.change(self._ms, partition, "local_log_start", offset=self._below(self._end[partition] + 1))
        elif self._is(0.5):
            self.timeline.add(self._ms, "remote_quota", exhausted=self._is(0.5))
        else:
            self.timeline.add(self._ms, "reader_queue", full=self._is(0.5))

    def _dead_letter(self) -> None:
        partition = self._below(PARTITIONS)
        first = max(0, self._next[partition] - self._below(8))
        offsets = {"first_offset": first, "last_offset": first + self._below(5)}
        self.timeline.add(self._ms, "share_dead_letter", group="g", topic="t", partition=partition, **offsets)

    def _change(self) -> None:
        partition, end = self._below(PARTITIONS), 0
        end = self._end[partition]
        if self._is(0.5):
            self._start[partition] = min(end, self._start[partition] + self._below(4))
            self.timeline.change(self._ms, partition, "log_start", offset=self._start[partition])
        elif self._is(0.3):
            self._end[partition] = max(self._start[partition], end - self._below(4))
            self.timeline.change(self._ms, partition, "truncate", offset=self._end[partition])
        else:
            change = self._of("follower", "not_leader", "deleted", "offline", "stopped", "stopped")
            self.timeline.change(self._ms, partition, change)
            self._ms += self._of(0, 10, 50)
            self.timeline.change(self._ms, partition, "online")
            self._next[partition] = self._start[partition]


def replayed(seed: int) -> Iterator[str]:
    """Yield the states after each event, the outcomes, deliveries, answers and gauges of a trace as text."""
    trace = _RandomTrace(seed)
    replayer, known = Replayer(trace.config(), START_US // 1000), dict[str, str]()
    for event in trace.events():
        replayer.apply(event)
        yield from _changed(replayer.cluster.broker(0).shares, known, event["seq"])
    replay = replayer.finish()
    shares = replayer.cluster.broker(0).shares
    yield from _changed(shares, known, 0)
    for operation in replayer.operations:
        assert isinstance(operation, DelayedShareFetch)
        end = operation.outcome()
        parts = (
            f"{key} {part.error} {part.bytes} " + " ".join("{}-{}x{}".format(*each) for each in part.acquired)
            for key, part in operation.response.items()
        )
        fields = end.started_us, end.ended_us, end.deadline_us, end.completed_by, end.trigger
        marks = end.watched, end.expired, end.cancelled, end.fetcher, end.bytes, end.answered_bytes
        yield f"{end.request_id}: {fields} {marks}; {'; '.join(parts)}"
    for _, delivery in replay.deliveries:
        yield " ".join(f"{getattr(delivery, name)}" for name in delivery.__slots__)
    for answer in shares.answers:
        errors = ", ".join(f"{key} {error}" for key, error in answer.errors.items())
        yield f"{answer.request_id} {answer.type}: {answer.written_us} {answer.waited} {errors}"
    for partition in range(PARTITIONS):
        state = replayer.cluster.share_groups.state(GroupKey("g", TopicPartition("t", partition)))
        batches = [f"{first}-{last} {each.name} {count}" for first, last, each, count in state.batches]
        yield f"t-{partition}: {state.start} {', '.join(batches)}"
    for gauge in replay.gauges:
        if gauge.purgatory.startswith("share") or gauge.purgatory == "ShareFetch":
            yield f"{gauge.purgatory} {gauge.at_ms} {gauge.watched} {gauge.delayed} {gauge.purged}"
    yield f"{ {str(key): count for (_, key), count in shares.expired_locks.items()} }"


def _changed(shares: ShareBroker, known: dict[str, str], seq: int) -> Iterator[str]:
    """Yield the states of share partitions that have changed since the former call."""
    for key, partition in shares.partitions.items():
        text = _state(partition)
        if known.get(str(key)) != text:
            known[str(key)] = text
            yield f"{seq} {key} {text}"


def _state(partition: SharePartition) -> str:
    batches = (
        ", ".join(
            f"{first}-{last} {state.state.name} {state.delivery_count} {state.member_id}".rstrip()
            for first, last, state in batch.states()
        )
        for batch in partition.batches
    )
    flags = ("" if partition.is_active else " inactive") + (" fenced" if partition.is_fenced else "")
    locked = " locked" if partition.fetch_lock is not None else ""
    return f"{partition.start_offset}..{partition.end_offset}{flags}{locked}: {'; '.join(batches)}"


@cache
def _expected() -> list[list[str]]:
    lines = recorded.lines(recorded.data_file("shares", "random.txt"))
    return [block.splitlines() for block in "".join(lines).split("\n\n")]


@pytest.mark.parametrize("seed", TRACES)
def test_random_trace_has_same_outcomes(seed: int) -> None:
    assert list(replayed(seed)) == _expected()[seed]


@pytest.mark.parametrize("seed", TRACES)
def test_serialized_steps_have_same_outcomes(seed: int) -> None:
    """After each third of the trace, the replay of share groups is restored from its state."""
    trace = _RandomTrace(seed)
    config, events = trace.config(), trace.events()
    expected = replay(events, config)
    stepwise, results = ShareReplay(config, START_US // 1000), ShareResults()
    bounds = [0, len(events) // 3, 2 * len(events) // 3, len(events)]
    for low, high in pairwise(bounds):
        end_ms = None if high == len(events) else events[high - 1]["time_us"] // 1000
        step = stepwise.step(events[low:high], end_ms)
        for name in ("outcomes", "deliveries", "gauges"):
            getattr(results, name).extend(getattr(step, name))
        stepwise = ShareReplay.from_bytes(memoryview(stepwise.to_bytes()), config)
    assert stepwise.open == {}
    assert sorted(results.outcomes, key=lambda each: each.operation_id) == expected.outcomes
    assert results.deliveries == expected.deliveries
    changes = [each for each in gauge_changes(expected.gauges) if each.purgatory == "ShareFetch"]
    assert [each for each in results.gauges if each.purgatory == "ShareFetch"] == changes


if __name__ == "__main__":
    text = "\n\n".join("\n".join(replayed(number)) for number in TRACES)
    (recorded.data_file("shares") / "random.txt.xz").write_bytes(lzma.compress(text.encode(), preset=9))
