"""Recorded files straight into a replay: ingested once, however often the replay is interrupted and run again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from purgatory_udf.config import Config
from purgatory_udf.errors import UserError
from purgatory_udf.ingest.inputs import JSON_LINES, find_files
from purgatory_udf.ingest.pieces import FileLimits
from purgatory_udf.ingest.report import IngestOptions
from purgatory_udf.ingest.run import STAGING, ingest
from purgatory_udf.storage import delta
from purgatory_udf.storage.files import files_of
from purgatory_udf.storage.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def ingest_trace(
    spark: SparkSession, paths: Sequence[str], out: str, config: Config, overwrite: bool
) -> tuple[str, str]:
    """The events table made from these files, and the name of the ingest, which is the trace's identity."""
    events = Layout(out).table("events")
    options = IngestOptions(
        paths=paths,
        out=out,
        max_disorder_ms=config.max_disorder_ms,
        overwrite=overwrite,
        limits=FileLimits(config.max_line_bytes, config.max_unpacked),
        events_per_file=min(config.batch_events, 50_000),
    )
    name = options.run(find_files(paths, JSON_LINES))
    interrupted = files_of(spark).exists(Layout(out).table(STAGING))
    if not overwrite and not interrupted and delta.is_table(spark, events):
        first = spark.read.format("delta").load(events).select("run_id").first()
        if first is None or first.run_id != name:
            raise UserError(f"{events}: holds the events of another trace; choose another --out, or --overwrite")
        log.info("the trace has been ingested already: %s", events)
        return events, name
    report = ingest(spark, options)
    for line in report.summary():
        log.info(line)
    report.require_few_rejected(config.max_rejected)
    return events, name
