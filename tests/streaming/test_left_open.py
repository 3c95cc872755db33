"""A small trace without draining: operations that are open at its end stay open."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import load_config
from purgatory_udf.rules.engine.partition_engine import event_table
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.streaming.left_open import EVENTS, HARD, LEFT_OPEN, OPEN, WHOLE


def test_open_operation_has_no_expired_watch(tmp_path: Path) -> None:
    """This replay runs without Spark; `tests/sources/request_log/test_without_spark.py` compares Spark's tables."""
    *before, last = EVENTS
    events = [{"broker": 0, "seq": number} | event for number, event in enumerate([*before, LEFT_OPEN, last], 1)]
    write_deltalake(str(tmp_path / "events"), event_table(events))
    options = ReplayOptions(str(tmp_path / "events"), str(tmp_path / "out"), load_config(None, ["drain=false"]))
    run = run_replay(LocalBackend(), options)
    assert run.counts["open"] == 1
    requests = {event["seq"]: event.get("request_id") for event in events}
    watches = DeltaTable(str(tmp_path / "out" / "watches")).to_pyarrow_table().to_pylist()
    assert {(requests[row["operation_id"]], row["partition"], row["status"]) for row in watches} == {
        (WHOLE, 0, "satisfied"),
        (HARD, 0, "expired"),
        (OPEN, 0, "satisfied"),
    }
