"""Opening what an operator hands over: plain text, gzip, bzip2, xz or Zstandard, told by the first bytes."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from purgatory_udf.errors import UserError

_ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def open_text(path: str | Path) -> Iterator[IO[str]]:
    """The file's text as UTF-8 (a broken byte becomes U+FFFD: one bad line must not end a run)."""
    try:
        raw: IO[bytes] = open(path, "rb")  # noqa: SIM115 (closed below, together with what is built on it)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    with raw:
        head = raw.read(6)
        raw.seek(0)
        with io.TextIOWrapper(_decompressed(raw, head, path), encoding="utf-8", errors="replace") as text:
            yield text


def _decompressed(raw: IO[bytes], head: bytes, path: str | Path) -> Any:
    if head[:2] == b"\x1f\x8b":
        return gzip.open(raw)
    if head[:3] == b"BZh":
        return bz2.open(raw)
    if head[:6] == b"\xfd7zXZ\x00":
        return lzma.open(raw)
    if head[:4] == _ZSTD:
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{path}: Zstandard needs the package zstandard") from None
        return zstandard.ZstdDecompressor().stream_reader(raw)
    return raw


def read_text(path: str | Path) -> str:
    """A small file at once."""
    with open_text(path) as text:
        return text.read()
