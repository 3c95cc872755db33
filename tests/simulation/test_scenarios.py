"""The bundled scenarios: each shows the effect in its first line, and a replay of its trace equals the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

import pytest

from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.contract import read_row
from purgatory_udf.contract.outcome import Outcome, ShareDelivery
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.reference.reference_replay import ShareReplay, replay
from purgatory_udf.simulation.fetchers import PARTITION_MAX_BYTES
from purgatory_udf.simulation.scenario import load_scenario, scenario_names, scenarios_folder
from tests.simulation.bundled_scenarios import SMALL, outcomes_of_kind, seconds_since_start, simulated_scenario
from tests.support.oracle_groups import removals
from tests.support.outcome_rows import outcomes_of

pytestmark = pytest.mark.long

# Together, these scenarios have all kinds of operations.
DAILY = {
    "create-topics",
    "open-transactions",
    "rebalance-storm",
    "rolling-restart",
    "share-workers",
    "slow-remote-reads",
}
GROUPS = {"initial_join", "join", "sync", "heartbeat"}


def test_bundled_scenarios_have_a_sentence() -> None:
    assert scenario_names() == sorted(SMALL)
    sentences = [load_scenario(name).shows for name in scenario_names()]
    assert [sentence for sentence in sentences if not sentence.endswith(".") or len(sentence) > 130] == []
    for name in scenario_names():
        second_line = (scenarios_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[1]
        assert second_line == f"shows: {load_scenario(name).shows}", "the sentence follows the name of the schema"


@pytest.mark.parametrize(
    "name", [name if name in DAILY else pytest.param(name, marks=pytest.mark.nightly) for name in sorted(SMALL)]
)
def test_replay_reproduces_outcomes(name: str) -> None:
    """The reference replays group operations, the engine requests of partitions; `--check` tests the whole stream."""
    simulated = simulated_scenario(name)
    replayed = replay(simulated.events, Config())
    assert replayed.outcomes == simulated.truth.outcomes
    assert replayed.transitions == simulated.truth.transitions
    assert replayed.deliveries == simulated.truth.deliveries
    assert (replayed.open, simulated.truth.open) == ([], [])
    engine = Engine(Config(), retain_bytes=PARTITION_MAX_BYTES, smallest_limit=PARTITION_MAX_BYTES)
    looped = loop_replay([event_table(simulated.events)], engine)
    core = outcomes_of(looped.completions, looped.expirations, looped.cancellations)
    assert core == _as_in_tables(simulated.truth.outcomes)


def _as_in_tables(outcomes: list[Outcome]) -> list[Outcome]:
    requests = (outcome for outcome in outcomes if outcome.kind not in (*GROUPS, "share_fetch"))
    kept = (outcome if outcome.expired or outcome.cancelled else replace(outcome, fetcher=None) for outcome in requests)
    return sorted(kept, key=lambda outcome: outcome.operation_id)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_events_are_valid_and_ordered(name: str) -> None:
    events = simulated_scenario(name).events
    assert [read_row(event)["seq"] for event in events] == list(range(1, len(events) + 1))
    times = [event["time_us"] for event in events]
    assert times == sorted(times)


def test_steady_acknowledges_quickly() -> None:
    simulated = simulated_scenario("steady")
    produces = outcomes_of_kind(simulated, "produce")
    waits = sorted(outcome.wait_ms for outcome in produces)
    assert waits[len(waits) // 2] < 10
    assert waits[-1] < 100
    expired = {outcome.kind for outcome in simulated.truth.outcomes if outcome.expired and not _after_end(outcome)}
    assert expired == {"fetch", "initial_join"}, "the initial rebalance delay always expires"
    (lost,) = {producer.delivery.lost for producer in simulated.producers}
    assert lost == 0


def _after_end(outcome: Outcome) -> bool:
    return outcome.ended_us > simulated_scenario("steady").events[-1]["time_us"]


def test_idle_consumers_expire_fetches() -> None:
    fetches = [
        outcome
        for outcome in outcomes_of_kind(simulated_scenario("idle-consumers"), "fetch")
        if outcome.fetcher == "consumer"
    ]
    expired = sum(outcome.expired for outcome in fetches)
    # 30 consumers for 12 s; the unscaled scenario has 60 for 20 s.
    assert expired > 1000
    assert expired / len(fetches) > 0.9


def test_slow_follower_expires_produces_until_isr_shrinks() -> None:
    simulated = simulated_scenario("slow-follower")
    expired = [
        seconds_since_start(simulated, outcome.ended_us)
        for outcome in outcomes_of_kind(simulated, "produce")
        if outcome.expired
    ]
    shrinks = [
        seconds_since_start(simulated, event["time_us"])
        for event in simulated.events
        if event.get("change") == "isr" and 3 not in event["isr"]
    ]
    assert expired
    assert min(expired) > 8
    assert max(expired) <= min(shrinks)
    errors = {
        part.error
        for outcome in outcomes_of_kind(simulated, "produce")
        if outcome.expired
        for part in outcome.partitions
    }
    assert "REQUEST_TIMED_OUT" in errors
    back = [event["isr"] for event in simulated.events if event.get("change") == "isr" and 3 in event["isr"]]
    assert back, "broker 3 rejoins the in-sync set after 20 s"


def test_rolling_restart_rebalances_dynamic_group_only() -> None:
    simulated = simulated_scenario("rolling-restart")
    rebalances = [
        (transition.group, transition.reason.partition(" ")[0])
        for transition in simulated.truth.transitions
        if transition.to_state == "PreparingRebalance" and 15 < seconds_since_start(simulated, transition.at_us) < 60
    ]
    groups = Counter(group for group, _ in rebalances)
    assert groups["ledger"] == 0
    assert 4 <= groups["billing"] <= 8
    runs = {instance.client_id: len(instance.runs) for instance in simulated.instances}
    assert set(runs.values()) == {2}, "every member of both groups was restarted"


def test_rebalance_storm_expels_members() -> None:
    """The group is stable less than half of the time."""
    simulated = simulated_scenario("rebalance-storm")
    begins, ends = 12.0, 60.0
    moments = [
        (seconds_since_start(simulated, change.at_us), change.to_state) for change in simulated.truth.transitions
    ]
    stable, since = 0.0, begins
    state = "Stable"
    for at, to_state in [*moments, (ends, "")]:
        at = min(max(at, begins), ends)
        stable += (at - since) * (state == "Stable")
        state, since = to_state, at
    assert stable / (ends - begins) < 0.5
    expelled = {entry.reason for entry in removals(simulated.truth.groups)}
    assert {"session", "leave"} & expelled


def test_hot_partition_carries_most_bytes() -> None:
    simulated = simulated_scenario("hot-partition")
    sizes: Counter[int] = Counter()
    replicated: Counter[int] = Counter()
    for outcome in simulated.truth.outcomes:
        for part in outcome.partitions:
            if outcome.kind == "produce":
                sizes[part.partition] += part.bytes
            elif outcome.fetcher == "follower":
                replicated[part.partition] += part.bytes
    assert sizes[0] > sizes.total() / 2
    assert replicated[0] > replicated.total() / 2


def test_leader_failover_cancels_and_elects() -> None:
    simulated = simulated_scenario("leader-failover")
    lost = {
        (outcome.broker, outcome.kind, outcome.completed_by, round(seconds_since_start(simulated, outcome.ended_us)))
        for outcome in simulated.truth.outcomes
        if outcome.cancelled
    }
    assert lost == {(2, "fetch", "broker_stopped", 10)}, "requests waiting at the broker get no response"
    there = [gauge for gauge in simulated.truth.gauges if gauge.broker == 2 and gauge.purgatory in ("Fetch", "Produce")]
    down = {
        (gauge.watched, gauge.delayed)
        for gauge in there
        if 10.4 < seconds_since_start(simulated, gauge.at_ms * 1000) < 17
    }
    assert down == {(0, 0)}, "the purgatories are empty while the broker is down"
    new_leaders = [
        (event["partition"], event["broker"])
        for event in simulated.events
        if event.get("change") == "leader" and 11 < seconds_since_start(simulated, event["time_us"]) < 13
    ]
    assert [partition for partition, _ in new_leaders] == [1, 4]
    assert all(broker != 2 for _, broker in new_leaders)
    follows = {
        event["broker"]
        for event in simulated.events
        if event.get("replica_id") == 2 and 18 < seconds_since_start(simulated, event["time_us"]) < 26
    }
    assert follows == {1, 3}
    delivery = [producer.delivery for producer in simulated.producers]
    assert sum(of_producer.lost for of_producer in delivery) == 0
    assert sum(of_producer.retried for of_producer in delivery) > 0


def test_create_topics_completes_or_expires() -> None:
    creations = outcomes_of_kind(simulated_scenario("create-topics"), "create_topics")
    ends = Counter("timeout" if outcome.expired else outcome.completed_by for outcome in creations)
    assert ends["leaders"] > 5
    assert ends["timeout"] > 5
    assert ends.total() == len(creations)


def test_purgatory_leak_keeps_completed_entries() -> None:
    (fetch,) = (
        series for series in simulated_scenario("purgatory-leak").truth.series if series.purgatory.name == "Fetch"
    )
    assert max(reading.delayed for reading in fetch.changes) <= 6
    assert max(reading.watched for reading in fetch.changes) > 30_000
    assert sum(reading.purged for reading in fetch.changes) > 30_000


def test_cold_consumers_wait_for_remote_storage() -> None:
    """Consumers at the end of the log do not; a read that ends after its fetch expired is repeated."""
    simulated = simulated_scenario("cold-consumers")
    fetches = outcomes_of_kind(simulated, "remote_fetch")
    assert {(outcome.client_id or "").rpartition("-")[0] for outcome in fetches} == {"backfill"}
    expired = [outcome for outcome in fetches if outcome.expired]
    assert {outcome.wait_ms for outcome in expired} == {500}
    assert 0.2 < len(expired) / len(fetches) < 0.8
    reads = sum(event["type"] == "remote_read" for event in simulated.events)
    useful = sum(part.bytes > 0 for outcome in fetches for part in outcome.partitions)
    assert reads > useful, "some were read for nothing"
    records = {instance.client_id: instance.records for instance in simulated.instances}
    assert all(count > 500 for count in records.values()), records


def test_share_workers_hold_and_give_back_records() -> None:
    """The first half of the scenario: slow workers lose their records, failing ones release some, one crashes."""
    simulated = simulated_scenario("share-workers")
    ends: dict[tuple[str, str], int] = Counter()
    for _, delivery in simulated.truth.deliveries:
        ends[delivery.member_id.rpartition("-")[0], delivery.ended_by] += 1
    assert ends["slow", "lock_expired"] > 5
    assert ends["slow", "lock_expired"] > ends["steady", "lock_expired"]
    assert ends["failing", "released"] > 50
    assert ends["failing", "rejected"] > 5
    assert {name for name, end in ends if end == "released"} == {"failing"}
    crashed = {"steady-1"}
    ended = {delivery.member_id for _, delivery in simulated.truth.deliveries if delivery.ended_by == "session_ended"}
    assert ended <= crashed, "the connection of the worker that crashed was closed"
    redelivered = [delivery for _, delivery in simulated.truth.deliveries if delivery.delivery_count > 1]
    assert {delivery.member_id for delivery in redelivered if delivery.ended_by == "accepted"}
    fetches = outcomes_of_kind(simulated, "share_fetch")
    ended_by = Counter(outcome.completed_by for outcome in fetches)
    assert ended_by["min_bytes"] > 200
    assert ended_by["timeout"] >= 3
    steps = ShareReplay(Config(), simulated.events[0]["time_us"] // 1000).step(simulated.events, None)
    assert sorted(steps.outcomes, key=attrgetter("operation_id")) == fetches
    assert sorted(steps.deliveries, key=repr) == sorted(simulated.truth.deliveries, key=repr)


@pytest.mark.parametrize("setting", ["share.max_records=5", "share.delivery_count_limit=10", "share.max_wait_ms=x4"])
def test_what_if_keeps_acknowledged_records(setting: str) -> None:
    """Other settings deliver records to other workers, but the trace shows which worker accepted them."""
    simulated = simulated_scenario("share-workers")
    replay = ShareReplay(load_config(None, [setting]), simulated.events[0]["time_us"] // 1000)
    replayed = replay.step(simulated.events, None)
    assert len(replayed.deliveries) != len(simulated.truth.deliveries)
    assert _acknowledged(replayed.deliveries) == _acknowledged(simulated.truth.deliveries)


def _acknowledged(deliveries: Iterable[tuple[int, ShareDelivery]]) -> Counter[str]:
    """Return the number of records by how their delivery ended."""
    counts = Counter[str]()
    for _, each in deliveries:
        if each.ended_by in ("accepted", "released", "rejected"):
            counts[each.ended_by] += each.last_offset + 1 - each.first_offset
    return counts
