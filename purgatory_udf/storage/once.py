"""A step that is written once, however often it is taken."""

from __future__ import annotations

from purgatory_udf.storage.runs import Run


def once(run: Run, table: str, step: int) -> dict[str, str | int]:
    """Options of a write, by which Delta knows a step that the table has already."""
    return {"txnAppId": f"{run.run_id}/{run.started_at.isoformat()}/{table}", "txnVersion": step}
