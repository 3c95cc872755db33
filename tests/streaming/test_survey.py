"""The survey of a trace: the limits of its fetches."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming.event_source import EventTable
from tests.rules.reference.timeline import Timeline

_BROKER_LIMIT = 50_000


@pytest.mark.parametrize(
    ("limits", "request_limit", "least"),
    [
        pytest.param([700], 900, 700, id="of one partition"),
        pytest.param([700], 300, 300, id="of a request of one partition"),
        pytest.param([700, 800], 3_200, 700, id="the request's is large enough"),
        pytest.param([700, 800], 3_000, 0, id="the request's may leave any number"),
        pytest.param([700, 26_000], None, 0, id="the broker's may leave any number"),
    ],
)
def test_survey_finds_smallest_limit(tmp_path: Path, limits: list[int], request_limit: int | None, least: int) -> None:
    parts = {f"a-{number}": {"fetch_offset": 0, "max_bytes": limit} for number, limit in enumerate(limits)}
    timeline = Timeline().fetch(1, "f", 0, 1, parts, max_bytes=request_limit)
    write_deltalake(str(tmp_path), event_table(timeline.events))
    found = EventTable(LocalBackend(), str(tmp_path), _BROKER_LIMIT).survey
    assert (found.most_bytes, found.least_bytes) == (max(limits), least)


def test_other_inputs_are_no_table_of_events(tmp_path: Path) -> None:
    file, other = tmp_path / "trace.jsonl", tmp_path / "rejected_events"
    file.touch()
    write_deltalake(str(other), pa.table({"raw": ["{}"]}))
    for path, error in (
        (file, "is a file, not a table of events; import it with ingest"),
        (other, "not a table of events: it has no column seq"),
        (tmp_path, "not a Delta table of events; create one with ingest"),
    ):
        with pytest.raises(UserError, match=f"^{path}: {error}$"):
            EventTable(LocalBackend(), str(path)).require()
