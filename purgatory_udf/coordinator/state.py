"""The states of a group, and which may follow which."""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """Kafka 0.10's machine, as in the seed documents, calls CompletingRebalance AwaitingSync and begins in Stable.

        Empty ──first join──► PreparingRebalance ──all came, or time is up──► CompletingRebalance
          ▲                      │          ▲  ▲                                │            │
          └────nobody is left────┘          │  └──────somebody came or went─────┘     leader's assignment
                                            └───────somebody came or went─────── Stable ◄────┘

    Any state becomes Dead when the coordinator gives the group away (`group_unloaded`); what it loads (`group_loaded`)
    begins in Stable or Empty. That a group's last offset has expired, which makes it Dead too, no trace says.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"

    @property
    def valid_previous_states(self) -> frozenset[GroupState]:
        return _VALID_PREVIOUS_STATES[self]


_VALID_PREVIOUS_STATES = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
