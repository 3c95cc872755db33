"""A table of this machine's disk kept small: few files, and none that no version of it needs any more."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from purgatory_udf.backend.local.duckdb_connection import needing_spark
from purgatory_udf.backend.local.session import LocalSession
from purgatory_udf.common.local_paths import require_local_path

# How often files are put together anew because others have changed the table meanwhile; the next time will do as well.
_TRIES = 3


class Size(NamedTuple):
    """Of a table's newest version."""

    files: int
    bytes: int


class LocalUpkeep:
    def __init__(self, session: LocalSession, path: str, large_enough: int) -> None:
        """Files of so many bytes are left as they are."""
        self._session, self._path, self._large_enough = session, path, large_enough

    def size(self) -> Size:
        with needing_spark():
            sizes = self._table().get_add_actions(flatten=True).column("size_bytes").to_pylist()
        return Size(len(sizes), sum(sizes))

    def compact(self) -> None:
        with needing_spark():
            for _ in range(_TRIES):
                with suppress(CommitFailedError):
                    self._table().optimize.compact(
                        target_size=self._large_enough, writer_properties=WriterProperties(compression="SNAPPY")
                    )
                    return

    def vacuum(self, keep_hours: int) -> None:
        """Delete what no version needs that is younger than this, and what was left behind before then. Nothing of it
        is told in the table's log."""
        with needing_spark():
            folder = require_local_path(self._path)
            # Names as an object store has them: none leads out of the folder, whatever a log may say.
            for name in self._table().vacuum(keep_hours, dry_run=True, enforce_retention_duration=False, full=True):
                file = folder / name
                file.unlink(missing_ok=True)
                # What Hadoop has put beside it.
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)

    def _table(self) -> DeltaTable:
        """As it is now: others go on writing."""
        table = self._session.table_at(self._path)
        assert table is not None
        return table
