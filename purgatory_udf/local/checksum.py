"""What Delta's own writer leaves beside a commit: what the table is and how much of it there is.

Of a table whose newest commit has it, Spark learns the schema by reading this file; of any other by a query over the
log, which a job that has just started is seconds about. It is a help alone: nobody misses it where it is not.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

_FIRST = f"{0:020}"


def write_first(table: Path) -> None:
    """Beside the commit that has made the table."""
    log = table / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{_FIRST}.json").read_text(encoding="utf-8").splitlines()]
    said = {name: [action[name] for action in actions if name in action] for name in ("metaData", "protocol", "add")}
    (metadata,), (protocol,), files = said["metaData"], said["protocol"], said["add"]
    known = {
        "txnId": str(uuid.uuid4()),
        "tableSizeBytes": sum(file["size"] for file in files),
        "numFiles": len(files),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": [],
        "domainMetadata": [],
        "metadata": metadata,
        "protocol": protocol,
    }
    (log / f"{_FIRST}.crc").write_text(json.dumps(known), encoding="utf-8")
