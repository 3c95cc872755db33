"""CONTRIBUTING.md names every place that a delayed operation touches; CHANGELOG.md has the date of each version."""

from __future__ import annotations

import os
import re
import tomllib
from datetime import date

import pytest
import yaml

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
    assert len(scripts) + len(modules) == 11
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


def test_workflow_and_hooks_call_existing_scripts() -> None:
    workflow = yaml.safe_load(pages.text(".github/workflows/ci.yml"))
    called = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert called[0] == ".ci/run"
    assert {".ci/docs", ".ci/nightly", ".ci/newest", ".ci/audit", ".ci/sbom"} <= set(called)
    assert [name for name in called if not os.access(pages.ROOT / name, os.X_OK)] == []
    (hooks,) = (repository["hooks"] for repository in yaml.safe_load(pages.text(".pre-commit-config.yaml"))["repos"])
    paths = [word for hook in hooks for word in hook["entry"].split() if word.startswith("tests/")]
    assert len(paths) == 2
    assert [path for path in paths if not (pages.ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        ("engine: index waiting fetches\n\nBecause lists are long.\n", True),
        ("README, docs: say less\n", True),
        ("index waiting fetches\n", False),
        ("engine: " + "index " * 12 + "\n", False),
        ("no scope\n\nbody: text\n", False),
    ],
)
def test_hook_checks_commit_subject(message: str, accepted: bool) -> None:
    (hooks,) = (repository["hooks"] for repository in yaml.safe_load(pages.text(".pre-commit-config.yaml"))["repos"])
    (pattern,) = (hook["entry"] for hook in hooks if hook["id"] == "commit-subject")
    # As pre-commit's pygrep with --multiline.
    assert bool(re.search(pattern, message, re.MULTILINE | re.DOTALL)) == accepted


def test_issue_templates_have_fields() -> None:
    templates = sorted((pages.ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))
    assert len(templates) == 3
    for template in templates:
        form = yaml.safe_load(template.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form), template
        assert any(field.get("validations", {}).get("required") for field in form["body"]), template
