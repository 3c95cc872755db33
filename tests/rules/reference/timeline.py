"""Traces written as timelines, and their outcomes as text lines.

A partition is written `a-0`, or `a` for `a-0`. The line of an outcome is

    name completed|expired|cancelled time rule trigger partition:error-or-bytes,…
"""

from __future__ import annotations

from typing import Any

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.rules.reference.reference_replay import Replay, replay

Event = dict[str, Any]


def place(name: str) -> dict[str, Any]:
    topic, _, number = name.partition("-")
    return {"topic": topic, "partition": int(number or 0)}


class Timeline:
    """Events in the order of the calls. Times are in milliseconds and may have fractions."""

    def __init__(self, broker: int = 0) -> None:
        self.events: list[Event] = []
        self.broker = broker

    def add(self, ms: float, kind: str, **fields: Any) -> Timeline:
        common = {"time_us": round(ms * 1000), "seq": len(self.events) + 1, "broker": self.broker, "type": kind}
        self.events.append(common | fields)
        return self

    def change(self, ms: float, partition: str, change: str, **fields: Any) -> Timeline:
        return self.add(ms, "partition", **place(partition), change=change, **fields)

    def log_end(self, ms: float, partition: str, offset: int, size: int = 0) -> Timeline:
        return self.change(ms, partition, "log_end", offset=offset, bytes=size)

    def high_watermark(self, ms: float, partition: str, offset: int) -> Timeline:
        return self.change(ms, partition, "high_watermark", offset=offset)

    def produce(self, ms: float, name: str, timeout_ms: int, acks: int = -1, **parts: Any) -> Timeline:
        """`a=5` appends offsets up to 4, with 10 bytes per record; `a="SOME_ERROR"` fails to append."""
        entries = [
            place(partition) | {"error": part}
            if isinstance(part, str)
            else place(partition) | {"base_offset": 0, "last_offset": part - 1, "bytes": 10 * part}
            for partition, part in parts.items()
        ]
        return self.add(ms, "produce", request_id=name, acks=acks, timeout_ms=timeout_ms, partitions=entries)

    def fetch(
        self, ms: float, name: str, max_wait_ms: int, min_bytes: int, parts: dict[str, Any], **fields: Any
    ) -> Timeline:
        """`{"a": 5}` fetches from offset 5; `{"a": {"fetch_offset": 5, …}}` sets further fields."""
        entries = [
            {**place(partition), "max_bytes": 10_000, **(part if isinstance(part, dict) else {"fetch_offset": part})}
            for partition, part in parts.items()
        ]
        fields = {"replica_id": -1, "max_bytes": 1_000_000, **fields}
        return self.add(
            ms, "fetch", request_id=name, max_wait_ms=max_wait_ms, min_bytes=min_bytes, partitions=entries, **fields
        )

    def follower(self, ms: float, name: str, max_wait_ms: int, min_bytes: int, parts: dict[str, Any]) -> Timeline:
        return self.fetch(ms, name, max_wait_ms, min_bytes, parts, replica_id=2)

    def delete_records(self, ms: float, name: str, timeout_ms: int, **offsets: int) -> Timeline:
        entries = [{**place(partition), "offset": offset} for partition, offset in offsets.items()]
        return self.add(ms, "delete_records", request_id=name, timeout_ms=timeout_ms, partitions=entries)

    def create_topics(self, ms: float, name: str, timeout_ms: int, **partitions: int) -> Timeline:
        entries = [{"topic": topic, "partitions": count} for topic, count in partitions.items()]
        return self.add(ms, "create_topics", request_id=name, timeout_ms=timeout_ms, topics=entries)

    def replay(self, **config: Any) -> Replay:
        return replay(self.events, Config.model_validate(config))

    def ends(self, **config: Any) -> list[str]:
        return [line(outcome) for outcome in self.replay(**config).outcomes]


def line(outcome: Outcome) -> str:
    verb = "cancelled" if outcome.cancelled else "expired" if outcome.expired else "completed"
    ended = f"{outcome.ended_us / 1000:g}"
    return f"{outcome.request_id} {verb} {ended} {outcome.completed_by} {outcome.trigger or '-'} {_detail(outcome)}"


def _detail(outcome: Outcome) -> str:
    if outcome.kind == "create_topics":
        return ",".join(f"{answer.topic}:{answer.error or '-'}" for answer in outcome.partitions)
    return ",".join(
        f"{answer.topic}-{answer.partition}:"
        + (str(answer.bytes) if outcome.kind == "fetch" and answer.error == "NONE" else answer.error or "-")
        for answer in outcome.partitions
    )
