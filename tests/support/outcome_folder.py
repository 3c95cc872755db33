"""The output folder of an import and a replay, written within a second without Spark.

`sample_with_group()` is the bundled sample with a consumer group, in which member `c` stops sending requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract import read_row
from purgatory_udf.contract.outcome import Outcome, Transition
from purgatory_udf.contract.tables import TABLES
from purgatory_udf.rules.engine.partition_engine import Engine, Tables, event_table
from purgatory_udf.rules.purgatory.clock import gauge_changes
from purgatory_udf.rules.reference.reference_replay import Replay, replay
from purgatory_udf.simulation.closed_loop import SimulationResult
from purgatory_udf.simulation.output import event_rows, request_rows
from tests.support.group_timeline import GroupTimeline

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "conf" / "sample" / "trace.jsonl"
RUN_ID = "run-1"
GROUP_KINDS = ("join", "initial_join", "sync", "heartbeat")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Event = dict[str, Any]
Row = dict[str, Any]


def sample_with_group() -> list[Event]:
    """Return the events of the sample, which lasts 6 s, merged with those of group `g`."""
    events = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    begin_us = events[0]["time_us"]
    group = [event | {"time_us": begin_us + event["time_us"], "broker": 1} for event in _group().events]
    ordered = sorted([*events, *group], key=lambda event: event["time_us"])
    return [read_row(event) | {"seq": number} for number, event in enumerate(ordered)]


def _group() -> GroupTimeline:
    """Return a group of three members. `c` stops sending heartbeats, and `b` delays the next generation."""
    group = GroupTimeline()
    for ms, member in ((100, "a"), (200, "b"), (300, "c")):
        group.join(ms, member, session_timeout_ms=6_000)
    for ms, member in ((5_200, "a"), (5_210, "b"), (5_220, "c")):
        group.sync(ms, member, leader=member == "a")
    for ms in range(6_000, 12_500, 1_500):
        group.heartbeat(ms, "a")
        group.heartbeat(ms + 10, "b")
    group.rejoin(12_050, "a", session_timeout_ms=6_000)
    group.rejoin(14_500, "b", session_timeout_ms=6_000)
    group.sync(14_600, "a", 2, leader=True)
    group.sync(14_610, "b", 2)
    group.heartbeat(15_000, "a", 2)
    group.heartbeat(15_010, "b", 2)
    return group


def write_folder(out: Path, events: list[Event], config: Config | None = None, events_path: str = "") -> Replay:
    """Write every table of a replay. A what-if variant refers to shared events by `events_path`."""
    config = config or Config()
    replayed = replay(events, config)
    table = event_table([_typed(event) for event in events])
    last_us = max(event["time_us"] for event in events)
    engine = Engine(config)
    looped = Tables.of(engine.feed(table) + (engine.drain() if config.drain else []), RUN_ID, last_us)
    groups = [outcome for outcome in replayed.outcomes if outcome.kind in GROUP_KINDS]
    tables = {
        "events": table,
        "completions": pa.concat_tables([looped.completions, _ends(groups, False, last_us)]),
        "expirations": pa.concat_tables([looped.expirations, _ends(groups, True, last_us)]),
        "cancellations": looped.cancellations,
        "watches": looped.watches,
    }
    gauges = (asdict(gauge) | {"at": at_us(gauge.at_ms * 1000)} for gauge in gauge_changes(replayed.gauges))
    tables["group_transitions"] = _rows("group_transitions", map(_transition, replayed.transitions))
    tables["purgatory_gauges"] = _rows("purgatory_gauges", gauges)
    if events_path:
        del tables["events"]
    for name, table_rows in tables.items():
        write_deltalake(str(out / name), table_rows)
    # The import may have written its own record.
    write_deltalake(str(out / "runs"), _runs(out, config, len(events), replayed, events_path), mode="append")
    return replayed


def write_simulation(out: Path, simulated: SimulationResult, run_id: str) -> None:
    """Write the tables of a simulation that a comparison of simulations reads."""
    write_deltalake(str(out / "events"), event_rows(simulated.events, run_id))
    write_deltalake(str(out / "truth_requests"), request_rows(simulated.exchanges, run_id))
    run = {"run_id": run_id, "job": "simulate", "status": "finished", "started_at": at_us(0), "finished_at": at_us(1)}
    texts = dict.fromkeys(("trace", "configuration", "versions", "counts"), "{}")
    write_deltalake(str(out / "runs"), table_of("runs", [run | texts | {"wall_seconds": 1.0}]))


def table_of(name: str, rows: Iterable[Row]) -> pa.Table:
    """Convert rows to the table's schema. Missing columns become null."""
    return pa.Table.from_pylist(list(rows), schema=TABLES[name])


def at_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _rows(name: str, rows: Iterable[Row]) -> pa.Table:
    return table_of(name, ({"run_id": RUN_ID} | row for row in rows))


def _typed(event: Event) -> Row:
    return {"run_id": RUN_ID, "event_time": at_us(event["time_us"]), "source": SAMPLE.name} | event


def _ends(outcomes: Iterable[Outcome], expired: bool, last_us: int) -> pa.Table:
    rows = [
        asdict(outcome)
        | {"started_at": at_us(outcome.started_us), "deadline": at_us(outcome.deadline_us), "wait_ms": outcome.wait_ms}
        | {"expired_at" if expired else "completed_at": at_us(outcome.ended_us)}
        | {"after_end": outcome.ended_us // 1000 > last_us // 1000}
        for outcome in outcomes
        if outcome.expired == expired
    ]
    return _rows("expirations" if expired else "completions", rows)


def _transition(change: Transition) -> Row:
    return asdict(change) | {"at": at_us(change.at_us), "members": list(change.members)}


def _runs(out: Path, config: Config, events: int, replayed: Replay, events_path: str) -> pa.Table:
    now = datetime.now(UTC)
    counts = {"events": events, "operations": len(replayed.outcomes) + len(replayed.open), "open": len(replayed.open)}
    row = {
        "job": "replay",
        "status": "finished",
        "trace": json.dumps({"events": events_path or str(out / "events"), "ingest": "sample_with_group"}),
        "configuration": config.model_dump_json(),
        "versions": "{}",
        "counts": json.dumps(counts),
        "started_at": now,
        "finished_at": now,
        "wall_seconds": 1.0,
    }
    return _rows("runs", [row])
