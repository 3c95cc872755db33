"""What a user can get wrong: one clear sentence and exit status 2, never a stack trace."""

from __future__ import annotations

import re


class UserError(Exception):
    """The input, options or configuration cannot be used; the message says what, where and what was expected."""


class CheckFailedError(Exception):
    """The run finished, but a law of the tables or a limit set by the user does not hold: exit status 1."""


class NeedsSparkError(Exception):
    """What was asked for cannot be had without Spark."""


# What storage does to a job, in a sentence that says what to do next.
#
# Spark and Delta report a full disk or a lost file from somewhere deep, with what they were at. Each cause here is
# known by a word of theirs that it always has.


_AGAIN = "give the same command again: it goes on where it was"
_CHAR = r"[^\s'\":,;()\[\]]"
_FILE = re.compile(
    rf"(?:file:(?://)?)?(/{_CHAR}*/(?:_delta_log/{_CHAR}+|checkpoints?/{_CHAR}+/{_CHAR}+|{_CHAR}+\.parquet))"
)

# The first that is found counts.
_CAUSES = (
    (
        re.compile(r"STATE_STORE_\w*SCHEMA_NOT_COMPATIBLE|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*"),
        "this run's checkpoint was written by another version; finish the run with the version that began it, or "
        "start it anew with --overwrite",
    ),
    (re.compile(r"No space left on device|Disk quota exceeded"), f"the disk is full; make room and {_AGAIN}"),
    (re.compile(r"Read-only file system"), f"the output can only be read; make it writable and {_AGAIN}"),
    (
        re.compile(r"Permission denied|AccessDenied|AccessControlException"),
        f"access is denied; put that right and {_AGAIN}",
    ),
    (
        # Hadoop and Delta do not say why.
        re.compile(r"Mkdirs failed to create|DELTA_CANNOT_CREATE_LOG_PATH"),
        f"the output cannot be written; make it writable, or make room, and {_AGAIN}",
    ),
    (re.compile(r"Too many open files"), f"the process may not open so many files; raise `ulimit -n` and {_AGAIN}"),
    (
        re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back|PYTHON_WORKER\w*"),
        f"a Python process of Spark's was killed, perhaps for want of memory; {_AGAIN}",
    ),
    (
        # By this process it would be said without the error's own name.
        re.compile(r"ModuleNotFoundError: No module named '\S+'"),
        "the cluster's workers lack what this needs; send the environment along, which ./spark-submit.sh package makes",
    ),
    (
        re.compile(
            r"DELTA_(CONCURRENT\w*|PROTOCOL_CHANGED|METADATA_CHANGED|VERSION_ALREADY_EXISTS)|Concurrent\w*Exception"
            r"|MULTIPLE_STREAMS|CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY"
        ),
        f"another process has written the same table; stop it, and {_AGAIN}",
    ),
)
_DAMAGED = re.compile(
    r"_delta_log|DELTA_(TRUNCATED|VERSIONS_NOT|STATE_RECOVER|MISSING|LOG_FILE|INVALID|FILE_NOT_FOUND|CHECKPOINT)"
    r"|/checkpoints?/|CANNOT_LOAD_STATE_STORE|STATE_STORE|STREAMING_CHECKPOINT|Incomplete log file|malformed"
    r"|batch \d+ doesn't"
    r"|FILE_NOT_EXIST|CANNOT_READ_FILE|FAILED_READ_FILE|FileNotFoundException|is not a Parquet file"
    # What Spark and Delta keep beside their tables is JSON, and nobody's input: that is never read by Jackson.
    r"|fasterxml\.jackson|ChecksumException|end-of-input",
    re.IGNORECASE,
)


def explain_storage_error(text: str, sentence: str) -> str | None:
    """The fault that an error's whole text tells of, with `sentence`, its own in short; None if it tells of none."""
    for known, said in _CAUSES:
        match = known.search(text)
        if match:
            return f"{said} ({match[0]})"
    if not _DAMAGED.search(text):
        return None
    file = _FILE.search(text)
    what = f"{file[1].rstrip('.')} is missing or damaged" if file else "a file of the output is missing or damaged"
    return f"{what}; put it back from a copy, or begin anew with --overwrite ({_short(sentence)})"


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 200 else f"{sentence[:199]}…"
