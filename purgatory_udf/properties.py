"""Files of properties: in a line a key and a value, parted by blanks, `=` or `:`; `#` begins a comment."""

from __future__ import annotations

import re
from pathlib import Path

from purgatory_udf.errors import UserError


def read_properties(file: Path) -> dict[str, str]:
    """A UserError if it cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{file}: cannot be read: {reason}") from None
    pairs = (re.split(r"\s*[=:\s]\s*", line.strip(), maxsplit=1) for line in lines if line.strip())
    return {pair[0]: pair[1] if len(pair) > 1 else "" for pair in pairs if not pair[0].startswith(("#", "!"))}
