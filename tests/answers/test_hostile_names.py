"""Untrusted names from clients are escaped in pages, in SQL and on a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import audit, explain, metrics, report
from purgatory_udf.contract import read_row
from purgatory_udf.launch.backend_choice import open_local
from tests.answers.pages import Page
from tests.support import browser
from tests.support.outcome_folder import sample_with_group, write_folder

pytestmark = pytest.mark.long

# Closes elements, attributes, strings and statements; opens scripts, templates, terminal sequences and new lines.
EVIL = (
    "</script><img src=x onerror='document.title=`owned`'>\"'; DROP TABLE runs; --"
    "${1+1}{{datum}}\x1b]0;owned\x07\n%s\\../"
)
NAMED = ("topic", "group", "client_id", "request_id", "member_id", "assigned_member_id", "leader_member_id")


def evil(value: Any) -> Any:
    """Return the event with a hostile prefix in front of each name."""
    if isinstance(value, list):
        return [evil(element) for element in value]
    if isinstance(value, dict):
        return {
            key: f"{EVIL}{inner}" if key in NAMED and isinstance(inner, str) and inner else evil(inner)
            for key, inner in value.items()
        }
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay of the sample and the group with hostile names."""
    out = tmp_path_factory.mktemp("hostile") / "out"
    write_folder(out, [read_row(evil(event)) | {"seq": event["seq"]} for event in sample_with_group()])
    return out


def test_report_escapes_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main.status(["--out", str(folder)], open_local) == 0
    capsys.readouterr()
    html = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(html)
    assert page.loads == ["data:,"]
    assert "<img src=x" not in html and html.count("<script") == 3 + html.count("<\\/script")
    assert json.dumps(EVIL)[1:-1] in json.dumps(page.specs)
    assert any(EVIL in text for text in page.texts)
    executable = browser.find_browser()
    if executable:
        seen = browser.render(executable, folder / "report.html", False)
        assert seen.console == []
        assert "<title>owned" not in seen.dom


def test_printed_names_have_no_control_characters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--out", str(folder)]
    for job, more in (
        (metrics, ["--by", "broker,topic,partition,client,group"]),
        (explain, ["--request-id", f"{EVIL}checkout-web-672"]),
        (explain, ["--group", f"{EVIL}g"]),
        (audit, []),
    ):
        assert job.main.status([*options, *more], open_local) == 0
        output = capsys.readouterr().out
        assert all(line.isprintable() for line in output.split("\n"))
        assert job is audit or "DROP TABLE" in output


def test_request_id_is_no_sql_pattern(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for never in ("' OR '1'='1", "x' OR 1=1 --", "%"):
        assert explain.main.status(["--out", str(folder), "--request-id", never], open_local) == 2
        assert capsys.readouterr().err == f"explain: {folder}: no request {never} found\n"
