"""The stories that `explain` prints about operations of the sample and an added group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from purgatory_udf.answers.explain import Question, explain
from purgatory_udf.common.errors import UserError
from tests.support.outcome_folder import sample_with_group

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_expired_produce_names_slow_replica(without_spark: SparkSession, story_folder: Path) -> None:
    assert explain(without_spark, str(story_folder), Question(request_id="checkout-web-672")) == [
        "produce checkout-web-672 of checkout-web at broker 1 (operation 738): expired after 1,500 ms",
        "  09:00:02.244522  arrived: acks=-1, may wait 1,500 ms, appended to orders-1 (offsets 246 to 247), "
        "orders-2 (offsets 228 to 231)",
        "                   had to wait, at most until 09:00:03.744000: watched on orders-1, orders-2",
        "                   during the wait on orders-1: 114 × a fetch of replica 2, 47 × an append",
        "                   during the wait on orders-2: 114 × a fetch of replica 2, 46 × an append",
        "  09:00:03.744000  expired at its deadline",
        "                   because orders-1 had to be at every in-sync replica up to offset 248:",
        "                     replica 2 had reached 428 (enough), last seen 0 ms before the end",
        "                     replica 3 had reached 245 (not enough), last seen 1,553 ms before the end",
        "                   because orders-2 had to be at every in-sync replica up to offset 232:",
        "                     replica 2 had reached 377 (enough), last seen 0 ms before the end",
        "                     replica 3 had reached 228 (not enough), last seen 1,553 ms before the end",
    ]


def test_completion_names_deciding_event(without_spark: SparkSession, story_folder: Path) -> None:
    assert explain(without_spark, str(story_folder), Question(operation=885))[-3:] == [
        "                   during the wait on orders-2: 98 × a fetch of replica 2, 37 × an append, "
        "2 × a fetch of replica 3",
        "  09:00:04.405427  high_watermark: every in-sync replica had its records: the high watermark had passed them",
        "                   decided on orders-2 by a fetch of replica 3 (replica-3-1007)",
    ]


def test_client_story_has_its_expired_operations(without_spark: SparkSession, story_folder: Path) -> None:
    lines = explain(without_spark, str(story_folder), Question(client="checkout-web"), top=2)
    titles = [line for line in lines if line and not line.startswith(" ")]
    assert [title.split(" (")[0] for title in titles] == [
        "produce checkout-web-668 of checkout-web at broker 1",
        "produce checkout-web-672 of checkout-web at broker 1",
        "… and more operations; use --top to show more than 2",
    ]


def test_end_of_request_id_suffices(without_spark: SparkSession, story_folder: Path) -> None:
    def of(request_id: str) -> list[str]:
        return explain(without_spark, str(story_folder), Question(request_id=request_id))

    assert of("web-672") == of("checkout-web-672")
    with pytest.raises(UserError, match=r"--request-id 5: \d+ requests end with it \(.+, …\); give a longer part"):
        of("5")


def test_group_story_lists_state_changes(without_spark: SparkSession, story_folder: Path) -> None:
    assert explain(without_spark, str(story_folder), Question(group="g"), top=6) == [
        "group g at broker 1",
        "  09:00:00.100000  PreparingRebalance, generation 0: member a joined; with a (1 member)",
        "  09:00:05.100000  CompletingRebalance, generation 1: initial delay over; with b, c (3 members)",
        "  09:00:05.200000  Stable, generation 1: leader's assignment (3 members)",
        "  09:00:11.220000  PreparingRebalance, generation 1: session of c expired; without c (2 members)",
        "  09:00:14.500000  CompletingRebalance, generation 2: all members joined (2 members)",
        "  09:00:14.600000  Stable, generation 2: leader's assignment (2 members)",
        "  … and more changes; use --top to show more than 6",
        "  longest rebalance: 5,100 ms from 09:00:00.100000 (member a joined); c was the last to join",
    ]


def test_event_without_request_is_not_found(without_spark: SparkSession, story_folder: Path) -> None:
    """Events have their numbers in common with operations."""
    number = next(event["seq"] for event in sample_with_group() if event["type"] == "partition")
    with pytest.raises(UserError, match=f"no operation {number} found"):
        explain(without_spark, str(story_folder), Question(operation=number))


def test_unknown_subject_is_user_error(without_spark: SparkSession, story_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no request unknown-1 found"):
        explain(without_spark, str(story_folder), Question(request_id="unknown-1"))
    with pytest.raises(UserError, match="no replay is recorded in"):
        explain(without_spark, str(tmp_path), Question(operation=1))
    with pytest.raises(
        UserError, match="give one of --operation ID, --request-id ID, --group ID, --member ID, --client ID"
    ):
        Question(operation=1, group="g")
