"""Groups of an open-loop workload match the reference."""

from __future__ import annotations

from purgatory_udf.common.configuration import Config
from purgatory_udf.simulation.open_loop.event_rows import slice_rows
from purgatory_udf.simulation.open_loop.workload import Workload
from tests.rules.groups.batches import in_batches, reference_of

OF_GROUPS = {"join_group", "sync_group", "heartbeat", "offset_commit", "leave_group"}


def test_groups_of_open_loop_match_reference() -> None:
    """Members leave, crash and return."""
    workload = Workload(12_000, partitions=30, rate=60, members=3, incident_s=30)
    rows = (row for number in range(workload.slices) for row in slice_rows(workload, number, "run").to_pylist())
    events = [
        {name: value for name, value in row.items() if value is not None} for row in rows if row["type"] in OF_GROUPS
    ]
    records = in_batches(events, Config(), range(500, len(events), 500)).records
    expected = reference_of(events, Config())
    assert len(expected) > 10
    assert {key: record.in_order() for key, record in records.items()} == {
        key: record.in_order() for key, record in expected.items()
    }
