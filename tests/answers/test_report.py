"""The report is one file with the counts of the tables; Vega and a browser draw it without warnings."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from purgatory_udf.answers import page_template
from purgatory_udf.answers.charts import ChartData, cause_colours, charts
from purgatory_udf.answers.report import report_page
from purgatory_udf.common.console import Table
from tests.answers.pages import Page, marks
from tests.support import browser
from tests.support.delta_lake import Lake

if TYPE_CHECKING:
    from purgatory_udf.answers.diagnosis.diagnosis_run import Diagnosis
    from purgatory_udf.answers.metrics import Metrics

FIGURES = ["incidents", "ends", "purgatories", "waits", "topics", "groups"]


@pytest.fixture(scope="module")
def report(metrics: Metrics, diagnosis: Diagnosis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of `story_folder`."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page(metrics, diagnosis), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def parsed(report: Path) -> Page:
    return Page(report.read_text(encoding="utf-8"))


def test_page_is_self_contained(parsed: Page, report: Path) -> None:
    assert parsed.loads == ["data:,"]
    assert "default-src 'none'" in report.read_text(encoding="utf-8")
    assert parsed.figures == FIGURES == list(parsed.specs)


def test_charts_have_counts_of_tables(parsed: Page, story_folder: Path) -> None:
    lake = Lake(story_folder)

    def total(name: str, field: str) -> int:
        spec = parsed.specs[name]
        (rows,) = spec["datasets"].values()
        return sum(row[field] for row in rows)

    count = "SELECT count(*) FROM"
    assert [(total("ends", "operations"),)] == lake.rows(
        f"{count} (SELECT operation_id FROM completions UNION ALL SELECT operation_id FROM expirations)"
    )
    assert [(total("waits", "operations"),)] == lake.rows(
        f"{count} (SELECT watched FROM completions UNION ALL SELECT watched FROM expirations) WHERE watched"
    )
    assert [(total("topics", "failed"),)] == lake.rows(
        f"{count} (SELECT DISTINCT operation_id, p.topic FROM (SELECT operation_id, unnest(partitions) AS p "
        "FROM expirations WHERE kind <> 'fetch'))"
    )
    colours = parsed.specs["waits"]["encoding"]["color"]["scale"]["range"]
    assert len(set(colours)) == len(colours)
    assert len({*islice(cause_colours(), 60)}) == 60


def test_vega_draws_every_chart(parsed: Page) -> None:
    drawn = {name: marks(spec) for name, spec in parsed.specs.items()}
    least = {name: 0 if name in ("incidents", "topics") else 5 for name in FIGURES}
    assert {name: count > least[name] for name, count in drawn.items()} == dict.fromkeys(FIGURES, True), drawn


def test_incidents_link_to_their_stories(parsed: Page, report: Path) -> None:
    every = [row for rows in parsed.specs["incidents"]["datasets"].values() for row in rows if "link" in row]
    assert every
    html = report.read_text(encoding="utf-8")
    assert [row["link"] for row in every] == [f"#incident-{rank}" for rank in range(1, len(every) + 1)]
    assert all(f"<details id={row['link'][1:]}>" in html for row in every)


def test_slowest_operations_have_stories(parsed: Page) -> None:
    # Stories of findings begin with the finding instead.
    titles = [text for text in parsed.texts if re.match(r"[^\n]*\(operation -?\d+\): (expired|completed) after", text)]
    assert len(titles) == len({*titles}) == 24
    assert any("replica 3 had reached" in text and "(not enough)" in text for text in parsed.texts)


def test_names_are_escaped() -> None:
    evil = "</script><script>alert(1)</script>"
    ends = pd.DataFrame({"t": [0], "kind": [evil], "end": ["expired"], "operations": [1]})
    none = ends.head(0)
    specs = charts(ChartData(200, ends, none, none, none, none))
    html = page_template.page(
        evil,
        evil,
        page_template.facts([(evil, evil)]),
        [
            page_template.Section(evil, evil, page_template.figure("ends")),
            page_template.Section("t", "", page_template.table(Table("t", (evil, "n"), [(evil, 1.5)]))),
            page_template.Section("s", "", page_template.stories([(evil, [evil], True)])),
        ],
        specs,
    )
    assert "<script>alert" not in html
    assert list(Page(html).specs) == ["ends"]
    assert html.count("<script") == html.count("</script>") == 3 + html.count("<\\/script")


@pytest.mark.long
@pytest.mark.browser
def test_browser_draws_light_and_dark_page(report: Path) -> None:
    """Without a browser, only `test_vega_draws_every_chart` checks the charts."""
    executable = browser.find_browser()
    assert executable is not None
    light, dark = (browser.render(executable, report, dark) for dark in (False, True))
    for seen in (light, dark):
        assert seen.console == []
        assert f'data-drawn="{len(FIGURES)}"' in seen.dom
        drawn = re.findall(r'<figure id="?(\w+)"?.*?</figure>', seen.dom, re.DOTALL)
        assert drawn == FIGURES
        assert seen.dom.count("<svg") >= len(FIGURES)
        assert len(seen.picture) > 50_000
    assert light.picture != dark.picture
    assert re.search(r'fill="#5b6470"', light.dom) and re.search(r'fill="#a3adb8"', dark.dom)
