"""A replica: high watermark, last stable offset, truncation and leadership."""

from __future__ import annotations

from purgatory_udf.contract.outcome import TopicPartition
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


def test_high_watermark_is_least_in_sync_end() -> None:
    led = leading(1, 2, 3)
    seen = []
    led.append(10, 100)
    for follower, offset in ((2, 4), (3, 6), (2, 9), (3, 10), (2, 12)):
        led.update_follower_fetch_state(follower, offset)
        seen.append(high_watermark(led))
    assert seen == [None, 4, 6, 9, 10]


def test_high_watermark_is_unknown_until_all_ends_known() -> None:
    led = leading(1, 2)
    assert led.append(10, 100) is LeaderHwChange.SAME
    assert high_watermark(led) is None
    empty = leading(1, 2)
    assert empty.update_follower_fetch_state(2, 5) is False, "the leader's own end is unknown"


def test_no_high_watermark_without_isr() -> None:
    led = replica()
    led.append(10, 100)
    assert led.update_follower_fetch_state(2, 10) is False
    assert high_watermark(led) is None


def test_append_returns_its_effect() -> None:
    unreplicated, followed = leading(1), leading(1, 2)
    assert unreplicated.append(10, 100) is LeaderHwChange.INCREASED
    assert unreplicated.append(10, 100) is LeaderHwChange.NONE
    assert followed.append(10, 100) is LeaderHwChange.SAME


def test_shrinking_isr_raises_high_watermark() -> None:
    led = leading(1, 2, 3)
    led.append(10, 100)
    led.update_follower_fetch_state(2, 8)
    led.update_follower_fetch_state(3, 3)
    assert (led.set_isr((1, 2)), high_watermark(led)) == (True, 8)
    assert (led.set_isr((1, 2, 3)), high_watermark(led)) == (False, 8), "a growing set never lowers it"


def test_high_watermark_does_not_advance_below_min_isr() -> None:
    led = leading(1, 2, min_isr=2)
    led.append(10, 100)
    led.update_follower_fetch_state(2, 5)
    led.set_isr((1,))
    assert high_watermark(led) == 5
    led.append(20, 100)
    assert high_watermark(led) == 5
    led.make_leader(None, None, 1)
    assert high_watermark(led) == 20


def test_progress_of_out_of_sync_replicas_is_recorded() -> None:
    led = leading(1)
    led.append(10, 100)
    led.update_follower_fetch_state(2, 7)
    led.append(20, 100)
    led.set_isr((1, 2))
    led.update_follower_fetch_state(2, 6)
    assert (led.follower_ends, high_watermark(led)) == ({2: 7}, 20)


def test_lower_reported_high_watermark_is_ignored() -> None:
    led = replica()
    led.append(10, 100)
    assert [led.set_high_watermark(offset) for offset in (5, 4, 5, 12)] == [True, False, True, True]
    assert led.high_watermark == OffsetMetadata(12, 0, 100)


def test_equal_high_watermark_refreshes_metadata() -> None:
    led = replica()
    led.append(10, 100)
    led.set_high_watermark(10)
    led.log.roll(10)
    assert led.high_watermark == OffsetMetadata(10, 0, 100)
    led.set_high_watermark(10)
    assert led.high_watermark == OffsetMetadata(10, 10, 100)


def test_equal_last_stable_offset_refreshes_metadata() -> None:
    led = leading(1)
    led.append(5, 50)
    led.set_last_stable_offset(5)
    led.log.roll(5)
    led.set_last_stable_offset(5)
    assert led.last_stable_offset == OffsetMetadata(5, 5, 50)


def test_last_stable_offset_defaults_to_high_watermark() -> None:
    led = replica()
    led.append(10, 100)
    led.set_high_watermark(8)
    assert led.last_stable_offset is led.high_watermark
    led.set_last_stable_offset(3)
    led.set_last_stable_offset(2)
    led.set_high_watermark(10)
    assert led.last_stable_offset == OffsetMetadata(3, 0, 0)


def test_truncation_lowers_watermarks() -> None:
    led = replica()
    led.append(5, 50)
    led.append(10, 100)
    led.set_high_watermark(10)
    led.set_last_stable_offset(4)
    led.truncate(5)
    assert (led.high_watermark, led.last_stable_offset) == (OffsetMetadata(5, 0, 50), OffsetMetadata(4, 0, 0))
    led.truncate(3)
    assert (led.high_watermark, led.last_stable_offset) == (OffsetMetadata(3, 0, 0), OffsetMetadata(3, 0, 0))


def test_truncation_reports_no_last_stable_offset() -> None:
    led = replica()
    led.append(10, 100)
    led.set_high_watermark(10)
    led.truncate(5)
    led.append(12, 10)
    led.set_high_watermark(12)
    assert led.last_stable_offset is led.high_watermark


def test_truncation_without_effect_leaves_watermarks() -> None:
    led = replica()
    led.append(5, 50)
    led.set_high_watermark(9)
    led.truncate(7)
    assert high_watermark(led) == 9


def test_make_leader_retains_unspecified_values() -> None:
    led = leading(1, 2, min_isr=2)
    led.make_leader(3, None, None)
    assert (led.leader_epoch, led.isr, led.min_isr) == (3, (1, 2), 2)
    led.make_leader(None, (1,), 1)
    assert (led.leader_epoch, led.isr, led.min_isr) == (3, (1,), 1)
