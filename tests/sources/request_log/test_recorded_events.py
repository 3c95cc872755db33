"""Every event of excerpts of real logs, with recorded outcomes and counts, as `tests/data/imported` has them.

An excerpt has the requests of a few seconds in which something happens. If an intended change of the import changes
events, read the difference before you run `python -m tests.sources.request_log.test_recorded_events`.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import msgspec
import pytest

from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_metadata import read_metadata_dump
from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.internal_topics import batches_in_file
from purgatory_udf.sources.request_log.logged_request import Place, Request
from tests.sources.request_log import recordings
from tests.sources.request_log.translate import translate
from tests.support import recorded

TOPICS, METADATA, BATCHES = "topics.json", "cluster-metadata.txt", "batches.csv"
# The files of metadata that are given with an excerpt.
EXCERPTS: dict[str, tuple[str, ...]] = {
    "W3-groups-k39": (TOPICS, METADATA),
    "W5-base": (TOPICS,),
    "W6-follower-reads": (TOPICS, METADATA),
    "W7-rolling-k39": (TOPICS, METADATA, BATCHES),
    "W8-tiered": (TOPICS, METADATA),
    "W9-kip848": (METADATA,),
    "W11-faults": (TOPICS,),
}


@cache
def excerpt(name: str) -> tuple[Request, ...]:
    lines = recorded.lines(recorded.data_file("imported", f"{name}.log"))
    read = (read_line(line, Place(0, number)) for number, line in enumerate(lines, start=1))
    return tuple(line for line in read if isinstance(line, Request))


@cache
def given(name: str) -> GivenMetadata:
    files = {file: recorded.data_file("traces", name, file) for file in EXCERPTS[name]}
    metadata = recordings.names(name) if TOPICS in files else GivenMetadata()
    if METADATA in files:
        metadata = replace(metadata, cluster=read_metadata_dump(files[METADATA]))
    if BATCHES in files:
        metadata = replace(metadata, batches=batches_in_file(files[BATCHES]))
    return metadata


def imported(name: str) -> Iterator[str]:
    """Yield each event with its recorded outcome, and the counts, as lines of JSON."""
    translation = translate(excerpt(name), given(name))
    for event in translation.events:
        outcome = translation.recorded.get(event["seq"])
        yield json.dumps([event, None if outcome is None else msgspec.structs.asdict(outcome)], separators=(",", ":"))
    yield json.dumps(dict(sorted(translation.report.counts.items())))


@pytest.mark.parametrize("name", EXCERPTS)
def test_excerpt_has_same_events(name: str) -> None:
    expected = [line.rstrip("\n") for line in recorded.lines(recorded.data_file("imported", f"{name}.jsonl"))]
    for actual, line in zip(imported(name), expected, strict=True):
        assert json.loads(actual) == json.loads(line)


if __name__ == "__main__":
    for recording in EXCERPTS:
        file = recorded.data_file("imported") / f"{recording}.jsonl.xz"
        file.write_bytes(lzma.compress("".join(f"{line}\n" for line in imported(recording)).encode(), preset=9))
