"""Recordings of the test data, imported without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.contract.tables import EVENTS, RECORDED
from purgatory_udf.prediction.recording import Recording, build_recording
from purgatory_udf.sources.request_log.importing.import_options import RequestLogOptions
from purgatory_udf.sources.request_log.importing.log_import import ingest_request_log
from tests.sources.request_log.recordings import BROKERS
from tests.sources.request_log.translate import Translation
from tests.support.recorded import data_file

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@cache
def recorded_cluster(name: str) -> Recording:
    """Return a recording of `tests/data/traces`."""
    topics, isr, batches, *logs = (
        str(data_file("traces", name, given))
        for given in (
            "topics.json",
            "cluster-metadata.txt",
            "batches.csv",
            *(f"request-{broker}.log" for broker in BROKERS),
        )
    )
    with TemporaryDirectory() as out:
        ingest_request_log(LocalBackend(), RequestLogOptions(logs, out, topics=topics, isr=isr, batches=batches))
        tables = [DeltaTable(f"{out}/{table}").to_pyarrow_table() for table in ("events", "recorded")]
    return build_recording(*tables)


def tables_of(translation: Translation) -> tuple[pa.Table, pa.Table]:
    """Return the tables `events` and `recorded` of a translated request log."""
    events = [{**event, "event_time": _at(event["time_us"])} for event in translation.events]
    recorded = [
        {
            "operation_id": seq,
            "broker": translation.events[seq]["broker"],
            "kind": request.kind,
            "api": request.api,
            "started_at": _at(translation.events[seq]["time_us"]),
            "written_at": _at(request.written_us),
            "recorded_outcome": request.outcome,
            "recorded_remote_ms": request.remote_ms,
            "recorded_local_ms": request.local_ms,
            "recorded_bytes": request.bytes,
        }
        for seq, request in translation.recorded.items()
    ]
    return pa.Table.from_pylist(events, schema=EVENTS), pa.Table.from_pylist(recorded, schema=RECORDED)


def _at(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
