"""A followed import at a steady rate, with `maintain` from time to time: its files do not grow, and no event is lost.

`python -m tests.chaos.long_runs --what import` does the same for an hour with a real broker.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs.maintain import main as maintain
from purgatory_udf.backend.backend import LocalBackend, backend_of
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.sources.follow_topic import EventSteps
from purgatory_udf.sources.kafka_topic import MESSAGES, KafkaTopic
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.storage.run_records import Run
from tests.support.delta_lake import commits_to_read

START_US = 1_700_000_000_000_000
# More than two minutes of events, in steps of 4 s.
STEPS, STEP_S, STEPS_PER_MAINTAIN = 36, 4, 6


def _messages(step: int) -> list[tuple[int, int, str]]:
    """Return the messages of a step: 20 events per second, and an invalid message."""
    begin = step * STEP_S * 20
    events = [{"type": "clock", "time_us": START_US + (begin + number) * 50_000} for number in range(STEP_S * 20)]
    return [(0, begin + number, json.dumps(event)) for number, event in enumerate(events)] + [(1, step, "not at all")]


@pytest.mark.nightly
@pytest.mark.long
def test_steady_import_does_not_grow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout, run = Layout(str(tmp_path)), Run("ingest-t", "ingest", {"kafka": "nowhere:1", "topic": "t"}, {})
    tables, working = ("events", "rejected_events"), tmp_path / "_kafka"
    files, read, kept = [], [], []
    session = LocalBackend()
    run_records.save(session, layout.table("runs"), run)
    for name in tables:
        backend_of(session).delta(layout.table(name)).create(layout.table(name), TABLES[name])
    topic, options = KafkaTopic("nowhere:1", "t"), IngestOptions([], layout.out)
    for step in range(STEPS):
        # A new process has no state in memory.
        steps = EventSteps(LocalBackend(), layout, run, topic, options, str(working / "steps"))
        columns = zip(*_messages(step), strict=True)
        messages = pa.Table.from_arrays(list(map(pa.array, columns)), MESSAGES.names).cast(MESSAGES)
        steps.run(LocalBackend(), LocalDataset.of(messages), step)
        files.append(sum(len(DeltaTable(layout.table(name)).file_uris()) for name in tables))
        read.append(max(commits_to_read(Path(layout.table(name))) for name in tables))
        kept.append(sum(file.stat().st_size for file in working.rglob("*") if file.is_file()))
        if step % STEPS_PER_MAINTAIN == STEPS_PER_MAINTAIN - 1:
            assert maintain.status(["--out", layout.out], open_local) == 0
    third = STEPS // 3
    for amounts in (files, kept):
        assert 0 < max(amounts[2 * third :]) <= 1.1 * max(amounts[third : 2 * third])
    assert max(read) <= 10 < DeltaTable(layout.table("events")).version()
    numbers = DeltaTable(layout.table("events")).to_pyarrow_table(columns=["seq"])["seq"].to_pylist()
    assert sorted(numbers) == [*range(1, STEPS * STEP_S * 20 + 1)]
    assert DeltaTable(layout.table("rejected_events")).to_pyarrow_table().num_rows == STEPS
    capsys.readouterr()
