"""Settings of a variant: their scope, their effect on the plan, and the messages for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.prediction.prediction_runs import parse_variants
from purgatory_udf.prediction.simulation_plan import ClusterPlan, PurgePlan
from purgatory_udf.prediction.variant_settings import apply_settings, parse_variant_setting
from tests.prediction.plans import plan, producer, reader

CLUSTER = plan(
    producer([10.0], [39]),
    reader("f", replica=2),
    reader("checkout-1"),
    reader("audit", min_bytes=100),
)
GROUPS = {"checkout-1": "checkout", "audit": "back-office"}


def _with(*words: str) -> ClusterPlan:
    return apply_settings(CLUSTER, map(parse_variant_setting, words), GROUPS)


def _min_bytes(after: ClusterPlan) -> dict[str, int]:
    return {reader_plan.client: reader_plan.min_bytes for reader_plan in after.readers}


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("fetch.consumer.min_bytes=500", {"f": 1, "checkout-1": 500, "audit": 500}),
        ("fetch.min_bytes=500", {"f": 1, "checkout-1": 500, "audit": 500}),
        ("fetch.consumer.min_bytes=x3", {"f": 1, "checkout-1": 3, "audit": 300}),
        ("fetch.follower.min_bytes=500", {"f": 500, "checkout-1": 1, "audit": 100}),
        ("fetch.consumer.min_bytes[client_id=checkout-*]=500", {"f": 1, "checkout-1": 500, "audit": 100}),
        ("fetch.consumer.min_bytes[group=back*,broker=1]=500", {"f": 1, "checkout-1": 1, "audit": 500}),
        ("fetch.consumer.min_bytes[topic=t]=500", {"f": 1, "checkout-1": 500, "audit": 500}),
    ],
)
def test_setting_applies_to_its_scope(word: str, expected: dict[str, int]) -> None:
    assert _min_bytes(_with(word)) == expected


@pytest.mark.parametrize(
    ("words", "audit"),
    [
        (["=500", "[client_id=audit]=7"], 7),
        (["[client_id=audit]=7", "=500"], 7),
        (["=500", "=600", "[client_id=checkout-*]=600"], 600),
        (["[client_id=a*]=x2", "[client_id=audit]=7", "=500"], 200),
        (["[client_id=audit]=", "=500"], 100),
    ],
)
def test_first_matching_scope_wins(words: list[str], audit: int) -> None:
    after = _with(*(f"fetch.consumer.min_bytes{word}" for word in words))
    assert _min_bytes(after)["audit"] == audit


def test_consumer_key_precedes_plain_key() -> None:
    assert _min_bytes(_with("fetch.consumer.min_bytes=5", "fetch.min_bytes=9"))["audit"] == 5


def test_variant_file_with_rules(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        """
fetch: {consumer: {min_bytes: 500}, follower.min_bytes: x3}
what_if:
  - {client_id: audit, settings: {fetch.min_bytes: 7, fetch.max_wait_ms: null}}
  - {topic: t, settings: {fetch: {max_wait_ms: 50}}}
""",
        encoding="utf-8",
    )
    after = apply_settings(CLUSTER, parse_variants(["rules", str(file)])["rules"], GROUPS)
    assert [(reader_plan.client, reader_plan.min_bytes, reader_plan.max_wait_ms) for reader_plan in after.readers] == [
        ("f", 3, 500),
        ("checkout-1", 500, 50),
        ("audit", 7, 500),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("what_if: {topic: t}", "what_if: expected a list of rules, got dict"),
        ("what_if: [{topic: t}]", "what_if.0: expected a scope (client_id, topic, group or broker) and a mapping"),
        (
            "what_if: [{settings: {fetch.min_bytes: 1}}]",
            "what_if.0: expected a scope (client_id, topic, group or broker)",
        ),
        ("what_if: [{host: a, settings: {fetch.min_bytes: 1}}]", "fetch.min_bytes[host=a]: Extra inputs"),
    ],
)
def test_invalid_rule_is_reported(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        parse_variants(["rules", str(file)])
    assert message in str(raised.value)


def test_scope_accepts_any_name() -> None:
    cluster = plan(reader("jobs[1]=a*"), reader("jobs1"))
    after = apply_settings(cluster, [parse_variant_setting("fetch.min_bytes[client_id=jobs[1]=a*]=9")], {})
    assert _min_bytes(after) == {"jobs[1]=a*": 9, "jobs1": 1}


def test_producer_settings_change_plan() -> None:
    (after,) = _with("producer.linger_ms=50", "producer.batch_size=x2", "producer.rate=x2").producers
    assert (after.linger_ms, after.batch_bytes, after.speed, after.begin_ms) == (50, 32_768, 2, 5)
    (after,) = _with("producer.rate=50").producers
    assert after.speed == pytest.approx(0.5)


def test_count_adds_named_copies() -> None:
    after = _with("consumer.count[client_id=audit]=3", "producer.count=x2")
    assert [reader_plan.client for reader_plan in after.readers] == ["f", "checkout-1", "audit", "audit#2", "audit#3"]
    assert [producer_plan.client for producer_plan in after.producers] == ["p", "p#2"]


def test_copies_have_settings_of_original() -> None:
    after = _with("consumer.count[client_id=audit]=2", "fetch.min_bytes[client_id=audit]=9")
    assert _min_bytes(after) == {"f": 1, "checkout-1": 1, "audit": 9, "audit#2": 9}


def test_count_zero_removes_clients() -> None:
    after = _with("consumer.count[client_id=checkout-*]=0", "producer.count=0")
    assert ([reader_plan.client for reader_plan in after.readers], list(after.producers)) == (["f", "audit"], [])


def test_purge_intervals_apply_to_brokers() -> None:
    after = _with("fetch.purge_interval=10", "produce.purge_interval[broker=1]=x2")
    assert after.purges == {1: PurgePlan(fetch=10, produce=2000)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["big", "fetch.consumer.min_byte=1"], "--variant big: fetch.consumer.min_byte: unknown key; predictions"),
        (["big", "producer.linger_ms=soon"], "--variant big: producer.linger_ms: expected a number"),
        (["big", "producer.linger_ms=1.5"], "--variant big: producer.linger_ms: expected a whole number"),
        (["big", "producer.rate=x0"], "--variant big: producer.rate: expected a number or a factor greater than 0"),
        (["big", "consumer.count=x0.5"], "--variant big: consumer.count: expected a number of copies from 0 to 1000"),
        (["big", "producer.count=1001"], "--variant big: producer.count: expected a number of copies from 0 to 1000"),
        (["big", "producer.rate[broker=1]=9"], "--variant big: producer.rate[broker=1]: producer settings can"),
        (["big", "fetch.min_bytes=nan"], "--variant big: fetch.min_bytes: expected a whole number from 0"),
        (["big", "fetch.min_bytes=x"], "--variant big: fetch.min_bytes: expected a number, or a factor"),
        (["big", "fetch.min_bytes="], "--variant big: fetch.min_bytes: expected a number, or a factor"),
        (["big", "fetch.min_bytes[host=a]=1"], "--variant big: fetch.min_bytes[host=a]: expected client_id=…"),
        (["big", "fetch.min_bytes[broker=one]=1"], "--variant big: fetch.min_bytes[broker=one]: Input should be a"),
        (["big", "fetch.purge_interval[topic=t]=1"], "--variant big: fetch.purge_interval[topic=t]: a purge interval"),
        (["big"], "--variant big: has no settings"),
        (["fetch.min_bytes=1"], "--variant fetch.min_bytes=1: expected a name first"),
        (["a", "fetch.min_bytes=1", "a", "fetch.min_bytes=2"], "--variant a: duplicate name"),
        (["unchanged", "fetch.min_bytes=1"], "--variant unchanged: expected a name"),
        ([], "give at least one --variant"),
    ],
)
def test_invalid_variant_is_reported(words: list[str], message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_variants(words)
    assert str(raised.value).startswith(message)


def test_setting_without_subject_is_rejected() -> None:
    with pytest.raises(UserError, match=r"min_bytes\[client_id=checkout-9\]: applies to no client or broker"):
        _with("fetch.consumer.min_bytes[client_id=checkout-9]=500")
    with pytest.raises(UserError, match=r"fetch.purge_interval\[broker=7\]: applies to no client or broker"):
        _with("fetch.purge_interval[broker=7]=500")
