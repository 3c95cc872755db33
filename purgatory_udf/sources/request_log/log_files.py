"""Log files: which files are request logs, which broker wrote one, how to open it, and timestamps in its lines.

Files are plain text, gzip, bzip2, xz or Zstandard, recognised by their first bytes. Timestamps are ISO 8601 with a
blank or `T`, a comma or point and any number of decimals (`[2026-11-21 02:54:27,702]`, `2026-11-21T02:54:27.702834Z`),
log4j's DATE (`21 Nov 2026 02:54:27,702`), or milliseconds since the epoch. A timestamp without a time zone is in UTC
unless the caller passes another zone; note that Kafka's default layout writes local time.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import open_file
from purgatory_udf.sources.trace_files.input_files import InputFile, find_files
from purgatory_udf.sources.trace_files.text_lines import Piece, lines_of

# `kafka-request.log`, rotated and compressed by log4j or logrotate: `.log.2026-11-21-02`, `.log.1.gz`, `-1.log.gz`.
_LOG_NAME = re.compile(r"\.log([.-][\w.-]+)?$|\.(txt|out)(\.(gz|zst|bz2|xz))?$")
_DATES = re.compile(r"\d{4}-\d{2}-\d{2}([-T_]?\d{2}([-:]?\d{2})*)?")
_ROTATED = re.compile(r"\.log([.-]\d+)?(\.(gz|zst|bz2|xz))?$")
_BROKER_ID = re.compile(r"(?<![A-Za-z0-9.])(?:b|broker|kafka|node|request)?[-_]?(\d+)(?![A-Za-z0-9])", re.IGNORECASE)

# The first bytes of a compressed file, the codec, and the reader. All readers accept concatenated streams.
_CODECS: tuple[tuple[bytes, str, Callable[[IO[bytes]], Any]], ...] = (
    (b"\x1f\x8b", "gzip", gzip.open),
    (b"BZh", "bzip2", bz2.open),
    (b"\xfd7zXZ\x00", "xz", lzma.open),
    (b"\x28\xb5\x2f\xfd", "zstd", partial(pa.CompressedInputStream, compression="zstd")),
)
_BUFFER_BYTES = 1 << 16
# Enough for the first line of most logs.
_HEAD_BYTES = 1 << 16

_MONTHS = {
    month: number
    for number, month in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), start=1
    )
}

_CLOCK = r"(?P<h>\d{2}):(?P<mi>\d{2}):(?P<s>\d{2})(?:[.,](?P<f>\d{1,9}))?\s?(?P<z>Z|[+-]\d{2}:?\d{2})?"
_ISO = re.compile(r"(?P<y>\d{4})-(?P<mo>\d{2})-(?P<d>\d{2})[T ]" + _CLOCK)
_DATE = re.compile(r"(?P<d>\d{1,2}) (?P<name>[A-Za-z]{3}) (?P<y>\d{4}) " + _CLOCK)
# Thirteen digits are milliseconds since the epoch, from 2001 to 2286; no other text of a layout has 13 digits.
_EPOCH_MS = re.compile(r"(?<![\d.])(?P<ms>\d{13})(?![\d.])")


def find_logs(given: Sequence[str], skipped: list[str] | None = None) -> list[InputFile]:
    """Return the log files at the given paths. In folders, only files with the name of a log are found.

    Links to files that are read under another name are appended to `skipped`.

    Raises:
        UserError: There is no log file.
    """
    named = {str(name).rstrip("/") for name in given}
    logs = find_files(given, ("",), skipped, lambda name: name in named or bool(_LOG_NAME.search(name)))
    if not logs:
        raise UserError(f"{', '.join(map(str, given))}: no log file found (*.log, rotated or compressed)")
    return logs


def require_distinct(logs: Sequence[InputFile]) -> None:
    """Raise `UserError` if two files begin with the same text: a log and its copy would count each request twice."""
    heads: dict[bytes, InputFile] = {}
    for log in logs:
        # A copy may be shorter, but has at least the first line.
        piece = Piece(0, 0, log, 0, min(log.size, _HEAD_BYTES))
        first = next((line for chunk in lines_of(piece) for line in chunk.items if line), b"")
        if b"{" not in first:
            continue
        other = heads.setdefault(first, log)
        if other is not log:
            raise UserError(
                f"{other.name} and {log.name}: begin with the same line, so one is a copy of the other; import only one"
            )


def broker_of(name: str) -> int | None:
    """Return the broker id in a path: the last number that is not part of a date or rotation, or None.

    Examples are `request-3.log.gz` and `broker-3/request.log.1`.
    """
    path = _ROTATED.sub("", _DATES.sub("", name))
    # Longer numbers cannot be broker ids, which have 32 bits.
    numbers = [number for number in _BROKER_ID.findall(path.replace("/", " / ")) if len(number) < 10]
    return int(numbers[-1]) if numbers else None


@contextmanager
def open_text(path: str | Path) -> Iterator[IO[str]]:
    """Open a file, compressed or not, as UTF-8 text.

    An invalid byte becomes U+FFFD, so that a bad line does not end the run. Raises UserError if the file cannot be
    read. If a compressed file is truncated or damaged, it is raised when the damage is read.
    """
    try:
        # Closed below, together with the readers on top of it.
        raw = open_file(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    with raw:
        head = raw.read(6)
        raw.seek(0)
        with io.TextIOWrapper(_decompressed(raw, head, path), encoding="utf-8", errors="replace") as text:
            yield text


def _decompressed(raw: IO[bytes], head: bytes, path: str | Path) -> IO[bytes]:
    for magic, codec, opened in _CODECS:
        if head.startswith(magic):
            return io.BufferedReader(_CheckedStream(opened(raw), codec, path), _BUFFER_BYTES)
    return raw


class _CheckedStream(io.RawIOBase):
    """A decompressing stream that names the file if its data is truncated or damaged."""

    def __init__(self, stream: Any, codec: str, path: str | Path) -> None:
        self._stream = stream
        self._codec = codec
        self._path = path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._stream.readinto(buffer)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            # Python's modules raise EOFError at the end of truncated data; Arrow has it in the error's message.
            if isinstance(error, EOFError) or "Truncated" in str(error):
                raise UserError(f"{self._path}: truncated {self._codec}: its end is missing") from None
            raise UserError(f"{self._path}: damaged {self._codec}: {error}") from None
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


def read_text(path: str | Path) -> str:
    """Return the whole text of a small file, compressed or not."""
    with open_text(path) as text:
        return text.read()


def zone_of(text: str) -> tzinfo:
    """Parse a time zone, `UTC` or an offset such as `+01:00`. Raises ValueError for any other text."""
    if text.upper() in ("UTC", "Z"):
        return UTC
    match = re.fullmatch(r"([+-])([01]\d|2[0-3]):?([0-5]\d)", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time zone; expected UTC or an offset such as +01:00")
    minutes = int(match[2]) * 60 + int(match[3])
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


def timestamp_us(text: str, zone: tzinfo = UTC) -> int | None:
    """Return the first timestamp in a text, in microseconds since the epoch, or None if there is no valid one.

    `zone` is the time zone of timestamps without one.
    """
    match = _ISO.search(text) or _DATE.search(text)
    if match is None:
        epoch = _EPOCH_MS.search(text)
        return int(epoch["ms"]) * 1000 if epoch else None
    month = match.groupdict().get("mo")
    number = int(month) if month else _MONTHS.get(match["name"].lower(), 0)
    micros = int((match["f"] or "0").ljust(6, "0")[:6])
    try:
        moment = datetime(int(match["y"]), number, int(match["d"]), int(match["h"]), int(match["mi"]), int(match["s"]))
        offset = zone_of(match["z"]) if match["z"] else zone
    except ValueError:
        return None
    whole = int(moment.replace(tzinfo=offset).timestamp())
    return whole * 1_000_000 + micros
