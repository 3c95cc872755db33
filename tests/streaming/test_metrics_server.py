"""`top --serve`: the status of a followed replay as Prometheus reads it, the alert rules, and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from purgatory_udf.common.errors import UserError
from purgatory_udf.storage.output_folder import output_lock
from purgatory_udf.streaming.metrics_server import StatusCollector, parse_address
from purgatory_udf.streaming.status_file import QueryStatus
from tests.streaming.test_top import group_update, led_partition, partition_updates

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "conf" / "monitoring"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The output folder of a replay in which a produce waits for two followers, and a group rebalances."""
    partitions, groups = QueryStatus("run-1"), QueryStatus("run-1")
    timeline = led_partition().produce(10, "p-1", 30_000, **{"orders-3": 1002})
    timeline.fetch(20, "f-1", 100, 1, {"a-0": 5})
    partitions.add_batch(0, 7000, [*partition_updates(timeline, 5000), ("", {"events": 5})])
    groups.add_batch(0, 7000, [("", group_update().to_dict())])
    folder = tmp_path / "_replay" / "live"
    folder.mkdir(parents=True)
    (folder / "partitions.json").write_text(partitions.to_json())
    (folder / "groups.json").write_text(groups.to_json())
    return tmp_path


@contextmanager
def served(out: Path) -> Iterator[str]:
    """Run `top --serve` on a free port, and yield the URL that it prints."""
    code = "from jobs.top import main; main()"
    command = [sys.executable, "-u", "-c", code, "--out", str(out), "--serve", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split(" ")[-1].strip()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()
    assert process.returncode == 0, line


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_scrape_shows_the_status(out: Path) -> None:
    with served(out) as url, urllib.request.urlopen(url) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        found = samples(response.read().decode())
    size = "kafka_server_delayedoperationpurgatory_purgatorysize"
    delayed = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
    mbean_produce, mbean_fetch = ((("broker", "0"), ("delayedOperation", name)) for name in ("Produce", "Fetch"))
    produce, fetch = ((("broker", "0"), ("purgatory", name)) for name in ("Produce", "Fetch"))
    group = (("broker", "0"), ("group", "g"), ("state", "PreparingRebalance"))
    assert found.pop(("purgatory_replay_status_age_seconds", ())) > 1_000_000_000
    assert found == {
        ("purgatory_replay_running", ()): 0,
        ("purgatory_replay_trace_time_seconds", ()): 7,
        ("purgatory_replay_events_total", ()): 5,
        ("purgatory_replay_ended_operations_total", (("end", "completed"),)): 0,
        ("purgatory_replay_ended_operations_total", (("end", "expired"),)): 1,
        ("purgatory_replay_ended_operations_total", (("end", "cancelled"),)): 0,
        ("purgatory_replay_open_operations", ()): 1,
        (size, mbean_produce): 1,
        (size, mbean_fetch): 1,
        (delayed, mbean_produce): 1,
        (delayed, mbean_fetch): 0,
        ("purgatory_replay_expirations_per_second", produce): 0,
        ("purgatory_replay_expirations_per_second", fetch): 0.1,
        ("purgatory_replay_longest_wait_seconds", produce): 6.99,
        ("purgatory_replay_longest_wait_seconds", fetch): 0,
        ("purgatory_replay_lagging_replica_seconds", (("replica", "1"),)): 6.99,
        ("purgatory_replay_lagging_replica_seconds", (("replica", "2"),)): 6.99,
        ("purgatory_replay_rebalance_seconds", group): 0,
    }


def test_deleted_status_is_a_stopped_replay(out: Path) -> None:
    """The metrics are also served for a replay that has just started."""
    collector = StatusCollector(str(out))
    shutil.rmtree(out / "_replay")
    with output_lock(str(out), "replay"), served(out) as url, urllib.request.urlopen(url) as response:
        assert samples(response.read().decode()) == {("purgatory_replay_running", ()): 1}
    assert [(family.name, family.samples[0].value) for family in collector.collect()] == [
        ("purgatory_replay_running", 0)
    ]


def test_address_may_be_a_port() -> None:
    assert parse_address("9408") == ("127.0.0.1", 9408)
    assert parse_address("[::1]:9408") == ("::1", 9408)
    for text in ("here", "here:http", "1.2.3.4:70000"):
        with pytest.raises(UserError, match=r"expected HOST:PORT, such as 127.0.0.1:9408, or a port"):
            parse_address(text)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:kafka_server|purgatory_replay)_\w+", expression))


def test_rules_and_dashboard_use_served_metrics(out: Path) -> None:
    served_names = {sample.name for family in StatusCollector(str(out)).collect() for sample in family.samples}
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    panels: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    queries = [rule["expr"] for rule in rules] + [target["expr"] for panel in panels for target in panel["targets"]]
    used = set().union(*map(names_in, queries))
    assert all(map(names_in, queries))
    assert used <= served_names
    assert served_names - used == {"purgatory_replay_status_age_seconds"}


@pytest.mark.prometheus
def test_prometheus_scrapes_and_alerts(out: Path, tmp_path: Path) -> None:
    """A real Prometheus scrapes the server and evaluates the rules; promtool finds no fault in metrics and rules."""
    for words in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
        subprocess.run(["promtool", *words], cwd=MONITORING, check=True, capture_output=True)
    with served(out) as url:
        with urllib.request.urlopen(url) as response:
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=response.read(), capture_output=True, check=False
            )
        # Kafka's exporter has this label; the names of all others are as promtool wants them.
        faults = checked.stderr.decode().splitlines()
        assert {fault.split(" ")[0].rpartition("_")[2] for fault in faults} == {"numdelayedoperations", "purgatorysize"}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(MONITORING / "alerts.yaml")],
            "scrape_configs": [
                {"job_name": "replay", "static_configs": [{"targets": [url.split("/")[2]]}]},
            ],
        }
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={tmp_path}/data"]
        command += ["--web.listen-address=127.0.0.1:0", "--log.level=info"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as prometheus:
            assert prometheus.stderr is not None
            try:
                address = address_when_ready(prometheus.stderr)
                value = _first_value(f"http://{address}", "max(purgatory_replay_longest_wait_seconds)")
            finally:
                prometheus.terminate()
                prometheus.communicate()
    assert value == "6.99"


def address_when_ready(log: Iterable[str]) -> str:
    """Read Prometheus's log until it answers queries, and return its address."""
    address = ""
    for line in log:
        if found := re.search(r'msg="Listening on" address=(\S+)', line):
            address = found[1]
        if "Server is ready to receive web requests" in line:
            return address
    raise AssertionError("Prometheus has ended")


def _first_value(server: str, query: str) -> str:
    """Return the value of a query as soon as Prometheus has scraped."""
    url = f"{server}/api/v1/query?query={query}"
    while True:
        with urllib.request.urlopen(url) as response:
            result = json.load(response)["data"]["result"]
        if result:
            return str(result[0]["value"][1])
