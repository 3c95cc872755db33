"""The last part of an operation's wait in `blame` has the cause that `explain` names, for every kind of operation."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable

from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis, diagnose
from purgatory_udf.answers.evidence import Evidence, collect
from purgatory_udf.answers.operation_story import story
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.tables import ENDS
from purgatory_udf.simulation.closed_loop import ClosedLoop
from purgatory_udf.simulation.scenario import Scenario
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.support.outcome_folder import write_simulation

# Operations with one possible cause.
ONLY_CAUSE = {
    "delete_records": "low_watermark",
    "create_topics": "no_leader",
    "remote_fetch": "remote_storage",
    "list_offsets": "remote_storage",
    "initial_join": "initial_delay",
    "join": "member_joining",
    "sync": "member_syncing",
    "heartbeat": "member_silent",
    "session": "member_silent",
    "reconciliation": "member_revoking",
    "share_fetch": "no_data",
}
NO_DATA = {"no_data", "below_min_bytes"}
UNREPLICATED = {"follower_behind", "below_min_isr", "high_watermark"}
# Of each kind, at most this many operations are compared.
MOST = 120


def _said(evidence: Evidence) -> tuple[set[str], set[int]] | None:
    """Return the causes, and the replicas if it names any, that the story of an operation allows; None for any."""
    text, end = "\n".join(story(evidence)), evidence.end
    assert end is not None
    request: Any = evidence.request or {}
    if end["kind"] in ONLY_CAUSE:
        return {ONLY_CAUSE[end["kind"]]}, set()
    if end["kind"] == "fetch" and request["replica_id"] >= 0:
        return {"no_data", "replication_throttled"}, set()
    if end["expired"]:
        if end["kind"] == "fetch":
            return NO_DATA | UNREPLICATED | {"open_transaction"}, set()
        behind = {int(each) for each in re.findall(r"replica (\d+) had reached \d+ \(not enough\)", text)}
        behind |= {int(each) for each in re.findall(r"replica (\d+) has no recorded progress", text)}
        return ({"follower_behind"}, behind) if behind else (UNREPLICATED, set())
    decided = re.search(r"decided on \S+ by (?:(?:a fetch|progress) of replica (\d+)|([^(\n]+))", text)
    if decided is None:
        return None
    if decided[1]:
        return {"follower_behind"}, {int(decided[1])}
    by = decided[2].strip()
    causes = {
        "an append": NO_DATA,
        "a new high watermark": UNREPLICATED,
        "a new last stable offset": UNREPLICATED,
    }
    return (causes[by], set()) if by in causes else None


def _compare(out: Path, *without: str) -> Counter[str]:
    """Compare the operations of each kind that waited, `without` some kinds; return their number by kind."""
    tables = RunTables(LocalBackend(), str(out))
    tables.add("blame")
    rows = tables.database.query("SELECT * FROM blame ORDER BY operation_id, ended_at, started_at").to_pylist()
    last = {row["operation_id"]: row for row in rows}
    chosen: list[int] = []
    for kind in sorted({row["kind"] for row in last.values()} - {*without}):
        ids = [operation for operation, row in last.items() if row["kind"] == kind]
        chosen += Random(kind).sample(ids, min(len(ids), MOST))
    counts: Counter[str] = Counter()
    for evidence in collect(tables, chosen):
        row, said = last[evidence.operation_id], _said(evidence)
        counts[row["kind"]] += 1
        # A transaction is open until its end is replicated, so the story of its readers names what replicated that.
        is_committed = (evidence.request or {}).get("isolation") == "read_committed"
        if said is not None and not (is_committed and row["cause"] == "open_transaction"):
            causes, replicas = said
            assert row["cause"] in causes, (row, story(evidence))
            assert not replicas or row["replica"] in replicas, (row, story(evidence))
    return counts


def _scenario(seed: int) -> Scenario:
    """Return a cluster with requests of all kinds that a simulation has, and with incidents, in a few seconds."""
    random = Random(seed)

    def any_s() -> float:
        return random.uniform(1, 5)

    incidents: list[dict[str, Any]] = [
        {"what": "stall-follower", "at_s": any_s(), "broker": random.randint(1, 3), "for_s": random.uniform(0.3, 2)},
        {"what": "freeze-broker", "at_s": any_s(), "broker": random.randint(1, 3), "for_s": random.uniform(0.3, 1)},
        {"what": "move-leader", "at_s": any_s(), "topic": "orders", "partition": 0, "to": 2},
        {"what": "rolling-restart", "at_s": any_s(), "consumer": "billing-1", "down_s": 1},
    ]
    latency = {"median_ms": random.uniform(0.2, 3), "p75_ms": 4}
    brokers = {"network": latency, "replica_lag_time_max_ms": 1_000, "remote_read": {"median_ms": 30, "p75_ms": 60}}
    tiered = {"segment_bytes": 16_384, "local_retention_bytes": 16_384}
    payments = {"name": "pay", "topics": ["orders"], "rate": 8, "transaction_ms": 300, "request_timeout_ms": 400}
    archive = {"name": "archive", "topics": ["clicks"], "reset": "earliest", "start_after_s": 2, "commit": "never"}
    return Scenario.model_validate(
        {
            "shows": "requests of all kinds",
            "seed": seed,
            "duration_s": 7,
            "brokers": brokers,
            "topics": [
                {"name": "orders", "partitions": 4, "min_isr": random.randint(1, 3)},
                {"name": "clicks", "partitions": 2, **tiered},
            ],
            "topic_creations": [{"prefix": "new", "every_ms": 1_500, "partitions": 2}],
            "producers": [
                payments,
                {"name": "web", "topics": ["orders"], "rate": 15, "request_timeout_ms": 300},
                {"name": "log", "topics": ["clicks"], "rate": 40, "record_bytes": 1_000, "acks": 1},
            ],
            "consumers": [
                {"name": "billing", "count": 2, "topics": ["orders"], "isolation": "read_committed"},
                {"name": "report", "topics": ["orders"], "fetch_min_bytes": 2_000, "fetch_max_wait_ms": 400},
                {**archive, "max_partition_fetch_bytes": 8_192, "fetch_max_wait_ms": 300},
            ],
            "share_groups": [{"name": "workers", "topics": ["orders"], "workers": [{"name": "worker", "count": 2}]}],
            "incidents": incidents,
        }
    )


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_blame_agrees_with_stories_of_simulated_operations(seed: int, tmp_path: Path) -> None:
    write_simulation(tmp_path, ClosedLoop(_scenario(seed)).run(), "simulated")
    out = tmp_path / "out"
    run_replay(LocalBackend(), ReplayOptions(str(tmp_path / "events"), str(out), Config()))
    diagnose(LocalBackend(), str(out))
    counts = _compare(out)
    assert counts.keys() >= {"produce", "fetch", "remote_fetch", "share_fetch", "create_topics", "join", "sync"}


def test_unwritten_watches_do_not_change_stories(tmp_path: Path) -> None:
    write_simulation(tmp_path, ClosedLoop(_scenario(3)).run(), "simulated")
    stories, kinds = [], []
    for name, config in (("written", Config()), ("unwritten", Config(write_watches=False))):
        out = tmp_path / name
        run_replay(LocalBackend(), ReplayOptions(str(tmp_path / "events"), str(out), config))
        kinds.append({*DeltaTable(str(out / "watches")).to_pyarrow_table()["kind"].to_pylist()})
        ends = [DeltaTable(str(out / end)).to_pyarrow_table()["operation_id"].to_pylist() for end in ENDS]
        evidence = collect(RunTables(LocalBackend(), str(out)), sorted({*itertools.chain(*ends)}))
        stories.append({each.operation_id: story(each) for each in evidence})
    assert kinds == [{"produce", "fetch", "remote_fetch", "create_topics"}, {"remote_fetch"}]
    assert stories[0] == stories[1]


@pytest.mark.long
def test_blame_agrees_with_stories_of_recorded_operations(faults: Diagnosis, faults_folder: Path) -> None:
    assert _compare(faults_folder)["produce"] == MOST


def test_blame_agrees_with_stories_of_group(story_folder: Path) -> None:
    diagnose(LocalBackend(), str(story_folder))
    # In the sample, last stable offsets are ahead of high watermarks, so appends end the fetches of some consumers.
    assert _compare(story_folder, "fetch").keys() >= {"delete_records", "heartbeat", "initial_join", "join", "sync"}
