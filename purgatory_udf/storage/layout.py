"""Where a run keeps what: the public tables beside each other, its own machinery under `_replay`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    out: str

    def table(self, name: str) -> str:
        return f"{self.out.rstrip('/')}/{name}"

    @property
    def machinery(self) -> str:
        return self.table("_replay")

    @property
    def relay(self) -> str:
        """Events on their way from groups that see a share of some operations to their brokers' groups, packed."""
        return f"{self.machinery}/relay"

    @property
    def answers(self) -> str:
        """What groups' requests were answered, but for signs of life that are well."""
        return f"{self.machinery}/told"

    @property
    def coordinators(self) -> str:
        """What waits in the groups' purgatories, after each of the last batches."""
        return f"{self.machinery}/coordinators"

    def path_of(self, table: str) -> str:
        """Of a public table, or of one that only the run itself reads."""
        return {"relay": self.relay, "told": self.answers}.get(table) or self.table(table)

    def control(self, query: str) -> str:
        """The row that lets the query's clock run past the end of a finished trace."""
        return f"{self.machinery}/control/{query}"

    @property
    def staged(self) -> str:
        """The events in files of the wanted size, where the given table's files are larger or not in time order."""
        return f"{self.machinery}/events"

    def checkpoint(self, query: str) -> str:
        return f"{self.machinery}/checkpoints/{query}"
