"""What happens when between S and L, the beginning and the end of a request's handling.

A log of whole requests cannot tell; these rules were fitted (`supposed`), and every one of them gives way to what
readers' offsets prove (`placing`).

    produce, acks -1   S ──── 0.4, at most 0.6 ms ──── L               the records are in the log
                                                        check           the fetches that wait for them are looked at

    produce, acks 0, 1 S ─────────── 0.8 ───────────── L ── 0.2 ms     the answer goes out at L, before that check

    follower's fetch   S ─ 0.05 ─┬──────┬──────┬─ 0.8 ─ L              its moved partitions, one after the other
                                 └ in each the offset is known at the beginning, who waited for it is answered later
"""

from __future__ import annotations

from purgatory_udf.requestlog.supposed import (
    ANSWER_TO_CHECK_US,
    APPENDED_AT,
    APPENDED_BEFORE_ANSWER_AT,
    APPENDED_WITHIN_US,
    FIRST_READ_AT,
    READS_TAKE,
    WAKES_AT,
)


def append_and_check(start_us: int, local_us: int, acks: int) -> tuple[int, int]:
    """When a produce's records are in the log, and when the fetches that wait for them are looked at."""
    handling = local_us - start_us
    if acks == -1:
        return start_us + min(round(handling * APPENDED_AT), APPENDED_WITHIN_US), local_us
    return start_us + round(handling * APPENDED_BEFORE_ANSWER_AT), local_us + ANSWER_TO_CHECK_US


def read_and_wake(start_us: int, local_us: int, number: int, moved: int) -> tuple[int, int]:
    """When the `number`th of a follower's `moved` offsets is known, and when it has woken who waited for it."""
    handling = local_us - start_us
    slot = handling * READS_TAKE / moved
    at = start_us + round(handling * FIRST_READ_AT + slot * number)
    return at, at + round(slot * WAKES_AT)
