"""The faults that were injected into real clusters are found, with their culprits; a calm cluster yields no finding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis
from purgatory_udf.answers.diagnosis.finding import KINDS as KINDS_OF_FINDINGS
from purgatory_udf.answers.diagnosis.finding import Finding
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.streaming.event_source import EventTable
from tests.answers.diagnosis.conftest import diagnosed_recording
from tests.docs import pages
from tests.support import recorded

pytestmark = pytest.mark.long

# What a fault of `faults.json` may be found as.
KINDS = {
    "follower_frozen": ("broker_frozen", "follower_stalled"),
    "leader_frozen": ("broker_frozen", "follower_stalled"),
    "follower_slow": ("follower_slow",),
    "under_min_isr": ("below_min_isr",),
    "short_request_timeout": ("timeout_too_short",),
    "high_min_bytes": ("min_bytes_out_of_reach",),
    "member_killed": ("member_failed",),
    "member_stalled": ("member_slow_to_rejoin",),
    "leader_moved": ("leader_moved",),
    "large_batches": ("large_batches",),
    "host_busy": ("host_busy",),
}
# These had no effect on waits.
WITHOUT_EFFECT = ("client_quota", "replication_throttle")
FAULTS: list[dict[str, Any]] = json.loads(recorded.data_file("traces", "W11-faults", "faults.json").read_text())


def _is_found(finding: Finding, fault: dict[str, Any]) -> bool:
    culprit = fault["culprit"]
    named = {"broker": finding.broker, "client": finding.client_id, "group": finding.group, "topic": finding.topic}
    # A large batch is blamed on its client, for any topic.
    known = {key: value for key, value in culprit.items() if key in ("broker", "client", "group")} or culprit
    return (
        finding.kind in KINDS[fault["kind"]]
        and all(named[key] == value for key, value in known.items() if key in named)
        and finding.overlap_us(fault["startMs"] * 1000, fault["endMs"] * 1000) > 0
    )


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault["kind"] in KINDS], ids=lambda fault: fault["kind"]
)
def test_injected_fault_is_found(fault: dict[str, Any], faults: Diagnosis) -> None:
    assert any(_is_found(finding, fault) for finding in faults.findings)


def test_nobody_else_is_blamed(faults: Diagnosis) -> None:
    expected = [fault for fault in FAULTS if fault["kind"] not in WITHOUT_EFFECT]
    assert [finding for finding in faults.findings if not any(_is_found(finding, fault) for fault in expected)] == []


def test_longest_outage_weighs_most(faults: Diagnosis) -> None:
    first = faults.findings[0]
    assert (first.kind, first.broker, first.topic) == ("below_min_isr", 1, "ledger")
    assert first.share == max(finding.share for finding in faults.findings) > 0.3
    assert "left the in-sync set" in first.summary
    assert "15 produces got NOT_ENOUGH_REPLICAS" in first.summary


def test_import_recognizes_frozen_leader(faults: Diagnosis, faults_folder: Path) -> None:
    """Broker 1 was frozen as well, but leads no partition, so no operation was overdue there."""
    (fault,) = [fault for fault in FAULTS if fault["kind"] == "leader_frozen"]
    (pause,) = EventTable(LocalBackend(), str(faults_folder / "events")).pauses()
    assert pause.broker == fault["culprit"]["broker"]
    assert 0 <= fault["startMs"] - pause.paused_ms < 200
    assert 0 <= pause.resumed_ms - fault["endMs"] < 10
    (frozen,) = [finding for finding in faults.findings if finding.kind == "broker_frozen"]
    assert frozen.summary.startswith("Broker 3 stood still for 7.1 s from 06:30:13.1: it neither fetched nor answered")


@pytest.mark.nightly
@pytest.mark.parametrize("recording", ["W5-base", "W6-follower-reads"])
def test_calm_cluster_yields_no_finding(recording: str, tmp_path: Path) -> None:
    assert diagnosed_recording(recording, tmp_path / "out").findings == ()
    assert list(EventTable(LocalBackend(), str(tmp_path / "out" / "events")).pauses()) == []


@pytest.mark.nightly
def test_rolling_restart_is_blamed_on_the_stopped_brokers(tmp_path: Path) -> None:
    findings = diagnosed_recording("W7-rolling-k39", tmp_path / "out").findings
    assert {(finding.kind, finding.broker) for finding in findings} == {("leader_moved", 1), ("leader_moved", 3)}
    assert all(f"because broker {finding.broker} stopped" in finding.summary for finding in findings)


def test_json_matches_its_schema(faults: Diagnosis) -> None:
    schema = json.loads((pages.ROOT / "docs" / "diagnosis.schema.json").read_text())
    items = schema["properties"]["findings"]["items"]
    assert items["properties"]["kind"]["enum"] == list(KINDS_OF_FINDINGS)
    jsonschema.validate(faults.as_json(), schema)


def test_page_has_a_section_for_each_kind() -> None:
    page = pages.text("docs/diagnosis.md")
    assert [kind for kind in KINDS_OF_FINDINGS if f"### `{kind}`" not in page] == []
