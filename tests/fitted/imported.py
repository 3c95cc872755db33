"""A recording of the tree, imported without Spark: the rows of its tables `events` and `recorded`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import pyarrow as pa

from purgatory_udf.fitted.recording import Recording, recording
from purgatory_udf.requestlog.cluster.batches import batches_in_file
from purgatory_udf.requestlog.cluster.context import Given
from purgatory_udf.requestlog.cluster.metadata import cluster_in_file
from purgatory_udf.requestlog.cluster.topics import names_in_file
from purgatory_udf.requestlog.importing.reading import matters
from purgatory_udf.requestlog.lines.line import read_line
from purgatory_udf.requestlog.lines.request import Place, Request
from purgatory_udf.tables import EVENTS, RECORDED
from tests.recorded import file, lines
from tests.requestlog.translate import Translation, translate

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def imported(name: str) -> tuple[pa.Table, pa.Table]:
    folder = file("traces", name)
    requests = []
    for number in range(3):
        for line, text in enumerate(lines(folder / f"request-{number + 1}.log"), 1):
            request = read_line(text.rstrip("\n"), Place(number, line), UTC)
            if isinstance(request, Request) and matters(request):
                requests.append(request)
    given = Given(
        names_in_file(_beside(folder, "topics.json")),
        cluster_in_file(_beside(folder, "cluster-metadata.txt")),
        batches_in_file(_beside(folder, "batches.csv")),
    )
    return tables_of(translate(requests, given))


def tables_of(translation: Translation) -> tuple[pa.Table, pa.Table]:
    events = [{**event, "event_time": _at(event["time_us"])} for event in translation.events]
    recorded = [
        {
            "operation_id": seq,
            "broker": translation.events[seq]["broker"],
            "kind": one.kind,
            "api": one.api,
            "started_at": _at(translation.events[seq]["time_us"]),
            "written_at": _at(one.written_us),
            "recorded_outcome": one.outcome,
            "recorded_remote_ms": one.remote_ms,
            "recorded_local_ms": one.local_ms,
            "recorded_bytes": one.bytes,
        }
        for seq, one in translation.recorded.items()
    ]
    return pa.Table.from_pylist(events, schema=EVENTS), pa.Table.from_pylist(recorded, schema=RECORDED)


@cache
def recorded_cluster(name: str) -> Recording:
    return recording(*imported(name))


def _beside(folder: Path, name: str) -> Path:
    return file(*folder.relative_to(file()).parts, name)


def _at(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
