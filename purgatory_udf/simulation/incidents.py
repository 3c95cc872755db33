"""Incidents of a scenario: what may happen to brokers and consumers. `closed_loop` has the process that causes them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1, le=10_000)]
Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
Millis = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Name = Annotated[str, Field(min_length=1)]


class _Incident(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    at_s: Seconds
    times: Count = 1
    every_s: Seconds = 0


class StallFollower(_Incident):
    """A broker stops fetching from other leaders, but continues to lead its partitions."""

    what: Literal["stall-follower"]
    broker: int
    for_s: Seconds


class FreezeBroker(_Incident):
    """A broker stands still, as in a long garbage collection.

    It does not fetch, handle or answer requests, and none of its timers fires.
    """

    what: Literal["freeze-broker"]
    broker: int
    for_s: Seconds


class CrashBroker(_Incident):
    """A broker stops without a controlled shutdown, and starts again after `for_s`.

    It gets its leaderships back `preferred_again_after_s` after its restart; None: never.
    """

    what: Literal["crash-broker"]
    broker: int
    for_s: Seconds
    preferred_again_after_s: Seconds | None = None


class MoveLeader(_Incident):
    """The leadership of a partition moves to another in-sync replica."""

    what: Literal["move-leader"]
    topic: Name
    partition: Annotated[int, Field(ge=0)]
    to: int


class PauseConsumer(_Incident):
    """A consumer's process pauses, as in a long garbage collection: no polls, no heartbeats."""

    what: Literal["pause-consumer"]
    consumer: Name
    for_s: Seconds


class CrashConsumer(_Incident):
    """A consumer stops without leaving its group, and starts again after `for_s`."""

    what: Literal["crash-consumer"]
    consumer: Name
    for_s: Seconds


class RollingRestart(_Incident):
    """Consumers or brokers are restarted one by one.

    A consumer is closed and started again after `down_s`. A broker hands over its leaderships before it stops.
    """

    what: Literal["rolling-restart"]
    consumer: Name | None = None
    brokers: list[int] | None = None
    down_s: Seconds = 2
    gap_s: Seconds = 3

    @model_validator(mode="after")
    def _require_one_target(self) -> Self:
        if (self.consumer is None) == (self.brokers is None):
            raise ValueError("rolling-restart: expected exactly one of consumer, brokers")
        return self


class ThrottleReplica(_Incident):
    """All leaders throttle a broker's fetches of partitions for which it is out of sync."""

    what: Literal["throttle-replica"]
    broker: int
    for_s: Seconds
    bytes_per_second: Annotated[float, Field(gt=0, le=1e12)]


class LargeBatches(_Incident):
    """Producers send records of about `record_bytes`. A record larger than `batch_bytes` is a batch alone."""

    what: Literal["large-batches"]
    producer: Name
    for_s: Seconds
    record_bytes: Size


class SlowRemoteReads(_Incident):
    """A broker's reads of remote storage take `factor` times as long."""

    what: Literal["slow-remote-reads"]
    broker: int
    for_s: Seconds
    factor: Annotated[float, Field(gt=0, le=1_000)]


Incident = Annotated[
    StallFollower
    | FreezeBroker
    | CrashBroker
    | MoveLeader
    | PauseConsumer
    | CrashConsumer
    | RollingRestart
    | ThrottleReplica
    | LargeBatches
    | SlowRemoteReads,
    Field(discriminator="what"),
]
