"""Transactional producers: open transactions hold back the last stable offset and `read_committed` consumers.

Kafka: `ProducerStateManager.firstUnstableOffset`, `UnifiedLog.fetchLastStableOffsetMetadata`,
`TransactionCoordinator.endTransaction`, `KafkaApis.handleWriteTxnMarkersRequest`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import ShareDelivery, TopicPartition
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.reference.partition import Partition
from purgatory_udf.rules.reference.reference_replay import replay
from purgatory_udf.simulation.closed_loop import ClosedLoop, SimulationResult
from purgatory_udf.simulation.cluster_partitions import PartitionTransactions, high_watermark_after
from purgatory_udf.simulation.scenario import Scenario
from tests.simulation.bundled_scenarios import outcomes_of_kind, simulated_scenario
from tests.support.outcome_rows import outcomes_of

MARKERS = "txn-marker-sender"


def test_last_stable_is_first_open_record() -> None:
    transactions = PartitionTransactions()
    transactions.add("a", 10, 11)
    transactions.add("b", 12, 12)
    transactions.add("a", 13, 15)
    assert [transactions.last_stable(mark) for mark in (9, 10, 20)] == [9, 10, 10]


def test_transaction_ends_when_marker_is_replicated() -> None:
    transactions = PartitionTransactions()
    transactions.add("a", 10, 11)
    transactions.add("b", 12, 12)
    transactions.end("a", 16)
    assert [transactions.last_stable(mark) for mark in (15, 16, 17)] == [10, 12, 12]
    transactions.end("b", 18)
    transactions.end("b", 19)
    assert transactions.last_stable(18) == 18, "the second marker has no effect"


def test_truncated_marker_reopens_transaction() -> None:
    transactions = PartitionTransactions()
    transactions.add("a", 10, 11)
    transactions.end("a", 16)
    transactions.add("b", 16, 16)
    transactions.truncate(14)
    assert transactions.last_stable(20) == 10
    transactions.truncate(10)
    assert transactions.last_stable(20) == 20


def test_batches_of_aborted_transactions() -> None:
    """Aborted are 10 to 11 and 14 to 15 of a; b holds back the last stable offset at 12, until it is aborted too."""
    transactions = PartitionTransactions()
    for name, first, last in (("c", 0, 9), ("a", 10, 11), ("b", 12, 13), ("a", 14, 15)):
        transactions.add(name, first, last)
    transactions.end("c", 17)
    transactions.end("a", 18, aborts=True)
    assert (transactions.last_stable(17), transactions.take_aborted(10)) == (10, [])
    assert (transactions.last_stable(18), transactions.take_aborted(12)) == (12, [(10, 11)])
    transactions.end("b", 19, aborts=True)
    assert (transactions.last_stable(19), transactions.take_aborted(19)) == (19, [(12, 13), (14, 15)])


def test_truncated_marker_may_be_replaced() -> None:
    transactions = PartitionTransactions()
    transactions.add("a", 10, 11)
    transactions.add("a", 12, 13)
    transactions.end("a", 15, aborts=True)
    transactions.truncate(12)
    transactions.end("a", 13, aborts=True)
    assert (transactions.last_stable(13), transactions.take_aborted(13)) == (13, [(10, 11)])


def test_predicted_high_watermark_matches_replica() -> None:
    replica = Partition(TopicPartition("t", 0), 1)
    assert high_watermark_after(replica, 1, end=5) is None, "the in-sync set is unknown"
    replica.append(5, 50)
    replica.make_leader(1, (1, 2, 3), 2)
    assert high_watermark_after(replica, 1, follower=(2, 5)) is None, "the log end of broker 3 is unknown"
    replica.update_follower_fetch_state(2, 5)
    assert high_watermark_after(replica, 1, follower=(3, 4)) == 4
    assert high_watermark_after(replica, 1, isr=(1, 2)) == 5
    assert high_watermark_after(replica, 1, isr=(1,)) is None, "fewer than min.insync.replicas"
    replica.update_follower_fetch_state(3, 4)
    assert (replica.high_watermark is not None and replica.high_watermark.offset) == 4
    assert high_watermark_after(replica, 1, follower=(3, 2)) == 4


def test_committed_readers_wait_for_transactions() -> None:
    ends: Counter[tuple[str, str]] = Counter()
    for outcome in outcomes_of_kind(simulated_scenario("open-transactions"), "fetch"):
        if outcome.fetcher == "consumer" and outcome.watched:
            ends[(outcome.client_id or "").partition("-")[0], outcome.completed_by] += 1
    assert ends["audit", "timeout"] > 20 and ends["audit", "timeout"] > ends["audit", "min_bytes"]
    assert ends["cache", "min_bytes"] > 500 and ends["cache", "timeout"] < 10


def test_markers_wait_for_replication() -> None:
    simulated = simulated_scenario("open-transactions")
    markers = [outcome for outcome in outcomes_of_kind(simulated, "produce") if MARKERS in (outcome.client_id or "")]
    assert {(marker.completed_by, marker.watched) for marker in markers} == {("high_watermark", True)}
    assert {part.bytes for marker in markers for part in marker.partitions} == {78}
    transactions = [producer.transaction for producer in simulated.producers if producer.transaction is not None]
    # Each broker leads one partition, so each transaction is ended at three brokers.
    assert len(markers) == 3 * sum(transaction.committed + transaction.aborted for transaction in transactions)
    assert all(transaction.committed > 3 and transaction.aborted > 0 for transaction in transactions)


@pytest.fixture(scope="module")
def troubled() -> SimulationResult:
    scenario = Scenario.model_validate(
        {
            "shows": "Transactions while brokers come and go.",
            "duration_s": 25,
            "topics": [{"name": "orders", "partitions": 3}],
            "producers": [{"name": "p", "count": 2, "topics": ["orders"], "rate": 30, "transaction_ms": 400}],
            "consumers": [{"name": "c", "topics": ["orders"], "isolation": "read_committed"}],
            "incidents": [
                {"what": "crash-broker", "broker": 2, "at_s": 5, "for_s": 4},
                {"what": "move-leader", "topic": "orders", "partition": 0, "to": 3, "at_s": 14},
            ],
        }
    )
    return ClosedLoop(scenario).run()


def test_new_leader_records_last_stable_offset(troubled: SimulationResult) -> None:
    leads = [event for event in troubled.events if event.get("change") == "leader"]
    after = {
        (event["broker"], event["topic"], event["partition"]): event["seq"]
        for event in leads
        if event["leader_epoch"] > 0
    }
    assert len(after) > 1
    for (broker, topic, partition), seq in after.items():
        place = {"broker": broker, "topic": topic, "partition": partition}
        before = troubled.events[seq - 2]
        assert {name: before[name] for name in (*place, "change")} == place | {"change": "last_stable"}


def test_transactions_continue_after_failover(troubled: SimulationResult) -> None:
    assert sum(producer.delivery.lost for producer in troubled.producers) == 0
    committed = [producer.transaction.committed for producer in troubled.producers if producer.transaction is not None]
    assert min(committed) > 20
    (reader,) = troubled.instances
    assert reader.records > 0.9 * sum(producer.delivery.delivered for producer in troubled.producers)


def test_replay_reproduces_outcomes(troubled: SimulationResult) -> None:
    again = replay(troubled.events, Config())
    assert again.outcomes == troubled.truth.outcomes
    tables = loop_replay([event_table(troubled.events)], Engine(Config()))
    ends = outcomes_of(tables.completions, tables.expirations, tables.cancellations)
    wanted = [outcome for outcome in again.outcomes if outcome.kind in ("produce", "fetch")]
    assert {outcome.operation_id: (outcome.ended_us, outcome.completed_by) for outcome in ends} == {
        outcome.operation_id: (outcome.ended_us, outcome.completed_by) for outcome in wanted
    }


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_share_groups_skip_aborted_records(isolation: str) -> None:
    """Leaders move and a broker crashes, so that workers read records at brokers that did not append them."""
    scenario = Scenario.model_validate(
        {
            "shows": "Workers of aborted transactions.",
            "duration_s": 8,
            "topics": [{"name": "jobs", "partitions": 2}],
            "producers": [
                {"name": "p", "count": 2, "topics": ["jobs"], "rate": 40, "transaction_ms": 300, "abort_share": 0.4},
                {"name": "plain", "topics": ["jobs"], "rate": 20},
            ],
            "share_groups": [
                {
                    "name": "g",
                    "topics": ["jobs"],
                    "reset": "earliest",
                    "isolation": isolation,
                    "record_lock_duration_ms": 1000,
                    "workers": [
                        {"name": "w", "count": 3, "start_after_s": 1, "process_us": 8000, "max_poll_records": 30,
                         "release_share": 0.1}
                    ],
                }
            ],
            "incidents": [
                {"what": "move-leader", "topic": "jobs", "partition": 0, "to": 3, "at_s": 3},
                {"what": "crash-broker", "broker": 2, "at_s": 4, "for_s": 2},
            ],
        }
    )  # fmt: skip
    simulated = ClosedLoop(scenario).run()
    aborted, delivered = _aborted_offsets(simulated.events), _delivered_offsets(simulated.truth.deliveries)
    assert len(aborted) > 100 and len(delivered) > 200
    assert len(delivered & aborted) == (0 if isolation == "read_committed" else len(aborted))
    replayed = replay(simulated.events, Config())
    assert replayed.outcomes == simulated.truth.outcomes
    assert replayed.deliveries == simulated.truth.deliveries


def _aborted_offsets(events: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Return partition and offset of each record that is reported as aborted."""
    return {
        (event["partition"], offset)
        for event in events
        for each in event.get("aborted") or ()
        for offset in range(each["first_offset"], each["last_offset"] + 1)
    }


def _delivered_offsets(deliveries: Iterable[tuple[int, ShareDelivery]]) -> set[tuple[int, int]]:
    return {
        (each.partition, offset) for _, each in deliveries for offset in range(each.first_offset, each.last_offset + 1)
    }


def test_transactions_need_acks_all() -> None:
    with pytest.raises(ValueError, match="transaction_ms needs acks all"):
        Scenario.model_validate(
            {"shows": "x", "producers": [{"name": "p", "topics": [], "transaction_ms": 5, "acks": 1}]}
        )
