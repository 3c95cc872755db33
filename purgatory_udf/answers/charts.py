"""The charts of a report, and those of timing wheels and watcher lists for the notebooks.

Charts of a report have data of the queries of `sql/report`, and are Vega-Lite specifications.

The database aggregates, so frames are small for traces of any size. Times are in milliseconds since the epoch,
independent of any time zone. The page applies a light or dark theme to the charts.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import altair as alt

from purgatory_udf.answers.diagnosis.finding import Finding, culprit_of
from purgatory_udf.answers.metrics import PARALLEL_QUERIES
from purgatory_udf.rules.purgatory.delayed_operation import DelayedOperation, DelayedOperationPurgatory
from purgatory_udf.rules.purgatory.timing_wheel import SystemTimer, TimerTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from purgatory_udf.answers.metrics import Metrics

# A bin is then about four pixels wide.
MAX_BINS = 240
# Round widths of bins, in milliseconds.
_ROUND_MS = tuple(
    step * unit
    for unit, steps in ((1, (1, 2, 5, 10, 20, 50, 100, 200, 500)), (1000, (1, 2, 5, 10, 15, 30)))
    for step in steps
) + tuple(minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))

# Length of a trace in microseconds below which the ticks of its time axis are less than two seconds apart.
_SHORT_US = 20_000_000

# More do not fit on a page.
MAX_PURGATORIES = 8
MAX_TOPICS = 25
MAX_GROUPS = 20
MAX_STATES = 2_000

ON_ARRIVAL, AFTER_A_WAIT, EXPIRED = "completed on arrival", "completed after a wait", "expired"
# How expired operations are divided.
AS_INTENDED, AFTER_END, FAILED = "expired as intended", "expired after the trace", "failed"


@dataclass(frozen=True)
class ChartData:
    """The data of each chart of a report as a data frame; `bin_ms` is the width of a bin of the time axes."""

    bin_ms: int
    ends: pd.DataFrame
    purgatories: pd.DataFrame
    waits: pd.DataFrame
    topics: pd.DataFrame
    groups: pd.DataFrame


def chart_data(metrics: Metrics) -> ChartData:
    """Query the data of every chart."""
    bin_ms = bin_ms_of(metrics)
    tables = metrics.tables
    queries: list[tuple[str, dict[str, int]]] = [
        ("report/ends", {"bin_ms": bin_ms}),
        ("report/purgatories", {"bin_ms": bin_ms, "most": MAX_PURGATORIES}),
        ("report/waits", {}),
        ("report/topics", {"bin_ms": bin_ms, "most": MAX_TOPICS}),
        ("report/groups", {"most": MAX_GROUPS, "most_states": MAX_STATES}),
    ]
    tables.prepare(*(name for name, _ in queries))
    with ThreadPoolExecutor(PARALLEL_QUERIES) as pool:
        return ChartData(bin_ms, *pool.map(lambda query: tables.query(query[0], **query[1]).to_pandas(), queries))


def topics(metrics: Metrics) -> tuple[pd.DataFrame, int]:
    """Return the data of the chart of failures by topic, and the width of its bins in milliseconds."""
    bin_ms = bin_ms_of(metrics)
    return metrics.tables.query("report/topics", bin_ms=bin_ms, most=MAX_TOPICS).to_pandas(), bin_ms


def bin_ms_of(metrics: Metrics) -> int:
    """Return the width of the bins of the time axes in milliseconds, for the time that the metrics cover."""
    (row,) = metrics.rows("metrics_command/totals")
    first, last, window_ms = row["first"], row["last"], metrics.options.window_ms
    span_ms = 0 if first is None else round((last - first).total_seconds() * 1000)
    return round_bin_ms(span_ms + window_ms, window_ms)


def round_bin_ms(span_ms: int, window_ms: int) -> int:
    """Return the smallest round multiple of the window that divides the span into at most `MAX_BINS` bins.

    If all round widths are too small, it is the smallest multiple of `window_ms` that does.
    """
    widths = [width for width in _ROUND_MS if width % window_ms == 0 and span_ms / width <= MAX_BINS]
    return widths[0] if widths else -(-span_ms // (MAX_BINS * window_ms)) * window_ms


Spec = dict[str, Any]

WIDTH = 900
# Colours of Okabe and Ito, distinct for colour-blind readers and on both backgrounds.
GREY, BLUE, ORANGE, VERMILLION, GREEN, PURPLE = "#8c8c8c", "#2a8fd0", "#e69f00", "#e0641a", "#009e73", "#cc79a7"
END_COLOURS = {ON_ARRIVAL: GREY, AFTER_A_WAIT: BLUE, AS_INTENDED: "#56b4e9", AFTER_END: PURPLE, FAILED: VERMILLION}
GAUGE_COLOURS = {"PurgatorySize": BLUE, "NumDelayedOperations": GREEN, "dead entries": VERMILLION}
STATE_COLOURS = {
    "Stable": GREEN,
    "PreparingRebalance": VERMILLION,
    "CompletingRebalance": ORANGE,
    "Empty": GREY,
    "Dead": PURPLE,
}
CAUSE_COLOURS = [BLUE, GREEN, ORANGE, PURPLE, "#56b4e9", "#b8a800", GREY]


def cause_colours() -> Iterator[str]:
    """Yield different colours, the most distinguishable first."""
    yield from CAUSE_COLOURS
    for number in count():
        # Steps of the golden angle spread any number of hues evenly.
        yield f"hsl({number * 137.508 % 360:.1f}, {45 + 20 * (number % 2)}%, {40 + 12 * (number % 3)}%)"


def charts(data: ChartData) -> dict[str, Spec]:
    """Return the specification of each chart that has data, by name."""
    drawn = {
        "ends": (data.ends, _ends),
        "purgatories": (data.purgatories, _purgatories),
        "waits": (data.waits, _waits),
        "topics": (data.topics, _topics),
        "groups": (data.groups, _groups),
    }
    with alt.data_transformers.disable_max_rows():
        return {name: draw(frame, data.bin_ms).to_dict() for name, (frame, draw) in drawn.items() if len(frame)}


def draw_incidents(findings: Sequence[Finding], start_us: int, end_us: int) -> dict[str, Spec]:
    """Return the timeline of a trace as `incidents`: a bar per finding, in the order of their weight.

    Args:
        findings: The findings, the heaviest first.
        start_us: Start of the trace, in epoch microseconds.
        end_us: End of the trace, in epoch microseconds.
    """
    import pandas as pd

    if not findings:
        return {}
    rows = [
        {
            "incident": f"{rank}. {culprit_of(finding)}: {finding.kind}",
            "t": finding.start_us / 1000,
            "t2": finding.end_us / 1000,
            "excess waiting, s": round(finding.excess_wait_s, 1),
            "summary": finding.summary,
            "link": f"#incident-{rank}",
        }
        for rank, finding in enumerate(findings, 1)
    ]
    frame = pd.DataFrame(rows)
    # The axis shows the whole trace: a domain for `x` conflicts with that of `x2` in Vega-Lite.
    trace = pd.DataFrame({"t": [start_us / 1000, end_us / 1000]})
    step_ms = 1000 if end_us - start_us >= _SHORT_US else 1
    whole = alt.Chart(trace).mark_rule(opacity=0).encode(x=_axis("t", step_ms))
    bars = (
        alt.Chart(frame, width=WIDTH - 220, height=alt.Step(20))
        .mark_bar(color=VERMILLION, minBandSize=3, cornerRadius=2)
        .encode(
            x=_axis("t", step_ms),
            x2="t2:T",
            y=alt.Y("incident:N", title=None, sort=list(frame["incident"])).axis(labelLimit=320),
            tooltip=["incident:N", "excess waiting, s:Q", "summary:N"],
            # The entry with the story of an operation: `page_template.stories`.
            href="link:N",
        )
    )
    return {"incidents": (whole + bars).to_dict()}


def draw_topics(metrics: Metrics) -> alt.Chart:
    """Return a heat map of the number of failed requests by topic and time, for the topics with the most failures."""
    return _topics(*topics(metrics))


def time_axis(frame: pd.DataFrame, bin_ms: int) -> tuple[pd.DataFrame, alt.X]:
    """Return the frame with a column for the end of each bin, which starts at `t`, and the time axis in UTC."""
    placed = frame.assign(t2=frame["t"] + bin_ms, time=_clock(frame["t"]))
    return placed, _axis("t", bin_ms)


def _axis(field: str, bin_ms: int) -> alt.X:
    return alt.X(f"{field}:T", title="time (UTC)", scale=alt.Scale(type="utc")).axis(
        # Ticks between two seconds need milliseconds in their labels.
        format="%H:%M:%S" if bin_ms % 1000 == 0 else "%H:%M:%S.%L",
        labelOverlap=True,
        labelFlush=False,
        tickCount=10,
    )


def _clock(ms: pd.Series[int]) -> pd.Series[str]:
    """Return times as text for tooltips, because Vega would show them in the browser's time zone."""
    import pandas as pd

    return pd.to_datetime(ms, unit="ms", utc=True).dt.strftime("%Y-%m-%d %H:%M:%S.%f").str[:-3]


def colours_of(field: str, colours: dict[str, str]) -> alt.Color:
    """Return the colour channel of a field; `colours` maps values to colours."""
    return alt.Color(
        f"{field}:N", title=None, scale=alt.Scale(domain=list(colours), range=list(colours.values()))
    ).legend(orient="top", columns=7)


def rows_of(field: str, frame: pd.DataFrame) -> alt.Row:
    """Return the row channel of a field, in the order of the frame."""
    order = list(dict.fromkeys(frame[field]))
    header = alt.Header(labelAnchor="start", labelOrient="top", labelPadding=2)
    return alt.Row(f"{field}:N", title=None, sort=order, header=header)


def count_axis(field: str) -> alt.Y:
    """Return an axis of counts, which are whole numbers."""
    return alt.Y(f"{field}:Q", title=None).axis(
        tickCount=4, labelExpr="datum.value % 1 ? '' : format(datum.value, ',d')"
    )


def wait_labels(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the frame with a column `waited`, the range of waits as text, and all these texts in their order."""
    labels = frame["low"].map("{:,}".format) + frame["high"].map("–{:,}".format).where(frame["high"] > frame["low"], "")
    placed = frame.assign(waited=labels)
    return placed, list(dict.fromkeys(placed.sort_values("low")["waited"]))


def _ends(frame: pd.DataFrame, bin_ms: int) -> alt.Chart:
    placed, x = time_axis(frame, bin_ms)
    return (
        alt.Chart(placed, width=WIDTH, height=90)
        .mark_rect()
        .encode(
            x=x,
            x2="t2:T",
            y=count_axis("operations").stack("zero"),
            color=colours_of("end", END_COLOURS),
            tooltip=["time:N", "kind:N", "end:N", "operations:Q"],
            row=rows_of("kind", frame),
        )
        .resolve_scale(y="independent")
    )


def _purgatories(frame: pd.DataFrame, bin_ms: int) -> alt.FacetChart:
    placed, x = time_axis(frame, bin_ms)
    base = alt.Chart(placed, width=WIDTH, height=90)
    lines = base.mark_line(interpolate="step-after", strokeWidth=1.5, point=alt.OverlayMarkDef(size=8)).encode(
        x=x,
        y=count_axis("most"),
        color=colours_of("gauge", GAUGE_COLOURS),
        tooltip=["time:N", "purgatory:N", "gauge:N", "most:Q"],
    )
    purges = (
        base.transform_filter("datum.purged > 0 && datum.gauge == 'PurgatorySize'")
        .mark_point(shape="triangle-down", size=70, filled=True, color=PURPLE)
        .encode(
            x=x,
            y="most:Q",
            tooltip=["time:N", "purgatory:N", alt.Tooltip("purged:Q", title="entries purged")],
        )
    )
    # A layer without a single mark has no scale, of which Vega warns.
    layers = [lines, purges] if frame["purged"].any() else [lines]
    return alt.layer(*layers).facet(row=rows_of("purgatory", frame)).resolve_scale(y="independent")


def _waits(frame: pd.DataFrame, bin_ms: int) -> alt.Chart:
    placed, order = wait_labels(frame)
    others = sorted(set(frame["cause"]) - {EXPIRED})
    colours = dict(zip(others, cause_colours(), strict=False))
    return (
        alt.Chart(placed, width=WIDTH, height=90)
        .mark_bar()
        .encode(
            x=alt.X("waited:O", title="waited, ms", sort=order).axis(labelAngle=0, labelOverlap=True),
            y=count_axis("operations"),
            color=colours_of("cause", colours | {EXPIRED: VERMILLION}),
            tooltip=["kind:N", "cause:N", alt.Tooltip("waited:O", title="waited, ms"), "operations:Q"],
            row=rows_of("kind", frame),
        )
        .resolve_scale(y="independent")
    )


def _topics(frame: pd.DataFrame, bin_ms: int) -> alt.Chart:
    placed, x = time_axis(frame, bin_ms)
    return (
        alt.Chart(placed, width=WIDTH, height=alt.Step(22))
        .mark_rect()
        .encode(
            x=x,
            x2="t2:T",
            y=alt.Y("topic:N", title=None, sort=list(dict.fromkeys(frame["topic"]))),
            color=alt.Color("failed:Q", title="failed", scale=alt.Scale(scheme="viridis")).legend(orient="top"),
            tooltip=["time:N", "topic:N", "failed:Q"],
        )
    )


def _groups(frame: pd.DataFrame, bin_ms: int) -> alt.Chart:
    placed = frame.assign(time=_clock(frame["t"]), lasted_ms=frame["until"] - frame["t"])
    return (
        alt.Chart(placed, width=WIDTH, height=alt.Step(26))
        .mark_bar(cornerRadius=2, stroke="white", strokeWidth=0.5)
        .encode(
            x=_axis("t", bin_ms),
            x2="until:T",
            y=alt.Y("group:N", title=None, sort=list(dict.fromkeys(frame["group"]))),
            color=colours_of("state", STATE_COLOURS),
            tooltip=["time:N", "group:N", "state:N", "lasted_ms:Q", "reason:N", "members:Q"],
        )
    )


# Small simulations of timing wheels and watcher lists, for the notebooks.


class _Alarm(TimerTask):
    """A task without an action."""

    def run(self, now_ms: int) -> None:
        """Do nothing."""


class _Waiting(DelayedOperation):
    """An operation that completes only by `force_complete`."""

    def try_complete(self, now_us: int) -> bool:
        return False

    def on_complete(self, now_us: int) -> None:
        """Do nothing: there is no response."""

    def on_expiration(self, now_us: int) -> None:
        """Do nothing: there is no meter."""


def wheel_steps(deadlines_ms: Sequence[int], start_ms: int = 1000) -> pd.DataFrame:
    """Return the bucket of each task over time: a row for each change, and one at the deadline.

    `bucket_begins_ms` is the time at which the bucket expires and its tasks move to a finer wheel. It is never later
    than the task's deadline.

    Args:
        deadlines_ms: Deadlines of the tasks, in milliseconds of the clock; equal ones count once.
        start_ms: The clock at which all tasks are added.
    """
    import pandas as pd

    timer = SystemTimer(start_ms)
    tasks = {deadline: _Alarm(deadline) for deadline in sorted(deadlines_ms)}
    for task in tasks.values():
        timer.add(task)
    rows: list[tuple[int, int, int]] = []
    waits_in: dict[int, int | None] = {}
    for clock_ms in range(start_ms, max(tasks) + 1):
        timer.advance_clock(clock_ms)
        for deadline, task in tasks.items():
            begins = task.bucket.expiration_ms if task.bucket else None
            if waits_in.get(deadline, -1) != begins:
                rows.append((deadline, clock_ms, deadline if begins is None else begins))
                waits_in[deadline] = begins
    return pd.DataFrame(rows, columns=["deadline_ms", "clock_ms", "bucket_begins_ms"])


def draw_wheel(steps: pd.DataFrame) -> alt.LayerChart:
    """Return a chart of the start of each task's bucket against the clock, from the coarsest wheel to the deadline."""
    named = steps.assign(task="due at " + steps["deadline_ms"].astype(str))
    base = alt.Chart(named, width=620, height=260)
    scale = alt.Scale(zero=False)
    lines = base.mark_line(interpolate="step-after", point=True).encode(
        x=alt.X("clock_ms:Q", title="clock, ms", scale=scale),
        y=alt.Y("bucket_begins_ms:Q", title="start of its bucket, ms", scale=scale),
        color=alt.Color("task:N", title=None),
        tooltip=["task", "clock_ms", "bucket_begins_ms"],
    )
    now = base.mark_line(strokeDash=[4, 4], color="grey").encode(x="clock_ms:Q", y="clock_ms:Q")
    return now + lines


def list_steps(operations: int = 60, keys: int = 3, purge_interval: int = 20, expired_of: int = 4) -> pd.DataFrame:
    """Return a purgatory's gauges over time while operations arrive, complete and expire.

    No event checks the watcher lists, so entries of ended operations stay until the purge.

    Args:
        operations: Number of operations; one arrives every 10 ms.
        keys: Number of keys on which each operation is watched.
        purge_interval: The purge interval, in operations.
        expired_of: One of this number of operations expires; events complete the others.
    """
    import pandas as pd

    purgatory = DelayedOperationPurgatory[_Waiting]("Fetch", SystemTimer(0), purge_interval)
    rows = list(_list_steps(purgatory, operations, keys, expired_of))
    return pd.DataFrame(rows, columns=["ms", "PurgatorySize", "NumDelayedOperations", "purged"])


def _list_steps(
    purgatory: DelayedOperationPurgatory[_Waiting], operations: int, keys: int, expired_of: int
) -> Iterator[tuple[int, int, int, int]]:
    waiting: list[_Waiting] = []
    for number in range(operations):
        now_ms = 10 * number
        purged = purgatory.purged
        purgatory.advance_clock(now_ms)
        operation = _Waiting(now_ms * 1000, 50)
        purgatory.try_complete_else_watch(operation, [f"t-{key}" for key in range(keys)], now_ms * 1000)
        waiting.append(operation)
        if number >= 3 and number % expired_of:
            waiting[number - 3].force_complete(now_ms * 1000)
        yield now_ms, purgatory.watched(), purgatory.num_delayed(), purgatory.purged - purged


def draw_lists(steps: pd.DataFrame) -> alt.LayerChart:
    """Return a chart of PurgatorySize and NumDelayedOperations over time, with a mark at each purge of dead entries."""
    gauges = ["PurgatorySize", "NumDelayedOperations"]
    long = steps.melt(["ms", "purged"], gauges, "gauge", "reads")
    lines = (
        alt.Chart(long, width=620, height=240)
        .mark_line(interpolate="step-after")
        .encode(x=alt.X("ms:Q", title="clock, ms"), y="reads:Q", color=alt.Color("gauge:N", title=None))
    )
    purges = (
        alt.Chart(steps[steps["purged"] > 0])
        .mark_point(shape="triangle-down", size=80, filled=True, color="#cc79a7")
        .encode(x="ms:Q", y="PurgatorySize:Q", tooltip=["ms", "purged"])
    )
    return lines + purges
