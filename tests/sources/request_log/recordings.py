"""Bundled recordings of real clusters; each is read once per process."""

from __future__ import annotations

from functools import cache
from itertools import islice

from purgatory_udf.sources.request_log.cluster_context import GivenMetadata
from purgatory_udf.sources.request_log.cluster_facts import topic_names_in_file
from purgatory_udf.sources.request_log.cluster_metadata import read_metadata_dump
from purgatory_udf.sources.request_log.complete_parser import read_line
from purgatory_udf.sources.request_log.internal_topics import batches_in_file
from purgatory_udf.sources.request_log.logged_request import Place, Request
from tests.support import recorded

BROKERS = (1, 2, 3)


@cache
def log(name: str, lines: int | None = None, brokers: tuple[int, ...] = BROKERS) -> tuple[Request, ...]:
    """Return the requests of a recording, broker by broker; with `lines`, only of the first lines of each broker."""
    read = (
        read_line(line, Place(broker, number))
        for broker in brokers
        for number, line in enumerate(
            islice(recorded.lines(recorded.data_file("traces", name, f"request-{broker}.log")), lines), start=1
        )
    )
    return tuple(line for line in read if isinstance(line, Request))


def names(name: str) -> GivenMetadata:
    """Return the topic names of a recording, without any other metadata."""
    return GivenMetadata(topic_names_in_file(recorded.data_file("traces", name, "topics.json")))


def given(name: str) -> GivenMetadata:
    """Return all metadata of a recording: topic names, metadata log and record batches."""
    files = [
        recorded.data_file("traces", name, file) for file in ("topics.json", "cluster-metadata.txt", "batches.csv")
    ]
    return GivenMetadata(topic_names_in_file(files[0]), read_metadata_dump(files[1]), batches_in_file(files[2]))
