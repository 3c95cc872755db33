"""The tables that commands write carry the column texts of docs/tables.md as comments."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from jobs import diagnose, ingest, metrics, replay
from purgatory_udf.contract.metrics_tables import COMMENTED_METRICS
from purgatory_udf.contract.tables import COMMENT, COMMENTED_TABLES
from purgatory_udf.launch.backend_choice import open_local
from tests.docs import pages

TRACE = pages.ROOT / "docs/traces/group.jsonl"
WRITTEN: dict[str, pa.Schema] = {
    name: schema
    for name, schema in {**COMMENTED_TABLES, **COMMENTED_METRICS}.items()
    if name not in ("recorded", "fidelity", "share_deliveries")
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of an import, a replay, metrics and a diagnosis, all without Spark."""
    folder = tmp_path_factory.mktemp("out")
    assert ingest.main.status(["--from", "jsonl", str(TRACE), "--out", str(folder)], open_local) == 0
    assert replay.main.status(["--events", str(folder / "events"), "--out", str(folder)], open_local) == 0
    assert metrics.main.status(["--out", str(folder)], open_local) == 0
    assert diagnose.main.status(["--out", str(folder)], open_local) == 0
    return folder


@pytest.mark.parametrize("name", WRITTEN)
def test_table_has_column_comments(name: str, out: Path) -> None:
    fields = json.loads(DeltaTable(out / name).schema().to_json())["fields"]
    assert [(field["name"], field["metadata"].get(COMMENT)) for field in fields] == [
        (field.name, field.metadata[COMMENT.encode()].decode()) for field in WRITTEN[name]
    ]
