"""What a table's log says of the commits that it still has: which of them its content consists of, and in which order
it can be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from delta.tables import DeltaTable

from purgatory_udf.query import local
from purgatory_udf.storage.files import files_of
from purgatory_udf.storage.near import asked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Commit:
    version: int
    operation: str
    # Of a write: whether it added to the table, or replaced all of it.
    mode: str | None
    # What the writer said of it.
    said: str | None


def commits(spark: SparkSession, path: str) -> list[Commit]:
    """In their order."""
    return sorted(asked(spark, path, lambda session: asked_of(session, path)), key=lambda commit: commit.version)


def asked_of(spark: SparkSession, path: str) -> list[Commit]:
    """The same by this session, in whatever order."""
    here = local(spark)
    if here:
        table = here.table_at(path)
        assert table is not None
        return [
            Commit(
                entry["version"],
                entry.get("operation") or "",
                (entry.get("operationParameters") or {}).get("mode"),
                entry.get("userMetadata"),
            )
            for entry in table.history()
        ]
    history = DeltaTable.forPath(spark, path).history()
    told = history.selectExpr("version", "operation", "operationParameters['mode'] mode", "userMetadata")
    return [Commit(row.version, row.operation, row.mode, row.userMetadata) for row in told.collect()]


def began(spark: SparkSession, path: str) -> int:
    """The version that the table's present content began with: its first, or the last that replaced everything."""
    return _first_of(commits(spark, path))


def _first_of(known: Sequence[Commit]) -> int:
    return max((commit.version for commit in known if commit.mode == "Overwrite"), default=0)


def since_began(spark: SparkSession, path: str) -> list[Commit]:
    """Those that all the table holds can be read by, one after the other, in the order in which it was written; none
    where the first of them, or the files that they added, are gone by now."""
    known = commits(spark, path)
    first = _first_of(known)
    since = [commit for commit in known if commit.version >= first]
    if since and since[0].version != first:
        return []
    # Only what was put together since is ever deleted, and what was so first goes first.
    if any(commit.operation == "OPTIMIZE" for commit in since) and not _has_all_files(spark, path, since):
        return []
    return since


def _has_all_files(spark: SparkSession, path: str, known: Sequence[Commit]) -> bool:
    """Whether the files are there that the first of these commits has added which added any."""
    files = files_of(spark)
    for commit in known:
        lines = (files.read(f"{path}/_delta_log/{commit.version:020}.json") or b"").splitlines()
        added = [unquote(action["add"]["path"]) for line in lines if "add" in (action := json.loads(line))]
        if added:
            return all(files.exists(f"{path}/{file}") for file in added)
    return True
