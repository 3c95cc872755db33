"""The output of `metrics --prometheus`, parsed and compared with counts of the same tables by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families as families_of

from purgatory_udf.answers.prometheus import Family, write_prometheus
from tests.support.delta_lake import Lake

if TYPE_CHECKING:
    from purgatory_udf.answers.metrics import Metrics

Samples = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture(scope="module")
def file(metrics: Metrics, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The written file, which replaced an earlier one."""
    file = tmp_path_factory.mktemp("collector") / "replay.prom"
    file.write_text("an earlier one")
    write_prometheus(metrics, file)
    return file


@pytest.fixture(scope="module")
def samples(file: Path) -> Samples:
    """The samples by metric and label values, in the order of the label names."""
    by_metric: Samples = {}
    for family in families_of(file.read_text()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            assert labels not in by_metric.setdefault(sample.name, {}), "a set of labels has one value"
            by_metric[sample.name][labels] = sample.value
    return by_metric


@pytest.fixture(scope="module")
def lake(metrics: Metrics, story_folder: Path) -> Lake:
    return Lake(story_folder)


def expected(lake: Lake, query: str) -> dict[tuple[str, ...], float]:
    """Return the last column of a query by the other columns."""
    return {tuple(str(value) for value in row[:-1]): row[-1] for row in lake.rows(query)}


def test_gauges_have_last_reading(samples: Samples, lake: Lake) -> None:
    for metric, gauge in (("purgatorysize", "watched"), ("numdelayedoperations", "delayed")):
        gauges = f'SELECT broker, purgatory, "at" AS read_at, {gauge} AS reading FROM purgatory_gauges'
        last = f"SELECT broker, purgatory, arg_max(reading, read_at) FROM ({gauges}) GROUP BY ALL"
        readings = samples[f"kafka_server_delayedoperationpurgatory_{metric}"]
        assert len(readings) >= 4 and readings == expected(lake, last)


def test_meters_count_by_partition_and_in_total(samples: Samples, lake: Lake) -> None:
    pending = """
        SELECT broker, p.partition AS partition, p.topic AS topic
        FROM (SELECT broker, unnest(partitions) AS p FROM expirations WHERE kind = 'produce')
        WHERE p.error = 'REQUEST_TIMED_OUT'
    """
    by_partition = expected(lake, f"SELECT broker, partition, topic, count(*) FROM ({pending}) GROUP BY ALL")
    in_all = expected(lake, f"SELECT broker, count(*) FROM ({pending}) GROUP BY ALL")
    assert in_all and samples["kafka_server_delayedproducemetrics_expires_total"] == by_partition | in_all
    fetches = "SELECT broker, fetcher, count(*) FROM expirations WHERE kind = 'fetch' GROUP BY ALL"
    assert samples["kafka_server_delayedfetchmetrics_expires_total"] == expected(lake, fetches)


def test_operations_and_waits_match_tables(samples: Samples, lake: Lake) -> None:
    ended = """
        SELECT broker, kind, watched, wait_ms, false AS expired FROM completions
        UNION ALL SELECT broker, kind, watched, wait_ms, true FROM expirations
    """
    ends = "CASE WHEN expired THEN 'expired' WHEN watched THEN 'after_a_wait' ELSE 'on_arrival' END"
    some = expected(lake, f"SELECT broker, {ends}, kind, count(*) FROM ({ended}) GROUP BY ALL")
    operations = samples["purgatory_replay_operations_total"]
    assert {labels: value for labels, value in operations.items() if value} == some
    waits = expected(lake, f"SELECT kind, sum(wait_ms) / 1000 FROM ({ended}) GROUP BY ALL")
    assert samples["purgatory_replay_wait_seconds_sum"] == pytest.approx(waits)
    medians = expected(
        lake, f"SELECT kind, '0.5', quantile_cont(wait_ms, 0.5) / 1000 FROM ({ended}) WHERE watched GROUP BY ALL"
    )
    quantiles = samples["purgatory_replay_wait_seconds"]
    assert medians and {of: quantiles[of] for of in medians} == pytest.approx(medians)
    rebalances = 'SELECT broker, ended_as, "group", count(*) FROM metrics_rebalances GROUP BY ALL'
    assert samples["purgatory_replay_rebalances_total"] == expected(lake, rebalances)


def test_file_is_replaced_and_readable_by_others(file: Path) -> None:
    assert [each.name for each in file.parent.iterdir()] == ["replay.prom"]
    assert file.stat().st_mode & 0o777 == 0o644
    assert file.read_text().endswith("\n")


def test_labels_are_escaped() -> None:
    name = 'a "b"\\n\\ \n{},=é'
    family = Family("waits", "gauge", 'says "so"\\ and\nso')
    family.add(1, group=name, none=None)
    family.add(None, group="not known")
    (read,) = families_of("".join(f"{line}\n" for line in family.lines()))
    assert read.documentation == family.help
    assert [(sample.labels, sample.value) for sample in read.samples] == [({"group": name}, 1)]
