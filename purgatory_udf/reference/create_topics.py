"""DelayedCreateTopics: whoever creates topics waits until every partition of every one of them has a leader."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from purgatory_udf.purgatory.request import TraceRequest
from purgatory_udf.reference.settling import NONE, Part, SettlingRequest, Verdict


@dataclass(slots=True, kw_only=True)
class TopicPart(Part):
    partitions: int


class DelayedCreateTopics(SettlingRequest[TopicPart]):
    """`has_leaders(topic, n)` says whether the cluster knows a leader for each of the topic's partitions 0 to n-1."""

    def __init__(
        self, request: TraceRequest, delay_ms: int, parts: list[TopicPart], has_leaders: Callable[[str, int], bool]
    ) -> None:
        super().__init__(request, delay_ms, parts)
        self._has_leaders = has_leaders

    def waits_for(self, key: Hashable) -> bool:
        return any(part.pending and part.topic == key for part in self.parts)

    def verdict(self, part: TopicPart) -> Verdict | None:
        return Verdict(NONE, "leaders") if self._has_leaders(part.topic, part.partitions) else None
