"""A replica: the derived high watermark, the last stable offset, truncation, leadership."""

from __future__ import annotations

from purgatory_udf.contract.topic_partition import TopicPartition
from purgatory_udf.rules.reference.partition import LeaderHwChange, OffsetMetadata, Partition

LEADER = 1


def replica() -> Partition:
    return Partition(TopicPartition("t", 0), LEADER)


def leading(*isr: int, min_isr: int | None = None) -> Partition:
    led = replica()
    led.make_leader(1, isr, min_isr)
    return led


def high_watermark(led: Partition) -> int | None:
    return None if led.high_watermark is None else led.high_watermark.offset


def test_the_high_watermark_is_the_least_end_over_the_in_sync_replicas() -> None:
    led = leading(1, 2, 3)
    seen = []
    led.append(10, 100)
    for follower, offset in ((2, 4), (3, 6), (2, 9), (3, 10), (2, 12)):
        led.update_follower_fetch_state(follower, offset)
        seen.append(high_watermark(led))
    assert seen == [None, 4, 6, 9, 10]


def test_it_is_unknown_while_any_in_sync_end_is() -> None:
    led = leading(1, 2)
    assert led.append(10, 100) is LeaderHwChange.SAME
    assert high_watermark(led) is None
    empty = leading(1, 2)
    assert empty.update_follower_fetch_state(2, 5) is False, "the leader's own end is unknown"


def test_without_an_in_sync_set_nothing_is_derived() -> None:
    led = replica()
    led.append(10, 100)
    assert led.update_follower_fetch_state(2, 10) is False
    assert high_watermark(led) is None


def test_an_append_says_what_it_did() -> None:
    alone, followed = leading(1), leading(1, 2)
    assert alone.append(10, 100) is LeaderHwChange.INCREASED
    assert alone.append(10, 100) is LeaderHwChange.NONE
    assert followed.append(10, 100) is LeaderHwChange.SAME


def test_a_shrinking_in_sync_set_raises_the_high_watermark() -> None:
    led = leading(1, 2, 3)
    led.append(10, 100)
    led.update_follower_fetch_state(2, 8)
    led.update_follower_fetch_state(3, 3)
    assert (led.set_isr((1, 2)), high_watermark(led)) == (True, 8)
    assert (led.set_isr((1, 2, 3)), high_watermark(led)) == (False, 8), "a growing one never lowers it"


def test_below_min_isr_it_stands_still() -> None:
    led = leading(1, 2, min_isr=2)
    led.append(10, 100)
    led.update_follower_fetch_state(2, 5)
    led.set_isr((1,))
    assert high_watermark(led) == 5
    led.append(20, 100)
    assert high_watermark(led) == 5
    led.make_leader(None, None, 1)
    assert high_watermark(led) == 20


def test_progress_is_kept_for_replicas_that_are_not_in_sync_yet() -> None:
    led = leading(1)
    led.append(10, 100)
    led.update_follower_fetch_state(2, 7)
    led.append(20, 100)
    led.set_isr((1, 2))
    led.update_follower_fetch_state(2, 6)
    assert (led.follower_ends, high_watermark(led)) == ({2: 7}, 20)


def test_an_explicit_high_watermark_counts_unless_it_is_lower() -> None:
    led = replica()
    led.append(10, 100)
    assert [led.set_high_watermark(offset) for offset in (5, 4, 5, 12)] == [True, False, True, True]
    assert led.high_watermark == OffsetMetadata(12, 0, 100)


def test_taking_the_same_high_watermark_again_renews_its_metadata() -> None:
    led = replica()
    led.append(10, 100)
    led.set_high_watermark(10)
    led.log.roll(10)
    assert led.high_watermark == OffsetMetadata(10, 0, 100)
    led.set_high_watermark(10)
    assert led.high_watermark == OffsetMetadata(10, 10, 100)


def test_the_last_stable_offset_follows_the_high_watermark_until_it_is_first_told() -> None:
    led = replica()
    led.append(10, 100)
    led.set_high_watermark(8)
    assert led.last_stable_offset is led.high_watermark
    led.set_last_stable_offset(3)
    led.set_last_stable_offset(2)
    led.set_high_watermark(10)
    assert led.last_stable_offset == OffsetMetadata(3, 0, 0)


def test_a_truncation_brings_the_watermarks_above_it_down() -> None:
    led = replica()
    led.append(5, 50)
    led.append(10, 100)
    led.set_high_watermark(10)
    led.set_last_stable_offset(4)
    led.truncate(5)
    assert (led.high_watermark, led.last_stable_offset) == (OffsetMetadata(5, 0, 50), OffsetMetadata(4, 0, 0))
    led.truncate(3)
    assert (led.high_watermark, led.last_stable_offset) == (OffsetMetadata(3, 0, 0), OffsetMetadata(3, 0, 0))


def test_a_truncation_is_not_a_telling_of_the_last_stable_offset() -> None:
    led = replica()
    led.append(10, 100)
    led.set_high_watermark(10)
    led.truncate(5)
    led.append(12, 10)
    led.set_high_watermark(12)
    assert led.last_stable_offset is led.high_watermark


def test_a_truncation_that_cuts_nothing_leaves_even_higher_watermarks_alone() -> None:
    led = replica()
    led.append(5, 50)
    led.set_high_watermark(9)
    led.truncate(7)
    assert high_watermark(led) == 9


def test_a_leader_that_says_less_keeps_what_was_known() -> None:
    led = leading(1, 2, min_isr=2)
    led.make_leader(3, None, None)
    assert (led.leader_epoch, led.isr, led.min_isr) == (3, (1, 2), 2)
    led.make_leader(None, (1,), 1)
    assert (led.leader_epoch, led.isr, led.min_isr) == (3, (1,), 1)
