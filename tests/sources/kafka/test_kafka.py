"""A topic of a real broker as the source of events: read once, followed, and replayed while it grows."""

from __future__ import annotations

import io
import json
import re
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable

from jobs.ingest import main
from purgatory_udf.common.configuration import Config
from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.follow_topic import follow
from purgatory_udf.sources.kafka_topic import KafkaTopic, Messages, connect
from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_facts import topic_names_in_file
from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.log_reader import is_relevant
from purgatory_udf.sources.request_log.logged_request import Place, Request
from purgatory_udf.sources.trace_files.trace_reader import IngestOptions
from purgatory_udf.streaming.replay_run import run_replay
from purgatory_udf.streaming.run_resumption import ReplayOptions
from tests.sources.kafka.conftest import Send
from tests.sources.request_log.output_search import text_of_output
from tests.sources.request_log.translate import translate
from tests.support import recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDING = "W3-groups"
START_US = 1_700_000_000_000_000
TIMEOUT_S = 120


def _event(ms: int, **fields: Any) -> str:
    return json.dumps({"time_us": START_US + ms * 1000, "broker": 1, **fields})


def _fetch(ms: int, offset: int) -> str:
    partition = {"topic": "t", "partition": 0, "fetch_offset": offset, "max_bytes": 1000}
    limits = {"max_wait_ms": 100, "min_bytes": 1, "max_bytes": 1000, "isolation": "read_uncommitted"}
    return _event(ms, type="fetch", request_id="r", client_id="c", replica_id=-1, **limits, partitions=[partition])


def _watermark(ms: int, offset: int) -> str:
    return _event(ms, type="partition", topic="t", partition=0, change="high_watermark", offset=offset)


def _log_end(ms: int, offset: int) -> str:
    return _event(ms, type="partition", topic="t", partition=0, change="log_end", offset=offset, bytes=50)


def _rows(out: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(str(out / table)).to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in rows)


@dataclass(frozen=True)
class ImportedTopic:
    """An import with secrets in a file and in the environment: its output folder, the file, and its console output."""

    out: Path
    secrets: Path
    output: str


@pytest.fixture(scope="module")
def read_once(bootstrap: str, send: Send, tmp_path_factory: pytest.TempPathFactory) -> ImportedTopic:
    """The broker needs no secrets, but the Kafka client is configured with some."""
    send("once", [_log_end(0, 5), "no JSON", _event(2, type="clock"), ""])
    out = tmp_path_factory.mktemp("once")
    secrets = tmp_path_factory.mktemp("client") / "client.properties"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    secrets.write_text(
        f'sasl.jaas.config={login} required username="me" password="${{env:HUSH}}";\nssl.key.password=whispered\n'
    )
    words = ["--from", "kafka", "--bootstrap", bootstrap, "--topic", "once", "--max-rejected", "50"]
    words += ["--client-file", str(secrets), "--client", "ssl.keystore.password=${env:HUSH}"]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
        patch.setenv("HUSH", "murmured")
        assert main.status([*words, "--out", str(out)]) == 0
    return ImportedTopic(out, secrets, output.getvalue())


def test_topic_is_read_to_its_end(read_once: ImportedTopic) -> None:
    assert "3 lines of 1 file" in read_once.output
    assert _rows(read_once.out, "events", "seq", "type", "source", "line") == [
        (1, "partition", "once-0", 1),
        (3, "clock", "once-0", 3),
    ]
    assert _rows(read_once.out, "rejected_events", "line", "raw") == [(2, "no JSON")]
    assert not (read_once.out / "_messages").exists()


@pytest.mark.nightly
def test_request_log_topic_is_imported(
    bootstrap: str, send: Send, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = recorded.lines(recorded.data_file("traces", "W1-steady", "request-1.log"))
    send("log", [line.rstrip("\n") for line in islice(lines, 400)])
    arguments = ["--from", "kafka", "--bootstrap", bootstrap, "--topic", "log", "--out", str(tmp_path)]
    assert main.status([*arguments, "--messages", "request-log"]) == 0
    assert capsys.readouterr().out.startswith("input     400 lines of 1 file\n")
    sources = {source for (source,) in _rows(tmp_path, "recorded", "source")}
    assert sources == {"log-0"}


def test_growing_topic_is_followed_and_replayed(
    spark: SparkSession, bootstrap: str, send: Send, tmp_path: Path
) -> None:
    """
    0 ── log end 5 ── 10 fetch at 5 waits ── 20 log end 6 ── high watermark 6 completes it ── 400 clock
    """
    send("growing", [_log_end(0, 5), _watermark(1, 5), _fetch(10, 5)])
    topic = KafkaTopic(bootstrap, "growing")
    options = IngestOptions([], str(tmp_path), run_id="followed")
    query = follow(spark, topic, options)
    query.processAllAvailable()
    replay = threading.Thread(
        target=run_replay,
        args=(spark, ReplayOptions(str(tmp_path / "events"), str(tmp_path), Config(), follow=True)),
        daemon=True,
    )
    replay.start()
    try:
        send("growing", [_log_end(20, 6), _watermark(21, 6), "{}", _event(400, type="clock")])
        query.processAllAvailable()
        query.stop()
        # After a restart, the query resumes where it stopped; an event before that is late.
        query = follow(spark, topic, options)
        send("growing", [_event(300, type="clock"), _event(500, type="clock")])
        query.processAllAvailable()
        deadline = time.monotonic() + TIMEOUT_S
        while not _has_rows(tmp_path / "completions"):
            replay.join(0.1)
            assert replay.is_alive() and time.monotonic() < deadline
    finally:
        for running in spark.streams.active:
            running.stop()
        replay.join()
    columns = ("operation_id", "kind", "completed_by", "wait_ms")
    assert _rows(tmp_path, "completions", *columns) == [(3, "fetch", "min_bytes", 11)]
    assert _rows(tmp_path, "events", "seq", "type", "line") == [
        (1, "partition", 0),
        (2, "partition", 1),
        (3, "fetch", 2),
        (4, "partition", 3),
        (5, "partition", 4),
        (6, "clock", 6),
        (7, "clock", 8),
    ]
    rejected = _rows(tmp_path, "rejected_events", "line", "reason")
    assert [(line, reason.split(",")[0]) for line, reason in rejected] == [
        (5, "type: missing"),
        (7, "late: more than 0 ms before the latest event of earlier steps"),
    ]


@pytest.mark.nightly
def test_followed_log_equals_whole_log(spark: SparkSession, bootstrap: str, send: Send, tmp_path: Path) -> None:
    """The lines of three brokers in two portions, with a restart in between; one heartbeat of the first is invalid."""
    lines = _lines_of_three_brokers(900)
    refused = next(number for number, line in enumerate(lines) if '"requestApiKeyName":"HEARTBEAT"' in line)
    lines[refused] = re.sub(r'"generationId":\d+', '"generationId":-5', lines[refused])
    log = [read for number, line in enumerate(lines) if isinstance(read := read_line(line, Place(0, number)), Request)]
    first = next(request.place.line for request in log if is_relevant(request))
    topic = KafkaTopic(bootstrap, "lines", Messages.REQUEST_LOG)
    topics = str(recorded.data_file("traces", RECORDING, "topics.json"))
    options = RequestLogOptions(["lines"], str(tmp_path), topics=topics, hold_ms=8_000)
    for portion in (lines[:2300], [*lines[2300:], "no line of the log", lines[first]]):
        send("lines", portion)
        query = follow(spark, topic, options)
        query.processAllAvailable()
        query.stop()
    until = max(request.answered_us for request in log) - 8_000_000
    whole = [
        event for event in translate(log, GivenMetadata(topic_names_in_file(topics))).events if event["time_us"] < until
    ]
    columns = ("time_us", "type", "broker")
    assert _rows(tmp_path, "events", *columns) == sorted(tuple(event[name] for name in columns) for event in whole)
    # An invalid event keeps its number.
    numbers = [seq for (seq,) in _rows(tmp_path, "events", "seq")]
    assert numbers == sorted(event["seq"] for event in whole)
    assert (numbers[0], numbers[-1]) == (0, len(numbers))
    operations = [event for event in whole if event["type"] != "partition"]
    assert len(_rows(tmp_path, "recorded", "operation_id")) == len(operations) > 500
    rejected = _rows(tmp_path, "rejected_events", "line", "raw", "reason")
    assert [(line, reason.split(":")[0]) for line, _, reason in rejected] == [(refused, "generation"), (2701, "late")]
    assert rejected[1][1] == lines[first]
    held = sorted(folder.name for folder in (tmp_path / "_kafka" / "held").iterdir())
    assert held == ["step-0", "step-1"]


def _lines_of_three_brokers(each: int) -> list[str]:
    """Return the first lines of each broker, sorted by time, which is at the start of each line."""
    lines = []
    for broker in (1, 2, 3):
        log = recorded.lines(recorded.data_file("traces", RECORDING, f"request-{broker}.log"))
        lines += [line.rstrip("\n") for line in islice(log, each)]
    return sorted(lines)


def _has_rows(table: Path) -> bool:
    return DeltaTable.is_deltatable(str(table)) and bool(DeltaTable(str(table)).to_pyarrow_table().num_rows)


def test_client_secrets_are_written_nowhere(
    spark: SparkSession,
    bootstrap: str,
    read_once: ImportedTopic,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both an import and a query that follows the topic are checked."""
    monkeypatch.setenv("HUSH", "murmured")
    topic = KafkaTopic(bootstrap, "once", client_file=str(read_once.secrets))
    query = follow(spark, topic, IngestOptions([topic.topic], str(tmp_path)))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    shown = capsys.readouterr()
    outputs = [
        text_of_output(read_once.out),
        read_once.output,
        text_of_output(tmp_path),
        shown.out,
        shown.err,
        repr(topic),
    ]
    assert ["once" in text for text in (outputs[0], outputs[2])] == [True, True]
    assert [secret for secret in ("whispered", "murmured", "PlainLoginModule") if secret in "".join(outputs)] == []


@pytest.mark.parametrize("words", [[], ["--verbose"]], ids=["short", "verbose"])
def test_client_error_is_reported_without_secrets(
    bootstrap: str,
    tmp_path: Path,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The password has a quote in it, so that the client takes the rest for another setting."""
    monkeypatch.setenv("HUSH", 'mur"mured')
    settings = tmp_path / "client.properties"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings.write_text(
        f'security.protocol=SASL_PLAINTEXT\nsasl.jaas.config={login} required password="${{env:HUSH}}";\n'
    )
    arguments = ["--from", "kafka", "--bootstrap", bootstrap, "--topic", "t", "--client-file", str(settings), *words]
    assert main.status([*arguments, "--out", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-1] == (
        f"ingest: --bootstrap {bootstrap}: Kafka's client failed: Value not specified for key '[hidden]' in JAAS config"
    )
    assert [secret for secret in ("mured", "mur") if secret in shown.out + shown.err] == []


def test_unreachable_broker_is_reported_first() -> None:
    with pytest.raises(
        UserError, match=r"^--bootstrap 127\.0\.0\.1:1: no broker can be reached: Connection refused; check the "
    ):
        connect(cast("SparkSession", None), KafkaTopic("127.0.0.1:1", "t"))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--topic", "t"], "--from kafka needs --bootstrap"),
        (["--bootstrap", "h:1"], "--from kafka needs --topic"),
        (["--bootstrap", "h", "--topic", "t"], "--bootstrap h: expected HOST:PORT, separated by commas"),
        (
            ["--bootstrap", "h:1", "--topic", "a b"],
            "--topic a b: expected a topic name of 1 to 249 letters, digits, . _ -",
        ),
        (["--bootstrap", "h:1", "--topic", "t", "--client", "x"], "--client x…: expected KEY=VALUE"),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--client", "sasl.jaas.config=hush"],
            "--client sasl.jaas.config: a secret on the command line is visible to all users of this machine; put it "
            "into a file and pass that by --client-file, or write --client 'sasl.jaas.config=${env:NAME}'",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--client", "ssl.key.password=${env:NO_SUCH_VARIABLE}"],
            "${env:NO_SUCH_VARIABLE}: the environment variable NO_SUCH_VARIABLE is not set; export it",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--client-file", "none.properties"],
            "--client-file none.properties: cannot be read: No such file or directory",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "x.jsonl"],
            "x.jsonl: --from kafka reads no files; use --bootstrap and --topic",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--anonymise"],
            "--anonymise requires --messages request-log",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--hold-ms", "5"],
            "--hold-ms requires --messages request-log",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--messages", "request-log", "--hold-ms", "5"],
            "--hold-ms requires --follow: a topic that is read once needs no hold time",
        ),
        (
            ["--bootstrap", "h:1", "--topic", "t", "--messages", "request-log", "--follow", "--isr", "m.txt"],
            "--isr cannot be used with --follow: the file does not have later changes; METADATA responses in the log "
            "do",
        ),
    ],
)
def test_invalid_options_are_reported(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.check(["--from", "kafka", *arguments, "--out", "out"]) == 2
    assert capsys.readouterr().err == f"ingest: {error}\n"
