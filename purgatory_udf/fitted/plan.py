"""What is to be played, ready to be handed to another process: a fitted scenario with a variant's settings in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Quantiles = Sequence[float]


@dataclass(frozen=True, slots=True)
class BySize:
    """Work in ms, by the bytes that it is about: `bounds` are where the next range begins."""

    bounds: Sequence[int]
    quantiles: Sequence[Quantiles]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    topic: str
    partition: int
    leader: int
    followers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """One client's fetches at one broker. `keys` are places in the plan's partitions; a consumer's `replica` is -1.

    `turn`: from an answer to the next request's handling (a follower's) or first try (a consumer's), by the answer's
    bytes. `handling`: from there to a follower's first try.
    """

    client: str
    broker: int
    replica: int
    keys: Sequence[int]
    min_bytes: int
    max_wait_ms: int
    partition_max_bytes: int
    max_bytes: int
    turn: BySize
    handling: Quantiles


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    """`gaps_ms`, `keys` and `record_bytes`: the records, in their order, again and again, `speed` times as fast; the
    one at `begin_at` is the first, and comes at `begin_ms`."""

    client: str
    acks: int
    timeout_ms: int
    linger_ms: float
    batch_bytes: int
    max_in_flight: int
    begin_at: int
    begin_ms: float
    speed: float
    gaps_ms: Sequence[float]
    keys: Sequence[int]
    record_bytes: Sequence[int]
    handling: BySize
    answer: Quantiles


@dataclass(frozen=True, slots=True)
class AppendsPlan:
    """What is appended without a producer: the coordinators' records."""

    begin_at: int
    begin_ms: float
    gaps_ms: Sequence[float]
    keys: Sequence[int]
    batch_bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """After how many ended operations a broker's purgatories are purged."""

    fetch: int = 1000
    produce: int = 1000


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`purges` by broker; Kafka's default for those that it does not name."""

    duration_ms: float
    warm_up_ms: float
    cores: float | None
    partitions: Sequence[PartitionPlan]
    readers: Sequence[ReaderPlan]
    producers: Sequence[ProducerPlan]
    appends: AppendsPlan
    lateness: Quantiles
    stall_ms: float = float("inf")
    stretch: float = 1.0
    purges: Mapping[int, PurgePlan] = field(default_factory=dict)
