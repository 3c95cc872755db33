"""Windows of rows, named as pyspark names them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from purgatory_udf.backend.local.column import ColumnOrName, column, order_of


@dataclass(frozen=True)
class WindowSpec:
    parts: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    rows: str = ""

    def orderBy(self, *by: ColumnOrName) -> WindowSpec:  # noqa: N802
        return replace(self, order=tuple(order_of(key).sql for key in by))

    def rowsBetween(self, start: int, end: int) -> WindowSpec:  # noqa: N802
        """From the first row to this one: other spans are not asked for."""
        if (start, end) != (LocalWindow.unboundedPreceding, LocalWindow.currentRow):
            raise NotImplementedError(f"rows between {start} and {end}")
        return replace(self, rows="ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW")

    @property
    def sql(self) -> str:
        parts = f"PARTITION BY {', '.join(self.parts)}" if self.parts else ""
        order = f"ORDER BY {', '.join(self.order)}" if self.order else ""
        return " ".join(filter(None, (parts, order, self.rows)))


class LocalWindow:
    unboundedPreceding = -(2**63)  # noqa: N815
    currentRow = 0  # noqa: N815

    @staticmethod
    def partitionBy(*by: ColumnOrName) -> WindowSpec:  # noqa: N802
        return WindowSpec(tuple(column(key).sql for key in by))

    @staticmethod
    def orderBy(*by: ColumnOrName) -> WindowSpec:  # noqa: N802
        return WindowSpec().orderBy(*by)
