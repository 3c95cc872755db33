"""Commands and modules that pages show exist, with the shown options."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex

import pytest

from purgatory_udf.launch import command_line
from purgatory_udf.launch import command_line as command_line_module
from tests.docs import pages


def _shown(page: str, program: str) -> list[list[str]]:
    """Return the words after the program's name in each line of the page's shell blocks."""
    shell = "\n".join(pages.blocks(page, "bash")).replace("\\\n", " ")
    lines = re.findall(rf"{re.escape(program)}(.*)", shell)
    words = [shlex.split(line, comments=True) for line in lines]
    return [[word for word in line if word not in {"…", "&"}] for line in words]


COMMANDS = [
    pytest.param(words, id=f"{name}: {' '.join(words)}")
    for name in pages.NAMES
    for words in _shown(pages.text(name), "./spark-submit.sh")
    if command_line.parse(words).job
]
MODULES = sorted(
    {
        module
        for name in pages.NAMES
        for module in re.findall(r"python -m ((?:purgatory_udf|benchmarks|jobs|tests)[\w.]*)", pages.text(name))
    }
)


def test_readme_shows_main_commands_in_order() -> None:
    shown = [command_line.parse(words) for words in _shown(pages.text("README.md"), "./spark-submit.sh")]
    jobs = [line.job for line in shown if line.job]
    assert shown[0].job is None
    assert list(dict.fromkeys(jobs))[:5] == ["ingest", "replay", "diagnose", "explain", "metrics"]
    assert {"audit", "report", "fidelity", "what-if"} <= set(jobs)


@pytest.mark.parametrize("words", COMMANDS)
def test_shown_command_exists_with_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = command_line.parse(words)
    entry = command_line_module.find_job(pages.ROOT, line.job or "")
    job = importlib.import_module(f"jobs.{entry.file.stem}").main
    # A page may shorten a command ("replay …"); missing options are then no error.
    ended = job.check([*line.arguments] if line.arguments else ["--help"], local=False)
    error = capsys.readouterr().err
    assert (job.name, ended in (None, 0), error) == (entry.name, True, ""), error


@pytest.mark.parametrize("entry", command_line_module.list_jobs(pages.ROOT), ids=lambda entry: str(entry.name))
def test_option_with_least_value_has_greatest_value(entry: command_line_module.JobEntry) -> None:
    """Integers of more than 64 bits, and times that overflow when they are converted, fail far from the option."""
    parameters = importlib.import_module(f"jobs.{entry.file.stem}").main.parameters()
    bounds = {each.name: (getattr(each, "min", None), getattr(each, "max", None)) for each in parameters}
    assert [name for name, (least, greatest) in bounds.items() if (least is None) != (greatest is None)] == []


@pytest.mark.parametrize("module", MODULES)
def test_shown_module_exists(module: str) -> None:
    assert importlib.util.find_spec(module) is not None
