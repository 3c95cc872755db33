"""Creates docs/dashboard.png: the Grafana dashboard's panels while a replay follows a cluster, drawn from Prometheus.

python -m tests.generate.make_dashboard_picture

The recording of a cluster with faults is written to a growing table at its own pace, with its times moved to now. A
replay follows the table, `top --serve` serves its status, and a real Prometheus scrapes that. Then every query of
conf/monitoring/dashboard.json is sent to Prometheus, and drawn where the dashboard has its panel. It takes three
minutes and needs `prometheus`.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import vl_convert
import yaml
from deltalake import DeltaTable

from tests.chaos.long_runs import Feed, Trace, followed_replay
from tests.streaming.test_metrics_server import MONITORING, address_when_ready, served
from tests.support import recorded

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "dashboard.png"
RECORDING = "W11-faults"
FEED_INTERVAL_S, AFTER_S = 2.0, 20
# Pixels of a column and of a row of Grafana's grid.
COLUMN, ROW = 44, 36


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        trace = _recording(folder)
        with followed_replay(folder, trace, "broker") as (feed, _, out):
            times, began, written = trace.table["time_us"], time.time(), 0
            seconds = (times[-1].as_py() - times[0].as_py()) / 1e6
            while not any((out / "_replay" / "live").glob("*.json")):
                written = _feed(feed, trace, written, time.time() - began)
            live = time.time()
            with served(out) as url, _prometheus(url, folder) as server:
                while (passed := time.time() - began) < seconds + AFTER_S:
                    written = _feed(feed, trace, written, passed)
                panels = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))["panels"]
                drawn = [(panel["gridPos"], _draw(_points(panel, server, live), panel)) for panel in panels]
    PICTURE.write_bytes(vl_convert.vegalite_to_png(json.dumps(_arrange(drawn)), vl_version="6.4", scale=1))
    print(PICTURE)


def _feed(feed: Feed, trace: Trace, written: int, passed_s: float) -> int:
    """Write the events that happened since the last call, then pause; return how many have been written."""
    end = trace.until(passed_s)
    if end > written:
        feed(written, end)
    time.sleep(FEED_INTERVAL_S)
    return max(end, written)


def _recording(folder: Path) -> Trace:
    """Import the recording, and move its events so that the first one happens now."""
    recorded.import_recording(RECORDING, folder / "imported")
    events = DeltaTable(str(folder / "imported" / "events")).to_pyarrow_table().sort_by("time_us")
    moved_us = int(time.time() * 1e6) - events["time_us"][0].as_py()
    for name in ("time_us", "event_time"):
        at, old = events.column_names.index(name), events[name]
        new = pc.add(pc.cast(old, pa.int64()), moved_us)
        events = events.set_column(at, events.schema.field(name), pc.cast(new, old.type))
    return Trace(events)


@contextmanager
def _prometheus(url: str, folder: Path) -> Iterator[str]:
    """Run Prometheus, which scrapes the URL every second; yield its own URL."""
    targets = {"job_name": "replay", "static_configs": [{"targets": [url.split("/")[2]]}]}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [targets]}))
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
    command += ["--web.listen-address=127.0.0.1:0", "--log.level=info"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield f"http://{address_when_ready(process.stderr)}"
        finally:
            process.terminate()
            process.communicate()


def _points(panel: dict[str, Any], server: str, since: float) -> pd.DataFrame:
    """Return the answers to a panel's queries: time, value and the name of the line."""
    points = []
    for target in panel["targets"]:
        # The rates of a short run.
        query = target["expr"].replace("[1m]", "[10s]")
        words = {"query": query, "start": since, "end": time.time(), "step": 1}
        with urllib.request.urlopen(f"{server}/api/v1/query_range?{urllib.parse.urlencode(words)}") as response:
            for line in json.load(response)["data"]["result"]:
                labels = line["metric"]
                name = target["legendFormat"]
                for label, text in labels.items():
                    name = name.replace(f"{{{{{label}}}}}", text)
                points += [(stamp - since, float(value), name) for stamp, value in line["values"]]
    return pd.DataFrame(points, columns=["seconds", "value", "line"])


def _draw(points: pd.DataFrame, panel: dict[str, Any]) -> alt.Chart:
    """Draw a panel: a number, or lines over time. Lines that are always zero are left out, if others are not."""
    unit = panel["fieldConfig"]["defaults"].get("unit", "")
    size = {"width": panel["gridPos"]["w"] * COLUMN - 90, "height": panel["gridPos"]["h"] * ROW - 70}
    if panel["type"] == "stat" or points.empty:
        middle = points["value"].median()
        text = "no data" if points.empty else f"{middle:,.1f} s" if unit == "s" else f"{middle:,.0f}"
        shown = alt.Chart(pd.DataFrame({"text": [text]}), title=panel["title"]).mark_text(size=28, color="#2a6")
        return shown.encode(text="text").properties(**size)
    busy = points.groupby("line")["value"].transform("max") > 0
    return (
        alt.Chart(points[busy] if busy.any() else points, title=panel["title"])
        .mark_line(strokeWidth=1.5)
        .encode(
            x=alt.X("seconds:Q", title="seconds", axis=alt.Axis(tickCount=6)),
            y=alt.Y("value:Q", title="seconds" if unit == "s" else None, axis=alt.Axis(tickCount=4)),
            color=alt.Color("line:N", title=None, legend=alt.Legend(orient="bottom", columns=3, labelLimit=260)),
        )
        .properties(**size)
    )


def _arrange(drawn: list[tuple[dict[str, int], alt.Chart]]) -> dict[str, Any]:
    """Arrange the panels in rows, from top to bottom and left to right as in the dashboard."""
    rows: dict[int, list[alt.Chart]] = {}
    for place, chart in sorted(drawn, key=lambda each: (each[0]["y"], each[0]["x"])):
        rows.setdefault(place["y"], []).append(chart)
    page = alt.vconcat(*(alt.hconcat(*row).resolve_scale(color="independent") for row in rows.values()))
    return page.resolve_scale(color="independent").configure_view(stroke=None).to_dict()


if __name__ == "__main__":
    main()
