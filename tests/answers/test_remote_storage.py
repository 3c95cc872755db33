"""A trace of tiered partitions through the commands: outcomes, meters, invariants, stories and another maximum wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from jobs import replay, what_if
from purgatory_udf.answers.audit import audit
from purgatory_udf.answers.diagnosis.diagnosis_run import diagnose
from purgatory_udf.answers.explain import Question, explain
from purgatory_udf.answers.metrics import MetricsOptions, write_metrics
from purgatory_udf.answers.what_if import UNENDED_READS
from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.contract.outcome import Outcome
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.rules.engine.partition_engine import event_table
from tests.rules.reference.timeline import Timeline, place
from tests.support import remote_traces
from tests.support.outcome_rows import outcomes_of

pytestmark = pytest.mark.long

_METERS = (
    "DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=consumer",
    "DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=follower",
    "DelayedRemoteFetchMetrics,name=ExpiresPerSec",
    "DelayedRemoteListOffsetsMetrics,name=ExpiresPerSec",
)


def _replay(out: Path, events: list[dict[str, object]], *settings: str) -> list[Outcome]:
    write_deltalake(str(out / "events"), event_table(events))
    words = [word for setting in settings for word in ("--set", setting)]
    assert replay.main.status(["--events", str(out / "events"), "--out", str(out), *words], open_local) == 0
    ends = (DeltaTable(str(out / name)).to_pyarrow_table() for name in ("completions", "expirations", "cancellations"))
    return outcomes_of(*ends)


@pytest.mark.parametrize("name", ["special-1", "tiny-1"])
def test_replay_and_meters_equal_kafka(name: str, tmp_path: Path) -> None:
    trace = remote_traces.load(name)
    config = trace.config
    outcomes = _replay(
        tmp_path,
        trace.events,
        f"remote_fetch.max_wait_ms={config.remote_fetch.max_wait_ms}",
        f"list_offsets.request_timeout_ms={config.list_offsets.request_timeout_ms}",
        f"fetch.max_bytes={config.fetch.max_bytes}",
        "fetch.cap_min_bytes=false",
        f"fetch.purge_interval={config.fetch.purge_interval}",
    )
    assert remote_traces.rows_of(outcomes) == trace.rows
    metrics = write_metrics(LocalBackend(), str(tmp_path), MetricsOptions())
    marks = metrics.sql(
        "SELECT mbean, sum(expired) AS marks FROM metrics_expires WHERE topic IS NULL GROUP BY mbean"
    ).to_pylist()
    marked = {row["mbean"].removeprefix("kafka.server:type="): row["marks"] for row in marks}
    assert tuple(marked.get(meter, 0) for meter in _METERS) == trace.expirations
    assert [finding.invariant for finding in audit(LocalBackend(), str(tmp_path)) if finding.broken] == []


def _slow_read() -> Timeline:
    """Return a fetch of `orders-3`, whose offset 5 is only in remote storage; the read takes 1,240 ms."""
    timeline = Timeline().log_end(1, "orders-3", 100, 1_000).high_watermark(1, "orders-3", 100)
    timeline.change(2, "orders-3", "local_log_start", offset=50)
    timeline.fetch(10, "f", 5_000, 1, {"orders-3": 5})
    return timeline.add(1_250, "remote_read", request_id="f", **place("orders-3"), bytes=400)


def test_story_names_slow_read(tmp_path: Path) -> None:
    _replay(tmp_path, _slow_read().events)
    assert explain(LocalBackend(), str(tmp_path), Question(request_id="f"))[-2:] == [
        "  00:00:00.510000  expired at its deadline",
        "                   waited for the remote read of orders-3, which took 1,240 ms; "
        "remote.fetch.max.wait.ms is 500",
    ]


def test_longer_wait_completes_the_fetch(tmp_path: Path) -> None:
    (fetch,) = _replay(tmp_path, _slow_read().events, "remote_fetch.max_wait_ms=2000")
    assert (fetch.kind, fetch.completed_by, fetch.ended_us, fetch.bytes) == (
        *("remote_fetch", "remote_reads"),
        *(1_250_000, 400),
    )


def test_what_if_names_reads_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _replay(tmp_path, _slow_read().events)
    words = ["--events", str(tmp_path / "events"), "--out", str(tmp_path), "--variant", "v"]
    for setting, is_named in (("remote_fetch.max_wait_ms=2000", True), ("fetch.max_wait_ms=x2", False)):
        capsys.readouterr()
        assert what_if.main.status([*words, setting], open_local) == 0
        assert (UNENDED_READS in capsys.readouterr().out) == is_named


def test_diagnosis_blames_slow_remote_reads(tmp_path: Path) -> None:
    timeline = Timeline().log_end(1, "orders-3", 100, 1_000).high_watermark(1, "orders-3", 100)
    timeline.change(2, "orders-3", "local_log_start", offset=50)
    for fetch in range(6):
        start_ms = 10 + fetch * 2_000
        timeline.fetch(start_ms, f"f{fetch}", 5_000, 1, {"orders-3": 5})
        timeline.add(start_ms + 1_240, "remote_read", request_id=f"f{fetch}", **place("orders-3"), bytes=400)
    _replay(tmp_path, timeline.events)
    (finding,) = diagnose(LocalBackend(), str(tmp_path)).findings
    assert (finding.kind, finding.broker, finding.operations, finding.expired, finding.excess_wait_s) == (
        *("remote_read_slow", 0),
        *(6, 6, 3.0),
    )
    assert finding.summary == (
        "From 00:00:00.0 for 10.5 s, 6 of 6 fetches of tiered data at broker 0 expired before their reads of remote "
        "storage ended; the longest wait was 500 ms."
    )
