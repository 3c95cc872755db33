"""The server-side assignors `uniform` and `range`, and the topics that they assign.

If a choice in Kafka depends on the order of hash tables, the assignors reproduce that order (`java_hash_order`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from purgatory_udf.rules.coordinator.consumer_group import NO_PARTITIONS, Partitions
from purgatory_udf.rules.coordinator.java_hash_order import integer_order, map_order, string_hash, uuid_bits, uuid_hash

UNIFORM, RANGE = "uniform", "range"
ASSIGNORS = (UNIFORM, RANGE)


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """A member as an assignor sees it: its ids, the topics that it subscribes to, and its present target assignment."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    target: Partitions


@dataclass(frozen=True, slots=True)
class TopicSizes:
    """Partition counts of the existing topics, and their ids where they are known."""

    counts: Mapping[str, int]
    ids: Mapping[str, str]

    def in_map_order(self, topics: frozenset[str]) -> list[str]:
        """Return topics in the order of a hash table that contains their ids, or their names if ids are not known."""
        hashes = {topic: uuid_hash(self.ids[topic]) if topic in self.ids else string_hash(topic) for topic in topics}
        return map_order(sorted(topics), hashes)

    def id_order(self, topic: str) -> tuple[tuple[int, int], str]:
        """Return the sort key of a topic: its id in the order of `Uuid.compareTo`, or its name without an id."""
        return (uuid_bits(self.ids[topic]) if topic in self.ids else (0, 0), topic)


def assign(assignor: str, members: Sequence[MemberSubscription], sizes: TopicSizes) -> dict[str, Partitions]:
    """Compute the target assignment of a consumer group: the partitions of each member, by member id.

    Args:
        assignor: One of `ASSIGNORS`.
        members: The members, in the order of Kafka's hash table.
        sizes: The topics. Subscribed topics that do not exist are ignored.
    """
    known = [
        MemberSubscription(
            member.member_id,
            member.instance_id,
            frozenset(topic for topic in member.topics if topic in sizes.counts),
            member.target,
        )
        for member in members
    ]
    if assignor == RANGE:
        return _range(known, sizes)
    if len({member.topics for member in known}) <= 1:
        return _uniform_homogeneous(known, sizes)
    return _UniformHeterogeneous(known, sizes).assign()


def _range(members: list[MemberSubscription], sizes: TopicSizes) -> dict[str, Partitions]:
    """Assign each topic in ranges: static members by instance id first, then the others by member id."""
    ordered = sorted(
        members, key=lambda member: (member.instance_id is None, member.instance_id or "", member.member_id)
    )
    assigned: dict[str, set[tuple[str, int]]] = {member.member_id: set() for member in members}
    for topic in sorted({topic for member in members for topic in member.topics}):
        subscribers = [member.member_id for member in ordered if topic in member.topics]
        quota, extra = divmod(sizes.counts[topic], len(subscribers))
        begin = 0
        for at, member_id in enumerate(subscribers):
            end = begin + quota + (at < extra)
            assigned[member_id].update((topic, number) for number in range(begin, end))
            begin = end
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


def _uniform_homogeneous(members: list[MemberSubscription], sizes: TopicSizes) -> dict[str, Partitions]:
    """Assign evenly among members with equal subscriptions. Returns the partitions of each member, by member id.

    Each member keeps its present partitions up to its quota. Then the members below their quota are filled, in order.
    If the partitions do not divide evenly, members that have more than the minimum quota keep an extra one first; the
    last of the other members get the rest.
    """
    topics = members[0].topics if members else frozenset()
    if not topics:
        return {member.member_id: NO_PARTITIONS for member in members}
    taken = {partition for member in members for partition in member.target}
    unassigned = [
        (topic, number)
        for topic in sizes.in_map_order(topics)
        for number in range(sizes.counts[topic])
        if (topic, number) not in taken
    ]
    quota_of_all, extra = divmod(sum(sizes.counts[topic] for topic in topics), len(members))
    in_topics = {member.member_id: sum(topic in topics for topic, _ in member.target) for member in members}
    above = [each.member_id for each in members if in_topics[each.member_id] > quota_of_all][:extra]
    others = [each.member_id for each in members if each.member_id not in above]
    gets_extra = {*above, *others[len(others) - (extra - len(above)) :]}
    assigned: dict[str, set[tuple[str, int]]] = {}
    unfilled: list[tuple[str, int]] = []
    for member in members:
        quota = quota_of_all + (member.member_id in gets_extra)
        kept = assigned[member.member_id] = set(member.target)
        by_topic: dict[str, list[int]] = {}
        for topic, number in member.target:
            by_topic.setdefault(topic, []).append(number)
        for topic in sizes.in_map_order(frozenset(by_topic)):
            numbers = by_topic[topic]
            if topic not in topics:
                kept.difference_update((topic, number) for number in numbers)
            elif len(numbers) <= quota:
                quota -= len(numbers)
            else:
                for number in integer_order(numbers)[quota:]:
                    kept.remove((topic, number))
                    unassigned.append((topic, number))
                quota = 0
        if quota > 0:
            unfilled.append((member.member_id, quota))
    at = 0
    for member_id, quota in unfilled:
        assigned[member_id].update(unassigned[at : at + quota])
        at += quota
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


class _UniformHeterogeneous:
    """Assigns topic by topic, then balances, for members that subscribe to different topics.

    Kafka: `UniformHeterogeneousAssignmentBuilder`.
    """

    _MOST_ITERATIONS = 16

    def __init__(self, members: list[MemberSubscription], sizes: TopicSizes) -> None:
        self._members, self._sizes = members, sizes
        self._subscribers: dict[str, list[int]] = {}
        for index, member in enumerate(members):
            for topic in member.topics:
                self._subscribers.setdefault(topic, []).append(index)
        self._owner: dict[tuple[str, int], int] = {}
        self._load = [0] * len(members)
        for index, member in enumerate(members):
            for partition in member.target:
                if partition[0] in member.topics:
                    self._owner[partition] = index
                    self._load[index] += 1

    def assign(self) -> dict[str, Partitions]:
        if self._subscribers:
            self._assign_unassigned()
            self._balance()
        assigned: list[set[tuple[str, int]]] = [set() for _ in self._members]
        for partition, index in self._owner.items():
            assigned[index].add(partition)
        return {member.member_id: frozenset(assigned[index]) for index, member in enumerate(self._members)}

    def _sorted(self, topics: list[str]) -> list[str]:
        """Sort topics by partitions per subscriber, the most first, then by subscribers, the fewest first."""

        def key(topic: str) -> tuple[float, int, tuple[tuple[int, int], str]]:
            count = len(self._subscribers[topic])
            return (-self._sizes.counts[topic] / count, count, self._sizes.id_order(topic))

        return sorted(topics, key=key)

    def _assign_unassigned(self) -> None:
        unassigned = {
            topic: [number for number in range(self._sizes.counts[topic]) if (topic, number) not in self._owner]
            for topic in self._subscribers
        }
        for topic in self._sorted([topic for topic, numbers in unassigned.items() if numbers]):
            balancer = _Balancer(self._subscribers[topic], self._load)
            for number in unassigned[topic]:
                self._move((topic, number), balancer.next_least_loaded())

    def _move(self, partition: tuple[str, int], index: int) -> None:
        if partition in self._owner:
            self._load[self._owner[partition]] -= 1
        self._owner[partition] = index
        self._load[index] += 1

    def _balance(self) -> None:
        """Balance topic by topic, until a whole pass moves nothing, in at most `_MOST_ITERATIONS` passes."""
        topics = self._sorted([topic for topic, subscribers in self._subscribers.items() if len(subscribers) >= 2])
        last_moved = -1
        for _ in range(self._MOST_ITERATIONS if topics else 0):
            for at, topic in enumerate(topics):
                if at == last_moved:
                    return
                if self._balance_topic(topic) or last_moved == -1:
                    last_moved = at

    def _balance_topic(self, topic: str) -> int:
        """Move partitions of a topic from its most to its least loaded subscribers. Return the number of moves."""
        balancer = _Balancer(self._subscribers[topic], self._load)
        if balancer.imbalance <= 1:
            return 0
        owned: dict[int, list[int]] = {}
        for number in range(self._sizes.counts[topic]):
            owned.setdefault(self._owner[topic, number], []).append(number)
        moved = 0
        while not balancer.is_balanced():
            most = balancer.next_most_loaded()
            while most is not None and not owned.get(most):
                balancer.exclude_most_loaded()
                most = balancer.next_most_loaded()
            if most is None:
                break
            number = owned[most].pop()
            least = balancer.next_least_loaded()
            if balancer.is_balanced():
                break
            self._move((topic, number), least)
            moved += 1
        return moved


class _Balancer:
    """Repeatedly picks the least and the most loaded subscriber of a topic (Kafka's MemberAssignmentBalancer).

    The subscribers are sorted by load only once. The least loaded subscribers form a range at the left, which grows to
    the right; when each of them has been picked, their load is one higher. The range of the most loaded subscribers
    grows to the left.
    """

    def __init__(self, subscribers: list[int], load: list[int]) -> None:
        self._load = load
        self._sorted = sorted(subscribers, key=lambda index: (load[index], index))
        least, most = load[self._sorted[0]], load[self._sorted[-1]]
        self.imbalance = most - least
        self._least_end, self._least_load, self._next_least = 0, least - 1, 0
        self._most_begin = self._most_end = len(self._sorted)
        self._most_load, self._next_most = most + 1, len(self._sorted) - 1

    def next_least_loaded(self) -> int:
        if self._next_least >= self._least_end:
            self._least_load += 1
            while self._least_end < len(self._sorted) and self._load_at(self._least_end) == self._least_load:
                self._least_end += 1
            self._next_least = 0
        self._next_least += 1
        return self._sorted[self._next_least - 1]

    def next_most_loaded(self) -> int | None:
        if self._next_most < self._most_begin:
            if self._most_end <= self._most_begin and self._most_begin > 0:
                self._most_load = self._load_at(self._most_begin - 1)
            else:
                self._most_load -= 1
            while self._most_begin > 0 and self._load_at(self._most_begin - 1) == self._most_load:
                self._most_begin -= 1
            self._next_most = self._most_end - 1
        if self._next_most < 0:
            return None
        self._next_most -= 1
        return self._sorted[self._next_most + 1]

    def exclude_most_loaded(self) -> None:
        """Drop the subscriber that was picked last: it has no partition of the topic to give up."""
        picked, last = self._next_most + 1, self._most_end - 1
        self._sorted[picked], self._sorted[last] = self._sorted[last], self._sorted[picked]
        self._most_end -= 1

    def is_balanced(self) -> bool:
        return self._most_load - self._least_load <= 1

    def _load_at(self, place: int) -> int:
        return self._load[self._sorted[place]]


Position = tuple[int, int]


@dataclass(frozen=True)
class ClusterTopics:
    """The `topic` events of a trace: for each topic the positions (`time_us`, `seq`) of its changes, and the counts."""

    positions: Mapping[str, list[Position]] = field(default_factory=dict)
    counts: Mapping[str, list[int]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]]) -> ClusterTopics:
        """Collect the `topic` events. Other events are ignored."""
        positions: dict[str, list[Position]] = {}
        counts: dict[str, list[int]] = {}
        ids: dict[str, str] = {}
        changes = [event for event in events if event["type"] == "topic"]
        for event in sorted(changes, key=lambda event: (event["time_us"], event["seq"])):
            positions.setdefault(event["topic"], []).append((event["time_us"], event["seq"]))
            counts.setdefault(event["topic"], []).append(event["partition_count"])
            if event.get("topic_id"):
                ids[event["topic"]] = event["topic_id"]
        return cls(positions, counts, ids)

    def before(self, time_us: int, seq: int) -> TopicSizes:
        """Return the topics at the event `seq` of `time_us` (epoch microseconds), including a change by that event."""
        changes = bisect_right(self._changes, (time_us, seq))
        if changes not in self._latest:
            known = {}
            for topic, positions in self.positions.items():
                at = bisect_right(positions, (time_us, seq))
                if at and self.counts[topic][at - 1]:
                    known[topic] = self.counts[topic][at - 1]
            self._latest.clear()
            self._latest[changes] = TopicSizes(known, self.ids)
        return self._latest[changes]

    @cached_property
    def _changes(self) -> list[Position]:
        """All positions, in order."""
        return sorted(position for positions in self.positions.values() for position in positions)

    @cached_property
    def _latest(self) -> dict[int, TopicSizes]:
        """The latest result of `before`, by the number of earlier changes. Most requests use it again."""
        return {}
