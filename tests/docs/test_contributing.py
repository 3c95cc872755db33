"""CONTRIBUTING.md names every place that a delayed operation touches; CHANGELOG.md has the date of each version."""

from __future__ import annotations

import re
import tomllib
from datetime import date

import purgatory_udf
from tests.docs import pages

# The smallest operation. A file that mentions it would probably have to mention a new operation, too.
SMALLEST = re.compile(r"delete_records|DELETE_RECORDS|DeleteRecords")


def _places() -> list[str]:
    tables = list(pages.tables(pages.text("CONTRIBUTING.md")))
    (places,) = ([row["where"] for row in table.rows] for table in tables if table.columns == ("what", "where"))
    return places


def _files_with_operation(*folders: str) -> list[str]:
    files = [
        file for folder in folders for file in (pages.ROOT / folder).rglob("*.*") if "__pycache__" not in file.parts
    ]
    return [
        str(file.relative_to(pages.ROOT))
        for file in files
        if file.suffix in (".py", ".yaml", ".md", ".json") and SMALLEST.search(file.read_text(encoding="utf-8"))
    ]


def test_page_names_every_place_of_operation() -> None:
    named = [name for place in _places() for name in re.findall(r"`([\w./-]+)`", place)]
    users = _files_with_operation("purgatory_udf", "jobs", "benchmarks", "conf", "docs")
    # Helpers of tests have to be named, tests of the operation itself do not.
    users += [file for file in _files_with_operation("tests") if "/test_" not in file]
    reference = "purgatory_udf/rules/reference/__init__.py"  # It only lists the files.
    assert len(users) > 30
    assert [file for file in users if not file.startswith(tuple(named)) and file != reference] == []
    assert [name for name in named if "/" in name and not (pages.ROOT / name).exists()] == []


def test_named_files_of_folder_are_complete() -> None:
    lists = [re.match(r"`(purgatory_udf/[\w/]+)` \(([^)]+)\)", place) for place in _places()]
    for folder, files in (match.groups() for match in lists if match and match[1].endswith("loop")):
        named = {f"{folder}/{name}" for name in re.findall(r"`(\w+\.py)`", files)}
        assert named == set(_files_with_operation(folder))


def test_regenerate_section_names_existing_scripts() -> None:
    section = pages.text("CONTRIBUTING.md").split("## Regenerate")[1]
    scripts = re.findall(r"python (tests/[\w/]+\.py)", section)
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"python -m ([\w.]+)", section)]
    assert len(scripts) + len(modules) == 6
    assert [name for name in (*scripts, *modules) if not (pages.ROOT / name).is_file()] == []


def test_versions_have_descending_dates() -> None:
    headings = re.findall(r"^## (.+)$", pages.text("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    versions = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert versions != []
    order = [(date.fromisoformat(match[4]), *map(int, match.groups()[:3])) for match in versions if match]
    assert len(order) == len(versions)
    assert order == sorted(order, reverse=True)


def test_version_is_same_everywhere() -> None:
    project = tomllib.loads(pages.text("pyproject.toml"))["project"]["version"]
    newest = re.findall(r"^## \[(\d+\.\d+\.\d+)\] ", pages.text("CHANGELOG.md"), re.MULTILINE)[0]
    assert project == purgatory_udf.__version__ == newest
