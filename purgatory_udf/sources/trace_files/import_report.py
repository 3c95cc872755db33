"""Options and report of an ingest of JSON Lines or Parquet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from purgatory_udf.common.console import counted
from purgatory_udf.common.errors import CheckFailedError
from purgatory_udf.sources.trace_files.input_files import InputFile, skipped_links
from purgatory_udf.sources.trace_files.text_lines import PIECE_BYTES, USUAL, FileLimits

Source = Literal["jsonl", "parquet"]

EVENTS_PER_FILE = 50_000


@dataclass(frozen=True)
class IngestOptions:
    """Options of an ingest. `piece_bytes` is the size of the pieces that tasks read; it does not affect the tables."""

    paths: Sequence[str]
    out: str
    source: Source = "jsonl"
    max_disorder_ms: int = 0
    overwrite: bool = False
    events_per_file: int = EVENTS_PER_FILE
    run_id: str | None = None
    piece_bytes: int = PIECE_BYTES
    limits: FileLimits = USUAL

    def run(self, files: Sequence[InputFile]) -> str:
        """Return the given run id, or one derived from input and options."""
        if self.run_id:
            return self.run_id
        asked = [self.source, self.max_disorder_ms, [(file.name, file.size, file.modified) for file in files]]
        return f"ingest-{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:12]}"

    def settings(self) -> dict[str, Any]:
        """Return the options that affect the tables, by name."""
        options = {name: getattr(self, name) for name in ("source", "max_disorder_ms", "events_per_file")}
        return {**options, **self.limits.settings()}


@dataclass(frozen=True)
class IngestReport:
    """Counts of the input lines that are not blank, and the times of the first and last event.

    `skipped` has the links to files that are read under another name.
    """

    run_id: str
    files: int
    lines: int
    accepted: int
    by_rule: dict[str, int] = field(default_factory=dict)
    first_us: int | None = None
    last_us: int | None = None
    events: str = ""
    rejected_events: str = ""
    skipped: Sequence[str] = ()

    @property
    def rejected(self) -> int:
        return sum(self.by_rule.values())

    @property
    def late(self) -> int:
        return self.by_rule.get("late", 0)

    def counts(self) -> dict[str, Any]:
        """Return the counts for the `runs` table."""
        counts = {"files": self.files, "lines": self.lines, "events": self.accepted, "rejected": self.rejected}
        return {**counts, "rejected_by_rule": self.by_rule, "first_us": self.first_us, "last_us": self.last_us}

    def summary(self) -> list[str]:
        """Return lines of text: input, output with the tables' paths, and rejected lines by rule."""
        share = f" ({_percent(self.rejected, self.lines)} %)" if self.rejected else ""
        reasons = "; ".join(
            f"{count:,} {rule}" for rule, count in sorted(self.by_rule.items(), key=lambda reason: -reason[1])
        )
        lines = [
            f"input     {counted(self.lines, 'line')} of {counted(self.files, 'file')}",
            *skipped_links(self.skipped),
            f"events    {self.accepted:,}  {self.events}",
            f"rejected  {self.rejected:,}{share}  {self.rejected_events}",
        ]
        if reasons:
            lines.append(f"          {reasons}")
        if self.first_us is not None and self.last_us is not None:
            lines.append(f"time      {_moment(self.first_us)} to {_moment(self.last_us)}")
            unit = next((unit for unit, (low, high) in _OTHER_UNITS.items() if low <= self.first_us < high), None)
            if unit is not None:
                lines.append(f"          time_us seems to be in {unit}; it counts microseconds since 1970")
        return lines

    def require_complete(self) -> None:
        if self.accepted + self.rejected != self.lines:
            raise CheckFailedError(
                f"{self.lines:,} lines were read, but {self.accepted:,} events and {self.rejected:,} rejected lines "
                "written; repeat the import with --overwrite"
            )

    def require_few_rejected(self, max_rejected: float) -> None:
        """Raise `CheckFailedError` if more than `max_rejected` percent of the lines were rejected."""
        if self.rejected * 100 > max_rejected * self.lines:
            raise CheckFailedError(
                f"{self.rejected:,} of {counted(self.lines, 'line')} {'was' if self.rejected == 1 else 'were'} "
                f"rejected ({_percent(self.rejected, self.lines)} %), "
                f"more than max_rejected ({max_rejected:g} %); the reasons are in {self.rejected_events}"
            )


# Values of `time_us` that are times of 2001 to 2096 in another unit.
_OTHER_UNITS = {"seconds": (10**9, 4 * 10**9), "milliseconds": (10**12, 4 * 10**12)}


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g}"


def _moment(us: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)
    return moment.isoformat(sep=" ", timespec="microseconds").removesuffix("+00:00")
