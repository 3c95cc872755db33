"""The demo's trace: generated, valid, and with the outcomes that the demo describes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from jobs.demo import DEMO_ENTRIES
from purgatory_udf.common.configuration import Config
from purgatory_udf.contract import read_line
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.streaming.partition_rules import OUTPUT_TABLES
from tests.generate.make_sample import sample

SAMPLE = Path(__file__).resolve().parents[2] / "conf" / "sample" / "trace.jsonl"


def test_sample_matches_generator() -> None:
    assert SAMPLE.read_text(encoding="utf-8") == sample()


def test_sample_outcomes() -> None:
    events = [read_line(line) or {} for line in SAMPLE.read_bytes().splitlines()]
    replayed = replay([{**event, "seq": seq} for seq, event in enumerate(events)], Config())
    ends = Counter((outcome.client_id, outcome.completed_by) for outcome in replayed.outcomes)
    assert ends == {
        ("checkout-web", "high_watermark"): 223,
        ("checkout-web", "timeout"): 32,
        ("checkout-app", "high_watermark"): 180,
        ("checkout-app", "timeout"): 32,
        ("replica-1", "min_bytes"): 26,
        ("replica-1", "timeout"): 1,
        ("replica-2", "min_bytes"): 417,
        ("replica-2", "not_leader"): 1,
        ("replica-2", "timeout"): 1,
        ("replica-3", "min_bytes"): 286,
        ("replica-3", "not_leader"): 1,
        ("replica-3", "timeout"): 2,
        ("billing", "min_bytes"): 265,
        ("billing", "not_leader"): 1,
        ("billing", "timeout"): 5,
        ("fraud-check", "min_bytes"): 86,
        ("fraud-check", "timeout"): 1,
        ("warehouse", "min_bytes"): 10,
        ("warehouse", "not_leader"): 1,
        ("warehouse", "timeout"): 3,
        ("returns-desk", "timeout"): 12,
        ("platform-admin", "leaders"): 1,
        ("privacy-job", "low_watermark"): 1,
    }


def test_demo_replaces_its_own_tables() -> None:
    assert {*OUTPUT_TABLES, "events", "rejected_events", "runs"} <= DEMO_ENTRIES
