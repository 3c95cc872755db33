"""Reading the lines of a file: pieces, compression, line breaks, damage and limits."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from purgatory_udf.sources.trace_files import text_lines
from purgatory_udf.sources.trace_files.input_files import CODECS
from purgatory_udf.sources.trace_files.text_lines import FileLimits, byte_pieces, lines_of
from tests.sources.trace_files.traces import input_file, pieces_of, read_lines, write
from tests.support.examples import examples

TEXT = b"".join(b"line %d %s\n" % (number, b"x" * (number % 7)) for number in range(50_000))
LINES = TEXT.split(b"\n")[:-1]


def zstd(content: bytes) -> bytes:
    """Compress in several blocks, like a recorder that flushes from time to time."""
    compressor = zstandard.ZstdCompressor().compressobj()
    compressed = b""
    for start in range(0, len(content), 10_000):
        compressed += compressor.compress(content[start : start + 10_000])
        compressed += compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return compressed + compressor.flush()


def pbzip2(content: bytes) -> bytes:
    """Compress in several streams; each is decompressed as a whole."""
    portions = (content[start : start + 10_000] for start in range(0, len(content), 10_000))
    return b"".join(map(bz2.compress, portions)) or bz2.compress(b"")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstd,
    ".bz2": pbzip2,
    ".xz": lzma.compress,
}


@cache
def compressed_text(ending: str) -> bytes:
    return COMPRESS[ending](TEXT)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@given(
    content=st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b"\xff", b" "]), max_size=30).map(b"".join),
    piece_bytes=st.integers(1, 40),
    block=st.integers(1, 20),
    ahead=st.integers(1, 20),
)
@examples(200)
def test_each_line_is_read_once(scratch: Path, content: bytes, piece_bytes: int, block: int, ahead: int) -> None:
    path = write(scratch / "cut.jsonl", content)
    expected = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    if not expected[-1] and not content.endswith(b"\r"):
        expected.pop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", block)
        patch.setattr(text_lines, "_LINE_BLOCK", ahead)
        assert read_lines(path, piece_bytes, block) == expected


def test_last_line_of_piece_is_in_chunk_of_its_block(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", b"abc\ndef\nghi\njkl")
    chunks = [[*chunk.items] for piece in pieces_of(path, 6) for chunk in lines_of(piece)]
    assert chunks == [[b"abc", b"def"], [b"ghi"], [b"jkl"]]


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_file_has_same_lines(tmp_path: Path, ending: str) -> None:
    assert read_lines(write(tmp_path / f"a.jsonl{ending}", compressed_text(ending))) == LINES


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_streams_may_be_concatenated(tmp_path: Path, ending: str) -> None:
    compress = COMPRESS[ending]
    path = write(tmp_path / f"a.jsonl{ending}", compressed_text(ending) + compress(b"more") + compress(b"\nlast"))
    assert read_lines(path) == [*LINES, b"more", b"last"]


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_truncated_file_keeps_complete_lines(tmp_path: Path, ending: str, part: float) -> None:
    compressed = compressed_text(ending)
    path = write(tmp_path / f"a.jsonl{ending}", compressed[: int(len(compressed) * part)])
    chunks = list(lines_of(pieces_of(path)[0]))
    *whole, tail = [line for chunk in chunks for line in chunk.items]
    assert whole == LINES[: len(whole)]
    assert LINES[len(whole)].startswith(tail)
    assert len(whole) > len(LINES) * part / 2
    assert [chunk.broken is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    codec = CODECS[ending]
    assert chunks[-1].broken is not None
    assert chunks[-1].broken.reason == f"truncated {codec}: its end is missing"


def test_gzip_without_trailer_keeps_all_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", compressed_text(".gz")[:-4])
    assert read_lines(path) == [*LINES, b""]


@pytest.mark.parametrize("ending", COMPRESS)
def test_wrong_compression_is_reported(tmp_path: Path, ending: str) -> None:
    (chunk,) = lines_of(pieces_of(write(tmp_path / f"a.jsonl{ending}", TEXT))[0])
    assert chunk.items == [b""]
    assert chunk.broken is not None
    assert chunk.broken.reason.startswith("damaged ")


@pytest.mark.parametrize("ending", COMPRESS)
def test_damaged_second_stream_is_reported(tmp_path: Path, ending: str) -> None:
    second = COMPRESS[ending](b"more")
    path = write(tmp_path / f"a.jsonl{ending}", compressed_text(ending) + b"x" + second[1:])
    *chunks, last = lines_of(pieces_of(path)[0])
    assert [line for chunk in (*chunks, last) for line in chunk.items] == [*LINES, b""]
    assert last.broken is not None
    assert last.broken.reason.startswith("damaged ")


def test_zeros_may_follow_xz_streams(tmp_path: Path) -> None:
    zeros = bytes(text_lines.BLOCK)
    compressed = compressed_text(".xz") + zeros + lzma.compress(b"more") + bytes(4)
    assert read_lines(write(tmp_path / "a.jsonl.xz", compressed)) == [*LINES, b"more"]


@pytest.mark.parametrize("ending", COMPRESS)
def test_empty_files_have_no_lines(tmp_path: Path, ending: str) -> None:
    assert read_lines(write(tmp_path / "a.jsonl", b"")) == []
    assert read_lines(write(tmp_path / f"a.jsonl{ending}", b"")) == []
    assert read_lines(write(tmp_path / f"b.jsonl{ending}", COMPRESS[ending](b""))) == []


def test_byte_order_mark_is_removed_at_start_only(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n"
    for path in (write(tmp_path / "a.jsonl", content), write(tmp_path / "a.jsonl.gz", gzip.compress(content))):
        assert read_lines(path) == [b"a", b"\xef\xbb\xbfb"]
    assert read_lines(tmp_path / "a.jsonl", 5) == [b"a", b"\xef\xbb\xbfb"]


def test_line_may_span_blocks(tmp_path: Path) -> None:
    long = b"x" * (5 * text_lines.BLOCK + 17)
    assert read_lines(write(tmp_path / "a.jsonl", b"a\n" + long + b"\nb"), text_lines.BLOCK) == [b"a", long, b"b"]
    compressed = pa.compress(long + b"\nb", "gzip", asbytes=True)
    assert read_lines(write(tmp_path / "a.jsonl.gz", compressed)) == [long, b"b"]


@given(
    content=st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b"z" * 9]), max_size=30).map(b"".join),
    piece_bytes=st.integers(1, 40),
    block=st.integers(1, 20),
    ahead=st.integers(1, 20),
)
@examples(200)
def test_too_long_line_keeps_its_start(scratch: Path, content: bytes, piece_bytes: int, block: int, ahead: int) -> None:
    path = write(scratch / "long.jsonl", content)
    expected = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    if not expected[-1] and not content.endswith(b"\r"):
        expected.pop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", block)
        patch.setattr(text_lines, "_LINE_BLOCK", ahead)
        patch.setattr(text_lines, "KEPT", 4)
        kept = []
        for piece in byte_pieces([input_file(path)], piece_bytes, FileLimits(line_bytes=10)):
            for chunk in lines_of(piece, block):
                kept += [(line, number in chunk.cut) for number, line in enumerate(chunk.items)]
    assert len(kept) == len(expected)
    for (line, is_cut), whole in zip(kept, expected, strict=True):
        # Whether \r counts for the limit depends on the block's end, so a line of ten bytes may go either way.
        assert is_cut == (len(whole) > 10) or len(whole) == 10
        assert line == (whole[:4] if is_cut else whole)


def test_too_long_line_is_read_in_little_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b"a\n" + bytes(100 << 20) + b"\nb\n", 1))
    tracemalloc.start()
    chunks = list(lines_of(pieces_of(path)[0]))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [line[:10] for chunk in chunks for line in chunk.items] == [b"a", bytes(10), b"b"]
    (cut,) = [why for chunk in chunks for why in chunk.cut.values()]
    assert (cut.rule, cut.reason) == ("too long", "too long: more than 16,777,216 bytes (max_line_bytes)")
    assert peak_bytes < 80 << 20


@pytest.mark.parametrize("ending", COMPRESS)
def test_decompression_bomb_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(text_lines, "ALWAYS_UNPACKED", 1 << 20)
    path = write(tmp_path / f"a.jsonl{ending}", COMPRESS[ending](b"\n" * (16 << 20)))
    (piece,) = byte_pieces([input_file(path)], limits=FileLimits(unpacked=50))
    chunks = list(lines_of(piece))
    codec = CODECS[ending]
    assert chunks[-1].broken is not None
    assert chunks[-1].broken.reason == (f"too much {codec}: it unpacks to more than 50 times its size (max_unpacked)")
    assert sum(len(chunk.items) for chunk in chunks) < 50 * path.stat().st_size + 3 * text_lines.BLOCK
