"""Each variant replayed, once: a folder that holds the same trace under the same settings is taken as it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from purgatory_udf.config import Config
from purgatory_udf.storage import delta, runs
from purgatory_udf.storage.layout import Layout
from purgatory_udf.storage.outputs import same_place
from purgatory_udf.stream.options import ReplayOptions, semantic_settings
from purgatory_udf.stream.replay import run_replay
from purgatory_udf.whatif.variants import Variant

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from purgatory_udf.storage.runs import Run

log = logging.getLogger(__name__)


def replays(spark: SparkSession, events: str, out: str, variants: list[Variant]) -> dict[str, str]:
    """The folder of each variant's tables, by name: the baseline's may be `out` itself."""
    here = Layout(out)
    known = runs.load(spark, here.table("runs"), "replay")
    identity = _identity(spark, events)
    folders: dict[str, str] = {}
    done: list[tuple[dict[str, Any], str]] = []
    if known and known.status == runs.FINISHED and _is_of(known, events, identity):
        done.append((_asked(known), out))
    for variant in variants:
        asked = semantic_settings(variant.config)
        same = next((folder for settings, folder in done if settings == asked), None)
        if same is None:
            same = here.table(f"_what_if/{variant.name}")
            log.info("variant %s", variant.name)
            replay_once(spark, events, same, variant.config)
            done.append((asked, same))
        folders[variant.name] = same
    return folders


def replay_once(spark: SparkSession, events: str, out: str, config: Config) -> None:
    """A folder of another trace, or of other settings, is one of our own of an earlier time: it is replaced."""
    identity = _identity(spark, events)
    known = runs.load(spark, Layout(out).table("runs"), "replay")
    stale = known is not None and (not _is_of(known, events, identity) or _asked(known) != semantic_settings(config))
    run_replay(spark, ReplayOptions(events, out, config, overwrite=stale))


def _identity(spark: SparkSession, events: str) -> dict[str, Any]:
    return delta.identity(spark, events) if delta.is_table(spark, events) else {}


def _asked(run: Run) -> dict[str, Any]:
    return {key: run.configuration.get(key) for key in semantic_settings(Config())}


def _is_of(run: Run, events: str, identity: dict[str, Any]) -> bool:
    """Whether the run replayed this table as it is now; one that ingested it itself has only its path to tell."""
    trace = run.trace
    return same_place(str(trace.get("events")), events) and (
        "ingest" in trace or all(trace.get(key) == identity.get(key) for key in ("table", "version"))
    )
