"""The settings of an open loop, and the counts derived from them: requests, duration, slices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from purgatory_udf.common.errors import UserError
from purgatory_udf.simulation.open_loop.group_schedule import US_PER_MS, GroupPlan, count_actions_before

# The 75th and the 99.9th percentile of the normal distribution.
_Z75, _Z999 = 0.6744897501960817, 3.090232306167813

BROKERS = 3
PARTITIONS_PER_TOPIC = 50
# Partitions of a topic created during the trace.
NEW_PARTITIONS = 3
# A leader move: the old leader resigns, then it leads again.
EVENTS_PER_MOVE = 2
# A deletion and its completion; a creation and the leader of each new partition.
EVENTS_PER_DELETE, EVENTS_PER_CREATION = 2, 1 + NEW_PARTITIONS
# Events per client request: half of these are fetches, half produces with the rise of the high watermark.
EVENTS_PER_CLIENT = 1.5
# The initial log end and high watermark.
EVENTS_PER_PARTITION = 2
MAX_SLICES = 2**24 - 1

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Workload:
    """The settings of an open loop. All latencies are log-normal.

    The number of `events` is exact. `rate` and the shares count requests, and are met as closely as that number allows.
    Group members make `group_share` of the requests, mainly heartbeats and commits (see `group_schedule`), admin
    clients `delete_share` and `create_share`. Half of the remaining requests are produces, each with a high watermark
    event after a latency given by `median_ms` and `p75_ms`; half are fetches of `keys` partitions. `transaction_share`
    of the partitions have transactions of `transaction_ms` each, which hold back the last stable offset.
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
    # The approximate number of events in a file of the table; more if a slice would be shorter than a latency.
    events_per_slice: int = 50_000

    def __post_init__(self) -> None:
        if self.p75_ms < self.median_ms:
            raise UserError(f"--p75-ms {self.p75_ms:g}: must be >= --median-ms, which is {self.median_ms:g}")
        if self.keys > self.partitions // BROKERS:
            most = self.partitions // BROKERS
            raise UserError(f"--keys {self.keys}: must be <= {most}, the number of partitions that a broker leads")
        if self.group_share + self.delete_share + self.create_share > 0.95:
            raise UserError("the sum of --group-share, --delete-share and --create-share must be <= 0.95")
        if 3 * self.heartbeat_ms > self.session_timeout_ms:
            raise UserError(
                f"--heartbeat-ms {self.heartbeat_ms}: must be <= {self.session_timeout_ms // 3}, "
                "a third of --session-timeout-ms"
            )
        if self.plan.period_us < self.plan.shortest_period_us:
            least = math.ceil(self.plan.shortest_period_us / 1_000_000)
            raise UserError(
                f"--incident-s {self.incident_s:g}: must be >= {least} with this --session-timeout-ms "
                "and --heartbeat-ms"
            )
        if self.slices > MAX_SLICES:
            raise UserError(
                f"--rate {self.rate:g}: the trace would have {self.slices:,} slices of time, more than {MAX_SLICES:,}; "
                "raise --rate or lower --events"
            )
        if self.client_events < 3:
            raise UserError(self._too_few_events())

    def _too_few_events(self) -> str:
        if self.client_events + self.group_events >= 3:
            return (
                f"--events {self.events}: --group-share {self.group_share:g} leaves no room for other requests; "
                "raise --events"
            )
        least = EVENTS_PER_PARTITION * self.partitions + EVENTS_PER_MOVE + 3
        return f"--events {self.events}: {self.partitions} partitions need at least {least} events"

    @property
    def sigma(self) -> float:
        """The standard deviation of a latency's logarithm."""
        return math.log(self.p75_ms / self.median_ms) / _Z75

    @property
    def max_latency_ms(self) -> int:
        """The longest latency: the 99.9th percentile, at which all are cut off.

        With this bound a slice depends only on itself and the one before.
        """
        return math.ceil(self.median_ms * math.exp(_Z999 * self.sigma))

    @property
    def events_per_second(self) -> float:
        """The expected number of events per second of the trace."""
        clients = 1 - self.group_share - self.delete_share - self.create_share
        deletes, creations = EVENTS_PER_DELETE * self.delete_share, EVENTS_PER_CREATION * self.create_share
        ends = float(self.transactional.sum()) * 1000 / self.transaction_ms
        return self.rate * (EVENTS_PER_CLIENT * clients + self.group_share + deletes + creations) + ends

    @cached_property
    def length_us(self) -> int:
        """The duration of the trace in microseconds, a whole number of milliseconds."""
        later = max(0, self.events - EVENTS_PER_PARTITION * self.partitions)
        return max(1, math.ceil(later / self.events_per_second * 1000)) * US_PER_MS

    @cached_property
    def slice_us(self) -> int:
        """The duration of a slice in microseconds, a whole number of milliseconds.

        So no millisecond is split between two files.
        """
        wanted_ms = math.ceil(self.events_per_slice / self.events_per_second * 1000)
        max_latency_ms = max(self.max_latency_ms, self.transaction_ms if self.transactional.any() else 0)
        return max(max_latency_ms, wanted_ms) * US_PER_MS

    @cached_property
    def slices(self) -> int:
        return math.ceil(self.length_us / self.slice_us)

    def slice_start_us(self, number: int) -> int:
        """Return the start of a slice, in microseconds since the start of the trace."""
        return self.length_us if number >= self.slices else min(number * self.slice_us, self.length_us)

    # Numbers of requests. Numbers that depend on the duration come first; produces and fetches fill up to `events`.

    @cached_property
    def plan(self) -> GroupPlan:
        """The settings of the consumer groups."""
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
        """The number of group requests."""
        return count_actions_before(self.plan, self.length_us)

    @property
    def deletes(self) -> int:
        return int(self.delete_share * self.rate * self.length_us / 1_000_000)

    @property
    def creations(self) -> int:
        return int(self.create_share * self.rate * self.length_us / 1_000_000)

    @cached_property
    def transactional(self) -> Bools:
        """Mask of the partitions with transactions: a fraction of `transaction_share`, spread evenly."""
        place = np.arange(self.partitions + 1) * self.transaction_share
        return np.asarray(np.diff(np.floor(place)) > 0)

    @property
    def transaction_us(self) -> int:
        return self.transaction_ms * US_PER_MS

    @cached_property
    def first_ends_us(self) -> Ints:
        """The end of each partition's first transaction, in microseconds since the start of the trace.

        Ends are staggered, so that not all partitions end a transaction at the same time.
        """
        return np.arange(self.partitions, dtype=np.int64) * 7_919_000 % self.transaction_us

    @cached_property
    def transaction_ends(self) -> int:
        """The number of completed transactions."""
        later = self.length_us - self.first_ends_us[self.transactional]
        return int(np.maximum(0, -(-later // self.transaction_us)).sum())

    @property
    def client_events(self) -> int:
        """The number of produce, high watermark and fetch events: what the other kinds leave of `events`."""
        given = EVENTS_PER_PARTITION * self.partitions + EVENTS_PER_MOVE * self.slices + self.group_events
        given += self.transaction_ends
        return self.events - given - EVENTS_PER_DELETE * self.deletes - EVENTS_PER_CREATION * self.creations

    @property
    def fetches(self) -> int:
        """The number of fetches: a third of the client events, plus one if an odd number of events would remain."""
        return self.client_events // 3 + (self.client_events - self.client_events // 3) % 2

    @property
    def produces(self) -> int:
        """The number of produces, which have two events each."""
        return (self.client_events - self.fetches) // 2

    @cached_property
    def weights(self) -> Floats:
        """The probability of each partition, proportional to 1, 1/2^skew, 1/3^skew and so on.

        Neighbouring ranks are in the same topic, at different brokers.
        """
        ranks = np.arange(1, self.partitions + 1, dtype=np.float64) ** -self.skew
        return ranks / ranks.sum()
