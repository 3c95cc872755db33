"""Inferred leadership, which no line reports.

A broker that serves a follower's fetch is the leader, because `Partition.fetchRecords` refuses it otherwise. A broker
that answers NOT_LEADER_OR_FOLLOWER is not.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log import kafka_protocol as errors
from purgatory_udf.sources.request_log.assumptions import COMPLETION_TO_RESPONSE_US, METADATA_PROPAGATION_US
from purgatory_udf.sources.request_log.cluster_metadata import GIVEN, REPORTED, PartitionChange
from purgatory_udf.sources.request_log.fact_kinds import Append, Fact, PartitionError, ReaderPosition
from purgatory_udf.sources.request_log.leadership_changes import isr_change_us, takeover_us, with_inferred_leadership
from purgatory_udf.sources.request_log.partition_facts import PartitionFacts
from purgatory_udf.sources.request_log.partition_status import InSyncSet, LeadershipState
from tests.sources.request_log import recordings
from tests.sources.request_log.translate import translate

pytestmark = pytest.mark.long

LED = {"change": "leader", "leader_epoch": 0, "isr": [1, 2]}
HISTORY = [InSyncSet(0, 1, 0, (1, 2)), InSyncSet(50, 2, 1, (2,))]


def _leadership(states: list[tuple[int, dict[str, Any]]], *facts: Fact) -> list[tuple[int, dict[str, Any]]]:
    """Return the leadership changes at broker 1, with times in microseconds."""
    leadership = [LeadershipState(at, fields) for at, fields in states]
    partition_facts = PartitionFacts.of(1, ("t", 0), facts)
    return [
        (state.at_us, state.fields)
        for state in with_inferred_leadership(leadership, partition_facts, HISTORY, min_isr=2)
    ]


def _served(at: int, epoch: int = 3) -> ReaderPosition:
    return ReaderPosition(at + 1, at + 1, at + 2, at, 2, 7, start_us=at, epoch=epoch)


def _refused(at: int, error: int = errors.NOT_LEADER_OR_FOLLOWER) -> PartitionError:
    return PartitionError(at, error)


LOST: list[tuple[int, dict[str, Any]]] = [(0, LED), (50, {"change": "not_leader"})]


def test_broker_that_serves_follower_is_leader() -> None:
    again = {"change": "leader", "leader_epoch": 3, "isr": [1, 2], "min_isr": 2}
    assert _leadership(LOST, _served(20), _served(100), _served(200)) == [*LOST, (99, again)]


def test_consumer_fetch_proves_no_leadership() -> None:
    assert _leadership(LOST, ReaderPosition(100, 100, 100, 100, -1, 7)) == LOST


def test_refusal_ends_leadership_once() -> None:
    assert _leadership(LOST, _refused(30), _refused(40)) == [(0, LED), (29, {"change": "not_leader"})]


def test_other_errors_prove_nothing() -> None:
    assert _leadership([(0, LED)], _refused(30, errors.FENCED_LEADER_EPOCH)) == [(0, LED)]


def test_reported_change_precedes_inferred_one() -> None:
    back = {"change": "leader", "leader_epoch": 2, "isr": [1]}
    assert _leadership([*LOST, (100, back)], _served(100)) == [*LOST, (100, back)]


@pytest.mark.parametrize(
    ("facts", "at_us"),
    [
        ([], 100),
        ([_refused(150, errors.UNKNOWN_LEADER_EPOCH), _refused(140), _refused(160, errors.FENCED_LEADER_EPOCH)], 151),
        # Refused before the change, or after the first request that it served.
        ([_refused(99), _served(200), _refused(300)], 100),
        ([_refused(100), _refused(199), Append(200, 201, 201, 201, base=5)], 199),
        # The offset of an append that may not have happened is unknown.
        ([_refused(140), Append(120, 121, 121, 121)], 141),
        ([Append(50, 51, 51, 51, base=4), Append(100, 101, 101, 101, base=5)], 99),
    ],
)
def test_takeover_is_after_last_refusal(facts: list[Fact], at_us: int) -> None:
    change = PartitionChange(100, "t", 0, REPORTED, 1, 1, (1, 2), (1, 2))
    assert takeover_us(PartitionFacts.of(1, ("t", 0), facts), change) == at_us


def test_produces_show_when_in_sync_set_shrank() -> None:
    """A produce is answered because the replica is removed; earlier produces timed out because of it."""
    change, late = PartitionChange(100, "t", 0, GIVEN, 1, 0, (1, 2), (1,)), 100 + METADATA_PROPAGATION_US
    facts: list[Fact] = [_refused(at, errors.REQUEST_TIMED_OUT) for at in (99, late + 70, late + 60)]
    facts += [_refused(late + 90), Append(50, 51, 51, 51, answered_us=99), Append(100, 101, 101, 101, answered_us=150)]
    assert isr_change_us(PartitionFacts.of(1, ("t", 0), facts), change, (1, 2), []) == late + 71
    facts.append(Append(60, 61, 61, 61, answered_us=late + 80))
    released_us = late + 80 - COMPLETION_TO_RESPONSE_US
    assert isr_change_us(PartitionFacts.of(1, ("t", 0), facts), change, (1, 2), []) == released_us


# Lowest percentage of fetches at the restarted brokers that must end as recorded, by kind and broker.
MIN_AGREEMENT = {
    ("follower fetch", 1): 99.5,
    ("follower fetch", 3): 99.5,
    ("consumer fetch", 1): 99.0,
    ("consumer fetch", 3): 99.0,
}


@pytest.mark.nightly
def test_restart_replays_without_metadata_log() -> None:
    translation = translate(recordings.log("W7-rolling-k39"), recordings.names("W7-rolling-k39"))
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    counts: Counter[tuple[str, int, bool]] = Counter()
    expired: Counter[tuple[str, int, bool]] = Counter()
    for seq, record in translation.recorded.items():
        end = ended.get(seq)
        if end is None or (record.kind, end.broker) not in MIN_AGREEMENT:
            continue
        replayed = "expired" if end.expired else "completed" if end.watched else "at_once"
        counts[record.kind, end.broker, record.outcome == replayed] += 1
        if record.outcome == "expired":
            expired[record.kind, end.broker, replayed == "expired"] += 1
    for (kind, broker), minimum in MIN_AGREEMENT.items():
        same, other = counts[kind, broker, True], counts[kind, broker, False]
        assert 100 * same / (same + other) >= minimum, (kind, broker, same, other)
    # Of 1,292 expired consumer fetches at most three do not expire in the replay, of 53 expired follower fetches none.
    assert (sum(n for (kind, _, hit), n in expired.items() if kind[0] == "f" and not hit)) == 0
    assert (sum(n for (kind, _, hit), n in expired.items() if kind[0] == "c" and not hit)) <= 3
    assert sum(expired.values()) == 1_345
