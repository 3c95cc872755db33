"""The log of one partition as its leader sees it, followed closely enough to know its high watermark at any moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Replica:
    """The contract's derivation: the least log end over the in-sync replicas, or what an event states, if more."""

    broker: int
    end: int | None = None
    high_watermark: int | None = None
    isr: tuple[int, ...] | None = None
    min_isr: int | None = None
    ends: dict[int, int] = field(default_factory=dict)
    open_transactions: dict[str, int] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)

    def snapshot(self) -> dict[str, Any]:
        """What JSON can keep."""
        return {**asdict(self), "ends": list(map(list, self.ends.items()))}

    @classmethod
    def resumed(cls, broker: int, state: dict[str, Any]) -> Replica:
        """From a `snapshot`."""
        isr = tuple(state["isr"]) if state["isr"] is not None else None
        ended = [(first, marker) for first, marker in state["ended"]]
        return cls(**{**state, "broker": broker, "isr": isr, "ends": dict(state["ends"]), "ended": ended})

    def append(self, end: int) -> bool:
        """True if the log grew."""
        if self.end is not None and end <= self.end:
            return False
        self.end = end
        self.derive()
        return True

    def progress(self, replica: int, offset: int) -> bool:
        """True if that follower is further than before."""
        if offset <= self.ends.get(replica, -1):
            return False
        self.ends[replica] = offset
        self.derive()
        return True

    def derive(self) -> None:
        """The high watermark stays where it is while a member's end is unknown, or the set is too small."""
        if self.isr is None or self.end is None or (self.min_isr is not None and len(self.isr) < self.min_isr):
            return
        least = self.end
        for member in self.isr:
            if member == self.broker:
                continue
            if member not in self.ends:
                return
            least = min(least, self.ends[member])
        self.state(least)

    def state(self, offset: int) -> bool:
        """A high watermark from elsewhere: true if it is new."""
        if self.high_watermark is not None and offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        return True

    def begin(self, transaction: str, offset: int) -> None:
        self.open_transactions.setdefault(transaction, offset)

    def finish(self, transaction: str, marker_end: int) -> bool:
        """The transaction's marker has been appended; its records stay unstable until the marker is replicated.

        Falls back to the oldest open one and returns false when the transaction is not known here.
        """
        first = self.open_transactions.pop(transaction, None)
        known = first is not None
        if first is None:
            if not self.open_transactions:
                return False
            oldest = min(self.open_transactions, key=lambda name: self.open_transactions[name])
            first = self.open_transactions.pop(oldest)
        self.ended.append((first, marker_end))
        return known

    def last_stable(self) -> int | None:
        """Least of the high watermark and the first offset of any transaction that is open or not yet replicated."""
        if self.high_watermark is None:
            return None
        mark = self.high_watermark
        self.ended = [transaction for transaction in self.ended if transaction[1] > mark]
        return min([mark, *self.open_transactions.values(), *(first for first, _ in self.ended)])
