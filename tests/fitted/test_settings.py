"""Settings of a variant: whom they are about, what they do to the plan, and what is said of a mistake."""

from __future__ import annotations

import pytest

from purgatory_udf.errors import UserError
from purgatory_udf.fitted.plan import ClusterPlan, PurgePlan
from purgatory_udf.fitted.settings import changed, setting
from purgatory_udf.fitted.words import variants_of
from tests.fitted.plans import plan, producer, reader

CLUSTER = plan(
    producer([10.0], [39]),
    reader("f", replica=2),
    reader("checkout-1"),
    reader("audit", min_bytes=100),
)
GROUPS = {"checkout-1": "checkout", "audit": "back-office"}


def _with(*words: str) -> ClusterPlan:
    return changed(CLUSTER, map(setting, words), GROUPS)


def _min_bytes(after: ClusterPlan) -> dict[str, int]:
    return {one.client: one.min_bytes for one in after.readers}


@pytest.mark.parametrize(
    ("word", "found"),
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
def test_a_setting_is_about_those_whom_it_names(word: str, found: dict[str, int]) -> None:
    assert _min_bytes(_with(word)) == found


def test_later_settings_win() -> None:
    after = _with("fetch.consumer.min_bytes=500", "fetch.consumer.min_bytes[client_id=audit]=7")
    assert _min_bytes(after) == {"f": 1, "checkout-1": 500, "audit": 7}


def test_producers_settings() -> None:
    (after,) = _with("producer.linger_ms=50", "producer.batch_size=x2", "producer.rate=x2").producers
    assert (after.linger_ms, after.batch_bytes, after.speed, after.begin_ms) == (50, 32_768, 2, 5)
    (after,) = _with("producer.rate=50").producers
    assert after.speed == pytest.approx(0.5)


def test_more_clients_are_copies_with_names_of_their_own() -> None:
    after = _with("consumer.count[client_id=audit]=3", "producer.count=x2")
    assert [one.client for one in after.readers] == ["f", "checkout-1", "audit", "audit#2", "audit#3"]
    assert [one.client for one in after.producers] == ["p", "p#2"]


def test_purge_intervals_are_brokers() -> None:
    after = _with("fetch.purge_interval=10", "produce.purge_interval[broker=1]=x2")
    assert after.purges == {1: PurgePlan(fetch=10, produce=2000)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["big", "fetch.consumer.min_byte=1"], "--variant big: fetch.consumer.min_byte: unknown key of a prediction"),
        (["big", "producer.linger_ms=soon"], "--variant big: producer.linger_ms: expected a number"),
        (["big", "producer.linger_ms=1.5"], "--variant big: producer.linger_ms: expected a whole number"),
        (["big", "producer.rate=x0"], "--variant big: producer.rate: expected more than 0"),
        (["big", "fetch.min_bytes[host=a]=1"], "--variant big: fetch.min_bytes[host=a]: expected client_id=…"),
        (["big", "fetch.min_bytes[broker=one]=1"], "--variant big: fetch.min_bytes[broker=one]: Input should be a"),
        (["big", "fetch.purge_interval[topic=t]=1"], "--variant big: fetch.purge_interval[topic=t]: a purge interval"),
        (["big"], "--variant big: no setting follows"),
        (["fetch.min_bytes=1"], "--variant fetch.min_bytes=1: a variant's name comes first"),
        (["a", "fetch.min_bytes=1", "a", "fetch.min_bytes=2"], "--variant a: named twice"),
        (["unchanged", "fetch.min_bytes=1"], "--variant unchanged: expected a name"),
        ([], "give at least one --variant"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(words: list[str], said: str) -> None:
    with pytest.raises(UserError) as raised:
        variants_of(words)
    assert str(raised.value).startswith(said)


def test_a_setting_that_is_about_nobody_is_a_mistake() -> None:
    with pytest.raises(UserError, match=r"min_bytes\[client_id=checkout-9\]: there is nobody in the scenario"):
        _with("fetch.consumer.min_bytes[client_id=checkout-9]=500")
    with pytest.raises(UserError, match=r"fetch.purge_interval\[broker=7\]: there is nobody in the scenario"):
        _with("fetch.purge_interval[broker=7]=500")
