"""`spark-submit.sh [Spark's options] [JOB [options]]`, taken apart the way spark-submit itself does."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.secrets import read_properties

# spark-submit's options with a value, and those without; the rest of the line belongs to the job.
# fmt: off
VALUES = {
    "--archives", "--class", "--conf", "--deploy-mode", "--driver-class-path", "--driver-cores",
    "--driver-java-options", "--driver-library-path", "--driver-memory", "--exclude-packages", "--executor-cores",
    "--executor-memory", "--files", "--jars", "--keytab", "--kill", "--master", "--name", "--num-executors",
    "--packages", "--principal", "--properties-file", "--proxy-user", "--py-files", "--queue", "--remote",
    "--repositories", "--status", "--total-executor-cores",
}
# fmt: on
SWITCHES = {"--load-spark-defaults", "--supervise", "--verbose"}
SHORT = {"-c": "--conf", "-v": "--verbose", "-h": "--help"}

# These have an option of their own beside their configuration key.
KEYS = {
    "--archives": "spark.archives",
    "--master": "spark.master",
    "--deploy-mode": "spark.submit.deployMode",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
    "--py-files": "spark.submit.pyFiles",
}


@dataclass(frozen=True)
class CommandLine:
    """What was asked: Spark's options as (option, value) pairs, the job (None: not named), and the job's arguments."""

    spark: tuple[tuple[str, str | None], ...] = ()
    job: str | None = None
    arguments: tuple[str, ...] = ()
    help: bool = False
    version: bool = False

    @property
    def verbose(self) -> bool:
        return ("--verbose", None) in self.spark or "--verbose" in self.arguments

    def settings(self, defaults: Mapping[str, str]) -> dict[str, str]:
        """Spark's configuration as these options make it, over `defaults`, in spark-submit's order of precedence."""
        confs: dict[str, str] = {}
        options: dict[str, str] = {}
        file: dict[str, str] = {}
        for option, value in self.spark:
            if option == "--conf" and value:
                key, _, text = value.partition("=")
                confs[key] = text
            elif option == "--properties-file" and value:
                file = read_properties(Path(value))
            elif option in KEYS and value is not None:
                options[KEYS[option]] = value
        under = {} if file and ("--load-spark-defaults", None) not in self.spark else defaults
        return {**under, **file, **confs, **options}


def parse(words: Sequence[str]) -> CommandLine:
    """Split the line at the job's name; a mistake in Spark's part is a UserError."""
    spark: list[tuple[str, str | None]] = []
    at = 0
    while at < len(words):
        word = words[at]
        option, equals, value = word.partition("=")
        option = SHORT.get(option, option)
        at += 1
        if not word.startswith("-"):
            return CommandLine(tuple(spark), word, tuple(words[at:]))
        if word in ("--help", "-h"):
            return CommandLine(tuple(spark), help=True)
        if word == "--version":
            return CommandLine(tuple(spark), version=True)
        if option in SWITCHES and not equals:
            spark.append((option, None))
        elif option in VALUES:
            if not equals:
                if at == len(words):
                    raise UserError(f"{word}: expected a value after it")
                value = words[at]
                at += 1
            if option == "--conf" and not re.match(r"[^=]+=", value):
                raise UserError(f"--conf {value}: expected key=value")
            spark.append((option, value))
        else:
            raise UserError(f"{word}: no option of spark-submit (a job's own options stand after its name)")
    return CommandLine(tuple(spark))


# The jobs there are, read off the files of `jobs/` without importing any.


@dataclass(frozen=True)
class JobEntry:
    """A job's name on the command line, its file, and the first line of what it says of itself."""

    name: str
    file: Path
    summary: str


def jobs(root: Path) -> list[JobEntry]:
    """Every job of the tree, by name."""
    files = (file for file in sorted((root / "jobs").glob("*.py")) if not file.name.startswith("_"))
    return [JobEntry(name_of(file), file, _summary(file)) for file in files]


def name_of(file: Path) -> str:
    """A job's name on the command line. No file is called as a module of Python's own: it would stand in for that
    wherever a job is started as a script, as Spark does it; so one has an underscore behind its name."""
    return file.stem.rstrip("_").replace("_", "-")


def find_job(root: Path, name: str) -> JobEntry:
    """The job of that name; a UserError names the nearest one if there is none."""
    known = {entry.name: entry for entry in jobs(root)}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise UserError(f"{name}: unknown job ({hint})")


def _summary(file: Path) -> str:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
    said = (ast.get_docstring(mains[0]) if mains else None) or ast.get_docstring(tree) or ""
    return said.split("\n")[0].rstrip(".")
