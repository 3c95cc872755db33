"""The metrics of a replay, compared with counts of the same tables by DuckDB."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import write_deltalake

from purgatory_udf.answers.metrics import Metrics, MetricsOptions, Totals, summary, warnings, write_metrics
from purgatory_udf.answers.run_tables import sql_file
from purgatory_udf.backend.sql_database import DuckDatabase
from tests.support.delta_lake import Lake
from tests.support.outcome_folder import table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.backend.backend import Session

ENDED = """
    WITH ended AS (
        SELECT kind, broker, client_id, key, partitions, wait_ms, watched, completed_by, completed_at AS ended_at,
            false AS expired, false AS after_end, false AS failed FROM completions
        UNION ALL
        SELECT kind, broker, client_id, key, partitions, wait_ms, watched, completed_by, expired_at,
            true, after_end, kind NOT IN ('fetch', 'initial_join') AND NOT after_end FROM expirations
    )
"""
SECOND = "date_trunc('second', {})".format


@pytest.fixture(scope="module")
def lake(metrics: Metrics, story_folder: Path) -> Lake:
    """The tables of `story_folder` and its metrics."""
    return Lake(story_folder)


def test_expiration_meters_match_kafka(lake: Lake) -> None:
    pending = f"""
        SELECT broker, p.topic AS topic, p.partition AS partition, {SECOND("expired_at")} AS second
        FROM (SELECT broker, expired_at, unnest(partitions) AS p FROM expirations WHERE kind = 'produce')
        WHERE p.error = 'REQUEST_TIMED_OUT'
    """
    expected = lake.rows(
        f"""
        SELECT 'kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec', broker, second, count(*)
        FROM ({pending}) GROUP BY ALL
        UNION ALL
        SELECT 'kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec,topic=' || topic || ',partition='
            || partition, broker, second, count(*) FROM ({pending}) GROUP BY ALL
        UNION ALL
        SELECT 'kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=' || fetcher, broker,
            {SECOND("expired_at")}, count(*) FROM expirations WHERE kind = 'fetch' GROUP BY ALL
        ORDER BY ALL
        """
    )
    assert len(expected) == 18
    assert lake.rows("SELECT mbean, broker, window_start, expired FROM metrics_expires ORDER BY ALL") == expected
    assert lake.rows("SELECT count(*) FROM metrics_expires WHERE per_second <> expired OR after_end <> 0") == [(0,)]


def test_every_operation_ends_in_one_window(lake: Lake) -> None:
    expected = lake.rows(
        f"""{ENDED} SELECT kind, broker, {SECOND("ended_at")}, count(*), count_if(NOT expired AND NOT watched),
        count_if(NOT expired AND watched), count_if(expired), count_if(failed), count_if(after_end), sum(wait_ms)
        FROM ended GROUP BY ALL ORDER BY ALL"""
    )
    columns = "kind, broker, window_start, operations, on_arrival, after_a_wait, expired, failed, after_end, waited_ms"
    assert lake.rows(f"SELECT {columns} FROM metrics_operations ORDER BY ALL") == expected


def test_causes_have_exact_quantiles(lake: Lake) -> None:
    quantiles = ", ".join(f"quantile_cont(wait_ms, {share})" for share in (0.5, 0.95, 0.99))
    expected = lake.rows(
        f"{ENDED} SELECT kind, expired, watched, completed_by, count(*), sum(wait_ms), {quantiles}, max(wait_ms) "
        "FROM ended GROUP BY ALL ORDER BY ALL"
    )
    assert [row[:6] for row in _causes(lake)] == [row[:6] for row in expected]
    assert [row[6:] for row in _causes(lake)] == [pytest.approx(row[6:]) for row in expected]


def _causes(lake: Lake) -> list[tuple[Any, ...]]:
    columns = "kind, expired, watched, completed_by, operations, waited_ms, p50_ms, p95_ms, p99_ms, max_ms"
    return lake.rows(f"SELECT {columns} FROM metrics_causes ORDER BY ALL")


def test_waits_are_counted_by_each_dimension(lake: Lake) -> None:
    parts = "SELECT * EXCLUDE partitions, unnest(partitions) AS p, row_number() OVER () AS op FROM ended"
    values = {
        "all": "SELECT *, '' AS value FROM ended",
        "broker": "SELECT *, broker::VARCHAR AS value FROM ended",
        "client": "SELECT *, client_id AS value FROM ended WHERE client_id IS NOT NULL",
        "group": "SELECT *, 'g' AS value FROM ended WHERE kind IN ('join', 'initial_join', 'sync', 'heartbeat')",
        "partition": f"SELECT *, p.topic || '-' || p.partition AS value FROM ({parts}) WHERE p.partition >= 0",
        "topic": f"SELECT DISTINCT * EXCLUDE p, p.topic AS value FROM ({parts})",
    }
    waited = "FILTER (WHERE watched)"
    quantiles = ", ".join(f"quantile_cont(wait_ms, {share}) {waited}" for share in (0.5, 0.95, 0.99))
    for by, ops in values.items():
        expected = lake.rows(
            f"{ENDED} SELECT kind, value, count(*), count_if(watched), count_if(watched) / count(*), "
            f"count_if(expired), count_if(failed), sum(wait_ms), {quantiles}, max(wait_ms) {waited}, "
            "max(wait_ms) FILTER (WHERE expired) "
            f"FROM ({ops}) GROUP BY ALL ORDER BY kind, value"
        )
        actual = lake.rows(
            "SELECT kind, value, operations, waited, waited_share, expired, failed, waited_ms, p50_ms, p95_ms, p99_ms, "
            "max_ms, expired_max_ms "
            f"FROM metrics_waits WHERE \"by\" = '{by}' ORDER BY kind, value"
        )
        assert [row[:4] for row in actual] == [row[:4] for row in expected], by
        assert [row[4:] for row in actual] == [pytest.approx(row[4:]) for row in expected], by


def test_gauges_match_replay_and_dead_entries_are_known(lake: Lake) -> None:
    expected = lake.rows(
        """SELECT broker, purgatory, date_trunc('second', "at"), arg_max(watched, "at"), arg_max(delayed, "at"),
        sum(purged) FROM purgatory_gauges GROUP BY ALL ORDER BY ALL"""
    )
    changed = lake.rows(
        "SELECT broker, purgatory, window_start, purgatory_size_last, num_delayed_last, purged "
        "FROM metrics_purgatories ORDER BY ALL"
    )
    assert [row for row in changed if row in expected] == expected
    assert lake.rows(
        "SELECT count_if(dead_watches_max IS NULL), min(dead_watches_last), max(dead_watches_max), "
        "count_if(dead_bytes_max <> 184 * dead_watches_max) FROM metrics_purgatories"
    ) == [(0, 0, 74, 0)]


def test_rebalances_have_length_and_members(lake: Lake) -> None:
    columns = "generation, length_ms, joining_ms, reason, joined_because, ended_as, missing, last_to_join, after_end"
    assert lake.rows(f"SELECT {columns} FROM metrics_rebalances ORDER BY started_at") == [
        (1, 5100, 5000, "member a joined", "initial delay over", "Stable", [], "c", False),
        (2, 3380, 3280, "session of c expired", "all members joined", "Stable", ["c"], "b", False),
        (3, 10, 10, "session of a expired", "no members left", "Empty", ["a", "b"], None, True),
    ]


def test_summary_has_meters_and_largest_values(without_spark: SparkSession, metrics: Metrics) -> None:
    lines = summary(metrics)
    assert lines[0] == (
        "Run run-1: 1,619 operations, 79.9 % had to wait, "
        "94 expired (65 failed, 27 as intended, 2 after the trace's end)"
    )
    cells = [line.split() for line in lines]
    meter = "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec"
    assert [meter, "1", "74", "3.36", "44.0", "09:00:04"] in cells
    assert ["Produce", "1", "201", "09:00:04", "118", "74", "13,616", "0"] in cells
    assert ["client", "checkout-web", "produce", "32", "32", "50.0", "1,500"] in cells
    assert ["g", "heartbeat", "25", "25", "100.0", "3", "1", "1,500.0", "6,000.0", "6,000.0", "6,000", "52.6"] in cells
    assert lines[-1].startswith("Tables: metrics/causes, ")


def test_late_broker_is_named() -> None:
    row = {"kind": "consumer fetch", "operations": 3, "replayed_ms": 900.0, "replayed_max_ms": 500.0}
    recorded = [
        row | {"broker": 1, "recorded_ms": 901.0, "recorded_max_ms": 501.0, "late": 0, "shown": 0, "latest_ms": 0.7},
        row | {"broker": 2, "recorded_ms": 19_800.0, "recorded_max_ms": 19_400.5, "late": 5, "shown": 0},
    ]
    recorded[1]["latest_ms"] = 18_900.5
    longer = "Warning: broker 2 was late: 5 operations waited up to 18.9 s longer than their deadlines allow."
    for shown, rest in [
        (0, "A replay ends them at their deadlines, so clients waited longer than it shows."),
        (2, "A replay ends 3 of them at their deadlines, so clients waited longer than it shows."),
        (5, "The replay shows these waits as well."),
    ]:
        recorded[1]["shown"] = shown
        assert warnings(Totals([], recorded, "", "", 1.0, 0)) == [f"{longer} {rest}"]


START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def _at(ms: float) -> datetime:
    return START + timedelta(milliseconds=ms)


def _end(began: float, ended: float, expired: bool = False, keys: int = 1) -> dict[str, Any]:
    times = {"started_at": _at(began), "expired_at" if expired else "completed_at": _at(ended), "deadline": _at(ended)}
    partitions = [{"topic": "t", "partition": number, "error": "REQUEST_TIMED_OUT"} for number in range(keys)]
    common = {"kind": "produce", "broker": 1, "watched": True, "wait_ms": int(ended) - int(began), "after_end": False}
    return common | times | {"partitions": partitions}


def test_dead_entries_follow_from_operations(tmp_path: Path) -> None:
    """Three operations with two keys each; a purge removes the last dead entries.

    ms        0 ─── 200 ─── 400 ─── 600 ─── 800 ── 1000
    a [0, 250)      in      gone
    b [0, 400]      in      gone (expired, in the step of the same millisecond)
    c [450, …)                      in      in     gone
    watched         4       3       5       2      0
    dead            0       3       3       0      0
    """
    rows = [(200, 4, 2, 0), (400, 3, 0, 0), (600, 5, 1, 0), (800, 2, 1, 3), (1000, 0, 0, 2)]
    gauges = (
        {"broker": 1, "purgatory": "Produce", "at": _at(ms), "watched": w, "delayed": d, "purged": p}
        for ms, w, d, p in rows
    )
    database = DuckDatabase()
    database.add_rows("purgatory_gauges", table_of("purgatory_gauges", gauges))
    database.add_rows("completions", table_of("completions", [_end(0, 250, keys=2), _end(450, 900, keys=2)]))
    database.add_rows("expirations", table_of("expirations", [_end(0, 400, expired=True, keys=2)]))
    database.add_view("ended", sql_file("views/ended").text)

    def windows(window_ms: int) -> list[dict[str, Any]]:
        parameters = {"window_ms": window_ms, "step_ms": 200, "bytes_per_watch": 10}
        found: list[dict[str, Any]] = database.query(
            sql_file("metrics_tables/purgatories").text, parameters
        ).to_pylist()
        return found

    last = ("purgatory_size_last", "num_delayed_last", "dead_watches_last")
    assert [tuple(row[name] for name in last) for row in windows(200)] == [
        (4, 2, 0),
        (3, 0, 3),
        (5, 1, 3),
        (2, 1, 0),
        (0, 0, 0),
    ]
    # 4 for 200 ms and 3 for 100 ms; 3 for 100 ms, 5 for 200 and 2 for 200; 0 for its step.
    halves = windows(500)
    assert [(row["purgatory_size_max"], row["dead_bytes_max"], row["purged"]) for row in halves] == [
        (4, 30, 0),
        (5, 30, 3),
        (0, 0, 2),
    ]
    assert [row["purgatory_size_mean"] for row in halves] == pytest.approx([11 / 3, 17 / 5, 0])


def test_running_replay_has_metrics_of_its_output(session: Session, tmp_path: Path) -> None:
    run = {"run_id": "r", "job": "replay", "status": "running", "trace": "{}", "configuration": "{}", "counts": "{}"}
    rows = {
        "runs": [run | {"started_at": _at(0)}],
        "completions": [_end(0, 250)],
        "expirations": [_end(1, 501, expired=True, keys=2) | {"completed_by": "timeout"}],
    }
    for name, of_it in rows.items():
        write_deltalake(str(tmp_path / name), table_of(name, of_it))
    written = write_metrics(session, str(tmp_path), MetricsOptions(window_ms=100, by=("partition",)))
    assert not written.tables.finished
    assert {*written.tables.missing} == {
        "group_transitions",
        "member_transitions",
        "purgatory_gauges",
        "events",
        "share_deliveries",
    }
    lake = Lake(tmp_path)
    columns = "topic, partition, window_start, expired, per_second"
    assert lake.rows(f"SELECT {columns} FROM metrics_expires ORDER BY ALL NULLS LAST") == [
        ("t", 0, _at(500), 1, 10.0),
        ("t", 1, _at(500), 1, 10.0),
        (None, None, _at(500), 2, 20.0),
    ]
    assert lake.rows("SELECT 1 FROM metrics_purgatories UNION ALL SELECT 1 FROM metrics_rebalances") == []
    assert lake.rows('SELECT "by", value, operations, waited_ms FROM metrics_waits ORDER BY ALL') == [
        ("all", "", 2, 750),
        ("partition", "t-0", 2, 750),
        ("partition", "t-1", 1, 500),
    ]
