"""A mock operation that completes on request of the test, and a purgatory for it."""

from __future__ import annotations

from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer


class Operation(DelayedOperation):
    """Completes once the test sets `completable`, and logs its calls."""

    def __init__(self, name: str, delay_ms: int, started_us: int = 0) -> None:
        super().__init__(started_us, delay_ms)
        self.name = name
        self.completable = False
        self.log: list[str] = []

    def __repr__(self) -> str:
        return self.name

    def try_complete(self, now_us: int) -> bool:
        self.log.append("try")
        return self.completable and self.force_complete(now_us)

    def on_complete(self, now_us: int) -> None:
        self.log.append(f"answered at {now_us}")

    def on_expiration(self, now_us: int) -> None:
        self.log.append(f"expired at {now_us}")


def purgatory(purge_interval: int = 1000) -> DelayedOperationPurgatory[Operation]:
    return DelayedOperationPurgatory("Test", SystemTimer(0), purge_interval)
