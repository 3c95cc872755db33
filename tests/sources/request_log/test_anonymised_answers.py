"""An anonymised log goes the whole way without Spark: no table, no page and nothing that is said has a name of its."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from jobs import audit, fidelity, ingest, metrics, replay, report
from purgatory_udf.backend.dialect import locally
from tests.sources.request_log.searched import everything_in
from tests.support import recorded

pytestmark = pytest.mark.long

RECORDING = "W3-groups-k39"
LINES = 700
# What users name, in requests and their answers.
_NAMED = frozenset(
    {
        *("clientId", "topic", "topicName", "name", "groupId", "group", "coordinatorKeys", "key", "transactionalId"),
        *("memberId", "leader", "groupInstanceId", "protocolName", "reason", "host", "rackId", "resourceName"),
        *("principal", "clusterId", "softwareName", "clientSoftwareName"),
    }
)
# What Kafka itself calls things, and figures: these may be in a table.
_KAFKAS_OWN = frozenset({"requestApiKeyName", "protocolType", "errorMessage", "securityProtocol", "listener", "value"})
_NO_NAME = frozenset({"unknown"})


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text in it, and what it is called."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    elif isinstance(value, str):
        yield key, value


def _acmes(value: Any, key: str = "") -> Any:
    """The same, every name in it one of Acme's; Kafka's own topics are everybody's."""
    if isinstance(value, dict):
        return {name: _acmes(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_acmes(inner, key) for inner in value]
    is_name = isinstance(value, str) and value and key in _NAMED and not value.startswith("__")
    return f"acme-{value}" if is_name else value


def _written(folder: Path) -> set[str]:
    """Acme's log, among it a line that is cut short, and some that the contract refuses; what there is to find."""
    texts: set[str] = set()
    lines = []
    for number, line in enumerate(islice(recorded.lines(recorded.file("traces", RECORDING, "request-1.log")), LINES)):
        begin = line.find("{")
        request = _acmes(json.loads(line[begin:]))
        texts |= {text for key, text in _leaves(request) if key not in _KAFKAS_OWN and not text.startswith("__")}
        text = line[:begin] + json.dumps(request, separators=(",", ":"))
        text = text[: len(text) // 2] if number == LINES // 2 else text
        lines.append(text.replace('"generationId":', '"generationId":-') if number > LINES - 50 else text)
    folder.mkdir()
    (folder / "request-1-of-acme.log").write_text("\n".join(lines))
    return {text for text in texts if len(text) > 3} - _NO_NAME


def test_nothing_that_is_made_of_an_anonymised_log_tells_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PSEUDONYMS", "a key that nobody guesses")
    logs, topics, out = tmp_path / "acme", tmp_path / "topics-of-acme.json", tmp_path / "out"
    texts = _written(logs)
    named = recorded.file("traces", RECORDING, "topics.json").read_text()
    topics.write_text(json.dumps(_acmes(json.loads(named))))
    hidden = ("--anonymise", "--anonymise-key", "${env:PSEUDONYMS}", "--topics", str(topics), "--max-rejected", "100")
    with locally():
        assert ingest.main.status(["--from", "request-log", str(logs), *hidden, "--out", str(out)]) == 0
        assert replay.main.status(["--events", f"{out}/events", "--out", str(out)]) == 0
        for asked in (metrics.main, report.main, fidelity.main, audit.main):
            assert asked.status(["--out", str(out)]) == 0, asked.name
    printed = capsys.readouterr()
    came_out = f"{everything_in(out)}\n{printed.out}\n{printed.err}".replace(str(out), "out")
    assert all(name in came_out for name in ("topic-", "client-", "group-", "member-", "fidelity.html", "rejected"))
    assert sum(text.startswith("acme-") for text in texts) > 50
    assert {text for text in texts | {"acme", "a key that nobody guesses"} if text in came_out} == set()
