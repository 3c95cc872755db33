"""What a fitted scenario holds beside the settings that every scenario has: each distribution as it was found.

Work is in milliseconds of a core. A distribution is its evenly spaced quantiles from the least on, the last of which
stands for all above the one before; one by size has a list of quantiles for each range of bytes, and `bounds` says
where the next range begins.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Quantiles = Annotated[list[float], Field(min_length=1)]
Place = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkBySize(_Section):
    bounds: list[int] = []
    quantiles: Annotated[list[Quantiles], Field(min_length=1)]

    @model_validator(mode="after")
    def _a_range_more_than_bounds(self) -> Self:
        if len(self.quantiles) != len(self.bounds) + 1:
            raise ValueError(f"expected {len(self.bounds) + 1} lists of quantiles for {len(self.bounds)} bounds")
        return self


class FittedReader(_Section):
    """A consumer, or a follower: what it reads of each broker (places in `partitions`), and how soon it comes again.

    Its settings are those of `consumers`, or of `brokers`; what a follower reads at most is its own.
    """

    replica: int = -1
    reads: dict[int, list[Place]]
    turn: WorkBySize
    handling: Quantiles = [0.0]
    partition_max_bytes: Annotated[int, Field(ge=1)] = 1_048_576
    max_bytes: Annotated[int, Field(ge=1)] = 10_485_760


class FittedProducer(_Section):
    """Its records in their order, in a circle: the time since the one before, the partition (a place), the size. The
    first comes `first_ms` after the beginning."""

    first_ms: float = 0
    gaps_ms: list[Annotated[float, Field(ge=0)]]
    partitions: list[Place]
    record_bytes: list[Annotated[int, Field(ge=0)]]
    handling: WorkBySize
    answer: Quantiles

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if not len(self.gaps_ms) == len(self.partitions) == len(self.record_bytes):
            raise ValueError("gaps_ms, partitions and record_bytes have to be of one length")
        return self


class FittedAppends(_Section):
    """Appends without a producer, such as the coordinators': as a producer's records, but each a batch."""

    first_ms: float = 0
    gaps_ms: list[Annotated[float, Field(ge=0)]] = []
    partitions: list[Place] = []
    batch_bytes: list[Place] = []


class FittedPartition(_Section):
    """`replicas` begin with the leader."""

    topic: str
    partition: Place
    replicas: Annotated[list[int], Field(min_length=1)]


class FittedHost(_Section):
    """`cores` that clients and brokers share: none where each has its own, as far as the recording tells. Of a step's
    work, what exceeds `stall_ms` was waiting, and took `stretch` times as long."""

    cores: Annotated[float, Field(gt=0)] | None = None
    stall_ms: Annotated[float, Field(gt=0)] | None = None
    stretch: Annotated[float, Field(ge=1)] = 1
    correlation: float = 0
    correlation_unshared: float = 0


class FittedFigures(_Section):
    per_s: float
    waited: float
    expired: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    kb: float


class Fitted(_Section):
    """`begin_s` is where in the recording the steady stretch begins, which is `duration_s` of the scenario long.

    `lateness_ms`: of the reaper, after a deadline in whole milliseconds. `unknown`: what no log tells, and what was
    taken instead.
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
