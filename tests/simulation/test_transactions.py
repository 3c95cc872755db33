"""Transactional producers: open transactions hold back the last stable offset and `read_committed` consumers.

Kafka: `ProducerStateManager.firstUnstableOffset`, `UnifiedLog.fetchLastStableOffsetMetadata`,
`TransactionCoordinator.endTransaction`, `KafkaApis.handleWriteTxnMarkersRequest`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from purgatory_udf.common.configuration import Config
from purgatory_udf.contract.outcome import TopicPartition
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
    transactions.begin("a", 10)
    transactions.begin("b", 12)
    transactions.begin("a", 13)
    assert [transactions.last_stable(mark) for mark in (9, 10, 20)] == [9, 10, 10]


def test_transaction_ends_when_marker_is_replicated() -> None:
    transactions = PartitionTransactions()
    transactions.begin("a", 10)
    transactions.begin("b", 12)
    transactions.end("a", 16)
    assert [transactions.last_stable(mark) for mark in (15, 16, 17)] == [10, 12, 12]
    transactions.end("b", 18)
    transactions.end("b", 19)
    assert transactions.last_stable(18) == 18, "the second marker has no effect"


def test_truncated_marker_reopens_transaction() -> None:
    transactions = PartitionTransactions()
    transactions.begin("a", 10)
    transactions.end("a", 16)
    transactions.begin("b", 16)
    transactions.truncate(14)
    assert transactions.last_stable(20) == 10
    transactions.truncate(10)
    assert transactions.last_stable(20) == 20


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


def test_transactions_need_acks_all() -> None:
    with pytest.raises(ValueError, match="transaction_ms needs acks all"):
        Scenario.model_validate(
            {"shows": "x", "producers": [{"name": "p", "topics": [], "transaction_ms": 5, "acks": 1}]}
        )
