"""Which files are request logs, and which broker wrote a file whose lines do not say."""

from __future__ import annotations

import re
from collections.abc import Sequence

from purgatory_udf.errors import UserError
from purgatory_udf.ingest.inputs import InputFile, find_files

# `kafka-request.log`, rotated and packed as log4j and logrotate do: `.log.2026-11-21-02`, `.log.1.gz`, `-1.log.gz`.
_LOG = re.compile(r"\.log([.-][\w.-]+)?$|\.(txt|out)(\.(gz|zst|bz2|xz))?$")
_DATES = re.compile(r"\d{4}-\d{2}-\d{2}([-T_]?\d{2}([-:]?\d{2})*)?")
_ROTATED = re.compile(r"\.log([.-]\d+)?(\.(gz|zst|bz2|xz))?$")
_NUMBER = re.compile(r"(?<![A-Za-z0-9.])(?:b|broker|kafka|node|request)?[-_]?(\d+)(?![A-Za-z0-9])", re.IGNORECASE)


def find_logs(given: Sequence[str]) -> list[InputFile]:
    """The files of the given paths; of a folder, those whose names look like logs."""
    files = find_files(given, ("",))
    named = {str(name).rstrip("/") for name in given}
    logs = [file for file in files if file.name in named or _LOG.search(file.name)]
    if not logs:
        raise UserError(f"{', '.join(map(str, given))}: no log file in it (*.log, rotated or packed)")
    return logs


def broker_of(name: str) -> int | None:
    """The last number in the path that is neither date nor rotation: `request-3.log.gz`, `broker-3/request.log.1`."""
    path = _ROTATED.sub("", _DATES.sub("", name))
    # No broker has a number of more digits.
    numbers = [number for number in _NUMBER.findall(path.replace("/", " / ")) if len(number) < 10]
    return int(numbers[-1]) if numbers else None
