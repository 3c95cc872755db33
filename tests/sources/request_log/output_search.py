"""Names in a request log, and the complete text of an output folder, to find names in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

# Fields of requests and responses that hold names chosen by users, or addresses.
_NAMES = re.compile(r"^(topic|topicName|topicId|name|clientId|group|groupId|memberId|leader|groupInstanceId|host)$")
_HOSTS = re.compile(r"\"connection\":\"([\d.]+:\d+)-([\d.]+:\d+)")


def names_in(log: str) -> set[str]:
    """Return the names in a log that have more than three characters; shorter ones occur in other words."""
    names = {host for pair in _HOSTS.findall(log) for host in pair}
    for line in log.splitlines():
        begin = line.find("{")
        if begin >= 0:
            names.update(_names(json.JSONDecoder().raw_decode(line[begin:])[0]))
    return {name for name in names if len(name) > 3}


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str) and _NAMES.match(key):
                yield inner
            yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


def text_of_output(folder: Path) -> str:
    """Return the names and bytes of the files in a folder, and the rows of Parquet files."""
    contents = []
    for file in sorted(folder.rglob("*")):
        contents.append(str(file.relative_to(folder)))
        if file.is_file():
            contents.append(file.read_bytes().decode("latin-1"))
            if file.suffix == ".parquet":
                contents.append(str(pq.ParquetFile(file).read().to_pylist()))
    return "\n".join(contents)
