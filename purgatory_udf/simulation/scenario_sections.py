"""The sections `incidents` and `fitted` of a scenario.

Incidents are what may happen to brokers and consumers; `closed_loop` has the process that causes them.

`fitted` has the distributions found in a recording. Work is in milliseconds of one core. A distribution is a list of
evenly spaced quantiles, starting with the minimum. The last quantile represents all values above the one before it. A
distribution by size has one list for each range of bytes, and `bounds` are the starts of the ranges after the first.
"""

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


Quantiles = Annotated[list[float], Field(min_length=1)]
Place = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkBySize(_Section):
    """Work in milliseconds by the size of a request or response: one distribution for each range of bytes."""

    bounds: list[int] = []
    quantiles: Annotated[list[Quantiles], Field(min_length=1)]

    @model_validator(mode="after")
    def _a_range_more_than_bounds(self) -> Self:
        if len(self.quantiles) != len(self.bounds) + 1:
            raise ValueError(f"expected {len(self.bounds) + 1} lists of quantiles for {len(self.bounds)} bounds")
        return self


class FittedReader(_Section):
    """A consumer or follower: the partitions it reads from each broker (indexes into `partitions`), and its work.

    Its other settings are in `consumers` or `brokers`; a follower's maximum fetch sizes are here.
    """

    replica: int = -1
    reads: dict[int, list[Place]]
    turn: WorkBySize
    handling: Quantiles = [0.0]
    partition_max_bytes: Annotated[int, Field(ge=1)] = 1_048_576
    max_bytes: Annotated[int, Field(ge=1)] = 10_485_760


class FittedProducer(_Section):
    """A producer's records in order, repeated cyclically.

    Each record has the time since the previous one, an index into `partitions`, and a size. The first record comes
    `first_ms` after the start.
    """

    first_ms: float = 0
    gaps_ms: list[Annotated[float, Field(ge=0)]]
    partitions: list[Place]
    record_bytes: list[Annotated[int, Field(ge=0)]]
    handling: WorkBySize
    answer: Quantiles

    @model_validator(mode="after")
    def _require_equal_lengths(self) -> Self:
        if not len(self.gaps_ms) == len(self.partitions) == len(self.record_bytes):
            raise ValueError("gaps_ms, partitions and record_bytes must have the same length")
        return self


class FittedAppends(_Section):
    """Appends without a producer, such as those of coordinators: like a producer's records, but each is a batch."""

    first_ms: float = 0
    gaps_ms: list[Annotated[float, Field(ge=0)]] = []
    partitions: list[Place] = []
    batch_bytes: list[Place] = []


class FittedPartition(_Section):
    """A partition; the first of its `replicas` is the leader."""

    topic: str
    partition: Place
    replicas: Annotated[list[int], Field(min_length=1)]


class FittedHost(_Section):
    """The host of clients and brokers. `cores` is the number of cores that they share; None: sharing has no effect.

    The part of a step's work beyond `stall_ms` was elapsed time, and took `stretch` times as long.
    """

    cores: Annotated[float, Field(gt=0)] | None = None
    stall_ms: Annotated[float, Field(gt=0)] | None = None
    stretch: Annotated[float, Field(ge=1)] = 1
    correlation: float = 0
    correlation_unshared: float = 0


class FittedFigures(_Section):
    """The recorded figures of a client and API, with which predictions are compared."""

    per_s: float
    waited: float
    expired: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    kb: float


class Fitted(_Section):
    """The results of `fit`.

    `begin_s` is the start of the steady period of the recording; its length is the scenario's `duration_s`.
    `lateness_ms` is the delay with which the reaper expires operations. `unknown` lists facts that are missing from the
    log, with the assumptions made instead. `doubts` lists the clients for which the model may not fit, with the reason.
    """

    begin_s: float
    host: FittedHost
    lateness_ms: Quantiles
    partitions: list[FittedPartition]
    readers: dict[str, FittedReader]
    producers: dict[str, FittedProducer]
    appends: FittedAppends = FittedAppends()
    recorded: dict[str, dict[str, FittedFigures]]
    unknown: list[str] = []
    doubts: dict[str, str] = {}
