"""Record batches on disk, from the file of `--batches`: offsets, size and timestamp of each batch.

The file is either a CSV with the columns topic, partition, baseOffset, lastOffset, size and createTimeMs (optionally
transactional, control and producerId), or the output of `kafka-dump-log.sh`, with or without `--print-data-log`.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.log_files import open_text


class StoredBatch(NamedTuple):
    """A record batch with the offsets `base` to `last`, both included; `created_us` is its timestamp."""

    base: int
    last: int
    bytes: int
    created_us: int
    transactional: bool
    control: bool
    producer_id: int


Key = tuple[str, int]

# Largest number of batches that one request writes to a partition.
MAX_BATCHES = 1_000

_COLUMNS = ("topic", "partition", "baseOffset", "lastOffset", "size", "createTimeMs")
_DUMPED_FILE = re.compile(r"^Dumping .*?([^/\\]+)-(\d+)[/\\]\d+\.log")
_DUMPED_BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) ")


class BatchIndex:
    """The batches of one partition, indexed by base offset."""

    def __init__(self, batches: Iterable[StoredBatch]) -> None:
        self.batches = sorted(set(batches))

    def between(self, base: int, end: int) -> list[StoredBatch]:
        """Return the batches that are completely within [base, end)."""
        place = bisect_left(self.batches, base, key=lambda batch: batch.base)
        return [batch for batch in self.batches[place : place + MAX_BATCHES] if batch.last < end]

    def batches_of_request(self, base: int, size: int) -> list[StoredBatch]:
        """Return the batches that a request of `size` bytes wrote from `base` on; empty if no batch starts at `base`.

        A request usually writes one batch to a partition; a few clients write several, with sizes that add up to
        `size`.
        """
        place = bisect_left(self.batches, base, key=lambda batch: batch.base)
        written: list[StoredBatch] = []
        taken, end = 0, base
        for batch in self.batches[place : place + MAX_BATCHES]:
            if batch.base != end or (written and taken + batch.bytes > size):
                break
            written.append(batch)
            taken, end = taken + batch.bytes, batch.last + 1
        return written


def batches_in_file(path: str | Path) -> dict[Key, list[StoredBatch]]:
    """Read the batches of each partition. Raises UserError if the file has neither format."""
    by_partition: dict[Key, list[StoredBatch]] = {}
    with open_text(path) as lines:
        first = lines.readline()
        rows = _from_csv([first, *lines], path) if first.startswith("topic,") else _from_dump(_chain(first, lines))
        for key, batch in rows:
            by_partition.setdefault(key, []).append(batch)
    if not by_partition:
        raise UserError(f"{path}: no record batch found; expected a CSV of batches or the output of kafka-dump-log")
    return by_partition


def _chain(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _from_csv(lines: Iterable[str], path: str | Path) -> Iterator[tuple[Key, StoredBatch]]:
    rows = csv.DictReader(lines)
    missing = [column for column in _COLUMNS if column not in (rows.fieldnames or [])]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; expected {', '.join(_COLUMNS)}")
    for row in rows:
        try:
            yield (
                (row["topic"], int(row["partition"])),
                StoredBatch(
                    base=int(row["baseOffset"]),
                    last=int(row["lastOffset"]),
                    bytes=int(row["size"]),
                    created_us=int(row["createTimeMs"]) * 1000,
                    transactional=row.get("transactional") == "true",
                    control=row.get("control") == "true",
                    producer_id=int(row.get("producerId") or -1),
                ),
            )
        except (ValueError, TypeError) as error:
            numbers = ", ".join(_COLUMNS[1:])
            raise UserError(
                f"{path}:{rows.line_num}: invalid record batch ({error}); expected integers in {numbers}"
            ) from None


def _from_dump(lines: Iterable[str]) -> Iterator[tuple[Key, StoredBatch]]:
    key: Key | None = None
    for line in lines:
        if dumped := _DUMPED_FILE.match(line):
            key = (dumped[1], int(dumped[2]))
        elif key is not None and (batch := _DUMPED_BATCH.match(line)):
            words = line.split()
            fields = dict(zip(words[::2], words[1::2], strict=False))
            yield (
                key,
                StoredBatch(
                    base=int(batch[1]),
                    last=int(batch[2]),
                    bytes=int(fields.get("size:", 0)),
                    created_us=int(fields.get("CreateTime:", fields.get("LogAppendTime:", 0))) * 1000,
                    transactional=fields.get("isTransactional:") == "true",
                    control=fields.get("isControl:") == "true",
                    producer_id=int(fields.get("producerId:", -1)),
                ),
            )
