"""Invalid options and inputs: a message of one line and exit status 2, before Spark starts."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

MISTAKES = [
    (
        "metrics",
        ["--out", "{here}", "--by", "colour"],
        "--by colour: unknown dimension; expected one of broker, topic, partition, client, group",
    ),
    ("metrics", ["--out", "{here}/none"], "{here}/none: no such folder"),
    ("report", ["--out", "{here}", "--html", "{here}"], "{here}: is a folder; --html names a file"),
    ("report", ["--out", "s3://x/y"], "s3://x/y: is not on this machine; give a local file for the page with --html"),
    (
        "explain",
        ["--out", "{here}"],
        "give one of --operation ID, --request-id ID, --group ID, --member ID, --client ID, --record RECORD",
    ),
    (
        "explain",
        ["--out", "{here}", "--group", "g", "--operation", "3"],
        "give one of --operation ID, --request-id ID, --group ID, --member ID, --client ID, --record RECORD",
    ),
    (
        "what_if",
        ["--events", "{here}", "--out", "{here}", "--variant", "half", "produce.timeout=3"],
        "--variant half: --set produce.timeout=3: produce.timeout: unknown key; did you mean produce.timeout_ms? "
        "conf/local.yaml lists all keys",
    ),
    (
        "what_if",
        ["--events", "{here}/none", "--out", "{here}", "--variant", "half", "produce.timeout_ms=x0.5"],
        "{here}/none: no such folder; --events names a table of events, as ingest writes it",
    ),
]


@pytest.mark.parametrize(("job", "arguments", "message"), MISTAKES)
def test_mistake_is_one_line(
    job: str, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module(f"jobs.{job}").main
    given = [word.format(here=tmp_path) for word in arguments]
    assert main.check(given) == 2
    assert capsys.readouterr().err == f"{main.name}: {message.format(here=tmp_path)}\n"


@pytest.mark.parametrize("job", ["metrics", "report", "explain", "what_if"])
def test_help_is_printed(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module(f"jobs.{job}").main
    assert main.check(["--help"]) == 0
    assert f"Usage: spark-submit.sh {job.replace('_', '-')}" in capsys.readouterr().out
