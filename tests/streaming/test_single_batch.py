"""A replay runs in this process only if it needs no stream: which runs are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch import backend_choice
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.event_source import EventTable
from purgatory_udf.streaming.replay_run import require_single_batch, run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.rules.reference.timeline import Timeline


def test_runs_that_need_a_stream_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, events = LocalBackend(), str(tmp_path / "events")
    write_deltalake(events, event_table(Timeline().fetch(1, "f", 100, 1, {"a": 0, "b": 0}).events))
    options = ReplayOptions(events, str(tmp_path / "out"), Config())
    run_replay(backend, options)
    layout = Layout(options.out)

    def is_refused(with_options: ReplayOptions = options) -> bool:
        try:
            require_single_batch(backend, with_options, layout, EventTable(backend, events))
        except NeedsSparkError:
            return True
        return False

    assert not is_refused()
    assert is_refused(replace(options, follow=True))
    assert is_refused(replace(options, config=Config(grouping="shard")))
    assert not is_refused(replace(options, config=Config(grouping="broker", batch_events=1)))
    monkeypatch.setattr(backend_choice, "REPLAYED_WATCHES", 2)
    assert not is_refused()
    monkeypatch.setattr(backend_choice, "REPLAYED_WATCHES", 1)
    assert is_refused()
    assert not is_refused(replace(options, any_size=True))
    assert is_refused(replace(options, any_size=True, config=Config(grouping="shard")))
    monkeypatch.undo()
    (Path(layout.internal) / "checkpoints").mkdir(parents=True)
    assert is_refused(), "the run was started as a stream"
    assert not is_refused(replace(options, overwrite=True))


def test_gauges_are_read_until_last_operation_has_ended(tmp_path: Path) -> None:
    """The fetch at 1 ms is the last event of the trace, and expires at 501 ms."""
    backend, events = LocalBackend(), str(tmp_path / "events")
    write_deltalake(events, event_table(Timeline().fetch(1, "f", 500, 1, {"a": 0}).events))
    run_replay(backend, ReplayOptions(events, str(tmp_path / "out"), Config()))
    readings = DeltaTable(str(tmp_path / "out" / "purgatory_gauges")).to_pyarrow_table().sort_by("at").to_pylist()
    assert [(row["at"].microsecond // 1000, row["watched"], row["delayed"]) for row in readings] == [
        (200, 1, 1),
        (600, 1, 0),
    ]
