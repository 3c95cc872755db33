"""The report of a replay: its metrics as tables and charts, and the stories of its slowest operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from purgatory_udf.answers import page_template
from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis, explained, waits_of_operations, written_findings
from purgatory_udf.answers.diagnosis.diagnosis_run import title as title_of
from purgatory_udf.answers.evidence import Evidence, collect
from purgatory_udf.answers.metrics import Metrics, MetricsOptions, Totals, metrics_of_tables, overview, totals, warnings
from purgatory_udf.answers.operation_story import story
from purgatory_udf.answers.page_template import Section
from purgatory_udf.answers.run_tables import RunTables
from purgatory_udf.backend.file_system import replace_file

if TYPE_CHECKING:
    from purgatory_udf.answers.charts import Spec
    from purgatory_udf.backend.backend import Session


@dataclass(frozen=True)
class SlowOperation:
    """An operation that waited long, and its story: a title and lines of text.

    `failed` is whether its expiration was a failure for the client, unlike that of a fetch.
    """

    kind: str
    failed: bool
    title: str
    lines: tuple[str, ...]


def slowest(tables: RunTables, of_each: int) -> list[int]:
    """Return the ids of the longest waits of each kind of operation: at most `of_each` completions and expirations."""
    return [row["operation_id"] for row in tables.rows("report/slowest", of_each=of_each)]


def slow_operations(evidence: Iterable[Evidence]) -> list[SlowOperation]:
    """Return the operations that ended, with their stories."""
    stories = []
    for each in evidence:
        title, *lines = story(each)
        if each.end:
            stories.append(SlowOperation(each.end["kind"], each.end["failed"], title, tuple(lines)))
    return stories


STORIES_OF_EACH_KIND = 3
_FOLDER = "_report/"
# Modules for the charts. They take 0.5 s to load, in which the database is busy with the first queries.
_CHART_MODULES = ("purgatory_udf.answers.charts", "pandas")

# Maximum number of findings on the page, and the share of the total excess waiting from which a finding is highlighted.
MAX_FINDINGS, _HEAVY_SHARE = 20, 0.1
# Title and caption of each chart, in the order of the page.
_FIGURES = {
    "ends": ("Ends of operations", "Operations that ended in each time bin, by kind. Fetches and the first joins of "
             "a new group expire as intended."),
    "purgatories": ("Purgatory sizes", "Maximum of each gauge in a time bin. Dead entries belong to ended operations. "
                    "A triangle marks a purge."),
    "waits": ("Waits and their causes", "Only operations that had to wait; each bar covers twice the time of the one "
              "before."),
    "topics": ("Failures by topic", "Requests that timed out; each counts once for each of its topics."),
    "groups": ("States of groups", "The state of each group over time; after the end of the trace, members count as "
               "silent."),
}  # fmt: skip


def write_report(session: Session, out: str, options: MetricsOptions, html: Path) -> Path:
    """Write the report as one HTML page to the file `html`; return its path.

    The report's metrics are in a separate folder, because its windows may differ from those of `metrics`.
    """
    tables = RunTables(session, out)
    with ThreadPoolExecutor(1) as pool:
        pool.map(import_module, _CHART_MODULES)
        # Diagnosis, metrics and stories read these views.
        with tables.materialized("last_event", "wait_counts", "group_requests", "rebalances", "pauses"):
            with waits_of_operations(tables):
                # The database computes metrics while this thread looks for incidents.
                computed = pool.submit(metrics_of_tables, tables, options, _FOLDER)
                diagnosis = written_findings(tables)
                metrics = computed.result()
            replace_file(html, report_page(metrics, diagnosis))
    return html


def report_page(metrics: Metrics, diagnosis: Diagnosis) -> str:
    """Return the report as HTML."""
    from purgatory_udf.answers.charts import chart_data, charts, draw_incidents

    tables = metrics.tables
    data, sums = chart_data(metrics), totals(metrics)
    specs = {**draw_incidents(diagnosis.findings[:MAX_FINDINGS], diagnosis.start_us, diagnosis.end_us), **charts(data)}
    state = "" if tables.finished else " The replay is still running or was interrupted; this is its output so far."
    caption = f"From {sums.first} to {sums.last} (UTC), in time bins of {_duration(data.bin_ms)}.{state}"
    slow = slowest(tables, STORIES_OF_EACH_KIND)
    examples = [finding.evidence[0] for finding in diagnosis.findings[:MAX_FINDINGS] if finding.evidence]
    # One query, because each reads all events.
    evidence = {each.operation_id: each for each in collect(tables, dict.fromkeys([*slow, *examples]))}
    stories = slow_operations(evidence[each] for each in slow if each in evidence)
    sections = [
        _incidents(diagnosis, evidence),
        *_figures(specs),
        *_stories_and_tables(metrics, sums, stories),
    ]
    top = "\n".join([page_template.facts(_facts(sums)), *map(page_template.warning, warnings(sums))])
    return page_template.page(f"Replay {tables.run.run_id}", caption, top, sections, specs)


def _incidents(diagnosis: Diagnosis, evidence: Mapping[int, Evidence]) -> Section:
    """Return the section about incidents: a timeline, and each finding with the story of one of its operations."""
    findings = diagnosis.findings[:MAX_FINDINGS]
    if not findings:
        return Section(
            "What went wrong",
            "No incident found: no broker, client or setting made operations wait unusually long.",
            "",
        )
    entries = []
    for rank, finding in enumerate(findings, 1):
        lines = [title_of(finding), "", *(f"- {suggestion}" for suggestion in finding.suggestions)]
        example = evidence.get(finding.evidence[0]) if finding.evidence else None
        if example is not None:
            lines += ["", "For example:", *story(example)]
        entries.append((f"{rank}. {finding.summary}", lines, finding.share >= _HEAVY_SHARE))
    caption = (
        f"These incidents explain {explained(diagnosis)}. Click a bar or a line to read what to do, and the story of "
        "an operation."
    )
    body = f"{page_template.figure('incidents')}\n{page_template.stories(entries, 'incident')}"
    return Section("What went wrong", caption, body)


def _facts(totals: Totals) -> Iterator[tuple[str, str]]:
    yield f"{totals.operations:,}", "ended operations"
    yield f"{totals.waited_percent} %", "had to wait"
    yield f"{totals.failed:,}", "failed: timed out"
    yield f"{totals.as_intended:,}", "expired as intended: polls without enough data"
    if totals.after_end:
        yield f"{totals.after_end:,}", "expired after the trace's end"
    seconds = sum(row["waited_ms"] for row in totals.kinds) / 1000
    yield f"{seconds:,.1f} s", "total wait"


def _figures(specs: dict[str, Spec]) -> Iterator[Section]:
    for name, (title, caption) in _FIGURES.items():
        if name in specs:
            yield Section(title, caption, page_template.figure(name))


def _stories_and_tables(metrics: Metrics, totals: Totals, slow: Iterable[SlowOperation]) -> Iterator[Section]:
    stories = [(each.title, each.lines, each.failed) for each in slow]
    if stories:
        caption = "The longest waits of each kind, failures first. Click an operation to read its story."
        yield Section("The slowest operations", caption, page_template.stories(stories))
    for table in overview(metrics, totals):
        if table.rows:
            yield Section(table.title, "", page_template.table(table))


def _duration(bin_ms: int) -> str:
    return f"{bin_ms / 1000:g} s" if bin_ms >= 1000 else f"{bin_ms} ms"
