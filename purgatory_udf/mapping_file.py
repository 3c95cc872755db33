"""A file of settings: YAML, a mapping of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from purgatory_udf.errors import UserError

# libyaml's, wherever PyYAML was built with it: a fitted scenario has tens of thousands of numbers.
_QUICK = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_mapping(path: Path, may_be_empty: bool = False) -> dict[Any, Any]:
    """A mistake names the file."""
    try:
        values = _loaded(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if values is None and may_be_empty:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected a mapping of keys, got {type(values).__name__}")
    return values


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, _QUICK)
    except yaml.YAMLError:
        # PyYAML's own says more exactly where the mistake is.
        return yaml.safe_load(text)
