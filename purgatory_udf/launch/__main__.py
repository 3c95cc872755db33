"""The commands `spark-submit.sh` and `purgatory-replay`: from the command line to a running job.

`spark-submit.sh` runs in the virtual environment of its source tree and sets that up; `purgatory-replay` runs in the
environment in which it is installed.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import purgatory_udf
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.common.installation import COMMAND, PROGRAM, ROOT, job_module
from purgatory_udf.common.local_files import pipes_read
from purgatory_udf.launch import command_line, jvm, runtimes, submission
from purgatory_udf.launch import command_line as command_line_module
from purgatory_udf.launch.backend_choice import TINY, open_local, postpone_pandas, runs_in_process
from purgatory_udf.launch.command_line import CommandLine
from purgatory_udf.launch.jvm import ClassArchive, create_in_background
from purgatory_udf.launch.runtimes import VirtualEnvironment, report_progress
from purgatory_udf.launch.submission import Submission

if TYPE_CHECKING:
    from purgatory_udf.launch.job import Job

DEFAULT_JOB = "demo"

# Number of new objects after which Python searches for unused cycles of objects. The imports of a job create about
# 100,000 objects, which stay; with Python's own threshold, the searches take 7 % of the CPU time of a small replay.
_COLLECTION_THRESHOLD = 100_000

USAGE = """\
Usage: {command} [Spark's options] [JOB [options]]

Without a JOB, the demo runs: it replays a bundled sample trace and summarizes the result.

Jobs:
{jobs}

  {command} JOB --help        shows a job's options and their defaults
  {command} --verbose JOB …   also shows Spark's log
  {command} --show-completion SHELL   prints completions for bash, zsh or fish

Spark's options (--master, --conf, --deploy-mode, --driver-memory, --properties-file, …) are those of spark-submit.
The environment variable SPARK_HOME selects another Spark than the installed one, and JAVA_HOME another Java than the
one on PATH.

Exit status: 0 success; 1 an invariant or a limit is violated; 2 unusable options or input; 3 any other failure."""


def main(words: Sequence[str], enter_environment: bool = True) -> int:
    """Run the command line; return only if no process replaces this one.

    Args:
        words: The command line.
        enter_environment: Whether to set up the source tree's virtual environment and continue in it.
    """
    gc.set_threshold(_COLLECTION_THRESHOLD)
    # The linear algebra of numpy is not used, but its import starts a thread per core, which spins for 0.1 s.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    submission.prepare_streams()
    try:
        line = command_line.parse(words)
        if line.version:
            print(f"Purgatory Replay {purgatory_udf.__version__}")
            return 0
        if line.completion is not None:
            print(command_line.completions(ROOT, line.completion), end="")
            return 0
        if line.help or line.job == "help":
            entries = command_line_module.list_jobs(ROOT)
            width = max(len(entry.name) for entry in entries)
            jobs = "\n".join(f"  {entry.name:<{width}}  {entry.summary}" for entry in entries)
            print(USAGE.format(command=COMMAND, jobs=jobs), flush=True)
            return 0
        entry = command_line_module.find_job(ROOT, line.job or DEFAULT_JOB)
        if enter_environment:
            _enter_environment()
        return _run(line, entry)
    except UserError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output closed it (`… --help | head`): avoid an error when Python flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run_installed() -> NoReturn:
    """Run the command line of this process in its environment: the console script `purgatory-replay`."""
    submission.end_process(main(sys.argv[1:], enter_environment=False))


def _enter_environment() -> None:
    """Set up the virtual environment if necessary, and continue with its Python."""
    environment = VirtualEnvironment(ROOT)
    environment.set_up("run")
    if not environment.is_active():
        try:
            os.execv(environment.python, [str(environment.python), *sys.orig_argv[1:]])
        except OSError as error:
            raise UserError(
                f"{environment.python}: cannot be executed: {error.strerror}; use a clone of your own, or delete .venv"
            ) from None


def _run(line: CommandLine, entry: command_line_module.JobEntry) -> int:
    job: Job = importlib.import_module(job_module(entry.file.stem)).main
    has_spark = runtimes.has_spark(os.environ)
    defaults = runtimes.spark_defaults(runtimes.find_spark(os.environ), os.environ) if has_spark else {}
    settings = line.settings(defaults)
    ended: int | None = job.check(line.arguments, submission.is_client_mode(settings))
    if ended is not None:
        return ended
    if not job.spark:
        return job.status(line.arguments)
    reason = ""
    is_small = runs_in_process(job.inputs, job.outputs, job.max_local_bytes, bool(line.spark), settings, os.environ)
    if is_small or (job.spark_is_optional and not has_spark and not line.spark):
        postpone_pandas()
        try:
            return job.status(line.arguments, open_local)
        except NeedsSparkError as error:
            reason = str(error)
    if not has_spark:
        needs = f"{reason}; this needs Spark" if reason else f"{entry.name} needs Spark"
        raise UserError(f"{needs}, which is not installed: {runtimes.INSTALL_SPARK}")
    _set_java_home(os.environ)
    call = submission.prepare(ROOT, line, entry.file, os.environ, job.settings)
    if call.class_archive and call.class_archive.should_create():
        _create_archive_in_background(call.class_archive)
    if call.separate_jvm:
        jvm.start(call.jvm_command, call.environ, call.start_record)
        return job.status(line.arguments)
    for pipe in pipes_read():
        raise UserError(f"{pipe}: is a pipe, which Spark's processes cannot read; write its contents to a file first")
    return _replace_process(call)


def _create_archive_in_background(archive: ClassArchive) -> None:
    """Create the class archive by a run of the demo, which loads nearly all classes that jobs need.

    The demo runs on this machine, even if `MASTER` names a cluster.
    """
    out = ("--out", str(archive.draft / "demo"))
    line = CommandLine(spark=(("--master", "local[*]"),), job=DEFAULT_JOB, arguments=out)
    demo = submission.prepare(
        ROOT, line, command_line_module.find_job(ROOT, DEFAULT_JOB).file, os.environ, TINY, archive
    )
    create_in_background(archive, demo.command, demo.environ)


def _replace_process(call: Submission) -> NoReturn:
    """Replace this process by spark-submit, so that signals and the exit status are Spark's."""
    sys.stdout.flush()
    sys.stderr.flush()
    submission.offer_streams(call.environ)
    os.execve(call.command[0], call.command, call.environ)


def _set_java_home(environ: MutableMapping[str, str]) -> None:
    runtime = runtimes.find_java(environ)
    if runtime is None and VirtualEnvironment(ROOT).is_active():
        VirtualEnvironment(ROOT).set_up("java")
        importlib.invalidate_caches()
        runtime = runtimes.find_java(environ)
    if runtime is None:
        raise UserError("Java 17 or newer is required: set JAVA_HOME, or pip install 'purgatory-replay[java]'")
    if environ.get("JAVA_HOME") and not runtime.is_relative_to(environ["JAVA_HOME"]):
        report_progress(f"JAVA_HOME={environ['JAVA_HOME']} is not Java 17 or newer; using {runtime}")
    environ["JAVA_HOME"] = str(runtimes.wrapper_java_home(runtime))


if __name__ == "__main__":
    submission.end_process(main(sys.argv[1:]))
