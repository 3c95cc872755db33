"""The call of spark-submit that a command line stands for: arguments and environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.secrets import read_properties
from purgatory_udf.launch import jars as jars_module
from purgatory_udf.launch import package_archive, runtimes
from purgatory_udf.launch.class_archive import Archive, archive_for
from purgatory_udf.launch.command_line import CommandLine
from purgatory_udf.launch.jvm_process import SHELL
from purgatory_udf.launch.virtual_environment import say


@dataclass(frozen=True)
class Submission:
    """What is handed to the operating system, in place of this process or beside it."""

    # Spark's program with its options.
    spark: tuple[str, ...]
    # The job's file, and what it is given.
    job: tuple[str, ...]
    environ: dict[str, str]
    # Whether the job may as well be this process, with Spark's JVM beside it.
    apart: bool = False
    # Of the classes that it loads, where there can be one.
    archive: Archive | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """Spark starts the job."""
        return (*self.spark, *self.job)

    @property
    def beside(self) -> tuple[str, ...]:
        """The job is there, and calls Spark's JVM."""
        return (*self.spark, "--name", Path(self.job[0]).name, SHELL)


def runs_here(settings: Mapping[str, str]) -> bool:
    """Whether the job's own process runs on this machine, with these files."""
    return settings.get("spark.submit.deployMode", "client") != "cluster"


def is_local(settings: Mapping[str, str]) -> bool:
    """Whether the workers run on this machine as well, inside one process."""
    return settings.get("spark.master", "local[*]").startswith("local")


def prepare(
    root: Path,
    line: CommandLine,
    file: Path,
    environ: Mapping[str, str],
    more: Sequence[str] = (),
    making: Archive | None = None,
) -> Submission:
    """Everything between the words of the command line and spark-submit's own. `more`: files of settings that suit the
    job where it runs on this machine. `making`: what the call leaves at its end."""
    home = runtimes.find_spark(environ)
    settings = line.settings(runtimes.spark_defaults(home, environ))
    if "spark.master" not in settings:
        settings["spark.master"] = environ.get("MASTER", "local[*]")
    _require_possible(settings)
    packed = _packed(root, settings)
    # The tree, or what workers have unpacked, is found as files, with what is compiled beside them; a zip would stand
    # before it, and each worker compile for itself.
    shipped = [] if packed or is_local(settings) else [package_archive.build_bundle(root, root / ".venv" / "bundles")]
    jars = _delta_jars(home, settings, line, environ)
    # In one process there are no workers to send jars to; and what a JVM finds itself it may have in its archive.
    theirs, sent = settings.get("spark.driver.extraClassPath"), jars
    found: list[Path] = []
    if _is_one_process(settings):
        found, sent = jars, []
    archive = None if theirs or not found else _archive(root, home, found, environ)
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", settings["spark.master"]),
        *_local_defaults(root, settings, more),
        *_options(line),
        *_python_of(packed, settings, environ),
        *_joined("--py-files", settings.get("spark.submit.pyFiles"), shipped),
        *_joined("--jars", settings.get("spark.jars"), sent),
        *_joined("--driver-class-path", theirs, found, os.pathsep),
    ]
    job = (str(file), *line.arguments)
    classes = making.making() if making else archive.used() if archive else None
    given = _environment(root, home, settings, line, environ, packed, classes)
    return Submission(tuple(command), job, given, _is_apart(line, home, settings), archive)


def _is_apart(line: CommandLine, home: Path, settings: Mapping[str, str]) -> bool:
    """Whoever gives options to Spark, or has another one than ours, is given what Spark makes of it."""
    return not line.spark and not line.verbose and _is_one_process(settings) and runtimes.is_our_spark(home)


def _is_one_process(settings: Mapping[str, str]) -> bool:
    """`local-cluster` starts workers of its own."""
    return is_local(settings) and runs_here(settings) and not settings["spark.master"].startswith("local-cluster")


def _archive(root: Path, home: Path, jars: list[Path], environ: Mapping[str, str]) -> Archive | None:
    runtime = runtimes.java_behind(Path(environ["JAVA_HOME"])) if "JAVA_HOME" in environ else None
    return archive_for(root / ".venv" / "classes", runtime, home, jars, environ) if runtime else None


def _require_possible(settings: Mapping[str, str]) -> None:
    if settings["spark.master"].startswith("spark://") and not runs_here(settings):
        raise UserError(
            "--deploy-mode cluster: a standalone master runs no Python driver in the cluster, only client mode is "
            "possible with spark://; start the command on a machine that the workers can reach"
        )


def _packed(root: Path, settings: Mapping[str, str]) -> str | None:
    """The folder in which the workers find the environment that `package` made; None if none is sent along."""
    for archive in filter(None, settings.get("spark.archives", "").split(",")):
        file, _, folder = archive.partition("#")
        made_of = package_archive.sources_of(Path(file.removeprefix("file://")))
        if made_of is None:
            continue
        if made_of != package_archive.bundle_digest(package_archive.bundle_sources(root)):
            raise UserError(f"{file}: was made of other sources than these; make it anew: ./spark-submit.sh package")
        return folder or Path(file).name
    return None


def _python_of(packed: str | None, settings: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """A driver in the cluster is told by its configuration which Python it has."""
    if packed is None or runs_here(settings) or "PYSPARK_PYTHON" in environ or "spark.pyspark.python" in settings:
        return []
    return ["--conf", f"spark.pyspark.python=./{packed}/{package_archive.PYTHON}"]


_JOINED = ("--master", "--py-files", "--jars", "--driver-class-path")


def _options(line: CommandLine) -> list[str]:
    """The user's own options, but for those that are joined with ours."""
    kept = [pair for pair in line.spark if pair[0] not in _JOINED]
    return [word for pair in kept for word in pair if word is not None]


def _joined(option: str, given: str | None, ours: list[Path], between: str = ",") -> list[str]:
    values = [*filter(None, (given or "").split(between)), *map(str, ours)]
    return [option, between.join(values)] if values else []


def _local_defaults(root: Path, settings: Mapping[str, str], more: Sequence[str]) -> list[str]:
    """What suits one machine, where nobody has said otherwise."""
    if not is_local(settings):
        return []
    ours: dict[str, str] = {}
    for name in ("spark-local.conf", *more):
        ours |= read_properties(root / "conf" / name)
    return [word for key, value in ours.items() if key not in settings for word in ("--conf", f"{key}={value}")]


def _delta_jars(home: Path, settings: Mapping[str, str], line: CommandLine, environ: Mapping[str, str]) -> list[Path]:
    version = runtimes.spark_version(home) or runtimes.WANTED_SPARK
    if not version.startswith(runtimes.WANTED_SPARK):
        print(
            f"spark-submit.sh: warning: {home} is Spark {version}; this was written for and tested with Spark"
            f" {runtimes.WANTED_SPARK}",
            file=sys.stderr,
        )
    named = settings.get("spark.jars", "") + settings.get("spark.jars.packages", "")
    if "delta-spark" in named or runtimes.has_delta(home):
        return []
    ivy = Path(settings.get("spark.jars.ivy") or jars_module.ivy_home(environ))
    jars = jars_module.delta_cached(version, ivy)
    if jars is None:
        say(f"Fetching Delta Lake {jars_module.DELTA_VERSION} from Maven into {ivy} (once)")
        network = ("--repositories", "--properties-file", "--load-spark-defaults")
        options = [
            word
            for option, value in line.spark
            if option in network or (option == "--conf" and (value or "").startswith("spark.jars.ivy"))
            for word in (option, value)
            if word is not None
        ]
        jars = jars_module.fetch_delta(home, version, ivy, environ, options)
    return jars


def _environment(
    root: Path,
    home: Path,
    settings: Mapping[str, str],
    line: CommandLine,
    environ: Mapping[str, str],
    packed: str | None,
    classes: str | None,
) -> dict[str, str]:
    given = {**environ, "SPARK_HOME": str(home), "PURGATORY_HOME": str(root)}
    if (packed is not None or is_local(settings)) and runs_here(settings):
        # The driver has the tree itself, and so have workers on this machine.
        given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), environ.get("PYTHONPATH")]))
    if is_local(settings):
        # A JVM of dozens of threads, and its native parts, else keep some hundred megabytes of what they have freed.
        given.setdefault("MALLOC_ARENA_MAX", "2")
    # A cluster's workers and its drivers have a Python of their own, which the user names; here it is ours.
    if runs_here(settings):
        if "spark.pyspark.driver.python" not in settings:
            given.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if "spark.pyspark.python" not in settings:
            if is_local(settings):
                given.setdefault("PYSPARK_PYTHON", sys.executable)
            elif packed is not None:
                given.setdefault("PYSPARK_PYTHON", f"./{packed}/{package_archive.PYTHON}")
    quiet = None
    if line.verbose:
        given["PURGATORY_VERBOSE"] = "1"
    else:
        quiet = f"-Dlog4j2.configurationFile=file:{quote(str(root / 'conf' / 'log4j2.properties'))}"
    options = " ".join(filter(None, [environ.get("SPARK_SUBMIT_OPTS"), quiet, classes]))
    return given | ({"SPARK_SUBMIT_OPTS": options} if options else {})
