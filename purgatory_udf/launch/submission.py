"""The spark-submit call for a command line: arguments, environment and standard streams."""

from __future__ import annotations

import atexit
import fcntl
import io
import os
import re
import stat
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.installation import COMMAND, PROGRAM, import_folder, made_files
from purgatory_udf.common.secrets import read_properties
from purgatory_udf.launch import jars as jars_module
from purgatory_udf.launch import package_archive, runtimes
from purgatory_udf.launch.command_line import CommandLine
from purgatory_udf.launch.jvm import JVM_OPTION_VARIABLES, PYSPARK_SHELL, ClassArchive, StartRecord, class_archive_for
from purgatory_udf.launch.runtimes import report_progress


@dataclass(frozen=True)
class Submission:
    """The command that runs a job, in place of this process or as its child."""

    # spark-submit with its options.
    spark_command: tuple[str, ...]
    # The job's file with its arguments.
    job_command: tuple[str, ...]
    environ: dict[str, str]
    # Whether the job can run in this process, with Spark's JVM as a child.
    separate_jvm: bool = False
    # The archive of the classes that the JVM loads, if one is possible.
    class_archive: ClassArchive | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """The command with which Spark starts the job."""
        return (*self.spark_command, *self.job_command)

    @property
    def jvm_command(self) -> tuple[str, ...]:
        """The command with which the job starts Spark's JVM."""
        return (*self.spark_command, "--name", Path(self.job_command[0]).name, PYSPARK_SHELL)

    @property
    def start_record(self) -> StartRecord | None:
        """The record of the JVM's own command; None before there is a class archive."""
        if self.class_archive is None or self.class_archive.find() is None:
            return None
        return StartRecord.of(self.class_archive, self.jvm_command, self.environ)


def is_client_mode(settings: Mapping[str, str]) -> bool:
    """Return whether the driver runs on this machine."""
    return settings.get("spark.submit.deployMode", "client") != "cluster"


def has_local_master(settings: Mapping[str, str]) -> bool:
    """Return whether the executors run on this machine too, in the driver's process or as its children."""
    return settings.get("spark.master", "local[*]").startswith("local")


def prepare(
    root: Path,
    line: CommandLine,
    file: Path,
    environ: Mapping[str, str],
    settings_files: Sequence[str] = (),
    creating: ClassArchive | None = None,
) -> Submission:
    """Return the spark-submit call for a command line.

    Args:
        root: The folder with the jobs and the settings.
        line: The parsed command line.
        file: The job's file.
        environ: The environment of the call.
        settings_files: Names of further settings files in conf/, applied if the job runs on this machine.
        creating: The class archive that the call creates at its end.
    """
    home = runtimes.find_spark(environ)
    settings = line.settings(runtimes.spark_defaults(home, environ))
    if "spark.master" not in settings:
        settings["spark.master"] = environ.get("MASTER", "local[*]")
    _require_supported(settings)
    packed = _packed_environment(root, settings)
    # Sources are used as files if workers have them, because compiled code is stored next to the files. A zip would
    # take precedence, and each worker would compile it again.
    is_shipped = not packed and not has_local_master(settings)
    shipped = [package_archive.build_bundle(root, made_files(root) / "bundles")] if is_shipped else []
    jars = _delta_jars(home, settings, line, environ)
    # Within one process no jars have to be sent. Jars on the JVM's own class path can be in its class archive.
    user_class_path, sent = settings.get("spark.driver.extraClassPath"), jars
    found: list[Path] = []
    if _is_one_process(settings):
        found, sent = jars, []
    archive = None if user_class_path or not found else _class_archive(root, home, found, environ)
    command = [
        str(home / "bin" / "spark-submit"),
        *("--master", settings["spark.master"]),
        *_local_defaults(root, settings, settings_files, environ),
        *_user_options(line),
        *_python_options(packed, settings, environ),
        *_merged_option("--py-files", settings.get("spark.submit.pyFiles"), shipped),
        *_merged_option("--jars", settings.get("spark.jars"), sent),
        *_merged_option("--driver-class-path", user_class_path, found, os.pathsep),
    ]
    job = (str(file), *line.arguments)
    classes = creating.creation_options() if creating else archive.jvm_options() if archive else None
    given = _environment(root, home, settings, line, environ, packed, classes)
    return Submission(tuple(command), job, given, _can_separate_jvm(line, home, settings), archive)


def _can_separate_jvm(line: CommandLine, home: Path, settings: Mapping[str, str]) -> bool:
    """Return whether the job may start the JVM itself: with the bundled Spark, in one process.

    Other options of Spark may concern the job's Python process, which spark-submit then has to start.
    """
    is_plain = all(option in _JVM_ONLY_OPTIONS for option, _ in line.spark) and not line.verbose
    return is_plain and _is_one_process(settings) and runtimes.is_bundled_spark(home)


def _is_one_process(settings: Mapping[str, str]) -> bool:
    """Return whether driver and executors are one process; `local-cluster` starts executors as processes."""
    in_driver = has_local_master(settings) and not settings["spark.master"].startswith("local-cluster")
    return in_driver and is_client_mode(settings)


def _class_archive(root: Path, home: Path, jars: list[Path], environ: Mapping[str, str]) -> ClassArchive | None:
    runtime = runtimes.wrapped_java(Path(environ["JAVA_HOME"])) if "JAVA_HOME" in environ else None
    return class_archive_for(made_files(root) / "classes", runtime, home, jars, environ) if runtime else None


def _require_supported(settings: Mapping[str, str]) -> None:
    if settings["spark.master"].startswith("spark://") and not is_client_mode(settings):
        raise UserError(
            "--deploy-mode cluster: a standalone master cannot run a Python driver; use client mode with spark://, on "
            "a machine that the workers can reach"
        )


def _packed_environment(root: Path, settings: Mapping[str, str]) -> str | None:
    """Return the folder in which workers unpack the archive from `package`; None if no such archive is sent.

    Raises:
        UserError: The archive was created from other sources.
    """
    for archive in filter(None, settings.get("spark.archives", "").split(",")):
        file, _, folder = archive.partition("#")
        made_of = package_archive.source_digest_of(Path(file.removeprefix("file://")))
        if made_of is None:
            continue
        if made_of != package_archive.bundle_digest(package_archive.bundle_sources(root)):
            raise UserError(f"{file}: was created from other sources; create it again with {COMMAND} package")
        return folder or Path(file).name
    return None


def _python_options(packed: str | None, settings: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the option by which a driver in the cluster uses the Python in `packed`, the unpacked archive.

    Returns no option if there is no archive, if the driver runs on this machine, or if the user has set the Python.
    """
    if packed is None or is_client_mode(settings) or "PYSPARK_PYTHON" in environ or "spark.pyspark.python" in settings:
        return []
    return ["--conf", f"spark.pyspark.python=./{packed}/{package_archive.PYTHON}"]


_JVM_OPTIONS = "spark.driver.extraJavaOptions"
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b *")
_JVM_ONLY_OPTIONS = ("--master", "--driver-memory")
_MERGED_OPTIONS = ("--master", "--py-files", "--jars", "--driver-class-path")


def _user_options(line: CommandLine) -> list[str]:
    """Return the user's Spark options, except options that are merged with the launcher's."""
    user_options = [pair for pair in line.spark if pair[0] not in _MERGED_OPTIONS]
    return [word for pair in user_options for word in pair if word is not None]


def _merged_option(option: str, given: str | None, defaults: list[Path], between: str = ",") -> list[str]:
    values = [*filter(None, (given or "").split(between)), *map(str, defaults)]
    return [option, between.join(values)] if values else []


def _local_defaults(
    root: Path, settings: Mapping[str, str], settings_files: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the words `--conf KEY=VALUE` of the defaults for one machine that the user has not set.

    A JVM does not start with two garbage collectors, so one that the environment selects replaces that of the defaults.
    """
    if not has_local_master(settings):
        return []
    defaults: dict[str, str] = {}
    for name in ("spark-local.conf", *settings_files):
        defaults |= read_properties(root / "conf" / name)
    if any(_COLLECTOR.search(environ.get(name, "")) for name in JVM_OPTION_VARIABLES) and _JVM_OPTIONS in defaults:
        defaults[_JVM_OPTIONS] = _COLLECTOR.sub("", defaults[_JVM_OPTIONS]).strip()
    return [word for key, value in defaults.items() if key not in settings for word in ("--conf", f"{key}={value}")]


def _delta_jars(home: Path, settings: Mapping[str, str], line: CommandLine, environ: Mapping[str, str]) -> list[Path]:
    version = runtimes.spark_version(home) or runtimes.SUPPORTED_SPARK
    if not version.startswith(runtimes.SUPPORTED_SPARK):
        print(
            f"{PROGRAM}: warning: {home} is Spark {version}; only Spark {runtimes.SUPPORTED_SPARK} is tested",
            file=sys.stderr,
        )
    named = settings.get("spark.jars", "") + settings.get("spark.jars.packages", "")
    if "delta-spark" in named or runtimes.has_delta(home):
        return []
    ivy = Path(settings.get("spark.jars.ivy") or jars_module.ivy_home(environ))
    jars = jars_module.cached_delta_jars(version, ivy)
    if jars is None:
        report_progress(f"Fetching Delta Lake {jars_module.DELTA_VERSION} from Maven into {ivy} (once)")
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
    if (packed is not None or has_local_master(settings)) and is_client_mode(settings):
        # The driver and the workers on this machine import from here.
        given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(import_folder(root)), environ.get("PYTHONPATH")]))
    if has_local_master(settings):
        # Limits malloc's arenas: with one per thread, a JVM keeps several hundred megabytes of freed native memory.
        given.setdefault("MALLOC_ARENA_MAX", "2")
    # In a cluster, drivers and workers have their own Python, which the user configures; here it is ours.
    if is_client_mode(settings):
        if "spark.pyspark.driver.python" not in settings:
            given.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if "spark.pyspark.python" not in settings:
            if has_local_master(settings):
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


# Spark connects both of a job's streams to one pipe and copies that to its own stdout, so errors would be mixed with
# results, and a terminal could not be detected. On Linux the job opens the streams of the JVM instead: those of the
# process that this variable names.
OFFER_VARIABLE = "PURGATORY_STREAMS_OF"
_BOTH = (1, 2)


def offer_streams(environ: MutableMapping[str, str]) -> None:
    """Offer the standard streams of this process to the job. The process that becomes the JVM calls this."""
    environ[OFFER_VARIABLE] = str(os.getpid())
    for stream in _BOTH:
        # The job opens a regular file a second time, with its own position; in append mode neither overwrites the
        # other.
        if stat.S_ISREG(os.fstat(stream).st_mode):
            fcntl.fcntl(stream, fcntl.F_SETFL, fcntl.fcntl(stream, fcntl.F_GETFL) | os.O_APPEND)


def end_process(status: int) -> NoReturn:
    """Run the exit handlers and end the process at once.

    Freeing its memory first would take a sixth of a small job's time. And threads of libraries still run then: some
    abort the process if they write or end at that moment.
    """
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # The interpreter reports it.
        sys.exit(status)
    os._exit(status)


def prepare_streams() -> None:
    """Connect closed standard streams to /dev/null, and escape characters that the encoding of an output lacks."""
    for stream in range(3):
        try:
            os.fstat(stream)
        except OSError:
            # The lowest free descriptor is this stream's; later files would otherwise get it, and the job's output.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, stream in zip(("stdout", "stderr"), _BOTH, strict=True):
        output = getattr(sys, name)
        if output is None:
            setattr(sys, name, os.fdopen(stream, "w", encoding="utf-8", errors="backslashreplace", closefd=False))
        elif isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="backslashreplace")


def take_streams(environ: Mapping[str, str] = os.environ) -> None:
    """Use the parent's standard streams, if the parent has offered them and they can be opened. The job calls this."""
    parent = os.getppid()
    if environ.get(OFFER_VARIABLE) != str(parent):
        return
    try:
        taken = [os.open(f"/proc/{parent}/fd/{stream}", os.O_WRONLY | os.O_APPEND) for stream in _BOTH]
    except OSError:
        return
    sys.stdout.flush()
    for stream, descriptor in zip(_BOTH, taken, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
