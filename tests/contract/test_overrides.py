"""What-if rules: the requests they apply to, precedence, and syntax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from purgatory_udf.answers.variants import Variant, variants
from purgatory_udf.answers.what_if import _ineffective_settings
from purgatory_udf.common.configuration import Config, load_config
from purgatory_udf.common.errors import UserError
from purgatory_udf.rules.engine.partition_engine import Engine, event_table
from purgatory_udf.rules.engine.partition_engine import replay as loop_replay
from purgatory_udf.rules.reference.reference_replay import replay
from tests.rules.reference.timeline import Timeline
from tests.support.group_timeline import GroupTimeline
from tests.support.outcome_rows import outcomes_of
from tests.support.share_timeline import ShareTimeline


def fetches(**rules: Any) -> list[str]:
    """Return how three fetches end, with 100 bytes appended to each partition at 20.

    A consumer and a follower fetch `a`; another consumer fetches `b`.
    """
    timeline = Timeline(broker=1).fetch(10, "reader", 50, 1, {"a": 0}, client_id="reader-1")
    timeline.follower(10, "follower", 50, 1, {"a": 0}).fetch(10, "other", 50, 1, {"b": 0}, client_id="other")
    for partition in ("a", "b"):
        timeline.log_end(20, partition, 1, 100).high_watermark(20, partition, 1)
    return timeline.ends(**rules)


AS_RECORDED = {
    "reader": "reader completed 20 min_bytes a-0 a-0:100",
    "follower": "follower completed 20 min_bytes a-0 a-0:100",
    "other": "other completed 20 min_bytes b-0 b-0:100",
}
EXPIRED = {
    "reader": "reader expired 60 timeout - a-0:100",
    "follower": "follower expired 60 timeout - a-0:100",
    "other": "other expired 60 timeout - b-0:100",
}


@pytest.mark.parametrize(
    ("settings", "expired"),
    [
        ({}, set()),
        ({"fetch": {"min_bytes": 1000}}, {"reader", "other"}),
        ({"fetch": {"consumer": {"min_bytes": 1000}}}, {"reader", "other"}),
        ({"fetch": {"consumer": {"min_bytes": 1}, "min_bytes": 1000}}, set()),
        ({"fetch": {"follower": {"min_bytes": 1000}}}, {"follower"}),
        ({"what_if": [{"client_id": "read*", "settings": {"fetch.min_bytes": 1000}}]}, {"reader"}),
        ({"what_if": [{"topic": "a", "settings": {"fetch": {"min_bytes": 1000}}}]}, {"reader"}),
        ({"what_if": [{"topic": "a", "settings": {"fetch.follower.min_bytes": 1000}}]}, {"follower"}),
        ({"what_if": [{"broker": 1, "topic": "b", "settings": {"fetch.min_bytes": 1000}}]}, {"other"}),
        ({"what_if": [{"broker": 2, "settings": {"fetch.min_bytes": 1000}}]}, set()),
        ({"what_if": [{"settings": {"fetch.min_bytes": 1000}}]}, {"reader", "other"}),
        # The first rule that matches and has the setting counts, and any rule before the plain key.
        (
            {
                "what_if": [
                    {"topic": "b", "settings": {"fetch.max_wait_ms": 50}},
                    {"topic": "b", "settings": {"fetch.min_bytes": None}},
                    {"topic": "*", "settings": {"fetch.min_bytes": 1000}},
                ]
            },
            {"reader"},
        ),
        (
            {
                "fetch": {"min_bytes": 1000},
                "what_if": [{"client_id": "reader-[12]", "settings": {"fetch.min_bytes": "x1"}}],
            },
            {"other"},
        ),
    ],
)
def test_rule_applies_only_to_its_scope(settings: Any, expired: set[str]) -> None:
    expected = [EXPIRED[name] if name in expired else AS_RECORDED[name] for name in ("reader", "follower", "other")]
    assert sorted(fetches(**settings)) == sorted(expected)


def test_request_matches_by_any_of_its_topics() -> None:
    timeline = Timeline().fetch(10, "f", 50, 1, {"a": 0, "b": 0})
    timeline.produce(10, "p", 50, a=5, b=5)
    rules = [
        {"topic": "b", "settings": {"fetch.max_wait_ms": 5, "produce.timeout_ms": 7}},
        {"topic": "a", "settings": {"fetch.max_wait_ms": 9}},
    ]
    assert timeline.ends(what_if=rules) == [
        "f expired 15 timeout - a-0:0,b-0:0",
        "p expired 17 timeout - a-0:REQUEST_TIMED_OUT,b-0:REQUEST_TIMED_OUT",
    ]


@pytest.mark.parametrize(
    ("settings", "at"),
    [
        ({"produce": {"timeout_ms": 20}}, {"own": 30}),
        ({"what_if": [{"client_id": "*", "settings": {"produce.timeout_ms": 20}}]}, {"own": 30}),
        ({"what_if": [{"topic": "__consumer*", "settings": {"produce.timeout_ms": 20}}]}, {"commit": 30}),
    ],
    ids=["plain", "by client", "by topic"],
)
def test_coordinator_writes_change_only_by_topic(settings: Any, at: dict[str, int]) -> None:
    """`GroupMetadataManager.appendForGroup` waits for `offsets.commit.timeout.ms`, not for a producer's timeout."""
    timeline = Timeline().produce(10, "own", 100, a=5).produce(10, "commit", 50, __consumer_offsets=5)
    timeline.produce(10, "state", 60, __transaction_state=5).produce(10, "marker", 70, a=6)
    for event, client in zip(timeline.events, ("c", "c", "c", "broker-1-txn-marker-sender"), strict=True):
        event["client_id"] = client
    recorded = {"own": 110, "commit": 60, "state": 70, "marker": 80}
    replayed = timeline.replay(**settings)
    assert {outcome.request_id: outcome.ended_us // 1000 for outcome in replayed.outcomes} == recorded | at
    tables = loop_replay([event_table(timeline.events)], Engine(Config.model_validate(settings)))
    ends = outcomes_of(tables.completions, tables.expirations)
    assert {outcome.request_id: outcome.ended_us // 1000 for outcome in ends} == recorded | at


def test_group_timeouts_match_group_client_or_broker() -> None:
    timeline = GroupTimeline()
    timeline.join(10, "a", session_timeout_ms=10_000, rebalance_timeout_ms=1000)
    timeline.sync(11, "a", leader=True)

    def expired_at(**scope: Any) -> list[int]:
        rules = [{**scope, "settings": {"group.session_timeout_ms": 7000}}]
        settings = {"group": {"initial_rebalance_delay_ms": 0}, "what_if": rules}
        ended = replay(timeline.events, Config.model_validate(settings)).outcomes
        return [outcome.ended_us // 1000 for outcome in ended if outcome.kind == "heartbeat" and outcome.expired]

    assert expired_at(group="g") == expired_at(group="?") == expired_at(broker=0) == [7011]
    assert expired_at(client_id="client-*") == [7011]
    assert expired_at(group="other") == expired_at(broker=1) == expired_at(client_id="b*") == [10_011]


@pytest.mark.parametrize(
    ("setting", "ended_ms", "records"),
    [
        ("share.max_wait_ms=6000", 4000, 10),
        ("share.record_lock_duration_ms=1000", 2000, 10),
        ("share.record_lock_duration_ms[group=g]=x0.5", 2500, 10),
        ("share.record_lock_duration_ms[group=other]=1000", 4000, 10),
        ("share.delivery_count_limit=1", 6100, 0),
        ("share.max_wait_ms[client_id=b,group=g,topic=t,broker=0]=500", 1600, 0),
        ("share.max_records[client_id=a]=4", 1100, 6),
        ("share.partition_max_record_locks=x0", 1100, 9),
    ],
)
def test_share_settings_change_waiting_fetch(setting: str, ended_ms: int, records: int) -> None:
    """Fetch a acquires all 10 records at 1 s and never acknowledges them; b waits from 1.1 s for its locks of 3 s."""
    place = {"topic": "t", "partition": 0}
    changes = (
        {"change": "log_end", "offset": 10, "bytes": 1000, "batches": 1},
        {"change": "high_watermark", "offset": 10},
    )
    events: list[dict[str, Any]] = [
        {"type": "share_group", "group": "g", "record_lock_duration_ms": 3000, "auto_offset_reset": "earliest"},
        *({"type": "partition", **place, **change} for change in changes),
    ]
    for client, max_wait_ms in (("a", 500), ("b", 5000)):
        limits = {"max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 9999, "max_records": 10, "acquire_mode": 1}
        member = {"group": "g", "member_id": client, "client_id": client, "request_id": client}
        events.append({"type": "share_fetch", **member, **limits, "partitions": [place]})
    times = (0, 0, 0, 1_000_000, 1_100_000)
    trace = [event | {"time_us": at, "seq": seq} for seq, (event, at) in enumerate(zip(events, times, strict=True), 1)]
    replayed = replay(trace, load_config(None, [setting]))
    (b,) = (outcome for outcome in replayed.outcomes if outcome.request_id == "b")
    acquired = sum(each.last_offset + 1 - each.first_offset for _, each in replayed.deliveries if each.client_id == "b")
    assert (b.ended_us // 1000, acquired) == (ended_ms, records)


@pytest.mark.parametrize(
    ("setting", "ended", "records"),
    [
        ("share.max_wait_ms=500", "min_bytes 15", 20),
        ("share.isolation=read_committed", "expired 510", 8),
        ("share.isolation[group=g]=read_committed", "expired 510", 8),
        ("share.isolation[group=other]=read_committed", "min_bytes 15", 20),
    ],
)
def test_isolation_changes_what_is_delivered(setting: str, ended: str, records: int) -> None:
    """Offsets 5 to 6 were aborted; a transaction is open from offset 10 on, so that f2 waits with read_committed."""
    aborted = [{"first_offset": 5, "last_offset": 6}]
    timeline = ShareTimeline().settings().append(1, 0, 10).change(2, 0, "last_stable", offset=10, aborted=aborted)
    timeline.fetch(10, "f1", "m1", [0]).append(15, 0, 20, 10).fetch(15, "f2", "m2", [0], max_wait_ms=495)
    replayed = replay(timeline.events, load_config(None, [setting]))
    f2 = next(each for each in replayed.outcomes if each.request_id == "f2")
    acquired = sum(each.last_offset + 1 - each.first_offset for _, each in replayed.deliveries)
    assert (f"{'expired' if f2.expired else f2.completed_by} {f2.ended_us // 1000}", acquired) == (ended, records)


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ([], ["a min_bytes", "b session_limit", "c min_bytes"]),
        (["share.max_sessions=1"], ["a min_bytes", "b session_limit", "c session_limit"]),
        (["share.max_sessions=2"], ["a min_bytes", "b min_bytes", "c session_limit"]),
        (["share.max_sessions=3"], ["a min_bytes", "b min_bytes", "c min_bytes"]),
    ],
)
def test_limit_of_sessions_decides_recorded_refusals(settings: list[str], ends: list[str]) -> None:
    """In the recording, the broker refused b because of too many sessions."""
    timeline = ShareTimeline().settings().append(1, 0, 30)
    for at, (name, error) in enumerate((("a", None), ("b", "SHARE_SESSION_LIMIT_REACHED"), ("c", None))):
        timeline.fetch(10 + at, name, name, [0], max_records=10, acquire_mode=1, session_epoch=0, error=error)
    replayed = replay(timeline.events, load_config(None, settings))
    assert sorted(f"{each.request_id} {each.completed_by}" for each in replayed.outcomes) == ends


def test_settings_of_missing_kinds_are_named() -> None:
    chosen = variants(["v", "share.max_records=5", "produce.timeout_ms[topic=a]=1", "fetch.min_bytes=2"], None, [])
    assert list(_ineffective_settings(chosen[1], chosen[0], {"share_fetch", "produce"})) == []
    assert list(_ineffective_settings(chosen[1], chosen[0], {"fetch"})) == [
        "v: produce.* has no effect, because the trace has no produce operations.",
        "v: share.* has no effect, because the trace has no share_fetch operations.",
    ]


def test_rules_of_command_line_precede_file(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("what_if:\n  - {topic: a, settings: {produce.timeout_ms: 1}}\nproduce.timeout_ms: 2\n")
    config = load_config(file, ["produce.timeout_ms[topic=b,broker=3]=x4", "produce.timeout_ms[client_id=c*]="])
    assert [rule.model_dump(exclude_unset=True) for rule in config.what_if] == [
        {"topic": "b", "broker": 3, "settings": {"produce.timeout_ms": "x4"}},
        {"client_id": "c*", "settings": {"produce.timeout_ms": None}},
        {"topic": "a", "settings": {"produce.timeout_ms": 1}},
    ]
    assert config.produce.timeout_ms == 2


def test_rules_of_variant_precede_baseline(tmp_path: Path) -> None:
    file = tmp_path / "variant.yaml"
    file.write_text("what_if:\n  - {topic: b, settings: {produce.timeout_ms: 2}}\n")
    first, second = "produce.timeout_ms[topic=a]=1", "produce.timeout_ms[topic=b]=2"
    expected = load_config(None, [second, first])
    assert variants(["v", second], None, [first])[1:] == [Variant("v", expected)]
    assert variants(["v", str(file)], None, [first])[1:] == [Variant("v", expected)]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("fetch.max_bytes[topic=a]=1", "what_if.0.settings: fetch.max_bytes is not a what-if key"),
        ("produce.timeout_ms[queue=a]=1", r"\[queue=a\]: expected client_id=…, topic=…, group=… or broker=…"),
        ("produce.timeout_ms[broker=a]=1", "what_if.0.broker: Input should be a valid integer"),
        ("produce.timeout_ms[topic=a]=half", "what_if.0.settings.produce.timeout_ms: expected a whole number"),
        ("produce.timeout_ms[group=g]=1", "what_if.0: produce.timeout_ms cannot be limited by group"),
        ("group.session_timeout_ms[topic=t]=1", "what_if.0: group.session_timeout_ms cannot be limited by topic"),
        ("share.delivery_count_limit[topic=t]=1", "share.delivery_count_limit can be limited by group only"),
        ("share.reads[group=g]=batches", "share.reads is not a what-if key"),
        ("share.isolation[topic=t]=read_committed", "share.isolation can be limited by group only"),
        ("share.isolation[group=g]=5", "share.isolation: expected read_committed or read_uncommitted"),
        ("share.max_wait_ms[group=g]=read_committed", "share.max_wait_ms: expected a whole number, or a factor"),
        ("group.share.record.lock.duration.ms=1", "is share.record_lock_duration_ms"),
        ("share.delivery.count.limit=1", "the key of Kafka's share.delivery.count.limit is share.delivery_count_limit"),
    ],
)
def test_invalid_rule_is_reported(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(None, [setting])
