"""The border between a user and a job: options in, exit status out, and no stack trace for a user's mistake.

    @cli.job
    def main(out: Annotated[Path, typer.Option(help="Folder of the tables.")]) -> None:
        '''Say in one line what the job does.'''

    if __name__ == "__main__":
        main()

Exit status: 0 done; 1 a law or a limit does not hold; 2 the options or the input cannot be used; 3 the program or
the cluster failed; 130 interrupted.
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
from typing import Annotated, Any, overload

import typer
from typer.core import TyperCommand

from purgatory_udf.backend.input_size import TINY, is_near, settings_for
from purgatory_udf.common import errors, secrets
from purgatory_udf.common.errors import CheckFailedError, NeedsSparkError, UserError
from purgatory_udf.launch import standard_streams

Run = Callable[..., None]

DONE, BROKEN, MISTAKE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130

# Spark's and Delta's names for what only the user can put right: a wrong path, a foreign or a too new table.
_MISTAKES = re.compile(
    r"PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|DELTA_(TABLE_NOT_FOUND|TABLE_ONLY_OPERATION|MISSING_DELTA_TABLE"
    r"|PATH_DOES_NOT_EXIST|SCHEMA_NOT_SET|UNSUPPORTED_FEATURES?_FOR_(READ|WRITE)|INVALID_PROTOCOL_VERSION"
    r"|UNSUPPORTED_TABLE_FEATURE)"
)

# What a Python worker raised: the first line behind its stack that is not indented.
_IN_A_WORKER = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")


class Job:
    """One command of `spark-submit.sh`: calling it reads the command line, runs, and ends the process.

    A `brief` job works on small tables: on one machine, it is over before the costlier compilers pay, so that it has
    settings of its own. So it is with most jobs if what they read is little (`reads`). One that needs no Spark is run
    at once, without any JVM; so is one that can do with less than Spark, if what it reads is `near`.
    """

    def __init__(
        self,
        run: Run,
        checks: Run | None = None,
        brief: bool = False,
        spark: bool = True,
        reads: tuple[str, ...] = (),
        near: int = 0,
    ) -> None:
        self.name = Path(inspect.getfile(run)).stem.rstrip("_").replace("_", "-")
        self._run = run
        self.settings: tuple[str, ...] = TINY if brief else ()
        self.spark = spark
        self.near = False
        self._checks, self._reads, self.most_near = checks, reads, near

    def __call__(self, arguments: Sequence[str] | None = None) -> None:
        """Run with the process's arguments (or the given ones) and exit with the status."""
        standard_streams.take()
        sys.exit(self.status(sys.argv[1:] if arguments is None else arguments))

    def status(self, arguments: Sequence[str]) -> int:
        """Run, report what went wrong on stderr, and return the exit status."""
        return _invoke(self.name, self._run, arguments)

    def check(self, arguments: Sequence[str], local: bool = True) -> int | None:
        """None if the job may start with these arguments, else the status to end with; needs no JVM.

        It prints the help, or what is wrong. Files are looked at only if the job will run on this machine (`local`).
        """
        passed = False

        @functools.wraps(self._run)
        def only_check(**options: Any) -> None:
            nonlocal passed
            if local and self._checks:
                self._checks(**options)
            if local and self._reads:
                self.settings = () if options.get("follow") else settings_for(_named(options, self._reads))
                self.near = is_near(_named(options, self._reads), self.most_near)
            passed = True

        status = _invoke(self.name, only_check, arguments)
        return None if passed else status


@overload
def job(run: Run) -> Job: ...
@overload
def job(
    *,
    checks: Run | None = None,
    brief: bool = False,
    spark: bool = True,
    reads: tuple[str, ...] = (),
    near: int = 0,
) -> Callable[[Run], Job]: ...
def job(
    run: Run | None = None,
    *,
    checks: Run | None = None,
    brief: bool = False,
    spark: bool = True,
    reads: tuple[str, ...] = (),
    near: int = 0,
) -> Job | Callable[[Run], Job]:
    """Make a function with typer's annotations a job.

    `checks` takes the same options and raises `UserError`: it is run before a JVM is started for nothing. `reads`: the
    options that name files and tables which the job reads. `near`: up to so many bytes of these the job does without
    Spark, which it then asks for by `session.session_for`; what it cannot do so, it ends by `NeedsSparkError`.
    """
    return Job(run) if run else lambda run: Job(run, checks, brief, spark, reads, near)


def _named(options: Mapping[str, Any], reads: Iterable[str]) -> list[str]:
    """The paths that these options were given."""
    given = (options.get(name) for name in reads)
    return [path for value in given if value for path in ([value] if isinstance(value, str) else value)]


def explain(error: BaseException) -> tuple[str, int]:
    """The one sentence for a failure, and its exit status."""
    if isinstance(error, UserError):
        return str(error), MISTAKE
    if isinstance(error, CheckFailedError):
        return str(error), BROKEN
    if _is_interrupt(error):
        return "interrupted", INTERRUPTED
    text = str(error)
    # Raised in one of Spark's Python workers, a mistake comes back as the text of a Java exception.
    raised = re.search(r"^\s*(?:\w+\.)*UserError: (.+)$", text, re.MULTILINE)
    if raised:
        return raised[1].strip(), MISTAKE
    # A Java exception's text is its whole stack; what happened first is what it names last.
    causes = _IN_A_WORKER.findall(text) or re.findall(r"^(?:Caused by)?: (\S+: .+)$", text, re.MULTILINE)
    lines = [line.strip() for line in (causes[-1:] or text.splitlines()) if line.strip()]
    sentence = lines[0] if lines else ""
    if _MISTAKES.search(sentence):
        return sentence, MISTAKE
    fault = errors.explain_storage_error(text, f"{type(error).__name__}: {sentence}")
    if fault is not None:
        return fault, FAILED
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}", MISTAKE
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__, FAILED


def _is_interrupt(error: BaseException | None) -> bool:
    """Or what went wrong as it was seen to: the same interrupt may have ended the JVM, which is then asked in vain."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class _GroupedCommand(TyperCommand):
    """A command whose plain help has a section for each `rich_help_panel`; typer has panels only in rich mode."""

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


def _invoke(name: str, run: Run, arguments: Sequence[str]) -> int:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if sys.stdout.isatty() and sys.stderr.isatty() else None,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120},
    )
    app.command(cls=_GroupedCommand)(_guarded(name, run))
    try:
        app(args=_spread(app, arguments), prog_name=f"spark-submit.sh {name}")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else DONE
    return DONE


def _spread(app: typer.Typer, arguments: Sequence[str]) -> list[str]:
    """`--trace A B` as `--trace A --trace B`, for shells make the former of `--trace *.jsonl`.

    It holds for options that may be repeated; a job with positional arguments has no such freedom.
    """
    parameters = typer.main.get_command(app).params
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


def _guarded(name: str, run: Run) -> Run:
    """The function with the option that every job has, ending in an exit status whatever it raises."""

    @functools.wraps(run)
    def command(*, verbose: bool, **options: Any) -> None:
        verbose = verbose or bool(os.environ.get("PURGATORY_VERBOSE"))
        _log_plainly(verbose)
        try:
            run(**options)
        except BrokenPipeError:
            # The reader of our output has seen enough (`… | head`); what Python flushes at its end must not complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except NeedsSparkError:
            # For whoever began without it.
            raise
        except (Exception, KeyboardInterrupt) as error:
            sentence, status = explain(error)
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


def _log_plainly(verbose: bool) -> None:
    """Our own log lines on stderr, with the time; the libraries' only when something is wrong."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for package in ("purgatory_udf", "jobs", "__main__"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.INFO)
    # Of every call that is cut short when a job is stopped, py4j has two pages to tell.
    logging.getLogger("py4j").setLevel(logging.WARNING if verbose else logging.CRITICAL + 1)
