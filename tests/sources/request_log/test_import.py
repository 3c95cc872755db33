"""Import of the start of a real recording with Spark, its replay, and the agreement with the brokers' outcomes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs.ingest import main
from purgatory_udf.contract import read_row
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_facts import topic_names_in_file
from purgatory_udf.sources.request_log.cluster_metadata import read_metadata_dump
from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.importing.import_options import OWN_PROTOCOLS
from purgatory_udf.sources.request_log.internal_topics import batches_in_file
from purgatory_udf.sources.request_log.log_files import open_text
from purgatory_udf.sources.request_log.logged_request import Place, Request
from tests.sources.request_log.conftest import LINES, Piece, Replayed
from tests.sources.request_log.output_search import names_in, text_of_output
from tests.sources.request_log.translate import Translation, translate

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

Rows = list[dict[str, Any]]
# Lowest percentage of operations that must end as recorded, and largest difference of their waits at the median and the
# 95th percentile, in ms. The log has whole milliseconds, and freshly started JVMs are slow.
MIN_AGREEMENT = {"consumer fetch": 99.4, "follower fetch": 98.9, "produce acks=-1": 99.6}
MAX_WAIT_DIFFERENCE_MS = (0.9, 10.0)


def _rows(out: Path, table: str) -> Rows:
    rows: Rows = DeltaTable(str(out / table)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["operation_id"] if "operation_id" in row else row["seq"]))


@pytest.fixture(scope="module")
def in_memory(piece: Piece) -> Translation:
    """The same logs, converted in memory without Spark."""
    topics, batches, isr = piece.options[1::2]
    requests = []
    for file, path in enumerate(piece.logs):
        with open_text(path) as lines:
            read = [read_line(line, Place(file, number)) for number, line in enumerate(lines, start=1)]
        requests += [line for line in read if isinstance(line, Request)]
    given = GivenMetadata(topic_names_in_file(topics), read_metadata_dump(isr), batches_in_file(batches))
    return translate(requests, given, dict(enumerate(map(str, piece.logs))))


def test_events_equal_in_memory_conversion(replayed: Replayed, in_memory: Translation) -> None:
    origin = {"run_id", "event_time", "source", "line"}
    written = [{k: v for k, v in row.items() if k not in origin} for row in _rows(replayed.out, "events")]
    for row in written:
        row["partitions"] = row["partitions"] and [_non_null(partition) for partition in row["partitions"]]
    wanted = [_non_null(read_row(event)) for event in in_memory.events]
    for event in wanted:
        if event.get("partitions"):
            event["partitions"] = [_non_null(partition) for partition in event["partitions"]]
    assert len(written) > 3_500
    assert [_non_null(row) for row in written] == wanted


def _non_null(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def test_recorded_outcomes_are_stored(replayed: Replayed, in_memory: Translation) -> None:
    stored = {
        row["operation_id"]: (row["kind"], row["recorded_outcome"], row["recorded_remote_ms"], row["recorded_error"])
        for row in _rows(replayed.out, "recorded")
    }
    assert stored == {
        seq: (record.kind, record.outcome, record.remote_ms, record.error) for seq, record in in_memory.recorded.items()
    }


def test_summary_counts_lines_and_causes(replayed: Replayed) -> None:
    output = replayed.imported
    assert output.startswith(f"input     {3 * LINES:,} lines of 3 files\n")
    assert f"{3 * LINES}  lines read" in output
    for cause in (
        "never wait in a purgatory",
        "with an in-sync set from --isr",
        "with the last offset from --batches",
    ):
        assert re.search(rf"^ +[1-9]\d*  .*{cause}", output, re.MULTILINE), cause
    assert "assumed" not in output


def test_replay_agrees_with_recorded_outcomes(replayed: Replayed) -> None:
    rows = _rows(replayed.out, "fidelity")
    for kind, minimum in MIN_AGREEMENT.items():
        of_kind = [row for row in rows if row["kind"] == kind and row["cause"] != "not_replayed"]
        assert len(of_kind) > 100
        agreement = 100 * sum(row["agrees"] for row in of_kind) / len(of_kind)
        assert agreement >= minimum, f"{kind}: {agreement:.2f} % of {len(of_kind)} agree"
        differences = sorted(abs(row["difference_ms"]) for row in of_kind if row["difference_ms"] is not None)
        median, p95 = differences[len(differences) // 2], differences[len(differences) * 95 // 100]
        assert median <= MAX_WAIT_DIFFERENCE_MS[0] and p95 <= MAX_WAIT_DIFFERENCE_MS[1], (
            f"{kind}: {median:.2f} ms, {p95:.2f} ms"
        )


def test_replay_agrees_with_group_responses(replayed: Replayed) -> None:
    rows = [row for row in _rows(replayed.out, "fidelity") if row["kind"] in ("join_group", "sync_group", "heartbeat")]
    assert len(rows) > 20
    assert [(row["request_id"], row["cause"]) for row in rows if not row["agrees"]] == []


def test_replay_agrees_with_coordinator_logs(replayed: Replayed) -> None:
    lines = replayed.compared.split("logged by coordinators / replayed\n")[1].split("\n\n")[0].splitlines()[1:]
    assert lines
    for line in lines:
        pairs = re.findall(r"(\d+) / (\d+)", line)
        assert pairs and all(logged == replayed_count for logged, replayed_count in pairs), line


def test_only_disagreements_have_causes(replayed: Replayed) -> None:
    rows = _rows(replayed.out, "fidelity")
    assert all((row["cause"] is None) == row["agrees"] for row in rows)


def test_fidelity_report_is_printed_and_saved(replayed: Replayed) -> None:
    titles = (
        "Outcomes of operations, recorded / replayed",
        "Recorded outcomes (rows) and replayed outcomes (columns)",
        "Difference between recorded and replayed waits, ms",
        "Lateness of expirations, ms (the median of a broker is subtracted from differences of waits)",
        "Largest differences of waits",
        "Expirations (for produces and list-offsets requests: expired partitions)",
        "Responses of group coordinators",
        "Events of groups, logged by coordinators / replayed",
    )
    html = (replayed.out / "fidelity.html").read_text()
    for title in titles:
        assert title in replayed.compared
        assert f"<caption>{title}</caption>" in html
    assert html.count("<svg") == 1
    assert replayed.compared.endswith(f"Page: {replayed.out}/fidelity.html\n")


def test_millisecond_timestamps_give_no_timer_phase(replayed: Replayed) -> None:
    table = replayed.compared.split("Lateness of expirations")[1].split("\n\n")[0].splitlines()[1:]
    header, *brokers = (re.split(r" {2,}", line.strip()) for line in table)
    phase = header.index("phase of the timer")
    assert [(line[0], line[phase]) for line in brokers] == [("1", "-"), ("2", "-"), ("3", "-")]


@pytest.mark.nightly
def test_anonymised_import_contains_no_name(
    without_spark: object,
    piece: Piece,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, out = tmp_path / "acme-bank" / "request-of-acme.log", tmp_path / "out"
    log.parent.mkdir()
    with open_text(piece.logs[0]) as lines:
        text = "".join(line for number, line in enumerate(lines) if number % 3 == 0)
    cut = text.rindex('"clientId"')
    log.write_text(text + text[text.rindex("\n", 0, cut) + 1 : cut + 40] + "\n")  # A line truncated within a name.
    monkeypatch.setenv("PSEUDONYMS", "a long secret key")
    anonymise = ["--anonymise", "--anonymise-key", "${env:PSEUDONYMS}", "--max-rejected", "100"]
    assert main.status(["--from", "request-log", str(log), *anonymise, "--out", str(out)]) == 0
    capsys.readouterr()
    rows = _rows(out, "events")
    names = {partition["topic"] for row in rows for partition in row["partitions"] or ()} | {
        row["topic"] for row in rows
    }
    assert {name[:6] for name in names if name and not name.startswith("__")} == {"topic-"}
    assert {(row["client_id"] or "client-")[:7] for row in rows} == {"client-"}
    assert {row["source"] for row in rows} == {None, "log-0"}

    names_in_log = {name for name in names_in(text) if not name.startswith("__") and name not in OWN_PROTOCOLS}
    assert len(names_in_log) > 20
    output = text_of_output(out)
    assert {name for name in names_in_log | {"acme", "a long secret key"} if name in output} == set()
