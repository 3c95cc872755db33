"""The words of a group's rows as small numbers."""

from __future__ import annotations

from enum import IntEnum

from purgatory_udf.rules.purgatory.delayed_operation import BROKER_STOPPED


class Api(IntEnum):
    """The requests of a group's members, and what becomes of the group itself. Up to `LAST_SIGN` they do no more than
    prove their sender alive."""

    HEARTBEAT = 0
    OFFSET_COMMIT = 1
    JOIN_GROUP = 2
    SYNC_GROUP = 3
    LEAVE_GROUP = 4
    GROUP_LOADED = 5
    GROUP_UNLOADED = 6
    GROUP_STOPPED = 7

    @property
    def word(self) -> str:
        return self.name.lower()


LAST_LIVENESS_API = Api.OFFSET_COMMIT
API_OF = {api.word: int(api) for api in Api}

KINDS = ("heartbeat", "sync", "join", "initial_join")
KIND_OF = {kind: number for number, kind in enumerate(KINDS)}

# What ends an operation; a number in a row is a place in this list.
RULES = (
    *(api.word for api in Api),
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
# What a request may be answered; a number in a row is a place in this list.
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

FOREVER = 2**62
