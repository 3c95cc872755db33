"""Options of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from purgatory_udf.common.configuration import Config

# Settings that change how a replay is executed, but not its results.
_IMPORT_SETTINGS = ("max_rejected", "max_line_bytes", "max_unpacked")
_EXECUTION_SETTINGS = ("batch_events", "grouping", "grouping_shards", *_IMPORT_SETTINGS)


@dataclass(frozen=True)
class ReplayOptions:
    """Options of a replay.

    Attributes:
        events: Path of the Delta table of events.
        out: Output folder.
        config: All settings.
        run_id: Id of the run; None derives it from the trace and the settings.
        overwrite: Whether to delete an existing run and start from scratch.
        follow: Whether to follow a growing table until interrupted.
        ingested: Name of the import, if the same command has imported the events. It identifies the trace.
    """

    events: str
    out: str
    config: Config
    run_id: str | None = None
    overwrite: bool = False
    follow: bool = False
    ingested: str | None = None


def semantic_settings(config: Config) -> dict[str, Any]:
    """Return the settings that results depend on."""
    return {key: value for key, value in config.model_dump(mode="json").items() if key not in _EXECUTION_SETTINGS}
