"""The boundary between a user and a job: options, exit status, and one-line error messages.

    @job.job
    def main(out: Annotated[Path, typer.Option(help="Folder of the tables.")]) -> None:
        '''Say in one line what the job does.'''

    if __name__ == "__main__":
        main()

Exit status: 0 success; 1 an invariant or a limit is violated; 2 unusable options or input; 3 a failure of the program
or the cluster; 130 interrupted.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, overload

import typer
from typer.core import TyperCommand

from purgatory_udf.common import errors, secrets
from purgatory_udf.common.errors import CheckFailedError, NeedsSparkError, UserError
from purgatory_udf.common.installation import PROGRAM
from purgatory_udf.launch import submission
from purgatory_udf.launch.backend_choice import PYTHON, TINY, OpenBackend, settings_for, spark_opener

Run = Callable[..., None]

# The option of jobs that can write their answer as JSON.
JsonFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", help="File for the answer as JSON; - prints only the JSON, to standard output."
    ),
]

DONE, CHECK_FAILED, USER_ERROR, FAILED, INTERRUPTED = 0, 1, 2, 3, 130

# Spark's and Delta's error classes for mistakes that only the user can fix: a wrong path, or an unsupported table.
_USER_ERRORS = re.compile(
    r"PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|DELTA_(TABLE_NOT_FOUND|TABLE_ONLY_OPERATION|MISSING_DELTA_TABLE"
    r"|PATH_DOES_NOT_EXIST|SCHEMA_NOT_SET|UNSUPPORTED_FEATURES?_FOR_(READ|WRITE)|INVALID_PROTOCOL_VERSION"
    r"|UNSUPPORTED_TABLE_FEATURE)"
)

# The exception of a Python worker: the first line after its traceback that is not indented.
_WORKER_EXCEPTION = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")


class Job:
    """One command of `spark-submit.sh`: calling it parses the command line, runs the job, and exits.

    Args:
        run: The function with typer's annotations. Its parameter `open_backend`, if it has one, is not an option; it
            opens the backend on which the job runs.
        checks: Takes the same options and raises UserError; it runs before a JVM is started.
        brief: The job always uses Spark's settings for tiny inputs. Other jobs use them if their inputs are small.
        spark: Whether the job can use Spark. If not, it always runs in this process.
        reads: The options that name the files and tables that the job reads.
        writes: The options that name the folders that the job writes: without inputs, it runs in this process if they
            are on this machine.
        max_local_bytes: Maximum total size of the inputs for which the job runs in this process, without Spark; 0 for
            never.
        needs_spark: Takes the same options and returns whether the job needs Spark regardless of the size.
        spark_is_optional: The job has no input, and runs in this process only if Spark is not installed.
        in_python: Takes the same options and returns whether Python workers do the work, so that the JVM has little to
            do for inputs of any size.
    """

    def __init__(
        self,
        run: Run,
        checks: Run | None = None,
        brief: bool = False,
        spark: bool = True,
        reads: tuple[str, ...] = (),
        writes: tuple[str, ...] = (),
        max_local_bytes: int = 0,
        needs_spark: Callable[..., bool] | None = None,
        spark_is_optional: bool = False,
        in_python: Callable[..., bool] | None = None,
    ) -> None:
        self.name = Path(inspect.getfile(run)).stem.rstrip("_").replace("_", "-")
        self._run = run
        self._choose_settings: Callable[[], tuple[str, ...]] = lambda: TINY if brief else ()
        self.spark, self.spark_is_optional = spark, spark_is_optional
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.max_local_bytes = max_local_bytes
        self._checks, self._reads, self._writes = checks, reads, writes
        self._needs_spark, self._in_python = needs_spark, in_python

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings files for Spark that suit the checked arguments; this measures the inputs."""
        return self._choose_settings()

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Run with the given arguments, by default those of the process, and exit with the status."""
        submission.prepare_streams()
        submission.take_streams()
        if arguments is None:
            submission.end_process(self.status(sys.argv[1:]))
        sys.exit(self.status(arguments))

    def parameters(self) -> list[Any]:
        """Return typer's record of each option and argument."""
        return list(typer.main.get_command(_typer_app(self.name, _with_backend(self._run, None))).params)

    def status(self, arguments: Sequence[str], open_backend: OpenBackend | None = None) -> int:
        """Run the job with the `arguments` of a command line; report an error on stderr, and return the exit status.

        `open_backend` opens the backend; None for Spark's.
        """
        chosen = open_backend or spark_opener(f"purgatory-{self.name}")
        return _run_command(self.name, _with_backend(self._run, chosen), arguments)

    def check(self, arguments: Sequence[str], local: bool = True) -> int | None:
        """Return None if the job may start with these arguments, else the exit status.

        It prints the help or the error, and needs no JVM. Files are checked only if the job runs on this machine
        (`local`).
        """
        passed = False

        @functools.wraps(self._run)
        def only_check(open_backend: OpenBackend | None = None, **options: Any) -> None:
            nonlocal passed
            if local and self._checks:
                self._checks(**options)
            if local and (self._reads or self._writes):
                paths = _paths_of(options, self._reads)
                self._choose_settings = lambda: self._settings_for(paths, options)
                needs_spark = self._needs_spark is not None and self._needs_spark(**options)
                self.inputs = [] if needs_spark else paths
                self.outputs = [] if needs_spark else _paths_of(options, self._writes)
            passed = True

        status = _run_command(self.name, _with_backend(only_check, None), arguments)
        return None if passed else status

    def _settings_for(self, paths: Sequence[str], options: Mapping[str, Any]) -> tuple[str, ...]:
        settings = () if options.get("follow") else settings_for(paths)
        if not settings and self._in_python is not None and self._in_python(**options):
            return PYTHON
        return settings


@overload
def job(run: Run) -> Job: ...
@overload
def job(
    *,
    checks: Run | None = None,
    brief: bool = False,
    spark: bool = True,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    max_local_bytes: int = 0,
    needs_spark: Callable[..., bool] | None = None,
    spark_is_optional: bool = False,
    in_python: Callable[..., bool] | None = None,
) -> Callable[[Run], Job]: ...
def job(
    run: Run | None = None,
    *,
    checks: Run | None = None,
    brief: bool = False,
    spark: bool = True,
    reads: tuple[str, ...] = (),
    writes: tuple[str, ...] = (),
    max_local_bytes: int = 0,
    needs_spark: Callable[..., bool] | None = None,
    spark_is_optional: bool = False,
    in_python: Callable[..., bool] | None = None,
) -> Job | Callable[[Run], Job]:
    """Turn a function with typer's annotations into a job. For the arguments see `Job`."""
    return (
        Job(run)
        if run
        else lambda run: Job(
            run, checks, brief, spark, reads, writes, max_local_bytes, needs_spark, spark_is_optional, in_python
        )
    )


def _with_backend(run: Run, open_backend: OpenBackend | None) -> Run:
    """Bind the parameter `open_backend`, so that it is not an option of the command."""
    signature = inspect.signature(run, eval_str=True)
    if "open_backend" not in signature.parameters:
        return run
    bound = functools.wraps(run)(functools.partial(run, open_backend))
    others = [each for name, each in signature.parameters.items() if name != "open_backend"]
    bound.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return bound


def require_file(option: str, path: Path | None) -> None:
    """Raise UserError if the path that is given by the option is a folder."""
    if path is not None and path.is_dir():
        raise UserError(f"{path}: is a folder; {option} names a file")


def _paths_of(options: Mapping[str, Any], reads: Iterable[str]) -> list[str]:
    """Return the paths given by these options."""
    given = (options.get(name) for name in reads)
    return [str(path) for value in given if value for path in ([value] if isinstance(value, str | Path) else value)]


def describe_failure(error: BaseException) -> tuple[str, int]:
    """Return the one-line message for an error, and the exit status."""
    if isinstance(error, UserError):
        return str(error), USER_ERROR
    if isinstance(error, CheckFailedError):
        return str(error), CHECK_FAILED
    if errors.is_interrupt(error):
        return "interrupted", INTERRUPTED
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Python represents bytes of a file's name that are not UTF-8 as surrogates.
        return f"{error.object!r}: the name is not valid UTF-8; rename the file or folder", USER_ERROR
    text = str(error)
    # A UserError of a Python worker arrives as the text of a Java exception.
    raised = re.search(r"^\s*(?:\w+\.)*UserError: (.+)$", text, re.MULTILINE)
    if raised:
        return raised[1].strip(), USER_ERROR
    # The text of a Java exception includes its stack; the root cause is the last one in it.
    causes = _WORKER_EXCEPTION.findall(text) or re.findall(r"^(?:Caused by)?: (\S+: .+)$", text, re.MULTILINE)
    lines = [line.strip() for line in (causes[-1:] or text.splitlines()) if line.strip()]
    sentence = lines[0] if lines else ""
    if _USER_ERRORS.search(sentence):
        return sentence, USER_ERROR
    fault = errors.explain_storage_error(text, f"{type(error).__name__}: {sentence}")
    if fault is not None:
        return fault, FAILED
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", USER_ERROR
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__, FAILED


# Options that name files to read next to the input.
_FILE_OPTIONS = ("topics", "batches", "isr", "client_file", "config", "jmx_before", "jmx_after", "server_log")


def with_option(sentence: str, options: Mapping[str, Any]) -> str:
    """Put the option that names a file in front of a message that begins with this file; return others unchanged."""
    for name in _FILE_OPTIONS:
        for file in _paths_of({name: options.get(name)}, [name]):
            if sentence.startswith(f"{file}:"):
                return f"--{name.replace('_', '-')} {sentence}"
    return sentence


class _GroupedCommand(TyperCommand):
    """A command that has a section for each `rich_help_panel` in its plain help.

    Typer has panels only in its rich mode, which is used on terminals.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a panel, and the options of each panel."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _typer_app(name: str, run: Run) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() and sys.stderr.isatty() else None,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    )
    app.command(cls=_GroupedCommand)(_with_error_handling(name, run))
    return app


def _run_command(name: str, run: Run, arguments: Sequence[str]) -> int:
    command = typer.main.get_command(_typer_app(name, run))
    try:
        command(args=_expand_repeated_options(command.params, arguments), prog_name=f"{PROGRAM} {name}")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else DONE
    return DONE


def _expand_repeated_options(parameters: Sequence[Any], arguments: Sequence[str]) -> list[str]:
    """Expand `--trace A B` to `--trace A --trace B`, because shells expand `--trace *.jsonl` to the former.

    Only repeatable options are expanded, and only in jobs without positional arguments.
    """
    if any(parameter.param_type_name == "argument" for parameter in parameters):
        return list(arguments)
    repeatable = {name for parameter in parameters if getattr(parameter, "multiple", False) for name in parameter.opts}
    spread: list[str] = []
    option = ""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word.startswith("-"):
            option = word
        elif option in repeatable and before != option:
            spread.append(option)
        spread.append(word)
    return spread


def _with_error_handling(name: str, run: Run) -> Run:
    """Add the option `--verbose` to a function, and convert every error to SystemExit with its status."""

    @functools.wraps(run)
    def command(*, verbose: bool, **options: Any) -> None:
        verbose = verbose or bool(os.environ.get("PURGATORY_VERBOSE"))
        _configure_logging(verbose)
        try:
            run(**options)
        except BrokenPipeError:
            # The reader of stdout closed it (`… | head`): avoid an error when Python flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except NeedsSparkError:
            # The launcher starts the job again with Spark.
            raise
        except (Exception, KeyboardInterrupt) as error:
            sentence, status = describe_failure(error)
            sentence = with_option(sentence, options)
            if verbose:
                print(secrets.redact(traceback.format_exc()), end="", file=sys.stderr)
            hint = "" if verbose or status != FAILED else " (--verbose shows where)"
            print(f"{name}: {secrets.redact(sentence)}{hint}", file=sys.stderr)
            raise SystemExit(status) from None

    option = Annotated[bool, typer.Option("--verbose", help="Show Spark's own log and whole stack traces.")]
    signature = inspect.signature(run, eval_str=True)
    extra = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=option)
    parameters = [*signature.parameters.values(), extra]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _configure_logging(verbose: bool) -> None:
    """Log messages to stderr with the time: those of this package, and those of libraries from level WARNING on."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for package in ("purgatory_udf", "jobs", "__main__"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)
    # py4j logs two pages for each call that is cut off when a job stops.
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL + 1)
