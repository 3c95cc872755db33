"""Incremental fetch sessions, rebuilt: which partitions a fetch is about when its line lists only what changed.

    epoch -1           no session (librdkafka), or the last fetch of one: the list is complete
    epoch 0            a new session: the list is complete, the answer carries the session's id (0: none was granted)
    epoch 1, 2, …      the list holds what is new or moved; forgotten topics leave; all else stays as it was

A broker serves a session's partitions in a fixed order, from which those that were answered with records move to the
end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from purgatory_udf.requestlog.lines.bodies import AskedPartition, FetchAnswer, FetchBody, Key

NEW, NONE = 0, -1


def session_key(asked: FetchBody, answered: FetchAnswer, connection: str) -> str:
    """What the fetches of one session have in common, its first included; those without one go by their connection."""
    if asked.session_epoch == NEW and answered.session_id:
        return str(answered.session_id)
    if asked.session_epoch > NEW:
        return str(asked.session_id)
    return connection


class FetchInForce(msgspec.Struct, gc=False):
    """One fetch with all its partitions; `listed` are those that its line named itself. `complete` is false while
    partitions of a session that began before the log may be missing."""

    partitions: list[AskedPartition]
    listed: set[Key]
    complete: bool = True


@dataclass(slots=True)
class Session:
    """Feed it the fetches of one session key in the order in which they were handled."""

    partitions: dict[Key, AskedPartition] = field(default_factory=dict)
    complete: bool = False

    def fetch(self, asked: FetchBody, answered: FetchAnswer) -> FetchInForce:
        listed = {(partition.topic, partition.partition) for partition in asked.partitions}
        if asked.session_epoch in (NEW, NONE):
            # A partition listed twice counts once, as in the broker's map.
            self.partitions = {(partition.topic, partition.partition): partition for partition in asked.partitions}
            self.complete = True
            return FetchInForce(list(self.partitions.values()), listed)
        for partition in asked.partitions:
            self.partitions[partition.topic, partition.partition] = partition
        for key in asked.forgotten:
            self.partitions.pop(key, None)
        in_force = list(self.partitions.values())
        if answered.error:
            # The broker has dropped the session, or never had it: nothing was read.
            self.partitions, complete = {}, self.complete
            self.complete = False
            return FetchInForce([], listed, complete)
        for read in answered.partitions:
            if read.bytes and (moved := self.partitions.pop((read.topic, read.partition), None)):
                self.partitions[read.topic, read.partition] = moved
        return FetchInForce(in_force, listed, self.complete)
