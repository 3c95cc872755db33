"""The sink's gauges of coordinators: repeated batches, and batches without reports."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.rules.groups.group_gauges import GaugeState
from purgatory_udf.streaming.batch_sink import CoordinatorGauges
from purgatory_udf.streaming.checkpoints import Snapshots
from tests.rules.groups.batches import Batches
from tests.support import oracle_groups

_TRACE = oracle_groups.load("tiny-3")


def _reports(cuts: list[int]) -> list[tuple[list[bytes], int]]:
    """Return the reports of each batch, and its horizon in epoch milliseconds."""
    batches, reports = Batches(_TRACE.config), []
    for begin, end in zip([0, *cuts[:-1]], cuts, strict=True):
        batches.take(_TRACE.events[begin:end])
        reports.append((list(batches.waits), _TRACE.events[end - 1]["time_us"] // 1000))
        batches.waits.clear()
    return reports


def _gauges(folder: Path) -> CoordinatorGauges:
    state = GaugeState(20, _TRACE.events[0]["time_us"] // 1000)
    return CoordinatorGauges(state, Snapshots(LocalBackend(), str(folder)), "run")


def _rows(gauges: CoordinatorGauges, number: int, reports: tuple[list[bytes], int]) -> pa.Table:
    rows = gauges.readings(number, *reports)
    gauges.keep(number)
    return rows


def test_repeated_batch_has_same_gauges(tmp_path: Path) -> None:
    """A sink of the same process repeats each batch, and so does a sink that starts from the files."""
    reports = _reports([100, 200, 300])
    once = _gauges(tmp_path / "once")
    expected = [_rows(once, number, report) for number, report in enumerate(reports)]
    assert sum(map(len, expected)) > 10
    gauges = _gauges(tmp_path / "again")
    for number, report in enumerate(reports):
        if number:
            gauges.readings(number, *report)
        assert _rows(gauges, number, report) == expected[number]
    resumed = _gauges(tmp_path / "again")
    assert _rows(resumed, 2, reports[2]) == expected[2]


def test_batch_without_reports_keeps_gauges(tmp_path: Path) -> None:
    first, second = _reports([150, 300])
    once = _gauges(tmp_path / "once")
    expected = [_rows(once, number, reports) for number, reports in enumerate((first, second))]
    assert _rows(_gauges(tmp_path / "more"), 0, first) == expected[0]
    _gauges(tmp_path / "more").keep(1)
    assert _rows(_gauges(tmp_path / "more"), 2, second) == expected[1]
