"""Spark's import of a real recording's beginning, its replay, and how near that comes to what the brokers did."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from jobs.ingest import main
from purgatory_udf.contract import read_row
from purgatory_udf.sources.request_log.cluster.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster.cluster_facts import topic_names_in_file
from purgatory_udf.sources.request_log.cluster.cluster_metadata import read_metadata_dump
from purgatory_udf.sources.request_log.cluster.record_batches import batches_in_file
from purgatory_udf.sources.request_log.importing.import_options import OWN_PROTOCOLS
from purgatory_udf.sources.request_log.lines.log_files import open_text
from purgatory_udf.sources.request_log.lines.log_line import read_line
from purgatory_udf.sources.request_log.lines.logged_request import Place, Request
from tests.sources.request_log.conftest import LINES, Piece, Replayed
from tests.sources.request_log.searched import everything_in, names_in
from tests.sources.request_log.translate import Translation, translate

if TYPE_CHECKING:
    from pathlib import Path

Rows = list[dict[str, Any]]
# The least share of operations that end as they were recorded, in percent, and the most that their waits may differ by
# at the median and the 95th percentile, in ms: the log of Kafka 3.9 has whole milliseconds, and JVMs that have just
# been started take their time.
LEAST_ALIKE = {"consumer fetch": 99.4, "follower fetch": 98.9, "produce acks=-1": 99.6}
MOST_APART = (0.9, 10.0)


def _rows(out: Path, table: str) -> Rows:
    rows: Rows = DeltaTable(str(out / table)).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["operation_id"] if "operation_id" in row else row["seq"]))


@pytest.fixture(scope="module")
def in_memory(piece: Piece) -> Translation:
    """The same logs, translated at once without Spark."""
    topics, batches, isr = piece.beside[1::2]
    requests = []
    for file, path in enumerate(piece.logs):
        with open_text(path) as lines:
            read = [read_line(line, Place(file, number)) for number, line in enumerate(lines, start=1)]
        requests += [line for line in read if isinstance(line, Request)]
    given = GivenMetadata(topic_names_in_file(topics), read_metadata_dump(isr), batches_in_file(batches))
    return translate(requests, given, dict(enumerate(map(str, piece.logs))))


def test_the_events_are_the_same_as_those_of_the_whole_log_in_memory(
    replayed: Replayed, in_memory: Translation
) -> None:
    mine = {"run_id", "event_time", "source", "line"}
    written = [{k: v for k, v in row.items() if k not in mine} for row in _rows(replayed.out, "events")]
    for row in written:
        row["partitions"] = row["partitions"] and [_known(partition) for partition in row["partitions"]]
    wanted = [_known(read_row(event)) for event in in_memory.events]
    for event in wanted:
        if event.get("partitions"):
            event["partitions"] = [_known(partition) for partition in event["partitions"]]
    assert len(written) > 3_500
    assert [_known(row) for row in written] == wanted


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def test_what_each_broker_did_is_kept_beside_its_event(replayed: Replayed, in_memory: Translation) -> None:
    kept = {
        row["operation_id"]: (row["kind"], row["recorded_outcome"], row["recorded_remote_ms"], row["recorded_error"])
        for row in _rows(replayed.out, "recorded")
    }
    assert kept == {
        seq: (record.kind, record.outcome, record.remote_ms, record.error) for seq, record in in_memory.recorded.items()
    }


def test_the_summary_counts_what_was_read_and_what_had_to_be_supposed(replayed: Replayed) -> None:
    said = replayed.imported
    assert said.startswith(f"input     {3 * LINES:,} lines of 3 files\n")
    assert f"{3 * LINES}  lines read" in said
    for cause in (
        "never wait in a purgatory",
        "with an in-sync set from --isr",
        "with the last offset from --batches",
    ):
        assert re.search(rf"^ +[1-9]\d*  .*{cause}", said, re.MULTILINE), cause
    assert "assumed" not in said


def test_the_replay_ends_operations_as_the_brokers_did(replayed: Replayed) -> None:
    rows = _rows(replayed.out, "fidelity")
    for kind, least in LEAST_ALIKE.items():
        of_kind = [row for row in rows if row["kind"] == kind and row["cause"] != "not_replayed"]
        assert len(of_kind) > 100
        alike = 100 * sum(row["agrees"] for row in of_kind) / len(of_kind)
        assert alike >= least, f"{kind}: {alike:.2f} % of {len(of_kind)} end alike"
        apart = sorted(abs(row["difference_ms"]) for row in of_kind if row["difference_ms"] is not None)
        median, p95 = apart[len(apart) // 2], apart[len(apart) * 95 // 100]
        assert median <= MOST_APART[0] and p95 <= MOST_APART[1], f"{kind}: {median:.2f} ms, {p95:.2f} ms"


def test_the_replay_answers_groups_as_the_coordinators_did(replayed: Replayed) -> None:
    rows = [row for row in _rows(replayed.out, "fidelity") if row["kind"] in ("join_group", "sync_group", "heartbeat")]
    assert len(rows) > 20
    assert [(row["request_id"], row["cause"]) for row in rows if not row["agrees"]] == []


def test_groups_went_as_the_coordinators_logged_them(replayed: Replayed) -> None:
    said = replayed.compared.split("as replayed\n")[1].split("\n\n")[0].splitlines()[1:]
    assert said
    for line in said:
        pairs = re.findall(r"(\d+) / (\d+)", line)
        assert pairs and all(logged == again for logged, again in pairs), line


def test_every_disagreement_has_a_cause_and_only_they_have(replayed: Replayed) -> None:
    rows = _rows(replayed.out, "fidelity")
    assert all((row["cause"] is None) == row["agrees"] for row in rows)


def test_the_report_is_printed_and_is_a_page_with_a_picture(replayed: Replayed) -> None:
    titles = (
        "Operations recorded / replayed, by how they ended",
        "Recorded end, down, against replayed end, across",
        "Difference of waits, recorded against replayed, in ms",
        "How late brokers ended what expired, in ms: what is usual for its timer is taken off differences of waits",
        "Worst differences of waits",
        "Expirations (of produces: partitions timed out)",
        "Answers of group coordinators",
        "Groups, as their coordinators logged them / as replayed",
    )
    html = (replayed.out / "fidelity.html").read_text()
    for title in titles:
        assert title in replayed.compared
        assert f"<caption>{title}</caption>" in html
    assert html.count("<svg") == 1
    assert replayed.compared.endswith(f"Page: {replayed.out}/fidelity.html\n")


def test_stamps_of_whole_milliseconds_tell_no_phase_of_a_timer(replayed: Replayed) -> None:
    table = replayed.compared.split("How late brokers ended what expired")[1].split("\n\n")[0].splitlines()[1:]
    head, *brokers = (re.split(r" {2,}", line.strip()) for line in table)
    phase = head.index("phase of the timer")
    assert [(line[0], line[phase]) for line in brokers] == [("1", "-"), ("2", "-"), ("3", "-")]


def test_an_anonymised_import_tells_no_name(
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
    log.write_text(text + text[text.rindex("\n", 0, cut) + 1 : cut + 40] + "\n")  # A line cut short in mid-name.
    monkeypatch.setenv("PSEUDONYMS", "a key that nobody guesses")
    hidden = ["--anonymise", "--anonymise-key", "${env:PSEUDONYMS}", "--max-rejected", "100"]
    assert main.status(["--from", "request-log", str(log), *hidden, "--out", str(out)]) == 0
    capsys.readouterr()
    rows = _rows(out, "events")
    names = {partition["topic"] for row in rows for partition in row["partitions"] or ()} | {
        row["topic"] for row in rows
    }
    assert {name[:6] for name in names if name and not name.startswith("__")} == {"topic-"}
    assert {(row["client_id"] or "client-")[:7] for row in rows} == {"client-"}
    assert {row["source"] for row in rows} == {None, "log-0"}

    went_in = {name for name in names_in(text) if not name.startswith("__") and name not in OWN_PROTOCOLS}
    assert len(went_in) > 20
    came_out = everything_in(out)
    assert {name for name in went_in | {"acme", "a key that nobody guesses"} if name in came_out} == set()
