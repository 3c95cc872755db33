"""What a user may choose about the figures."""

from __future__ import annotations

from dataclasses import dataclass

from purgatory_udf.errors import UserError

# What an operation's wait can be counted under, beside its kind.
DIMENSIONS = ("broker", "topic", "partition", "client", "group")

# What an entry that a watcher list still holds keeps alive in a broker, at the least: the queue's node (24 bytes), its
# partition's status and answer (24 + 48), the map's entry and key for them (40 + 48). A 64-bit JVM with compressed
# references, Kafka 4. What an operation has once (its lock, its callback, the answer's records) comes on top.
BYTES_PER_WATCH = 184

# Of small tables a query is planning and committing, most of which leave a core to others.
SIDE_BY_SIDE = 3


@dataclass(frozen=True)
class MetricsOptions:
    window_ms: int = 1000
    by: tuple[str, ...] = ("topic", "client", "group")
    bytes_per_watch: int = BYTES_PER_WATCH
    top: int = 10

    def __post_init__(self) -> None:
        unknown = [name for name in self.by if name not in DIMENSIONS]
        if unknown:
            raise UserError(f"--by {unknown[0]}: unknown (there are {', '.join(DIMENSIONS)})")
