"""Parsing `spark-submit.sh [Spark's options] [JOB [options]]`, and finding jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from purgatory_udf.common import secrets
from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import command_line
from purgatory_udf.launch.command_line import CommandLine, parse


def test_job_name_separates_options() -> None:
    words = ["--master", "yarn", "-c", "a.b=1 2", "--supervise", "--jars=x.jar", "replay", "--out", "o", "--master"]
    assert parse(words) == CommandLine(
        spark=(("--master", "yarn"), ("--conf", "a.b=1 2"), ("--supervise", None), ("--jars", "x.jar")),
        job="replay",
        arguments=("--out", "o", "--master"),
    )


def test_job_is_optional() -> None:
    assert parse([]) == CommandLine()
    assert parse(["--master", "local[4]"]) == CommandLine(spark=(("--master", "local[4]"),))


def test_help_before_and_after_job() -> None:
    assert parse(["--help"]).help
    assert parse(["replay", "--help"]) == CommandLine(job="replay", arguments=("--help",))


@pytest.mark.parametrize("words", [["--verbose", "audit"], ["-v", "audit"], ["audit", "--out", "o", "--verbose"]])
def test_verbose_before_or_after_job(words: list[str]) -> None:
    assert parse(words).verbose


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "o"], "--out: unknown option of spark-submit (options of a job follow the job's name)"),
        (["--master"], "--master: its value is missing"),
        (["--conf", "demo"], "--conf demo: expected key=value"),
        (
            ["--supervise=yes"],
            "--supervise=yes: unknown option of spark-submit (options of a job follow the job's name)",
        ),
    ],
)
def test_mistake_in_spark_options_is_reported(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse(words)
    assert str(raised.value) == message


def test_precedence_of_spark_settings(tmp_path: Path) -> None:
    file = tmp_path / "my.conf"
    file.write_text("# mine\nspark.master   yarn\nspark.a=file\nspark.b: file with blanks \n\n", encoding="utf-8")
    words = ["--properties-file", str(file), "--conf", "spark.a=conf", "--master", "local[2]"]
    defaults = {"spark.c": "default", "spark.a": "default"}
    expected = {"spark.master": "local[2]", "spark.a": "conf", "spark.b": "file with blanks"}
    assert parse(words).settings(defaults) == expected
    assert parse([*words, "--load-spark-defaults"]).settings(defaults) == {**expected, "spark.c": "default"}
    assert parse(["--conf", "spark.a=conf"]).settings(defaults) == {"spark.a": "conf", "spark.c": "default"}


def test_missing_properties_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.conf: cannot be read: No such file or directory"):
        secrets.read_properties(tmp_path / "none.conf")


def _tree(root: Path) -> Path:
    (root / "jobs").mkdir()
    (root / "jobs" / "__init__.py").write_text('"""Jobs."""\n')
    (root / "jobs" / "what_if.py").write_text('"""Module."""\ndef main():\n    """Compare runs.\n\n    More."""\n')
    (root / "jobs" / "audit.py").write_text('"""Check the invariants."""\nimport missing_module\n')
    return root


def test_no_job_hides_standard_library_module() -> None:
    entries = command_line.list_jobs(Path(__file__).parents[2])
    assert [entry.file.stem for entry in entries if entry.file.stem in sys.stdlib_module_names] == []
    assert [entry.name for entry in entries if entry.name in sys.stdlib_module_names] == ["inspect"]


def test_jobs_are_listed_without_import(tmp_path: Path) -> None:
    listed = [(entry.name, entry.file.name, entry.summary) for entry in command_line.list_jobs(_tree(tmp_path))]
    assert listed == [("audit", "audit.py", "Check the invariants"), ("what-if", "what_if.py", "Compare runs")]


def test_unknown_job_suggests_closest_name(tmp_path: Path) -> None:
    root = _tree(tmp_path)
    with pytest.raises(UserError, match=r"^adit: unknown job \(did you mean audit\?\)$"):
        command_line.find_job(root, "adit")
    with pytest.raises(UserError, match=r"^xyz: unknown job \(jobs are audit, what-if\)$"):
        command_line.find_job(root, "xyz")


def test_every_job_has_a_summary() -> None:
    root = Path(__file__).resolve().parents[2]
    assert [entry.name for entry in command_line.list_jobs(root) if not 10 < len(entry.summary) < 110] == []
