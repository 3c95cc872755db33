"""Handwritten plans: small clusters with known times."""

from __future__ import annotations

from collections.abc import Sequence

from purgatory_udf.prediction.simulation_plan import (
    AppendsPlan,
    BySize,
    ClusterPlan,
    PartitionPlan,
    ProducerPlan,
    ReaderPlan,
)

# The partition of most plans: led by broker 1, followed by broker 2.
PARTITION = PartitionPlan("t", 0, 1, (2,))
AT_ONCE = BySize((), ((0.0,),))


def takes(ms: float) -> BySize:
    """Return work that always takes this time."""
    return BySize((), ((ms,),))


def reader(client: str = "c", replica: int = -1, turn_ms: float = 1.0, **settings: object) -> ReaderPlan:
    given: dict[str, object] = {
        "client": client,
        "broker": 1,
        "replica": replica,
        "keys": (0,),
        "min_bytes": 1,
        "max_wait_ms": 500,
        "partition_max_bytes": 1_048_576,
        "max_bytes": 52_428_800,
        "turn": takes(turn_ms),
        "handling": (0.0,),
        **settings,
    }
    return ReaderPlan(**given)  # type: ignore[arg-type]


def producer(gaps_ms: Sequence[float], sizes: Sequence[int], **settings: object) -> ProducerPlan:
    given: dict[str, object] = {
        "client": "p",
        "acks": -1,
        "timeout_ms": 30_000,
        "linger_ms": 0,
        "batch_bytes": 16_384,
        "max_in_flight": 5,
        "begin_at": 0,
        "begin_ms": gaps_ms[0],
        "speed": 1.0,
        "gaps_ms": gaps_ms,
        "keys": [0] * len(gaps_ms),
        "record_bytes": sizes,
        "handling": AT_ONCE,
        "answer": (0.0,),
        **settings,
    }
    return ProducerPlan(**given)  # type: ignore[arg-type]


def plan(*parts: ReaderPlan | ProducerPlan, duration_ms: float = 1000, **settings: object) -> ClusterPlan:
    given: dict[str, object] = {
        "duration_ms": duration_ms,
        "warm_up_ms": 0.0,
        "cores": None,
        "partitions": (PARTITION,),
        "readers": [part for part in parts if isinstance(part, ReaderPlan)],
        "producers": [part for part in parts if isinstance(part, ProducerPlan)],
        "appends": AppendsPlan(0, 0.0, (), (), ()),
        "lateness": (0.0,),
        **settings,
    }
    return ClusterPlan(**given)  # type: ignore[arg-type]
