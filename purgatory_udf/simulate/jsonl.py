"""A trace as JSON Lines, the event contract's public form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from purgatory_udf.errors import UserError


def write_jsonl(events: Iterable[dict[str, Any]], file: Path) -> None:
    """One event a line; a field that an event does not have is left out."""
    try:
        with file.open("w", encoding="utf-8") as stream:
            for event in events:
                said = {name: value for name, value in event.items() if value is not None}
                stream.write(json.dumps(said, separators=(",", ":")) + "\n")
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
