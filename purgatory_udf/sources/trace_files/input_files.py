"""Input files of an import: files, folders and patterns on any file system of Arrow; and options by input format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pyarrow import fs

from purgatory_udf.common.errors import UserError
from purgatory_udf.common.local_files import files_below, identity_of, is_local_path, require_local_path

# Codecs by suffix of compressed files.
# Text of logs compresses to about a tenth.
_USUAL_RATIO = 10
CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
JSON_LINES = tuple(f".{kind}{codec}" for kind in ("jsonl", "json", "ndjson") for codec in ("", *CODECS))
PARQUET = (".parquet",)

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
# Hadoop's URI schemes of object stores, and Arrow's.
_ALIASES = {"s3a": "s3", "s3n": "s3"}
# Maximum number of skipped links that are named.
_SHOWN_LINKS = 5


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file with location, size and modification time. `name`, as the user wrote it, becomes `events.source`."""

    filesystem: fs.FileSystem
    path: str
    name: str
    size: int
    modified: int | None = None

    @property
    def expected_bytes(self) -> int:
        """Its size, or about its size without compression."""
        return self.size * _USUAL_RATIO if self.name.endswith(tuple(CODECS)) else self.size


def find_files(
    given: Sequence[str],
    endings: Sequence[str],
    skipped: list[str] | None = None,
    wanted: Callable[[str], bool] = lambda name: True,
) -> list[InputFile]:
    """Return the files of the given paths in their order, without duplicates and hidden files.

    Files of a folder or pattern are sorted by name. Folders are searched recursively for the given endings; a file that
    is given by its path may have any name. A local file with several names, which are links to it, is returned once.

    Args:
        given: Paths of files and folders, glob patterns, or URIs.
        endings: Endings of the names of files in folders.
        skipped: The other names of files, and links to folders that were searched or to nothing, are appended to this
            list.
        wanted: Whether a file of this name is returned.

    Raises:
        UserError: A path does not exist, is a pipe, or contains no file with one of the endings.
    """
    skipped = [] if skipped is None else skipped
    by_path: dict[str, InputFile] = {}
    for name in given:
        files = list(_files_of(str(name), endings, skipped))
        if not files:
            raise UserError(f"{name}: contains no {', '.join(f'*{ending}' for ending in endings if ending) or 'files'}")
        for file in filter(lambda file: wanted(file.name), files):
            by_path.setdefault(f"{file.filesystem.type_name}:{file.path}", file)
    # The name that is not a link takes precedence.
    chosen: dict[object, InputFile] = {}
    for place, file in by_path.items():
        key = identity_of(file.path) if _is_local(file.filesystem) else place
        if key not in chosen or (os.path.islink(chosen[key].path) and not os.path.islink(file.path)):
            chosen[key] = file
    names = {file.name for file in chosen.values()}
    skipped += (file.name for file in by_path.values() if file.name not in names)
    return [file for file in by_path.values() if file.name in names]


def require_outside(files: Sequence[InputFile], folders: Sequence[str]) -> None:
    """Raise `UserError` if one of the files is in one of the folders, whose content an import replaces."""
    for folder in folders:
        place = os.path.realpath(require_local_path(folder)) if is_local_path(folder) else None
        for file in files:
            if _is_local(file.filesystem):
                is_inside = place is not None and os.path.realpath(file.path).startswith(f"{place}/")
            else:
                is_inside = file.name.startswith(f"{folder}/")
            if is_inside:
                raise UserError(f"{file.name}: is in {folder}, which the import replaces; choose another --out")


def skipped_links(skipped: Sequence[str]) -> list[str]:
    """Return lines about the links that `find_files` skipped, for the summary of an import; empty without links."""
    lost = [link for link in skipped if os.path.islink(link) and not os.path.exists(link)]
    kinds = {"files that were read already": [link for link in skipped if link not in lost], "missing files": lost}
    return [f"skipped   links to {kind}: {_listed(links)}" for kind, links in kinds.items() if links]


def _listed(links: Sequence[str]) -> str:
    more = f" and {len(links) - _SHOWN_LINKS:,} more" if len(links) > _SHOWN_LINKS else ""
    return f"{', '.join(links[:_SHOWN_LINKS])}{more}"


def _files_of(name: str, endings: Sequence[str], skipped: list[str]) -> Iterator[InputFile]:
    if not name.strip():
        raise UserError("the name of an input is empty; `.` is the current folder")
    filesystem, path = _located(name)
    info = _info(filesystem, path, name)
    if info.type == fs.FileType.NotFound:
        base, pattern = _split_pattern(path)
        if not pattern:
            raise UserError(f"{name}: no such file or folder")
        found = {match.path: match for match in _matches(filesystem, base, pattern, name)}
        if not found:
            raise UserError(f"{name}: no file matches")
        # Names of matches start as the pattern is written, up to its first wildcard.
        written = "/".join(name.split("/")[: -len(pattern)])
        for match in sorted(found):
            inner = _joined(written, _relative(match, base))
            yield from _expanded(filesystem, found[match], inner, endings, skipped)
    else:
        yield from _expanded(filesystem, info, name, endings, skipped)


def _expanded(
    filesystem: fs.FileSystem, info: Any, name: str, endings: Sequence[str], skipped: list[str]
) -> Iterator[InputFile]:
    """Yield the file `info`, or the files below the folder `info` that have one of the endings, sorted by path.

    `name` is the path as the user wrote it. Links to folders that were searched are appended to `skipped`.
    """
    if info.type != fs.FileType.Directory:
        if _is_local(filesystem) and os.path.exists(info.path) and Path(info.path).is_fifo():
            raise UserError(f"{name}: is a pipe, but inputs of this kind are read in pieces; write it to a file")
        yield _file(filesystem, info, name)
        return
    links: list[str] = []
    for file in sorted(_below(filesystem, info.path, name, links), key=lambda file: file.path):
        inner = _relative(file.path, info.path)
        if file.type == fs.FileType.NotFound and _is_local(filesystem) and os.path.islink(file.path):
            links.append(file.path)
        if file.type == fs.FileType.File and inner.endswith(tuple(endings)) and not _hidden(inner):
            yield _file(filesystem, file, _joined(name, inner))
    inner_links = (_relative(link, info.path) for link in links)
    skipped += (_joined(name, inner) for inner in inner_links if not _hidden(inner))


def _file(filesystem: fs.FileSystem, info: Any, name: str) -> InputFile:
    return InputFile(filesystem, info.path, name, info.size or 0, info.mtime_ns)


def _located(name: str) -> tuple[fs.FileSystem, str]:
    if not _URI.match(name):
        return fs.LocalFileSystem(), str(Path(name).absolute())
    scheme, rest = name.split(":", 1)
    try:
        filesystem, path = fs.FileSystem.from_uri(f"{_ALIASES.get(scheme, scheme)}:{rest}")
    except (OSError, ValueError) as error:
        raise UserError(f"{name}: cannot be reached: {_first_line(error)}") from None
    return filesystem, path


def _is_local(filesystem: fs.FileSystem) -> bool:
    return isinstance(filesystem, fs.LocalFileSystem)


def _info(filesystem: fs.FileSystem, path: Any, name: str) -> Any:
    try:
        return filesystem.get_file_info(path)
    except OSError as error:
        raise UserError(f"{name}: cannot be read: {_first_line(error)}") from None


def _below(filesystem: fs.FileSystem, folder: str, name: str, links: list[str]) -> list[Any]:
    """Return the files below a folder; append links to folders that are searched already to `links`."""
    if _is_local(filesystem):
        # Arrow follows a link to the folder that contains it, 40 times.
        return list(_info(filesystem, [str(file) for file in files_below(folder, links, _unreadable)], name))
    return list(_info(filesystem, fs.FileSelector(folder, recursive=True, allow_not_found=True), name))


def _unreadable(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be read: {error.strerror}")


def _split_pattern(path: str) -> tuple[str, list[str]]:
    """Return the folder above the first component with a wildcard, and the components from there on."""
    parts = path.split("/")
    first = next((place for place, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
    return "/".join(parts[:first]) or "/", parts[first:]


def _matches(filesystem: fs.FileSystem, folder: str, pattern: Sequence[str], name: str) -> Iterator[Any]:
    """Yield the files in a folder that match a pattern of path components.

    The component `**` matches any number of folders, but no links. `name` is the folder as the user wrote it.
    """
    first, *rest = pattern
    if first == "**" and rest:
        yield from _matches(filesystem, folder, rest, name)
    children = _info(filesystem, fs.FileSelector(folder, allow_not_found=True), name)
    for child in children:
        inner = child.base_name
        is_folder = child.type == fs.FileType.Directory
        if _hidden(inner):
            continue
        if first == "**":
            if not is_folder:
                if not rest:
                    yield child
            elif not (_is_local(filesystem) and os.path.islink(child.path)):
                yield from _matches(filesystem, child.path, pattern, name)
        elif fnmatchcase(inner, first):
            if not rest:
                yield child
            elif is_folder:
                yield from _matches(filesystem, child.path, rest, name)


def _hidden(path: str) -> bool:
    """Return whether Spark, Delta or shells use the name for internal files."""
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _relative(path: str, folder: str) -> str:
    return path[len(folder) :].lstrip("/") if path.startswith(folder) else path


def _joined(folder: str, inner: str) -> str:
    return f"{folder.rstrip('/')}/{inner}" if folder else inner


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class InputFormat(StrEnum):
    """Input format of an import, as in `ingest --from`."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    REQUEST_LOG = "request-log"
    KAFKA = "kafka"


_LOGS = frozenset({InputFormat.REQUEST_LOG, InputFormat.KAFKA})
# Formats by option; other options apply to all formats.
_ONLY_WITH = {
    "max_disorder_ms": frozenset({InputFormat.JSONL, InputFormat.PARQUET, InputFormat.KAFKA}),
    **dict.fromkeys(("topics", "batches", "isr", "zone", "anonymise", "anonymise_key", "kafka_version"), _LOGS),
    **dict.fromkeys(
        ("bootstrap", "topic", "messages", "client", "client_file", "follow", "hold_ms"), frozenset({InputFormat.KAFKA})
    ),
}


def require_applicable_options(form: InputFormat, paths: Sequence[str] | None, given: Mapping[str, object]) -> None:
    """Raise `UserError` if an option does not apply to the format, or one that the format needs is missing.

    Args:
        form: The format of the input.
        paths: The paths of the command line; Kafka has none, other formats need one.
        given: The options by parameter name; options that are not given have the value None or False.
    """
    for name, value in given.items():
        forms = _ONLY_WITH.get(name)
        if forms is not None and form not in forms and value is not None and value is not False:
            raise UserError(f"{_option(name)} requires --from {' or '.join(sorted(forms))}, not --from {form}")
    if form is InputFormat.KAFKA:
        if paths:
            raise UserError(f"{paths[0]}: --from kafka reads no files; use --bootstrap and --topic")
        for name in ("bootstrap", "topic"):
            if given.get(name) is None:
                raise UserError(f"--from kafka needs {_option(name)}")
    elif not paths:
        raise UserError(f"--from {form} needs the PATH of a file or folder")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
