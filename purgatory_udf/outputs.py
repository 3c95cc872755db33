"""What can be said of an output folder before Spark is started."""

from __future__ import annotations

import os
from pathlib import Path

from purgatory_udf.errors import UserError


def require_folder(out: str) -> None:
    """Raise if there is no such folder; a place that only Spark can look at may be anything."""
    if "://" not in out and not os.environ.get("HADOOP_CONF_DIR") and not Path(out).is_dir():
        raise UserError(f"{out}: no such folder")
