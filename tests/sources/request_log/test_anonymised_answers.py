"""An anonymised log through all jobs without Spark: no table, page or message contains one of its names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from jobs import audit, fidelity, ingest, metrics, replay, report
from purgatory_udf.launch.backend_choice import open_local
from tests.sources.request_log.output_search import text_of_output
from tests.support import recorded

pytestmark = pytest.mark.long

RECORDING = "W3-groups-k39"
LINES = 700
# Fields of requests and responses with names chosen by users.
_NAMED = frozenset(
    {
        *("clientId", "topic", "topicName", "name", "groupId", "group", "coordinatorKeys", "key", "transactionalId"),
        *("memberId", "leader", "groupInstanceId", "protocolName", "reason", "host", "rackId", "resourceName"),
        *("principal", "clusterId", "softwareName", "clientSoftwareName"),
    }
)
# Fields with names of Kafka and numbers, which may be in a table.
_KAFKAS_OWN = frozenset({"requestApiKeyName", "protocolType", "errorMessage", "securityProtocol", "listener", "value"})
_NO_NAME = frozenset({"unknown"})


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (field, text) for each text in a JSON value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    elif isinstance(value, str):
        yield key, value


def _with_acme_names(value: Any, key: str = "") -> Any:
    """Prefix every user's name in a JSON value with `acme-`, except internal topics."""
    if isinstance(value, dict):
        return {name: _with_acme_names(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_with_acme_names(inner, key) for inner in value]
    is_name = isinstance(value, str) and value and key in _NAMED and not value.startswith("__")
    return f"acme-{value}" if is_name else value


def _write_log(folder: Path) -> set[str]:
    """Write the log, with a truncated line and some invalid requests, and return all texts to search for."""
    texts: set[str] = set()
    lines = []
    for number, line in enumerate(
        islice(recorded.lines(recorded.data_file("traces", RECORDING, "request-1.log")), LINES)
    ):
        begin = line.find("{")
        request = _with_acme_names(json.loads(line[begin:]))
        texts |= {text for key, text in _leaves(request) if key not in _KAFKAS_OWN and not text.startswith("__")}
        text = line[:begin] + json.dumps(request, separators=(",", ":"))
        text = text[: len(text) // 2] if number == LINES // 2 else text
        lines.append(text.replace('"generationId":', '"generationId":-') if number > LINES - 50 else text)
    folder.mkdir()
    (folder / "request-1-of-acme.log").write_text("\n".join(lines))
    return {text for text in texts if len(text) > 3} - _NO_NAME


def test_anonymised_output_contains_no_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSEUDONYMS", "a long secret key")
    logs, topics, out = tmp_path / "acme", tmp_path / "topics-of-acme.json", tmp_path / "out"
    texts = _write_log(logs)
    named = recorded.data_file("traces", RECORDING, "topics.json").read_text()
    topics.write_text(json.dumps(_with_acme_names(json.loads(named))))
    options = ("--anonymise", "--anonymise-key", "${env:PSEUDONYMS}", "--topics", str(topics), "--max-rejected", "100")
    assert ingest.main.status(["--from", "request-log", str(logs), *options, "--out", str(out)], open_local) == 0
    assert replay.main.status(["--events", f"{out}/events", "--out", str(out)], open_local) == 0
    for job in (metrics.main, report.main, fidelity.main, audit.main):
        assert job.status(["--out", str(out)], open_local) == 0, job.name
    printed = capsys.readouterr()
    output = f"{text_of_output(out)}\n{printed.out}\n{printed.err}".replace(str(out), "out")
    assert all(name in output for name in ("topic-", "client-", "group-", "member-", "fidelity.html", "rejected"))
    assert sum(text.startswith("acme-") for text in texts) > 50
    assert {text for text in texts | {"acme", "a long secret key"} if text in output} == set()
