"""CONTRIBUTING.md names every place that a delayed operation touches; CHANGELOG.md says when each version was made."""

from __future__ import annotations

import re
import tomllib
from datetime import date

import purgatory_udf
from tests.docs import pages

# The smallest operation that there is: whatever knows of it would have to know of the next one.
SMALLEST = re.compile(r"delete_records|DELETE_RECORDS|DeleteRecords")


def _places() -> list[str]:
    tables = list(pages.tables(pages.text("CONTRIBUTING.md")))
    (places,) = ([row["where"] for row in table.rows] for table in tables if table.columns == ("what", "where"))
    return places


def _who_knows(*folders: str) -> list[str]:
    files = [
        file for folder in folders for file in (pages.ROOT / folder).rglob("*.*") if "__pycache__" not in file.parts
    ]
    return [
        str(file.relative_to(pages.ROOT))
        for file in files
        if file.suffix in (".py", ".yaml", ".md", ".json") and SMALLEST.search(file.read_text(encoding="utf-8"))
    ]


def test_whoever_adds_an_operation_finds_every_place() -> None:
    named = [name for place in _places() for name in re.findall(r"`([\w./-]+)`", place)]
    knows = _who_knows("purgatory_udf", "jobs", "benchmarks", "conf", "docs")
    # Tests of the operation itself are nobody's to find: their helpers are.
    knows += [file for file in _who_knows("tests") if "/test_" not in file]
    reference = "purgatory_udf/rules/reference/__init__.py"  # A list of the files, to be read.
    assert len(knows) > 30
    assert [file for file in knows if not file.startswith(tuple(named)) and file != reference] == []
    assert [name for name in named if "/" in name and not (pages.ROOT / name).exists()] == []


def test_where_a_folder_s_files_are_named_none_that_knows_of_it_is_left_out() -> None:
    lists = [re.match(r"`(purgatory_udf/[\w/]+)` \(([^)]+)\)", place) for place in _places()]
    for folder, files in (match.groups() for match in lists if match and match[1].endswith("loop")):
        named = {f"{folder}/{name}" for name in re.findall(r"`(\w+\.py)`", files)}
        assert named == set(_who_knows(folder))


def test_what_is_to_be_regenerated_names_what_makes_it() -> None:
    section = pages.text("CONTRIBUTING.md").split("## Regenerate")[1]
    scripts = re.findall(r"python (tests/[\w/]+\.py)", section)
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"python -m ([\w.]+)", section)]
    assert len(scripts) + len(modules) == 4
    assert [name for name in (*scripts, *modules) if not (pages.ROOT / name).is_file()] == []


def test_every_version_has_its_date_the_newest_first() -> None:
    headings = re.findall(r"^## (.+)$", pages.text("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    versions = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert versions != []
    order = [(date.fromisoformat(match[4]), *map(int, match.groups()[:3])) for match in versions if match]
    assert len(order) == len(versions)
    assert order == sorted(order, reverse=True)


def test_the_version_is_the_same_wherever_it_is_said() -> None:
    project = tomllib.loads(pages.text("pyproject.toml"))["project"]["version"]
    newest = re.findall(r"^## \[(\d+\.\d+\.\d+)\] ", pages.text("CHANGELOG.md"), re.MULTILINE)[0]
    assert project == purgatory_udf.__version__ == newest
