"""The lines of a file, however it is cut, packed, ended or broken."""

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
from tests.sources.trace_files.traces import input_file, lines_in, pieces_of, write
from tests.support.examples import examples

TEXT = b"".join(b"line %d %s\n" % (number, b"x" * (number % 7)) for number in range(50_000))
LINES = TEXT.split(b"\n")[:-1]


def zstd(content: bytes) -> bytes:
    """In several blocks, as a recorder writes that flushes now and then."""
    packer = zstandard.ZstdCompressor().compressobj()
    packed = b""
    for start in range(0, len(content), 10_000):
        packed += packer.compress(content[start : start + 10_000])
        packed += packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return packed + packer.flush()


def pbzip2(content: bytes) -> bytes:
    """In several streams, each of which is had whole or not at all."""
    portions = (content[start : start + 10_000] for start in range(0, len(content), 10_000))
    return b"".join(map(bz2.compress, portions)) or bz2.compress(b"")


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": zstd,
    ".bz2": pbzip2,
    ".xz": lzma.compress,
}


@cache
def packed_text(ending: str) -> bytes:
    return PACKED[ending](TEXT)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@given(
    content=st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b"\xff", b" "]), max_size=30).map(b"".join),
    piece_bytes=st.integers(1, 40),
    block=st.integers(1, 20),
)
@examples(80)
def test_every_line_is_read_once_wherever_the_file_is_cut(
    scratch: Path, content: bytes, piece_bytes: int, block: int
) -> None:
    path = write(scratch / "cut.jsonl", content)
    expected = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    if not expected[-1] and not content.endswith(b"\r"):
        expected.pop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", block)
        assert lines_in(path, piece_bytes) == expected


@pytest.mark.parametrize("ending", PACKED)
def test_packed_files_hold_the_lines_of_the_text(tmp_path: Path, ending: str) -> None:
    assert lines_in(write(tmp_path / f"a.jsonl{ending}", packed_text(ending))) == LINES


@pytest.mark.parametrize("ending", PACKED)
def test_a_packed_file_may_consist_of_several(tmp_path: Path, ending: str) -> None:
    pack = PACKED[ending]
    path = write(tmp_path / f"a.jsonl{ending}", packed_text(ending) + pack(b"more") + pack(b"\nlast"))
    assert lines_in(path) == [*LINES, b"more", b"last"]


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_of_a_truncated_file_all_whole_lines_are_had_and_the_cut_tail_with_the_reason(
    tmp_path: Path, ending: str, part: float
) -> None:
    packed = packed_text(ending)
    path = write(tmp_path / f"a.jsonl{ending}", packed[: int(len(packed) * part)])
    chunks = list(lines_of(pieces_of(path)[0]))
    *whole, tail = [line for chunk in chunks for line in chunk.items]
    assert whole == LINES[: len(whole)]
    assert LINES[len(whole)].startswith(tail)
    assert len(whole) > len(LINES) * part / 2
    assert [chunk.broken is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
    codec = CODECS[ending]
    assert chunks[-1].broken is not None
    assert chunks[-1].broken.reason == f"truncated {codec}: the data breaks off"


def test_a_gz_that_lacks_only_its_last_bytes_loses_no_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", packed_text(".gz")[:-4])
    assert lines_in(path) == [*LINES, b""]


@pytest.mark.parametrize("ending", PACKED)
def test_what_is_no_packed_file_at_all_says_so(tmp_path: Path, ending: str) -> None:
    (chunk,) = lines_of(pieces_of(write(tmp_path / f"a.jsonl{ending}", TEXT))[0])
    assert chunk.items == [b""]
    assert chunk.broken is not None
    assert chunk.broken.reason.startswith("damaged ")


@pytest.mark.parametrize("ending", PACKED)
def test_empty_files_have_no_lines(tmp_path: Path, ending: str) -> None:
    assert lines_in(write(tmp_path / "a.jsonl", b"")) == []
    assert lines_in(write(tmp_path / f"a.jsonl{ending}", b"")) == []
    assert lines_in(write(tmp_path / f"b.jsonl{ending}", PACKED[ending](b""))) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line_and_of_no_other(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n"
    for path in (write(tmp_path / "a.jsonl", content), write(tmp_path / "a.jsonl.gz", gzip.compress(content))):
        assert lines_in(path) == [b"a", b"\xef\xbb\xbfb"]
    assert lines_in(tmp_path / "a.jsonl", 5) == [b"a", b"\xef\xbb\xbfb"]


def test_a_line_longer_than_any_block_stays_one(tmp_path: Path) -> None:
    long = b"x" * (5 * text_lines.BLOCK + 17)
    assert lines_in(write(tmp_path / "a.jsonl", b"a\n" + long + b"\nb"), text_lines.BLOCK) == [b"a", long, b"b"]
    packed = pa.compress(long + b"\nb", "gzip", asbytes=True)
    assert lines_in(write(tmp_path / "a.jsonl.gz", packed)) == [long, b"b"]


@given(
    content=st.lists(st.sampled_from([b"a", b"bcd", b"\n", b"\r\n", b"z" * 9]), max_size=30).map(b"".join),
    piece_bytes=st.integers(1, 40),
    block=st.integers(1, 20),
)
@examples(80)
def test_of_a_line_that_is_too_long_the_beginning_is_kept_and_the_others_are_whole(
    scratch: Path, content: bytes, piece_bytes: int, block: int
) -> None:
    path = write(scratch / "long.jsonl", content)
    expected = [line.removesuffix(b"\r") for line in content.split(b"\n")]
    if not expected[-1] and not content.endswith(b"\r"):
        expected.pop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "BLOCK", block)
        patch.setattr(text_lines, "KEPT", 4)
        kept = []
        for piece in byte_pieces([input_file(path)], piece_bytes, FileLimits(line_bytes=10)):
            for chunk in lines_of(piece):
                kept += [(line, number in chunk.cut) for number, line in enumerate(chunk.items)]
    assert len(kept) == len(expected)
    for (line, is_cut), whole in zip(kept, expected, strict=True):
        # Whether the \r of a line's end counts depends on where a block ends: a byte more or less is no matter.
        assert is_cut == (len(whole) > 10) or len(whole) == 10
        assert line == (whole[:4] if is_cut else whole)


def test_a_line_that_is_too_long_is_read_in_little_memory_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", gzip.compress(b"a\n" + bytes(100 << 20) + b"\nb\n", 1))
    tracemalloc.start()
    chunks = list(lines_of(pieces_of(path)[0]))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [line[:10] for chunk in chunks for line in chunk.items] == [b"a", bytes(10), b"b"]
    (cut,) = [why for chunk in chunks for why in chunk.cut.values()]
    assert (cut.rule, cut.reason) == ("too long", "too long: more than 16,777,216 bytes (max_line_bytes)")
    assert most < 80 << 20


@pytest.mark.parametrize("ending", PACKED)
def test_a_packed_file_that_unpacks_to_far_more_than_it_holds_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(text_lines, "ALWAYS_UNPACKED", 1 << 20)
    path = write(tmp_path / f"a.jsonl{ending}", PACKED[ending](b"\n" * (16 << 20)))
    (piece,) = byte_pieces([input_file(path)], limits=FileLimits(unpacked=50))
    chunks = list(lines_of(piece))
    codec = CODECS[ending]
    assert chunks[-1].broken is not None
    assert chunks[-1].broken.reason == (f"too much {codec}: it unpacks to more than 50 times its size (max_unpacked)")
    assert sum(len(chunk.items) for chunk in chunks) < 50 * path.stat().st_size + 3 * text_lines.BLOCK
