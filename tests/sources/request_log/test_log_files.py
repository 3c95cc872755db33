"""Opening log files: compression by the first bytes, several frames, and truncated or damaged data."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.log_files import open_text, read_text

# More than one buffer of the reader.
LINES = [f"[2026-11-21 02:54:27,702] line {number} \N{SNOWMAN}\n" for number in range(20_000)]
TEXT = "".join(LINES)


def zstd(content: bytes) -> bytes:
    """Compress with a checksum, as the command `zstd` does."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


def zstd_without_size(content: bytes) -> bytes:
    """Compress as a stream: the frame's header has no content size."""
    compressor = zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compressobj()
    return compressor.compress(content) + compressor.flush()


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
    "zstd without size": zstd_without_size,
}


def written(folder: Path, content: bytes) -> Path:
    path = folder / "request.log"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("codec", COMPRESS)
def test_compressed_log_is_read_whole(tmp_path: Path, codec: str) -> None:
    with open_text(written(tmp_path, COMPRESS[codec](TEXT.encode()))) as lines:
        assert list(lines) == LINES


@pytest.mark.parametrize("codec", COMPRESS)
def test_concatenated_streams_are_all_read(tmp_path: Path, codec: str) -> None:
    """The second stream starts within a line, the third is empty."""
    compress = COMPRESS[codec]
    content = TEXT.encode()
    streams = compress(content[:1000]) + compress(content[1000:]) + compress(b"") + compress(b"last\n")
    assert read_text(written(tmp_path, streams)) == TEXT + "last\n"


def test_zstd_skippable_frame_is_skipped(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"
    content = zstandard.compress(b"one\n") + skippable + zstandard.compress(b"two\n") + skippable
    assert read_text(written(tmp_path, content)) == "one\ntwo\n"


@pytest.mark.parametrize("codec", COMPRESS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_truncated_log_is_reported(tmp_path: Path, codec: str, part: float) -> None:
    compressed = COMPRESS[codec](TEXT.encode())
    path = written(tmp_path, compressed[: int(len(compressed) * part)])
    with pytest.raises(UserError) as raised:
        read_text(path)
    assert str(raised.value) == f"{path}: truncated {codec.split()[0]}: its end is missing"


@pytest.mark.parametrize("codec", COMPRESS)
def test_truncated_second_stream_is_reported(tmp_path: Path, codec: str) -> None:
    compress = COMPRESS[codec]
    path = written(tmp_path, compress(b"one\n") + compress(TEXT.encode())[:-8])
    with pytest.raises(UserError, match=f"^{path}: truncated "):
        read_text(path)


@pytest.mark.parametrize("codec", COMPRESS)
def test_damaged_log_is_reported(tmp_path: Path, codec: str) -> None:
    compressed = bytearray(COMPRESS[codec](TEXT.encode()))
    middle = len(compressed) // 2
    compressed[middle : middle + 64] = b"\xff" * 64
    path = written(tmp_path, bytes(compressed))
    with pytest.raises(UserError, match=f"^{path}: damaged {codec.split()[0]}: "):
        read_text(path)


def test_unreadable_log_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.log: cannot be read: No such file"):
        read_text(tmp_path / "nothing.log")
