"""Numeric codes of APIs, operation kinds, rules and errors in the rows of groups."""

from __future__ import annotations

from enum import IntEnum

from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED


class Api(IntEnum):
    """Requests of members, and events of the group itself. Those up to `LAST_LIVENESS_API` only renew the session."""

    HEARTBEAT = 0
    OFFSET_COMMIT = 1
    JOIN_GROUP = 2
    SYNC_GROUP = 3
    LEAVE_GROUP = 4
    GROUP_LOADED = 5
    GROUP_UNLOADED = 6
    GROUP_STOPPED = 7

    @property
    def label(self) -> str:
        return self.name.lower()


LAST_LIVENESS_API = Api.OFFSET_COMMIT
API_OF = {api.label: int(api) for api in Api}

KINDS = ("heartbeat", "sync", "join", "initial_join")
KIND_OF = {kind: number for number, kind in enumerate(KINDS)}

# The rules that end an operation (`completed_by`). Rows contain an index into this list.
RULES = (
    *(api.label for api in Api),
    "timeout",
    "all_joined",
    "no_members",
    "all_synced",
    "rebalance",
    "new_generation",
    "assignment",
    "awaiting_join",
    "awaiting_sync",
    "replaced",
    "removed",
    "unloaded",
    BROKER_STOPPED,
)
RULE_OF = {rule: number for number, rule in enumerate(RULES)}

NONE = "NONE"
# The errors that a request may be answered with. Rows contain an index into this list.
ERRORS = (
    NONE,
    "UNKNOWN_MEMBER_ID",
    "FENCED_INSTANCE_ID",
    "ILLEGAL_GENERATION",
    "REBALANCE_IN_PROGRESS",
    "MEMBER_ID_REQUIRED",
    "INCONSISTENT_GROUP_PROTOCOL",
    "GROUP_MAX_SIZE_REACHED",
    "INVALID_SESSION_TIMEOUT",
    "INVALID_GROUP_ID",
    "UNKNOWN_SERVER_ERROR",
    "NOT_COORDINATOR",
)
ERROR_OF = {error: number for number, error in enumerate(ERRORS)}

# A time after every deadline, in milliseconds.
FOREVER = 2**62
