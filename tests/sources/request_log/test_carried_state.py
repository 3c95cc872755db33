"""State between the steps of a followed log: written by one step, read by the next one, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from purgatory_udf.backend.backend import LocalBackend
from purgatory_udf.backend.dataset import LocalDataset
from purgatory_udf.common.errors import UserError
from purgatory_udf.sources.request_log.fact_kinds import Append, Fact, FactBlock, fields_of
from purgatory_udf.sources.request_log.importing.carried_state import (
    CARRIED_ROWS,
    FORMAT,
    LOOK_BACK_US,
    CarriedState,
    StepFiles,
    StepState,
    are_settled,
    facts_to_carry,
)
from purgatory_udf.sources.request_log.importing.import_rows import REQUESTS
from purgatory_udf.sources.request_log.partition_status import TimeRange
from tests.sources.request_log.translate import single_facts


def _write_first_step(files: StepFiles) -> None:
    carried = CarriedState(until_us=7, seq=3, heartbeats={1: (2, 5)}, fetched_counts={"t": 4})
    empty = (LocalDataset.of(rows.empty_table()) for rows in (REQUESTS, CARRIED_ROWS))
    files.end(0, files.hold(0, StepState(carried, *empty)))


def test_state_survives_step(tmp_path: Path) -> None:
    files = StepFiles(LocalBackend(), str(tmp_path))
    _write_first_step(files)
    assert files.start(1).carried == CarriedState(until_us=7, seq=3, heartbeats={1: (2, 5)}, fetched_counts={"t": 4})


def test_rows_without_carried_state_do_not_count(tmp_path: Path) -> None:
    files = StepFiles(LocalBackend(), str(tmp_path))
    files.hold(0, files.start(0))
    with pytest.raises(UserError, match="step-0: the rows that the last step held back are missing"):
        files.start(1)


@pytest.mark.parametrize("other", [None, FORMAT + 1])
def test_state_of_other_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int | None) -> None:
    files = StepFiles(LocalBackend(), str(tmp_path))
    snapshot = CarriedState().snapshot() | {"format": other}
    monkeypatch.setattr(CarriedState, "snapshot", lambda _: json.loads(json.dumps(snapshot)))
    _write_first_step(files)
    with pytest.raises(UserError, match=rf"step-0: the state is in another format than this version's \({FORMAT}\)"):
        files.start(1)


def test_append_is_settled_before_end_of_range() -> None:
    """Its event is at the time of its check, but not before the range."""
    base, end, check_us = np.array([[0, -1, 0, -1, 0, -1], [1, -1, 1, -1, 1, -1], [1, 1, 6, 6, 7, 7]])
    assert are_settled(base, end, check_us, TimeRange(5, 7)).tolist() == [True, False, True, False, False, False]
    assert not are_settled(base, end, check_us, TimeRange(5, 5)).any()


@pytest.mark.parametrize("seed", range(20))
def test_blocks_of_appends_are_carried_like_single_ones(seed: int) -> None:
    """The appends of two partitions, each with its latest old append."""
    numbers = [name for name, is_integer in fields_of(Append).items() if is_integer]
    rows = np.random.default_rng(seed).integers(-1, 9, (4, len(numbers), 5))
    rows[:, 0] += LOOK_BACK_US
    blocks = [FactBlock.of(Append, each) for each in rows]
    given: list[list[Fact]] = [[*blocks[:3]], [blocks[3], *blocks[0].appends()]]
    until_us = 2 * LOOK_BACK_US + 4
    in_blocks, singly = (
        [sorted(map(msgspec.structs.astuple, single_facts(facts))) for facts in facts_to_carry(partitions, until_us)]
        for partitions in (given, [list(single_facts(facts)) for facts in given])
    )
    assert in_blocks == singly
