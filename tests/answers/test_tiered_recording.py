"""A recording of a cluster with tiered storage, from its request logs to the comparison with its brokers' meters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from jobs import fidelity, ingest, replay
from purgatory_udf.launch.backend_choice import open_local
from tests.support import recorded

# The setting of the recorded brokers.
SETTINGS = ["--set", "remote_fetch.max_wait_ms=700", "--set", "list_offsets.request_timeout_ms=1200"]
MIN_AGREEMENT = {
    "consumer fetch": 99.5,
    "follower fetch": 99.5,
    "list_offsets": 99,
    "produce acks=-1": 99,
    "remote fetch": 99.5,
}


@pytest.mark.long
def test_recorded_remote_waits_end_as_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [str(recorded.data_file("traces", "W8-tiered", f"request-{broker}.log")) for broker in (1, 2, 3)]
    topics = str(recorded.data_file("traces", "W8-tiered", "topics.json"))
    counters = str(recorded.data_file("traces", "W8-tiered", "jmx-after.json"))
    out = str(tmp_path)
    assert ingest.main.status(["--from", "request-log", *logs, "--topics", topics, "--out", out], open_local) == 0
    imported = capsys.readouterr().out
    assert "remote.fetch.max.wait.ms=700, from 203 expired fetches" in imported
    assert "stood still" not in imported
    assert replay.main.status(["--events", f"{out}/events", "--out", out, *SETTINGS], open_local) == 0
    capsys.readouterr()
    words = ["--out", out, "--jmx-after", counters, "--json", f"{out}/fidelity.json"]
    assert fidelity.main.status(words, open_local) == 0
    printed = capsys.readouterr().out

    compared = DeltaTable(f"{out}/fidelity").to_pyarrow_table().to_pandas()
    agreement = 100 * compared[compared["kind"].isin(list(MIN_AGREEMENT))].groupby("kind")["agrees"].mean()
    assert {kind: share for kind, share in agreement.items() if share < MIN_AGREEMENT[kind]} == {}
    assert set(agreement.index) == set(MIN_AGREEMENT)
    told = json.loads((tmp_path / "fidelity.json").read_text(encoding="utf-8"))
    shares = {row["kind"]: 100 * row["same"] / row["operations"] for row in told["kinds"]}
    assert {kind: shares[kind] for kind in MIN_AGREEMENT} == pytest.approx(agreement.to_dict())
    assert sum(row["operations"] for row in told["outcomes"]) == len(compared)

    counted = {tuple(row[:-3]): list(map(int, row[-3:])) for row in _expirations(printed)}
    assert sum(logged for (kind, _), (logged, _, _) in counted.items() if kind == "remote fetch") > 150
    assert {key: row for key, row in counted.items() if max(row) - min(row) > 2} == {}


def _expirations(printed: str) -> list[list[str]]:
    """Return (kind, broker, recorded, replayed, counted by the broker) of each row of the table of expirations."""
    lines = printed.split("Expirations (")[1].split("\n\n")[0].splitlines()[2:]
    rows = [line.rsplit(maxsplit=4) for line in lines]
    return [[kind.strip(), *numbers] for kind, *numbers in rows]
