"""Where a partition stands at a broker, as the changes said so far have it: does it lead, with whom, in which epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What each change makes of the status; a change that is not listed leaves it.
_STATUS = {
    "leader": "online",
    "online": "online",
    "not_leader": "not_leader",
    "offline": "offline",
    "deleted": "deleted",
    "stopped": "not_leader",
}
_FIELDS = ("leader_epoch", "replicas", "isr", "min_isr")

Standing = Mapping[str, Any]

UNKNOWN: Standing = {}


def after(standing: Standing, change: Mapping[str, Any]) -> Standing:
    """The standing after a change, given as the contract's fields."""
    status = _STATUS.get(change["change"])
    fields = {name: change[name] for name in _FIELDS if change.get(name) is not None}
    return {**standing, **({"status": status} if status else {}), **fields}


def said(standing: Standing) -> dict[str, Any]:
    """One change from which the standing follows, whatever was before."""
    status = standing.get("status", "online")
    if status != "online":
        return {"change": status}
    return {"change": "leader", **{name: standing[name] for name in _FIELDS if name in standing}}
