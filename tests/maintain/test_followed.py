"""`maintain` beside a replay that follows: what went from one query to the other goes, and no answer with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from jobs.maintain import main
from purgatory_udf.config import Config
from purgatory_udf.storage.layout import Layout
from purgatory_udf.stream.options import ReplayOptions
from purgatory_udf.stream.replay import run_replay
from tests.stream.test_following import CONFIG, TABLES, append, caught_up, following, portions, rows, trace

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

BY_SHARD = Config.model_validate(CONFIG.model_dump() | {"grouping": "shard", "grouping_shards": 2})


def batches(relay: Path) -> list[str]:
    """In their order."""
    return sorted((path.name for path in relay.glob("until_ms=*")), key=lambda name: int(name.partition("=")[2]))


def test_what_the_second_query_has_taken_is_taken_away_while_both_go_on(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, relay = tmp_path / "out", Path(Layout(str(tmp_path / "out")).relay)
    first, *more = portions(trace())
    events = append(spark, tmp_path, first)
    with following(spark, ReplayOptions(events, str(out), BY_SHARD, follow=True)):
        caught_up(spark)
        taken = 0
        for part in more:
            append(spark, tmp_path, part)
            caught_up(spark)
            caught_up(spark)  # What the first query has written meanwhile.
            before = batches(relay)
            assert main.status(["--out", str(out)]) == 0
            # Meanwhile the first query may have relayed more.
            gone = [name for name in before if not (relay / name).exists()]
            assert gone == before[: len(gone)]
            assert batches(relay), "what came last may have to go through yet"
            taken += len(gone)
        assert taken
        assert f"taken away: {relay}: what went through" in capsys.readouterr().out
    assert DeltaTable(Layout(str(out)).told).to_pyarrow_table().num_rows == 0
    run_replay(spark, ReplayOptions(events, str(tmp_path / "whole"), CONFIG))
    for name in TABLES:
        assert rows(out, name) == rows(tmp_path / "whole", name), name
        assert rows(out, name).num_rows > 10, name
