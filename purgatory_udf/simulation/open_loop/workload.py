"""What an open loop is asked for, and what follows from it: how many requests, how long, in how many slices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from purgatory_udf.common.errors import UserError
from purgatory_udf.simulation.open_loop.group_members import US_PER_MS, GroupPlan
from purgatory_udf.simulation.open_loop.group_schedule import count_actions_before

# The 75th and the 99.9th percentile of the normal distribution.
_Z75, _Z999 = 0.6744897501960817, 3.090232306167813

BROKERS = 3
PARTITIONS_PER_TOPIC = 50
# Of a new topic.
NEW_PARTITIONS = 3
# Of each partition that moves: it resigns, and leads again.
EVENTS_PER_MOVE = 2
# The request, and its end; the request, and each new partition's leader.
EVENTS_PER_DELETE, EVENTS_PER_CREATION = 2, 1 + NEW_PARTITIONS
# A third are fetches; the others are produces, each with the rise of its high watermark.
EVENTS_PER_CLIENT = 1.5
# Each partition begins with its log end and its high watermark.
EVENTS_PER_PARTITION = 2
MAX_SLICES = 2**24 - 1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Workload:
    """`events` is exact, `rate` and the shares are of requests, and hold as far as an exact number of events allows.

    Members of groups make `group_share` of the requests (most are heartbeats and commits, see `groups`), administrators
    those of `delete_share` and `create_share`. Half of the others are produces, each with the rise of its high
    watermark after a latency that is log-normal by `median_ms` and `p75_ms`; half are fetches of `keys` partitions.
    Of the partitions `transaction_share` have transactions of `transaction_ms`, whose ends move the last stable offset.
    """

    events: int
    seed: int = 1
    partitions: int = 1000
    rate: float = 10_000
    skew: float = 0.0
    keys: int = 4
    median_ms: float = 20
    p75_ms: float = 60
    timeout_ms: int = 1000
    max_wait_ms: int = 500
    group_share: float = 0.4
    members: int = 10
    heartbeat_ms: int = 3000
    commit_ms: int = 5000
    session_timeout_ms: int = 10_000
    incident_s: float = 60
    crash_share: float = 0.5
    delete_share: float = 0.001
    create_share: float = 0.0005
    transaction_share: float = 0.0
    transaction_ms: int = 1000
    # About how many events a file of the table holds; more where that would make a slice shorter than a latency.
    events_per_slice: int = 50_000

    def __post_init__(self) -> None:
        if self.p75_ms < self.median_ms:
            raise UserError(f"--p75-ms {self.p75_ms:g} is below --median-ms {self.median_ms:g}")
        if self.keys > self.partitions // BROKERS:
            raise UserError(f"--keys {self.keys}: a broker leads only {self.partitions // BROKERS} partitions")
        if self.group_share + self.delete_share + self.create_share > 0.95:
            raise UserError("--group-share, --delete-share and --create-share: at most 0.95 together")
        if 3 * self.heartbeat_ms > self.session_timeout_ms:
            raise UserError(f"--heartbeat-ms {self.heartbeat_ms}: at most a third of --session-timeout-ms")
        if self.plan.period_us < self.plan.shortest_period_us:
            least = math.ceil(self.plan.shortest_period_us / 1_000_000)
            raise UserError(f"--incident-s {self.incident_s:g}: with these sessions and heartbeats, at least {least}")
        if self.slices > MAX_SLICES:
            raise UserError(f"--rate {self.rate:g}: {self.slices:,} slices of time are more than {MAX_SLICES:,}")
        if self.room < 3:
            raise UserError(self._no_room())

    def _no_room(self) -> str:
        if self.room + self.group_events >= 3:
            return f"--events {self.events}: --group-share {self.group_share:g} leaves no room for other requests"
        least = EVENTS_PER_PARTITION * self.partitions + EVENTS_PER_MOVE + 3
        return f"--events {self.events}: {self.partitions} partitions need at least {least}"

    @property
    def sigma(self) -> float:
        return math.log(self.p75_ms / self.median_ms) / _Z75

    @property
    def longest_ms(self) -> int:
        """Latencies are cut here, at their 99.9th percentile, so that a slice only has to know the one before it."""
        return math.ceil(self.median_ms * math.exp(_Z999 * self.sigma))

    # How long it takes.

    @property
    def events_per_second(self) -> float:
        clients = 1 - self.group_share - self.delete_share - self.create_share
        deletes, creations = EVENTS_PER_DELETE * self.delete_share, EVENTS_PER_CREATION * self.create_share
        ends = float(self.transactional.sum()) * 1000 / self.transaction_ms
        return self.rate * (EVENTS_PER_CLIENT * clients + self.group_share + deletes + creations) + ends

    @cached_property
    def length_us(self) -> int:
        """How long the requests come for, in whole milliseconds."""
        later = max(0, self.events - EVENTS_PER_PARTITION * self.partitions)
        return max(1, math.ceil(later / self.events_per_second * 1000)) * US_PER_MS

    @cached_property
    def slice_us(self) -> int:
        """A slice is whole milliseconds: no file border splits one."""
        wanted_ms = math.ceil(self.events_per_slice / self.events_per_second * 1000)
        longest_ms = max(self.longest_ms, self.transaction_ms if self.transactional.any() else 0)
        return max(longest_ms, wanted_ms) * US_PER_MS

    @cached_property
    def slices(self) -> int:
        return math.ceil(self.length_us / self.slice_us)

    def edge_us(self, number: int) -> int:
        """Where a slice begins, counted from the beginning of the trace."""
        return self.length_us if number >= self.slices else min(number * self.slice_us, self.length_us)

    # How many requests there are. What depends on the length comes first; produces and fetches have what is left.

    @cached_property
    def plan(self) -> GroupPlan:
        per_member = 1000 / self.heartbeat_ms + 1000 / self.commit_ms
        return GroupPlan(
            seed=self.seed,
            groups=round(self.group_share * self.rate / (per_member * self.members)),
            members=self.members,
            heartbeat_us=self.heartbeat_ms * US_PER_MS,
            commit_us=self.commit_ms * US_PER_MS,
            session_us=self.session_timeout_ms * US_PER_MS,
            period_us=round(self.incident_s * 1_000_000),
            crash_share=self.crash_share,
        )

    @cached_property
    def group_events(self) -> int:
        return count_actions_before(self.plan, self.length_us)

    @property
    def deletes(self) -> int:
        return int(self.delete_share * self.rate * self.length_us / 1_000_000)

    @property
    def creations(self) -> int:
        return int(self.create_share * self.rate * self.length_us / 1_000_000)

    # Transactions: see `transactions`.

    @cached_property
    def transactional(self) -> Bools:
        """Which partitions have transactions: as many as asked for, spread over all."""
        place = np.arange(self.partitions + 1) * self.transaction_share
        return np.asarray(np.diff(np.floor(place)) > 0)

    @property
    def transaction_us(self) -> int:
        return self.transaction_ms * US_PER_MS

    @cached_property
    def first_ends_us(self) -> Ints:
        """Of each partition, when its first transaction ends: not all in one moment."""
        return np.arange(self.partitions, dtype=np.int64) * 7_919_000 % self.transaction_us

    @cached_property
    def transaction_ends(self) -> int:
        later = self.length_us - self.first_ends_us[self.transactional]
        return int(np.maximum(0, -(-later // self.transaction_us)).sum())

    @property
    def room(self) -> int:
        """The events of produces, high watermarks and fetches."""
        given = EVENTS_PER_PARTITION * self.partitions + EVENTS_PER_MOVE * self.slices + self.group_events
        given += self.transaction_ends
        return self.events - given - EVENTS_PER_DELETE * self.deletes - EVENTS_PER_CREATION * self.creations

    @property
    def fetches(self) -> int:
        """A third of the room, one more where the rest would be odd."""
        return self.room // 3 + (self.room - self.room // 3) % 2

    @property
    def produces(self) -> int:
        """A produce takes two events."""
        return (self.room - self.fetches) // 2

    @cached_property
    def weights(self) -> Floats:
        """How often each partition is asked for: 1, 1/2^skew, 1/3^skew, … spread over topics and brokers."""
        ranks = np.arange(1, self.partitions + 1, dtype=np.float64) ** -self.skew
        return ranks / ranks.sum()
