"""Files by path: this machine's without a JVM, and Hadoop's, behave as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from purgatory_udf.backend.backend import LocalBackend, SparkBackend
from purgatory_udf.backend.file_system import Files, HadoopFiles, LocalFiles
from purgatory_udf.common.errors import NeedsSparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def seen(files: Files, path: str) -> tuple[bool, bool, list[str], bytes | None]:
    """Checksums, which Hadoop lays beside what it writes, do not count."""
    names = sorted(name for name in files.names(path) if not name.endswith(".crc"))
    return files.exists(path), files.is_file(path), names, None if names else files.read(path)


NOTHING: Any = (False, False, [], None)


def used(files: Files, folder: str) -> list[Any]:
    """What there is to see after each step."""
    log: list[Any] = [seen(files, f"{folder}/a")]
    files.make_folder(f"{folder}/a/b")
    files.make_folder(f"{folder}/a/b")
    log += [seen(files, f"{folder}/a"), seen(files, f"{folder}/a/b")[:2], files.names(f"{folder}/a/b")]
    files.write(f"{folder}/a/c/one", b"first")
    files.write(f"{folder}/a/c/one", b"2nd\0")
    log += [seen(files, f"{folder}/a"), seen(files, f"{folder}/a/c"), files.is_file(f"{folder}/a/c/one")]
    log += [files.read(f"{folder}/a/c/one"), files.read(f"{folder}/a/c/two")]
    files.remove(f"{folder}/a/c/one")
    log += [seen(files, f"{folder}/a/c/one"), files.exists(f"{folder}/a/c")]
    files.write(f"{folder}/a/c/one", b"")
    files.remove(f"{folder}/a")
    files.remove(f"{folder}/a")
    log += [seen(files, f"{folder}/a")]
    return log


EXPECTED: list[Any] = [
    NOTHING,
    *((True, False, ["b"], None), (True, False), []),
    *((True, False, ["b", "c"], None), (True, False, ["one"], None), True),
    *(b"2nd\0", None),
    *(NOTHING, True),
    NOTHING,
]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_this_machines_files_are_there_without_a_session(scheme: str, tmp_path: Path) -> None:
    assert used(LocalFiles(), f"{scheme}{tmp_path}/x y") == EXPECTED
    assert list(tmp_path.iterdir()) == [tmp_path / "x y"]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_hadoops_files_are_the_same(scheme: str, tmp_path: Path, spark: SparkSession) -> None:
    assert used(HadoopFiles(spark), f"{scheme}{tmp_path}/x y") == EXPECTED
    assert HadoopFiles(spark).qualified(f"{tmp_path}/x y") == f"file:{tmp_path}/x y"


def test_a_backend_has_the_files_that_it_can_reach(spark: SparkSession) -> None:
    assert isinstance(SparkBackend(spark).files, HadoopFiles)
    assert isinstance(LocalBackend().files, LocalFiles)


@pytest.mark.parametrize("path", ["s3a://bucket/out", "hdfs://name/out"])
def test_what_lies_elsewhere_is_left_to_spark(path: str) -> None:
    with pytest.raises(NeedsSparkError, match=f"{path}: is not on this machine"):
        LocalFiles().exists(path)


def test_a_reader_finds_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Whoever has it open keeps what was there."""
    board = tmp_path / "board.json"
    LocalFiles().write(str(board), b"old")
    with board.open("rb") as reader:
        LocalFiles().write(str(board), b"new, and longer")
        assert reader.read() == b"old"
    assert board.read_bytes() == b"new, and longer"
