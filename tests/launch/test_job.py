"""A job from the user's side: help, error messages, exit status."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.accumulators import AccumulatorTCPServer

from purgatory_udf.common import errors
from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.launch import job as job_module
from purgatory_udf.launch import spark_session
from purgatory_udf.launch.spark_session import _is_not_interrupt, _note_interrupt, _report_error


def _job(error: BaseException | None = None, checks: job_module.Run | None = None) -> job_module.Job:
    def run(
        out: Annotated[Path, typer.Option(help="Folder of the tables.")],
        settings: Annotated[list[str] | None, typer.Option("--set", help="A key and its value.")] = None,
        batch_events: Annotated[int, typer.Option(help="Events a micro-batch takes.")] = 50_000,
    ) -> None:
        """Replay a trace."""
        print(f"ran {out} {settings} {batch_events}")
        if error:
            raise error

    return job_module.Job(run, checks)


def test_job_receives_options_and_returns_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert _job().status(["--out", "o", "--set", "a=1", "--set", "b=2"]) == 0
    assert capsys.readouterr().out == "ran o ['a=1', 'b=2'] 50000\n"


def test_repeatable_option_takes_several_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A shell expands `--set *` in this way."""
    assert _job().status(["--set", "a=1", "b=2", "c=3", "--out", "o", "--set", "d=4"]) == 0
    assert capsys.readouterr().out == "ran o ['a=1', 'b=2', 'c=3', 'd=4'] 50000\n"


def test_help_shows_options_with_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert _job().check(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Usage: spark-submit.sh test-job [OPTIONS] Replay a trace." in shown
    assert "Folder of the tables. [required]" in shown
    assert "Events a micro-batch takes. [default: 50000]" in shown
    assert "--verbose Show Spark's own log and whole stack traces." in shown


def test_plain_help_has_a_section_per_option_group(capsys: pytest.CaptureFixture[str]) -> None:
    def run(
        out: Annotated[str, typer.Option(help="Folder.")],
        rate: Annotated[int, typer.Option(rich_help_panel="Open loop", help="Requests per second.")] = 5,
    ) -> None:
        """Generate a trace."""

    assert job_module.Job(run).check(["--help"]) == 0
    options, group = capsys.readouterr().out.partition("Options:\n")[2].split("\nOpen loop:\n")
    assert "--out" in options and "--rate" not in options
    assert group.split() == ["--rate", "<int>", "Requests", "per", "second.", "[default:", "5]"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "o", "--nonsense"], "No such option: --nonsense"),
        ([], "Missing option '--out'"),
        (["--out", "o", "--batch-events", "many"], "Invalid value for '--batch-events'"),
        (["--out", "o", "stray"], "Got unexpected extra argument(s) (stray)"),
    ],
)
def test_wrong_option_returns_two(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _job().check(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert message in shown.err
    assert "Traceback" not in shown.err


FROM_THE_JVM = RuntimeError("[PATH_NOT_FOUND] Path does not exist: /x.\nJVM stacktrace:\n\tat org.apache.spark…")
FROM_A_WORKER = RuntimeError(
    "Task failed:\n  purgatory_udf.common.errors.UserError: out: not a folder\n\tat org.apache.spark…"
)

FROM_DEEP_DOWN = RuntimeError(
    "An error occurred while calling o105.save.\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache…\n"
    "Caused by: java.io.IOException: No space left on device\n\t... 41 more"
)

FROM_ITS_START = RuntimeError(
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.io.FileNotFoundException: File file:/logs does not exist\n\tat org.apache.hadoop…"
)
FROM_ANOTHER_PYTHON = RuntimeError(
    "An exception was thrown from the Python worker:\npyspark.errors.exceptions.base.PySparkRuntimeError: "
    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.13 than that in driver: 3.11.\n\tat org…\n"
    "Snapshot(path=file:/o/events/_delta_log)"
)
FROM_A_CHECKPOINT = RuntimeError(
    "An error occurred while calling o105.start.\n: org.apache.spark.SparkException: Failed to read log file "
    "file:/o/_replay/checkpoints/p/offsets/4. Incomplete log file\n\tat org.apache…\nCaused by: java.io.EOFException: "
    "end of file\n\t... 41 more"
)
FROM_A_TABLE = RuntimeError(
    "An error occurred while calling o105.save.\n: org.apache.spark.SparkException: Job aborted\n\tat org.apache…\n"
    "Caused by: org.apache.hadoop.fs.ChecksumException: Checksum error: "
    "file:/o/events/part-00002-bb.c000.snappy.parquet at 0 exp: 1 got: 2\n\t... 41 more"
)
FROM_AN_EMPTY_FILE = RuntimeError(
    "An error occurred while calling o213.start.\n: com.fasterxml.jackson.databind.exc.MismatchedInputException: No "
    "content to map due to end-of-input\n at [Source: UNKNOWN; line: 1]\n\tat com.fasterxml.jackson…"
)
FROM_PYTHON = (
    "An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    '  File "/x/pyspark/worker.py", line 3602, in main\n    func = read_udfs(\n           ^^^^^^^^^^\n'
    "{message}\n SQLSTATE: 38000\n\tat org.apache.spark…"
)
FROM_RUST = RuntimeError(
    "Failed to parse parquet: External: Generic LocalFileSystem error: Unable to open file /o/blame/part-0.parquet#1: "
    "Permission denied (os error 13)"
)
AGAIN = "run the same command again to resume"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UserError("t.jsonl: line 3: no time_us"), 2, "t.jsonl: line 3: no time_us"),
        (CheckFailedError("1 of 9 invariants are violated"), 1, "1 of 9 invariants are violated"),
        (FileNotFoundError(2, "No such file or directory", "x.gz"), 2, "x.gz: No such file or directory"),
        (FROM_THE_JVM, 2, "[PATH_NOT_FOUND] Path does not exist: /x."),
        (FROM_A_WORKER, 2, "out: not a folder"),
        (ZeroDivisionError("division by zero"), 3, "ZeroDivisionError: division by zero (--verbose shows where)"),
        (
            FROM_DEEP_DOWN,
            3,
            "the disk is full; free some space and run the same command again to resume (No space left on device) "
            "(--verbose shows where)",
        ),
        (
            FROM_ITS_START,
            3,
            "Spark did not start; correct its options, or SPARK_CONF_DIR (java.io.FileNotFoundException: File "
            "file:/logs does not exist) (--verbose shows where)",
        ),
        (
            FROM_ANOTHER_PYTHON,
            3,
            "Spark's workers use another Python; unset PYSPARK_PYTHON, or set it to the Python of this job "
            "(Python in worker has different version: 3.13 than that in driver: 3.11.) (--verbose shows where)",
        ),
        (
            FROM_A_CHECKPOINT,
            3,
            "/o/_replay/checkpoints/p/offsets/4 is missing or damaged; restore it from a backup, or restart with "
            "--overwrite (RuntimeError: java.io.EOFException: end of file) (--verbose shows where)",
        ),
        (
            FROM_A_TABLE,
            3,
            "/o/events/part-00002-bb.c000.snappy.parquet is missing or damaged; restore it from a backup, or restart "
            "with --overwrite (RuntimeError: org.apache.hadoop.fs.ChecksumException: Checksum error: "
            "file:/o/events/part-00002-bb.c000.snappy.parquet at 0 exp: 1 got: 2) (--verbose shows where)",
        ),
        (
            FROM_AN_EMPTY_FILE,
            3,
            "a file of the output is missing or damaged; restore it from a backup, or restart with --overwrite "
            "(RuntimeError: com.fasterxml.jackson.databind.exc.MismatchedInputException: No content to map due to "
            "end-of-input) (--verbose shows where)",
        ),
        (
            RuntimeError(FROM_PYTHON.format(message="KeyError: 'elementType'")),
            3,
            "RuntimeError: KeyError: 'elementType' (--verbose shows where)",
        ),
        (
            RuntimeError(FROM_PYTHON.format(message="ModuleNotFoundError: No module named 'pyarrow'")),
            3,
            "a Python module is missing on the workers; ship the environment that ./spark-submit.sh package "
            "builds (ModuleNotFoundError: No module named 'pyarrow') (--verbose shows where)",
        ),
        (
            RuntimeError("java.io.IOException: Mkdirs failed to create file:/o/_ingest/message/0 (exists=false)"),
            3,
            "the output cannot be written; make it writable or free some space, and run the same command again to "
            "resume (Mkdirs failed to create) (--verbose shows where)",
        ),
        (
            RuntimeError("[DELTA_CANNOT_CREATE_LOG_PATH] Cannot create file:/o/events/_delta_log"),
            3,
            "the output cannot be written; make it writable or free some space, and run the same command again to "
            "resume (DELTA_CANNOT_CREATE_LOG_PATH) (--verbose shows where)",
        ),
        (
            OSError(30, "Read-only file system", "/o/x"),
            3,
            f"the output is on a read-only file system; make it writable and {AGAIN} (Read-only file system: /o/x) "
            "(--verbose shows where)",
        ),
        (
            FROM_RUST,
            3,
            f"access is denied; correct the permissions and {AGAIN} (Permission denied: /o/blame/part-0.parquet) "
            "(--verbose shows where)",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (
            UnicodeEncodeError("utf-8", "logs/\udcff.log", 5, 6, "surrogates not allowed"),
            2,
            r"'logs/\udcff.log': the name is not valid UTF-8; rename the file or folder",
        ),
    ],
)
def test_failure_is_one_line_with_status(
    error: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _job(error).status(["--out", "o"]) == status
    assert capsys.readouterr().err == f"test-job: {message}\n"


def test_failure_during_interrupt_is_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    failed = RuntimeError("Cannot call methods on a stopped SparkContext.")
    failed.__context__ = ValueError("in between")
    failed.__context__.__context__ = KeyboardInterrupt()
    assert _job(failed).status(["--out", "o"]) == 130
    assert capsys.readouterr().err == "test-job: interrupted\n"


class _Finalized:
    """An object with an error in its finalizer, which Python ignores."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __del__(self) -> None:
        raise self._error


def test_failure_after_ignored_interrupt_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The interrupt comes in a finalizer, and the JVM that it has stopped as well fails the next call."""
    ignored: list[BaseException] = []
    for module in (errors, spark_session):
        monkeypatch.setattr(module, "ignored_interrupts", ignored)
    monkeypatch.setattr(sys, "unraisablehook", _note_interrupt)
    for error in (ValueError("another"), KeyboardInterrupt()):
        _Finalized(error)
    shown = capsys.readouterr().err
    assert "ValueError: another" in shown and "KeyboardInterrupt" not in shown
    assert _job(Py4JNetworkError("Error while sending or receiving")).status(["--out", "o"]) == 130
    assert capsys.readouterr().err == "test-job: interrupted\n"


def test_verbose_shows_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert _job(ZeroDivisionError("division by zero")).status(["--out", "o", "--verbose"]) == 3
    shown = capsys.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.endswith("test-job: ZeroDivisionError: division by zero\n")


def test_check_does_not_run_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    def checks(out: Path, **_: object) -> None:
        raise UserError(f"{out}: exists and is a file")

    job = _job(checks=checks)
    assert job.check(["--out", "o"]) == 2
    assert capsys.readouterr() == ("", "test-job: o: exists and is a file\n")
    assert job.check(["--out", "o"], local=False) is None
    assert capsys.readouterr() == ("", "")


def test_decorated_function_is_named_after_module() -> None:
    @job_module.job
    def main() -> None:
        """Nothing."""

    with pytest.raises(SystemExit) as ended:
        main([])
    assert (main.name, ended.value.code) == ("test-job", 0)


def test_closed_connection_of_the_jvm_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    server = object.__new__(AccumulatorTCPServer)
    for error in (EOFError(), ConnectionResetError(), ValueError("another")):
        try:
            raise error
        except Exception:
            _report_error(server, None, ("127.0.0.1", 1))
    shown = capsys.readouterr().err
    assert shown.count("Traceback") == 1 and "ValueError: another" in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Py4JNetworkError("Answer from Java side is empty")])
def test_interrupt_is_logged_without_traceback(error: BaseException) -> None:
    """Py4J logs the call that was cut off by the end of the JVM at the root logger."""
    record = logging.LogRecord("root", logging.ERROR, "", 0, "Exception", (), (type(error), error, None))
    assert not _is_not_interrupt(record)
    record.exc_info = (OSError, OSError("another"), None)
    assert _is_not_interrupt(record)
