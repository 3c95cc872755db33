"""`LocalFiles` and `HadoopFiles` behave the same."""

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
    """Return whether a path exists and its contents, without Hadoop's checksum files."""
    names = sorted(name for name in files.names(path) if not name.endswith(".crc"))
    return files.exists(path), files.is_file(path), names, None if names else files.read(path)


NOTHING: Any = (False, False, [], None)


def used(files: Files, folder: str) -> list[Any]:
    """Return the states after each of several operations."""
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
def test_local_files_need_no_session(scheme: str, tmp_path: Path) -> None:
    assert used(LocalFiles(), f"{scheme}{tmp_path}/x y") == EXPECTED
    assert list(tmp_path.iterdir()) == [tmp_path / "x y"]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_hadoop_files_behave_the_same(scheme: str, tmp_path: Path, spark: SparkSession) -> None:
    assert used(HadoopFiles(spark), f"{scheme}{tmp_path}/x y") == EXPECTED
    assert HadoopFiles(spark).qualified(f"{tmp_path}/x y") == f"file:{tmp_path}/x y"


def test_backend_determines_the_files(spark: SparkSession) -> None:
    assert isinstance(SparkBackend(spark).files, HadoopFiles)
    assert isinstance(LocalBackend().files, LocalFiles)


@pytest.mark.parametrize("path", ["s3a://bucket/out", "hdfs://name/out"])
def test_remote_path_needs_spark(path: str) -> None:
    with pytest.raises(NeedsSparkError, match=f"{path}: is not on this machine"):
        LocalFiles().exists(path)


def test_open_reader_keeps_old_contents(tmp_path: Path) -> None:
    """A write replaces the file instead of changing it."""
    board = tmp_path / "board.json"
    LocalFiles().write(str(board), b"old")
    with board.open("rb") as reader:
        LocalFiles().write(str(board), b"new, and longer")
        assert reader.read() == b"old"
    assert board.read_bytes() == b"new, and longer"
