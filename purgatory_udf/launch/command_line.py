"""The command line `spark-submit.sh [Spark's options] [JOB [options]]`, and the list of jobs.

It is parsed as spark-submit parses its own: the first word that is not an option is the job's name.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.secrets import read_properties

# spark-submit's options with a value, and its flags. The first other word is the job's name.
VALUE_OPTIONS = {
    "--archives",
    "--class",
    "--conf",
    "--deploy-mode",
    "--driver-class-path",
    "--driver-cores",
    "--driver-java-options",
    "--driver-library-path",
    "--driver-memory",
    "--exclude-packages",
    "--executor-cores",
    "--executor-memory",
    "--files",
    "--jars",
    "--keytab",
    "--kill",
    "--master",
    "--name",
    "--num-executors",
    "--packages",
    "--principal",
    "--properties-file",
    "--proxy-user",
    "--py-files",
    "--queue",
    "--remote",
    "--repositories",
    "--status",
    "--total-executor-cores",
}
# fmt: on
FLAG_OPTIONS = {"--load-spark-defaults", "--supervise", "--verbose"}
SHORT_OPTIONS = {"-c": "--conf", "-v": "--verbose", "-h": "--help"}

# Prints the completions for a shell, which are in `conf/completion`.
COMPLETION_OPTION = "--show-completion"
SHELLS = ("bash", "zsh", "fish")

# Configuration keys that have an option as well.
CONF_KEYS = {
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
    """The parsed command line.

    Spark's options are (option, value) pairs; without a job's name, `job` is None.
    """

    spark: tuple[tuple[str, str | None], ...] = ()
    job: str | None = None
    arguments: tuple[str, ...] = ()
    help: bool = False
    version: bool = False
    completion: str | None = None

    @property
    def verbose(self) -> bool:
        """Whether `--verbose` was given, before or after the job's name."""
        return ("--verbose", None) in self.spark or "--verbose" in self.arguments

    def settings(self, defaults: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's configuration: `defaults` overridden by these options, with spark-submit's precedence."""
        confs: dict[str, str] = {}
        options: dict[str, str] = {}
        file: dict[str, str] = {}
        for option, value in self.spark:
            if option == "--conf" and value:
                key, _, text = value.partition("=")
                confs[key] = text
            elif option == "--properties-file" and value:
                file = read_properties(Path(value))
            elif option in CONF_KEYS and value is not None:
                options[CONF_KEYS[option]] = value
        under = {} if file and ("--load-spark-defaults", None) not in self.spark else defaults
        return {**under, **file, **confs, **options}


def parse(words: Sequence[str]) -> CommandLine:
    """Parse the command line; raise UserError if Spark's options are invalid."""
    spark: list[tuple[str, str | None]] = []
    at = 0
    while at < len(words):
        word = words[at]
        option, equals, value = word.partition("=")
        option = SHORT_OPTIONS.get(option, option)
        at += 1
        if not word.startswith("-"):
            return CommandLine(tuple(spark), word, tuple(words[at:]))
        if word in ("--help", "-h"):
            return CommandLine(tuple(spark), help=True)
        if word == "--version":
            return CommandLine(tuple(spark), version=True)
        if option in FLAG_OPTIONS and not equals:
            spark.append((option, None))
        elif option in VALUE_OPTIONS or option == COMPLETION_OPTION:
            if not equals:
                if at == len(words):
                    raise UserError(f"{word}: its value is missing")
                value = words[at]
                at += 1
            if option == COMPLETION_OPTION:
                return CommandLine(tuple(spark), completion=value)
            if option == "--conf" and not re.match(r"[^=]+=", value):
                raise UserError(f"--conf {value}: expected key=value")
            spark.append((option, value))
        else:
            raise UserError(f"{word}: unknown option of spark-submit (options of a job follow the job's name)")
    return CommandLine(tuple(spark))


@dataclass(frozen=True)
class JobEntry:
    """A job: its name on the command line, and its file."""

    name: str
    file: Path

    @property
    def summary(self) -> str:
        """The first line of its documentation."""
        tree = ast.parse(self.file.read_text(encoding="utf-8"))
        mains = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "main"]
        text = (ast.get_docstring(mains[0]) if mains else None) or ast.get_docstring(tree) or ""
        return text.split("\n")[0].rstrip(".")


def list_jobs(root: Path) -> list[JobEntry]:
    """Return all jobs below the root, sorted by file name, without importing them."""
    files = (file for file in sorted((root / "jobs").glob("*.py")) if not file.name.startswith("_"))
    return [JobEntry(job_name(file), file) for file in files]


def completions(root: Path, shell: str) -> str:
    """Return the script that completes the command in a shell; raise UserError for an unknown shell."""
    if shell not in SHELLS:
        raise UserError(f"{COMPLETION_OPTION} {shell}: expected {', '.join(SHELLS)}")
    return (root / "conf" / "completion" / f"purgatory-replay.{shell}").read_text(encoding="utf-8")


def job_name(file: Path) -> str:
    """Return a job's name on the command line.

    A file must not have the name of a standard library module, which it would hide when Spark runs it as a
    script; a trailing underscore avoids that.
    """
    return file.stem.rstrip("_").replace("_", "-")


def find_job(root: Path, name: str) -> JobEntry:
    """Return the job of that name; raise UserError, with the closest name, if it does not exist."""
    known = {entry.name: entry for entry in list_jobs(root)}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"jobs are {', '.join(known)}"
    raise UserError(f"{name}: unknown job ({hint})")
