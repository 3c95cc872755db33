"""Files and folders by path, on whatever file system the path names: Hadoop's, or this machine's without a JVM."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from purgatory_udf.backend.dialect import is_local
from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_paths import require_local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files(Protocol):
    def exists(self, path: str) -> bool:
        """Whether anything lies there."""

    def is_file(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]:
        """What lies in the folder; nothing if there is none."""

    def remove(self, path: str) -> None:
        """With all that lies in it; nothing happens if it is not there."""

    def make_folder(self, path: str) -> None:
        """With those above it, unless it is there."""

    def read(self, path: str) -> bytes | None:
        """The whole file; None if there is none."""

    def write(self, path: str, value: bytes) -> None:
        """In place of what is there; folders are made."""


def files_of(spark: SparkSession) -> Files:
    """Those that the session can reach."""
    return LocalFiles() if is_local() else HadoopFiles(spark)


def require_no_file(files: Files, out: str) -> None:
    """An output is a folder, or is not there yet."""
    if files.is_file(out):
        raise UserError(f"{out}: is a file; --out names a folder")


class LocalFiles:
    """This machine's."""

    def exists(self, path: str) -> bool:
        return require_local_path(path).exists()

    def is_file(self, path: str) -> bool:
        return require_local_path(path).is_file()

    def names(self, path: str) -> list[str]:
        folder = require_local_path(path)
        return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []

    def remove(self, path: str) -> None:
        place = require_local_path(path)
        if place.is_file():
            place.unlink()
        else:
            shutil.rmtree(place, ignore_errors=True)

    def make_folder(self, path: str) -> None:
        require_local_path(path).mkdir(parents=True, exist_ok=True)

    def read(self, path: str) -> bytes | None:
        file = require_local_path(path)
        return file.read_bytes() if file.is_file() else None

    def write(self, path: str, value: bytes) -> None:
        """Whoever reads meanwhile finds the old file or the new one, whole."""
        file = require_local_path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}")
        beside.write_bytes(value)
        os.replace(beside, file)


class HadoopFiles:
    """Whatever Hadoop reaches, asked through the session's JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def exists(self, path: str) -> bool:
        system, place = self._at(path)
        return bool(system.exists(place))

    def is_file(self, path: str) -> bool:
        system, place = self._at(path)
        return bool(system.exists(place)) and bool(system.getFileStatus(place).isFile())

    def names(self, path: str) -> list[str]:
        system, place = self._at(path)
        return [str(entry.getPath().getName()) for entry in system.listStatus(place)] if system.exists(place) else []

    def remove(self, path: str) -> None:
        system, place = self._at(path)
        system.delete(place, True)

    def make_folder(self, path: str) -> None:
        system, place = self._at(path)
        system.mkdirs(place)

    def read(self, path: str) -> bytes | None:
        if not self.is_file(path):
            return None
        system, place = self._at(path)
        stream = system.open(place)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, path: str, value: bytes) -> None:
        system, place = self._at(path)
        stream = system.create(place, True)
        try:
            stream.write(value)
        finally:
            stream.close()

    def qualified(self, path: str) -> str:
        """The whole URI, as Hadoop writes it."""
        system, place = self._at(path)
        return str(system.makeQualified(place).toString())

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()), place


# A file that is there as a whole: whoever reads it while it is written, and whatever ends who writes it, sees all of
# what was there before, or all of this.


def write_whole(file: Path, text: str, for_all: bool = False) -> None:
    """In place of what is there, with its folder; `for_all` to read, whatever this user's files are otherwise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    place = file.resolve()
    if place.exists() and not place.is_file():
        # A terminal or a pipe, in whose place nothing may be put.
        place.write_text(text, encoding="utf-8")
        return
    # Hidden, and of another suffix: a collector takes every file that ends in .prom.
    beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if for_all:
            beside.chmod(0o644)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
