"""Events of share groups, written as a timeline. The group is `g`, the topic `t`; records have 100 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

Event = dict[str, Any]


class ShareTimeline:
    """Events in the order of the calls. Times are in milliseconds, partitions are numbers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, ms: float, kind: str, **fields: Any) -> ShareTimeline:
        common = {"time_us": round(ms * 1000), "seq": len(self.events) + 1, "broker": 0, "type": kind}
        self.events.append(common | {name: value for name, value in fields.items() if value is not None})
        return self

    def settings(self, ms: float = 0, **settings: Any) -> ShareTimeline:
        return self.add(ms, "share_group", group="g", auto_offset_reset="earliest", **settings)

    def change(self, ms: float, partition: int, change: str, **fields: Any) -> ShareTimeline:
        return self.add(ms, "partition", topic="t", partition=partition, change=change, **fields)

    def append(self, ms: float, partition: int, end: int, count: int | None = None) -> ShareTimeline:
        """Append one batch of `count` records, by default `end`, up to the log end `end`, and replicate it."""
        size = 100 * (end if count is None else count)
        self.change(ms, partition, "log_end", offset=end, bytes=size, batches=1)
        return self.change(ms, partition, "high_watermark", offset=end)

    def fetch(
        self, ms: float, name: str, member: str, partitions: Sequence[int], *,
        reads: Mapping[int, Event] | None = None, **fields: Any,
    ) -> ShareTimeline:  # fmt: skip
        """Fetch from partitions. `reads` has further fields by partition, for the read of the state."""
        fields = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1_000_000, "max_records": 500, **fields}
        places = [{"topic": "t", "partition": partition} | (reads or {}).get(partition, {}) for partition in partitions]
        return self.add(
            ms, "share_fetch", request_id=name, client_id=member, group="g", member_id=member, partitions=places,
            **fields,
        )  # fmt: skip

    def acknowledge(
        self, ms: float, name: str, member: str, partition: int, offsets: tuple[int, int], kind: int, *,
        fails: str | None = None, **fields: Any,
    ) -> ShareTimeline:  # fmt: skip
        """Acknowledge a range with one type. `fails` is the error of the state write."""
        place = {"topic": "t", "partition": partition}
        ranges = [{**place, "first_offset": offsets[0], "last_offset": offsets[1], "types": [kind]}]
        return self.add(
            ms, "share_acknowledge", request_id=name, client_id=member, group="g", member_id=member,
            acknowledgements=ranges, state_write_errors=_errors({} if fails is None else {partition: fails}), **fields,
        )  # fmt: skip

    def release(self, ms: float, member: str, fails: dict[int, str] | None = None, **fields: Any) -> ShareTimeline:
        """End a session. `fails` has the errors of state writes by partition."""
        errors = _errors(fails or {})
        return self.add(ms, "share_release", group="g", member_id=member, state_write_errors=errors, **fields)


def dead_letter_timeline() -> ShareTimeline:
    """Return a timeline with a dead-letter queue, groups that become empty, and reads of states that fail."""
    timeline = (
        ShareTimeline().settings(dead_letter_queue=True, delivery_count_limit=2).append(1, 0, 10).append(1, 1, 10)
    )
    for step in range(30):
        at, member = 10 + 90 * step, f"m{step % 3}"
        read = {"state_read_ms": 12 + step, "error": "NOT_COORDINATOR" if step % 20 == 10 else None}
        timeline.fetch(at, f"f{step}", member, [0, 1], max_records=4, reads={step % 2: read}, max_wait_ms=200)
        offsets = (step // 2 * 2, step // 2 * 2 + 1)
        timeline.acknowledge(at + 20, f"a{step}", member, step % 2, offsets, (3, 2, 1)[step % 3], state_write_ms=30)
        place = {"group": "g", "topic": "t", "partition": step % 2}
        timeline.add(at + 40 + 7 * step, "share_dead_letter", first_offset=offsets[0], last_offset=offsets[1], **place)
        if step % 5 == 3:
            timeline.append(at + 30, step % 2, 10 + step, 3)
        if step % 10 == 9:
            for each in range(3):
                timeline.release(at + 60 + each, f"m{each}", connection_closed=each > 0)
    timeline.events.sort(key=lambda event: int(event["time_us"]))
    timeline.events = [event | {"seq": seq} for seq, event in enumerate(timeline.events, 1)]
    return timeline


def sparse_timeline(chooser: Random) -> ShareTimeline:
    """Return a random timeline of two brokers with idle time, pauses, and short waits."""
    timeline, at, paused = ShareTimeline(), 1000 + chooser.randrange(300), {0: False, 1: False}
    ends = [0, 0, 0]
    kinds = ("share_fetch", "share_fetch", "append", "acknowledge", "release", "clock", "pause")
    for step in range(chooser.randrange(2, 20)):
        at += chooser.choice([0, 1, 3, 20, 150, 400])
        broker, partition = chooser.randrange(2), chooser.randrange(3)
        match chooser.choice(kinds):
            case "share_fetch":
                partitions = chooser.sample(range(3), chooser.randrange(1, 4))
                wait_ms = chooser.choice([1, 5, 20, 300])
                timeline.fetch(at, f"f{step}", f"m{step}", partitions, max_wait_ms=wait_ms, max_records=5)
            case "append":
                ends[partition] += chooser.randrange(4)
                timeline.append(at, partition, ends[partition])
                timeline.events[-2]["broker"] = broker
            case "acknowledge":
                first, member = chooser.randrange(6), f"m{chooser.randrange(step + 1)}"
                offsets = (first, first + chooser.randrange(3))
                timeline.acknowledge(at, f"a{step}", member, partition, offsets, chooser.choice([1, 2, 3]))
            case "release":
                timeline.release(at, f"m{chooser.randrange(step + 1)}")
            case "pause":
                timeline.add(at, "resumed" if paused[broker] else "paused")
                paused[broker] = not paused[broker]
            case kind:
                timeline.add(at, kind)
        timeline.events[-1]["broker"] = broker
    return timeline


def _errors(fails: dict[int, str]) -> list[Event] | None:
    return [{"topic": "t", "partition": partition, "error": error} for partition, error in fails.items()] or None


def error_timeline() -> ShareTimeline:
    """Return a timeline with failed state writes, session errors, aborted transactions and remote reads."""
    timeline = ShareTimeline().settings(isolation="read_committed").append(1, 0, 10).append(1, 1, 10)
    timeline.append(1, 2, 10).append(2, 2, 20, 10).change(4, 2, "local_log_start", offset=10)
    epochs, remote_epoch = [0, 0, 0], 0
    for step in range(40):
        at, member = 10 + 60 * step, step % 3
        wrong = step % 11 == 10
        timeline.fetch(at, f"f{step}", f"m{member}", [0, 1], session_epoch=epochs[member] + 5 * wrong, max_records=5)
        epochs[member] += not wrong
        fails = ("COORDINATOR_NOT_AVAILABLE", "FENCED_STATE_EPOCH", None, None)[step % 4]
        timeline.acknowledge(at + 20, f"a{step}", f"m{member}", step % 2, (step // 2, step // 2), 1 + step % 3,
                             state_write_ms=30 * (step % 3), fails=fails, session_epoch=epochs[member])  # fmt: skip
        epochs[member] += 1
        if step % 5 == 4:
            timeline.append(at + 30, step % 2, 10 + step, 2)
            aborted = [{"first_offset": 8 + step, "last_offset": 8 + step}]
            timeline.change(at + 31, step % 2, "last_stable", offset=10 + step, aborted=aborted)
            timeline.change(at + 32, step % 2, "high_watermark", offset=10 + step)
            timeline.fetch(at + 35, f"x{step}", f"x{step}", [0], session_epoch=0, max_wait_ms=100)
        if step % 7 == 2:
            name, wait_ms = f"r{step}", (100, 600)[step % 2]
            timeline.fetch(at + 40, name, "r", [0, 2], session_epoch=remote_epoch, max_wait_ms=wait_ms, max_records=10)
            remote_epoch += 1
            if step > 2:  # no event reports the first read
                place = {"topic": "t", "partition": 2, "bytes": 1000}
                timeline.add(at + 60 + 10 * step, "remote_read", request_id=name, last_offset=9, **place)
    timeline.events.sort(key=lambda event: int(event["time_us"]))
    timeline.events = [event | {"seq": seq} for seq, event in enumerate(timeline.events, 1)]
    return timeline
