"""What a replay is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from purgatory_udf.common.configuration import Config

# Settings that change how a replay is carried out, never what it answers.
_IMPORT_SETTINGS = ("max_rejected", "max_line_bytes", "max_unpacked")
_EXECUTION_SETTINGS = ("batch_events", "grouping", "grouping_shards", *_IMPORT_SETTINGS)


@dataclass(frozen=True)
class ReplayOptions:
    events: str
    out: str
    config: Config
    run_id: str | None = None
    overwrite: bool = False
    follow: bool = False
    ingested: str | None = None  # the ingest that made the events, when one command did both


def semantic_settings(config: Config) -> dict[str, Any]:
    """The settings that the answers depend on."""
    return {key: value for key, value in config.model_dump(mode="json").items() if key not in _EXECUTION_SETTINGS}
