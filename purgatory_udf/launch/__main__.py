"""From `spark-submit.sh` to Spark's own: understand the line, get ready, check the job's options, submit."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import purgatory_udf
from purgatory_udf.backend.dialect import locally
from purgatory_udf.backend.input_size import TINY
from purgatory_udf.common.errors import NeedsSparkError, UserError
from purgatory_udf.launch import command_line, jvm_process, runtimes, standard_streams, submission
from purgatory_udf.launch import command_line as command_line_module
from purgatory_udf.launch.class_archive import Archive, make_afterwards
from purgatory_udf.launch.command_line import CommandLine
from purgatory_udf.launch.submission import Submission
from purgatory_udf.launch.virtual_environment import Environment, say

if TYPE_CHECKING:
    from purgatory_udf.launch.job import Job

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_JOB = "demo"

USAGE = """\
Usage: ./spark-submit.sh [Spark's options] [JOB [options]]

Without a JOB: the demo, a bundled sample trace replayed and summed up.

Jobs:
{jobs}

  ./spark-submit.sh JOB --help        explains a job's options with their defaults
  ./spark-submit.sh --verbose JOB …   shows Spark's own log as well

Spark's options (--master, --conf, --deploy-mode, --driver-memory, --properties-file, …) are those of spark-submit.
SPARK_HOME names another Spark than the one installed in .venv; JAVA_HOME another Java than the one on PATH.

Exit status: 0 done; 1 a law or a limit does not hold; 2 the options or the input cannot be used; 3 anything else."""


def main(words: Sequence[str]) -> int:
    """Do what the line says; returns only if nothing is to be submitted."""
    try:
        line = command_line.parse(words)
        if line.version:
            print(f"Purgatory Replay {purgatory_udf.__version__}")
            return 0
        if line.help or line.job == "help":
            entries = command_line_module.jobs(ROOT)
            width = max(len(entry.name) for entry in entries)
            print(
                USAGE.format(jobs="\n".join(f"  {entry.name:<{width}}  {entry.summary}" for entry in entries)),
                flush=True,
            )
            return 0
        entry = command_line_module.find_job(ROOT, line.job or DEFAULT_JOB)
        _enter_environment()
        return _run(line, entry)
    except UserError as error:
        print(f"spark-submit.sh: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `… --help | head`: what Python flushes at its end must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _enter_environment() -> None:
    """Go on inside the tree's own environment, which is made first if need be."""
    environment = Environment(ROOT)
    environment.set_up("run")
    if not environment.folder.samefile(sys.prefix):
        os.execv(environment.python, [str(environment.python), *sys.orig_argv[1:]])


def _run(line: CommandLine, entry: command_line_module.JobEntry) -> int:
    job: Job = importlib.import_module(f"jobs.{entry.file.stem}").main
    settings = line.settings(runtimes.spark_defaults(runtimes.find_spark(os.environ), os.environ))
    ended: int | None = job.check(line.arguments, submission.runs_here(settings))
    if ended is not None:
        return ended
    if not job.spark:
        return job.status(line.arguments)
    # Who gives options to Spark, or has told it where to run, wants Spark to do it.
    if (
        job.near
        and not line.spark
        and submission.is_local({"spark.master": os.environ.get("MASTER", "local"), **settings})
    ):
        with contextlib.suppress(NeedsSparkError), locally():
            return job.status(line.arguments)
    _take_java(os.environ)
    call = submission.prepare(ROOT, line, entry.file, os.environ, job.settings)
    if call.archive and call.archive.wanted():
        _archive_afterwards(call.archive)
    if call.apart:
        jvm_process.begin(call.beside, call.environ)
        return job.status(line.arguments)
    return _become(call)


def _archive_afterwards(archive: Archive) -> None:
    """The demo loads what nearly every job does; here, whatever `MASTER` says of other jobs."""
    out = ("--out", str(archive.draft / "demo"))
    line = CommandLine(spark=(("--master", "local[*]"),), job=DEFAULT_JOB, arguments=out)
    demo = submission.prepare(
        ROOT, line, command_line_module.find_job(ROOT, DEFAULT_JOB).file, os.environ, TINY, archive
    )
    make_afterwards(archive, demo.command, demo.environ)


def _become(call: Submission) -> NoReturn:
    """Signals and the exit status are then Spark's own: nobody stands between."""
    sys.stdout.flush()
    sys.stderr.flush()
    standard_streams.offer(call.environ)
    os.execve(call.command[0], call.command, call.environ)


def _take_java(environ: MutableMapping[str, str]) -> None:
    runtime = runtimes.find_java(environ)
    if runtime is None:
        Environment(ROOT).set_up("java")
        importlib.invalidate_caches()
        runtime = runtimes.find_java(environ)
    if runtime is None:
        raise UserError("no Java of version 17 or newer: set JAVA_HOME to one")
    if environ.get("JAVA_HOME") and not runtime.is_relative_to(environ["JAVA_HOME"]):
        say(f"JAVA_HOME={environ['JAVA_HOME']} has no Java of version 17 or newer: using {runtime}")
    environ["JAVA_HOME"] = str(runtimes.java_home(runtime))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
