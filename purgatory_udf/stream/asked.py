"""How a run is known again, whichever version began it: by the settings that decide what it answers, and by the formats
of its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purgatory_udf.config import Config
from purgatory_udf.frames import codec as frames
from purgatory_udf.groups import shelf
from purgatory_udf.loop import codec
from purgatory_udf.stream.options import semantic_settings

# In which formats a run's state is kept, from its beginning to its end. `queries` is how many there are, which tables
# go between them, and what Spark keeps beside a state: whoever changes that counts on.
FORMATS = {"queries": 2, "partitions": codec.VERSION, "groups": shelf.VERSION, "frames": frames.VERSION}


def as_now(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The kept settings of a run as this version has them: what it does not know is left out, what is new has its
    default."""
    return _filled(settings, semantic_settings(Config()))


def _filled(settings: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    given = {key: settings.get(key, default) for key, default in defaults.items()}
    return {
        key: _filled(value, defaults[key]) if isinstance(value, dict) and isinstance(defaults[key], dict) else value
        for key, value in given.items()
    }


def other_formats(settings: Mapping[str, Any]) -> str:
    """Those of a run that are none of this version; a state tells of its own where the run does not."""
    kept = settings.get("formats", FORMATS)
    return ", ".join(f"{name} {kept.get(name)}" for name, ours in FORMATS.items() if kept.get(name) != ours)
