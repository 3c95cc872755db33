"""A replay runs in this process only if it needs no stream: which runs are refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch import backend_choice
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.storage import run_records
from purgatory_udf.storage.output_folder import Layout
from purgatory_udf.streaming.event_source import EventTable
from purgatory_udf.streaming.replay_run import require_single_batch, run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions, start_or_resume
from tests.rules.reference.timeline import Timeline


def test_runs_that_need_a_stream_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, events = LocalBackend(), str(tmp_path / "events")
    write_deltalake(events, event_table(Timeline().fetch(1, "f", 100, 1, {"a": 0, "b": 0}).events))
    options = ReplayOptions(events, str(tmp_path / "out"), Config())
    finished = run_replay(backend, options)
    layout = Layout(options.out)
    run_records.save(backend, layout.table("runs"), replace(finished, status=run_records.RUNNING))

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
    # The trace has one event with two watches.
    monkeypatch.setattr(backend_choice, "most_rows_in_memory", lambda: 3)
    assert not is_refused()
    monkeypatch.setattr(backend_choice, "most_rows_in_memory", lambda: 2)
    assert is_refused()
    assert not is_refused(replace(options, any_size=True))
    assert is_refused(replace(options, any_size=True, config=Config(grouping="shard")))
    monkeypatch.undo()
    (Path(layout.internal) / "checkpoints").mkdir(parents=True)
    assert is_refused(), "the run was started as a stream"
    assert not is_refused(replace(options, overwrite=True))
    run_records.save(backend, layout.table("runs"), finished)
    assert not is_refused(), "nothing is left to do"
    assert run_replay(backend, options).status == run_records.FINISHED
    assert is_refused(replace(options, follow=True))


def test_run_of_several_batches_is_resumed_in_spark(tmp_path: Path) -> None:
    """Spark was killed after it had recorded the run, and before there were checkpoints."""
    backend, events = LocalBackend(), str(tmp_path / "events")
    write_deltalake(events, event_table(Timeline().fetch(1, "f", 100, 1, {"a": 0}).events))
    options, layout = ReplayOptions(events, str(tmp_path / "out"), Config()), Layout(str(tmp_path / "out"))
    started = start_or_resume(backend, options, layout, EventTable(backend, events))
    streamed = replace(started, configuration={**started.configuration, "at_once": False})
    run_records.save(backend, layout.table("runs"), streamed)
    with pytest.raises(NeedsSparkError, match="started as a stream"):
        run_replay(backend, options)


def test_this_process_replays_all_events_as_one_batch(tmp_path: Path) -> None:
    """Other batch sizes than the default select a stream, unless the trace is in memory anyway."""
    backend, events = LocalBackend(), str(tmp_path / "events")
    made = Timeline().fetch(1, "f", 100, 1, {"a": 0}).fetch(2, "g", 100, 1, {"a": 0}).events
    write_deltalake(events, event_table(made))
    options = ReplayOptions(events, str(tmp_path / "out"), Config(batch_events=1))
    with pytest.raises(NeedsSparkError, match="2 events are more than one batch"):
        run_replay(backend, options)
    assert run_replay(backend, replace(options, any_size=True)).counts["expirations"] == 2


def test_memory_for_replay_is_that_of_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, none = tmp_path / "memory.max", tmp_path / "missing"
    monkeypatch.setattr(backend_choice, "_CONTAINER_LIMITS", (str(none), str(limit)))
    monkeypatch.setattr(backend_choice, "_MEMORY", none)
    of_machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, memory in (("max", of_machine), ("6000", 6000), (str(1 << 62), of_machine)):
        limit.write_text(f"{text}\n")
        monkeypatch.setattr(backend_choice, "_LEAST_BYTES", 0)
        assert backend_choice.most_rows_in_memory() == int(memory / 6 / 1000)
    limit.write_text("6000")
    monkeypatch.setattr(backend_choice, "_LEAST_BYTES", 2000)
    assert backend_choice.most_rows_in_memory() == 2


def test_memory_for_replay_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    limit.write_text("6000000")
    monkeypatch.setattr(backend_choice, "_CONTAINER_LIMITS", (str(limit),))
    monkeypatch.setattr(backend_choice, "_MEMORY", memory)
    monkeypatch.setattr(backend_choice, "_LEAST_BYTES", 0)
    assert backend_choice.most_rows_in_memory() == 1000
    for text, rows in (("MemTotal: 9 kB\n", 1000), ("MemFree: 1 kB\nMemAvailable:     1000 kB\n", 512)):
        memory.write_text(text)
        assert backend_choice.most_rows_in_memory() == rows


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
