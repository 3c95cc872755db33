"""What the delayed operations of a group have in common: how they begin, and what they are watched on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from purgatory_udf.coordinator.group import Group
from purgatory_udf.coordinator.request import GroupRequest
from purgatory_udf.outcomes import PartitionOutcome
from purgatory_udf.purgatory.request import DelayedRequest, TraceRequest


@dataclass(frozen=True, slots=True)
class JoinKey:
    group: str

    def __str__(self) -> str:
        return self.group


@dataclass(frozen=True, slots=True)
class SyncKey:
    group: str

    def __str__(self) -> str:
        return self.group


@dataclass(frozen=True, slots=True)
class MemberKey:
    group: str
    member_id: str

    def __str__(self) -> str:
        return f"{self.group}-{self.member_id}"


class Beginning(NamedTuple):
    """When an operation begins, under which id, and by which request, if by one."""

    operation_id: int
    at_us: int
    request: GroupRequest | None

    @classmethod
    def of(cls, request: GroupRequest) -> Beginning:
        """The operation that the request begins for itself: at most one, which has its `seq`."""
        return cls(request.seq, request.time_us, request)

    @classmethod
    def derived(cls, group: Group, at_us: int, request: GroupRequest | None = None) -> Beginning:
        """Any further operation, and any that a timer begins."""
        return cls(group.derived_operation_id(), at_us, request)


class GroupOperation(DelayedRequest):
    """One entry of a purgatory. The members' requests that wait on it are answered by what its end sets off."""

    kind: ClassVar[str] = ""

    def __init__(self, group: Group, key: JoinKey | SyncKey | MemberKey, beginning: Beginning, delay_ms: int) -> None:
        operation_id, at_us, by = beginning
        request_id, client_id = (by.request_id, by.client_id) if by is not None else (None, None)
        super().__init__(
            TraceRequest(operation_id, self.kind, group.broker, at_us, request_id, client_id, str(key)), delay_ms
        )
        self.group = group
        self.key = key

    def effective_us(self, now_us: int) -> int:
        """When what follows from the end happens: a deadline in whole milliseconds may lie before the start."""
        return max(now_us, self.started_us)

    def answers(self) -> tuple[PartitionOutcome, ...]:
        return ()

    def on_expiration(self, now_us: int) -> None:
        """For most, all is done by the answer."""
