"""Functions on Delta tables by path, among them the versions and commits of a table's current content."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from purgatory_udf.backend.backend import Backend, Session, backend_of
from purgatory_udf.backend.delta_store import Commit

if TYPE_CHECKING:
    pass


def is_table(session: Session, path: str) -> bool:
    """Whether the path is a Delta table."""
    return backend_of(session).delta(path).is_table(path)


def create(session: Session, path: str, schema: pa.Schema, partitioned_by: Sequence[str] = ()) -> None:
    """Create an empty table unless there is one."""
    backend_of(session).delta(path).create(path, schema, partitioned_by)


def identity(session: Session, path: str) -> dict[str, Any]:
    """Return the table's id (`table`), newest `version` and number of `files`."""
    return backend_of(session).delta(path).identity(path)._asdict()


def content_version(session: Session, path: str) -> int:
    """Return the first version of the current content: the table's first, or the last that replaced all rows."""
    return _first_of(backend_of(session).delta(path).history(path))


def content_commits(session: Session, path: str) -> list[Commit]:
    """Return the commits from which a reader gets all rows, one after the other, in the order they were written.

    Empty where the first of them, or the files that it added, no longer exist.
    """
    backend = backend_of(session)
    known = backend.delta(path).history(path)
    first = _first_of(known)
    since = [commit for commit in known if commit.version >= first]
    if since and since[0].version != first:
        return []
    # Only files that were compacted since are ever deleted, the oldest first.
    if any(commit.operation == "OPTIMIZE" for commit in since) and not _has_first_files(backend, path, since):
        return []
    return since


def _first_of(known: Sequence[Commit]) -> int:
    return max((commit.version for commit in known if commit.mode == "Overwrite"), default=0)


def _has_first_files(backend: Backend, path: str, known: Sequence[Commit]) -> bool:
    """Whether the files of the first commit that added any still exist."""
    for commit in known:
        lines = (backend.files.read(f"{path}/_delta_log/{commit.version:020}.json") or b"").splitlines()
        added = [unquote(action["add"]["path"]) for line in lines if "add" in (action := json.loads(line))]
        if added:
            return all(backend.files.exists(f"{path}/{file}") for file in added)
    return True
