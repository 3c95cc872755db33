"""Leadership that no line reports: a broker that answers a follower's fetch leads (`Partition.fetchRecords` refuses
whoever asks a follower for the leader's part), and one that answers NOT_LEADER_OR_FOLLOWER does not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.sources.request_log.lines import error_codes as errors
from purgatory_udf.sources.request_log.partitions.leadership_changes import with_inferred_leadership
from purgatory_udf.sources.request_log.partitions.partition_status import InSyncSet, LeadershipState
from purgatory_udf.sources.request_log.requests.partition_facts import (
    Fact,
    PartitionError,
    PartitionFacts,
    ReaderPosition,
)
from tests.sources.request_log import recordings
from tests.sources.request_log.translate import translate

pytestmark = pytest.mark.long

LED = {"change": "leader", "leader_epoch": 0, "isr": [1, 2]}
HISTORY = [InSyncSet(0, 1, 0, (1, 2)), InSyncSet(50, 2, 1, (2,))]


def _said(states: list[tuple[int, dict[str, Any]]], *facts: Fact) -> list[tuple[int, dict[str, Any]]]:
    """At broker 1, of times in microseconds."""
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


def test_who_serves_a_follower_leads_again_in_the_epoch_that_it_named() -> None:
    again = {"change": "leader", "leader_epoch": 3, "isr": [1, 2], "min_isr": 2}
    assert _said(LOST, _served(20), _served(100), _served(200)) == [*LOST, (99, again)]


def test_a_consumer_proves_nothing() -> None:
    assert _said(LOST, ReaderPosition(100, 100, 100, 100, -1, 7)) == LOST


def test_who_refuses_leads_no_more_and_what_is_reported_late_is_not_said_again() -> None:
    assert _said(LOST, _refused(30), _refused(40)) == [(0, LED), (29, {"change": "not_leader"})]


def test_another_error_says_nothing() -> None:
    assert _said([(0, LED)], _refused(30, errors.FENCED_LEADER_EPOCH)) == [(0, LED)]


def test_of_one_moment_what_is_reported_comes_first() -> None:
    back = {"change": "leader", "leader_epoch": 2, "isr": [1]}
    assert _said([*LOST, (100, back)], _served(100)) == [*LOST, (100, back)]


# Followers' fetches of a broker that was restarted, and consumers': least shares that end as recorded, in percent.
LEAST = {
    ("follower fetch", 1): 99.5,
    ("follower fetch", 3): 99.5,
    ("consumer fetch", 1): 99.0,
    ("consumer fetch", 3): 99.0,
}


def test_without_the_metadata_log_a_restarted_broker_is_replayed_as_well() -> None:
    translation = translate(recordings.log("W7-rolling-k39"), recordings.names("W7-rolling-k39"))
    ended = {outcome.operation_id: outcome for outcome in replay(translation.events, Config()).outcomes}
    counts: Counter[tuple[str, int, bool]] = Counter()
    expired: Counter[tuple[str, int, bool]] = Counter()
    for seq, record in translation.recorded.items():
        end = ended.get(seq)
        if end is None or (record.kind, end.broker) not in LEAST:
            continue
        replayed = "expired" if end.expired else "completed" if end.watched else "at_once"
        counts[record.kind, end.broker, record.outcome == replayed] += 1
        if record.outcome == "expired":
            expired[record.kind, end.broker, replayed == "expired"] += 1
    for (kind, broker), least in LEAST.items():
        alike, other = counts[kind, broker, True], counts[kind, broker, False]
        assert 100 * alike / (alike + other) >= least, (kind, broker, alike, other)
    # All but three of 1,292 expired consumer fetches, and all 53 of followers.
    assert (sum(n for (kind, _, hit), n in expired.items() if kind[0] == "f" and not hit)) == 0
    assert (sum(n for (kind, _, hit), n in expired.items() if kind[0] == "c" and not hit)) <= 3
    assert sum(expired.values()) == 1_345
