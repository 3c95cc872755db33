"""Expirations counted by brokers between two readings of their MBeans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from purgatory_udf.answers.broker_readings import (
    CONSUMERS,
    FOLLOWERS,
    PRODUCES,
    ExpirationCount,
    count_expirations,
)
from purgatory_udf.common.errors import UserError


def _reading(path: Path, beans: dict[str, dict[str, int]]) -> Path:
    path.write_text(json.dumps({"1": {"mbeans": {"kafka.server:type=Other": {"readAtMs": 90}, **beans}}}))
    return path


def test_count_is_increase_between_readings(tmp_path: Path) -> None:
    before = _reading(tmp_path / "before", {CONSUMERS: {"Count": 5, "readAtMs": 100}})
    after = _reading(
        tmp_path / "after",
        {CONSUMERS: {"Count": 9, "readAtMs": 400}, FOLLOWERS: {"Count": 2, "readAtMs": 401}},
    )
    assert count_expirations(before, after) == [
        ExpirationCount(1, "consumer fetch", 4, 100_000, 400_000),
        ExpirationCount(1, "follower fetch", 2, 90_000, 401_000),
    ]
    assert count_expirations(None, after)[0] == ExpirationCount(1, "consumer fetch", 9, 0, 400_000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "no ExpiresPerSec of DelayedFetchMetrics or DelayedProduceMetrics found"),
        ("", "this is not JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            "[]",
            "expected a JSON object with an object for each broker id, which has the broker's MBeans in the field mb",
        ),
        ('{"1": []}', "expected a JSON object with an object for each broker id"),
        (
            json.dumps({"1": {"mbeans": {PRODUCES: {"Count": 1}}}}),
            f"broker 1, {PRODUCES}: Count and readAtMs must be whole numbers",
        ),
    ],
)
def test_invalid_reading_is_user_error(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "after"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        count_expirations(None, file)
    assert str(raised.value).startswith(f"{file}: {sentence}")


def test_decreased_counter_is_user_error(tmp_path: Path) -> None:
    before = _reading(tmp_path / "before", {PRODUCES: {"Count": 5, "readAtMs": 100}})
    after = _reading(tmp_path / "after", {PRODUCES: {"Count": 3, "readAtMs": 400}})
    with pytest.raises(UserError, match="produce acks=-1 of broker 1: the counter fell from 5 to 3, so the broker was"):
        count_expirations(before, after)
