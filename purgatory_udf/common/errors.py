"""Errors that a job reports in one sentence instead of a stack trace, and explanations of storage failures."""

from __future__ import annotations

import re

from purgatory_udf.common.installation import COMMAND

# Interrupts that Python ignored, because they were raised in a finalizer, such as one of Py4J.
ignored_interrupts: list[BaseException] = []


class UserError(Exception):
    """The input, an option or the configuration is invalid: exit status 2.

    The message names the problem, its place and the remedy.
    """


class CheckFailedError(Exception):
    """The run finished, but an invariant of the tables or a limit set by the user is violated: exit status 1."""


class NeedsSparkError(Exception):
    """The job, or an operation of it, cannot be executed in this process. It is then repeated in Spark."""


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether the error was caused by an interrupt.

    The same interrupt may have stopped the JVM, so that handling it, or the next call of the JVM, raises another error.
    """
    if ignored_interrupts:
        return True
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


_AGAIN = "run the same command again to resume"
_CHAR = r"[^\s'\":,;()\[\]]"
# A file of a table or a checkpoint. Paths in quotes (DuckDB) or at the start of a text (our own errors) may have spaces
# and punctuation.
_FILES = (
    re.compile(r"(?<=[\"'])(/[^\n\"]+?\.parquet)(?=[\"'])"),
    re.compile(r"\A(/[^\n]+?/_delta_log/[^\s:]+)"),
    re.compile(
        rf"(?:file:(?://)?)?(/{_CHAR}*/(?:_delta_log/{_CHAR}+|checkpoints?/{_CHAR}+/{_CHAR}+|{_CHAR}+\.parquet))"
    ),
)

# Causes of storage failures: a pattern that their error text always contains, and the advice for the user. Spark and
# Delta report a full disk or a lost file deep inside a long text. The first match counts.
_CAUSES = (
    (
        re.compile(r"STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*"),
        "the checkpoint of this run was written by another version; finish the run with that version, or restart it "
        "with --overwrite",
    ),
    (re.compile(r"No space left on device|Disk quota exceeded"), f"the disk is full; free some space and {_AGAIN}"),
    (re.compile(r"Read-only file system"), f"the output is on a read-only file system; make it writable and {_AGAIN}"),
    (
        re.compile(r"Permission denied|AccessDenied|AccessControlException"),
        f"access is denied; correct the permissions and {_AGAIN}",
    ),
    (
        # Hadoop and Delta do not report the reason.
        re.compile(r"Mkdirs failed to create|DELTA_CANNOT_CREATE_LOG_PATH"),
        f"the output cannot be written; make it writable or free some space, and {_AGAIN}",
    ),
    (
        re.compile(r"(?<=calling None\.org\.apache\.spark\.api\.java\.JavaSparkContext\.\n: )[^\n]+"),
        "Spark did not start; correct its options, or SPARK_CONF_DIR",
    ),
    (re.compile(r"Too many open files"), f"too many open files; raise the limit (`ulimit -n`) and {_AGAIN}"),
    (
        re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|PYTHON_WORKER\w*"),
        f"a Python worker of Spark was killed, possibly for lack of memory; {_AGAIN}",
    ),
    (
        re.compile(r"(?<=\[PYTHON_VERSION_MISMATCH\] )[^\n]+"),
        "Spark's workers use another Python; unset PYSPARK_PYTHON, or set it to the Python of this job",
    ),
    (
        # In an error of this process the text does not include the name of the exception.
        re.compile(r"ModuleNotFoundError: No module named '\S+'"),
        f"a Python module is missing on the workers; ship the environment that {COMMAND} package builds",
    ),
    (
        re.compile(r"DELTA_(INVALID_PROTOCOL_VERSION|UNSUPPORTED_FEATURES?_(FOR|IN)\w*)"),
        "the table requires a newer version of Delta; read it with the program that wrote it",
    ),
    (
        re.compile(
            r"DELTA_(CONCURRENT\w*|PROTOCOL_CHANGED|METADATA_CHANGED|VERSION_ALREADY_EXISTS)|Concurrent\w*Exception"
            r"|MULTIPLE_STREAMS|CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY"
        ),
        f"another process wrote to the same table; stop it and {_AGAIN}",
    ),
)
# The causes with which an operating system's error names a file: Python's after it, Java's and Rust's before it.
_SYSTEM_ERRORS = ("No space left on device", "Disk quota exceeded", "Read-only file system", "Permission denied")
_QUOTED_AFTER = re.compile(r": '(/[^']+)'")
_PATH_BEFORE = re.compile(rf"(?<!{_CHAR})(/{_CHAR}+?)(?:#\d+)?['\"]?[:, (]{{0,3}}$")
_DAMAGED = re.compile(
    r"_delta_log|DELTA_(TRUNCATED|VERSIONS_NOT|STATE_RECOVER|MISSING|LOG_FILE|INVALID|FILE_NOT_FOUND|CHECKPOINT)"
    r"|/checkpoints?/|CANNOT_LOAD_STATE_STORE|STATE_STORE|STREAMING_CHECKPOINT|Incomplete log file|malformed"
    r"|batch \d+ doesn't"
    r"|FILE_NOT_EXIST|CANNOT_READ_FILE|FAILED_READ_FILE|FileNotFoundException|is not a Parquet file"
    # DuckDB's errors about the files of a table.
    r"|(?:IO|Invalid Input) Error: [^\n]*\.parquet|TProtocolException"
    # Jackson reads only the JSON files of Spark and Delta, never an input.
    r"|fasterxml\.jackson|ChecksumException|end-of-input",
    re.IGNORECASE,
)


def explain_storage_error(text: str, sentence: str) -> str | None:
    """Return a message with the problem and the remedy, if an error comes from storage; otherwise None.

    Args:
        text: The whole text of the error, with its causes.
        sentence: The short form of the error, which is appended if the cause is a damaged file.
    """
    for pattern, advice in _CAUSES:
        match = pattern.search(text)
        if match:
            return f"{advice} ({match[0]}{_place(text, match)})"
    if not _DAMAGED.search(text):
        return None
    file = next(filter(None, (pattern.search(text) for pattern in _FILES)), None)
    what = f"{file[1].rstrip('.')} is missing or damaged" if file else "a file of the output is missing or damaged"
    return f"{what}; restore it from a backup, or restart with --overwrite ({_short(sentence)})"


def _place(text: str, cause: re.Match[str]) -> str:
    """Return the path, after a colon, that a system's error names in the line of its cause; empty if it names none."""
    if cause[0] not in _SYSTEM_ERRORS:
        return ""
    before = text[text.rfind("\n", 0, cause.start()) + 1 : cause.start()]
    after = text[cause.end() :].split("\n", 1)[0]
    place = _QUOTED_AFTER.match(after) or _PATH_BEFORE.search(before)
    return f": {_short(place[1])}" if place else ""


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 200 else f"{sentence[:199]}…"
