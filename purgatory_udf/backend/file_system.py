"""Files and folders by path: through Hadoop, or on the local file system without a JVM."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from purgatory_udf.common.errors import CheckFailedError, UserError
from purgatory_udf.common.local_files import require_local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Files(Protocol):
    """Interface to files and folders by path, independent of the file system."""

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""

    def is_file(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]:
        """Return the names in the folder; none if it does not exist."""

    def remove(self, path: str) -> None:
        """Delete the file or folder with its contents, if it exists."""

    def make_folder(self, path: str) -> None:
        """Create the folder and its parents, if needed."""

    def read(self, path: str) -> bytes | None:
        """Return the contents of the file; None if it does not exist."""

    def write(self, path: str, value: bytes) -> None:
        """Write or replace the file, and create its folder if needed."""


def require_no_file(files: Files, out: str) -> None:
    """Raise `UserError` if the output is a file."""
    if files.is_file(out):
        raise UserError(f"{out}: is a file; --out must be a folder")


class LocalFiles:
    """Files of the local file system."""

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
        """Replace the file atomically: a concurrent reader finds the old or the new contents."""
        file = require_local_path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}")
        draft.write_bytes(value)
        os.replace(draft, file)


class HadoopFiles:
    """Files of any file system that Hadoop supports, through the session's JVM."""

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
        """Return the full URI, as Hadoop writes it."""
        system, place = self._at(path)
        return str(system.makeQualified(place).toString())

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm

    def _at(self, path: str) -> tuple[Any, Any]:
        place = self._jvm.org.apache.hadoop.fs.Path(path)
        return place.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf()), place


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a document as JSON to a file, or print it if the file is `-`. Times are in ISO 8601, in UTC."""
    text = json.dumps(document, indent=2, ensure_ascii=False, default=_as_json) + "\n"
    if file == Path("-"):
        print(text, end="")
    else:
        replace_file(file, text)


def _as_json(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def replace_file(file: Path, text: str, for_all: bool = False) -> None:
    """Write or replace a file atomically, even if the process is killed. With `for_all`, all users can read it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    place = file.resolve()
    if place.exists() and not place.is_file():
        # A terminal or a pipe must not be replaced.
        place.write_text(text, encoding="utf-8")
        return
    # Hidden, and with another suffix: the collector of metrics reads all `*.prom` files.
    draft = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        if for_all:
            draft.chmod(0o644)
        draft.replace(place)
    except OSError as error:
        # The caller knows only the path that it gave.
        raise OSError(error.errno, error.strerror, str(file)) from error
    finally:
        with suppress(OSError):
            draft.unlink()


@contextmanager
def staging_folder(files: Files, path: str) -> Iterator[None]:
    """Provide an empty folder for the rows of an import, which is removed at the end of the `with` block.

    If the import fails for another reason than invalid input, or is interrupted, the folder stays: it shows the next
    import that the tables are incomplete. Only on the local disk are its files removed, because Spark may have stopped.
    """
    files.make_folder(path)
    _empty(files, path)
    try:
        yield
    except (UserError, CheckFailedError):
        files.remove(path)
        raise
    except BaseException:
        if isinstance(files, LocalFiles):
            _empty(files, path)
        raise
    files.remove(path)


def _empty(files: Files, folder: str) -> None:
    for name in files.names(folder):
        files.remove(f"{folder}/{name}")
