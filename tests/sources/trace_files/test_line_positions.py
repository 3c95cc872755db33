"""Start positions of pieces, and whether seqs may repeat, from one row per piece."""

from __future__ import annotations

import pytest

from purgatory_udf.sources.trace_files.piece_validation import PieceStart, PieceTotals, piece_starts, seq_may_repeat


def test_piece_starts_after_earlier_pieces() -> None:
    totals = [
        PieceTotals(0, 0, line=400, latest=1207),
        PieceTotals(0, 1, line=380, latest=1205),
        PieceTotals(0, 2, line=0, latest=0),
        PieceTotals(0, 3, line=410, latest=1231),
        PieceTotals(2, 0, line=7, latest=3),
        PieceTotals(2, 1, line=7, latest=2),
    ]
    assert piece_starts(totals) == [
        PieceStart(0, 0, 0, 0),
        PieceStart(0, 1, 400, 1207),
        PieceStart(0, 2, 780, 1207),
        PieceStart(0, 3, 780, 1207),
        PieceStart(2, 0, 0, 0),
        PieceStart(2, 1, 7, 3),
    ]


def end(events: int, given: int, first: int = 0, last: int = 0, rising: bool = True) -> PieceTotals:
    return PieceTotals(0, 0, events=events, given=given, first_seq=first, last_seq=last, rising=rising)


@pytest.mark.parametrize(
    ("totals", "may_repeat"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param([end(5, 0), end(5, 0)], False, id="none is given"),
        pytest.param([end(5, 5, 10, 14), end(0, 0), end(5, 5, 1, 9)], False, id="disjoint ranges, in any order"),
        pytest.param([end(5, 5, 1, 10), end(5, 5, 10, 14)], True, id="ranges touch"),
        pytest.param([end(5, 5, 1, 10, rising=False)], True, id="not rising"),
        pytest.param([end(5, 5, 1, 10), end(5, 0)], True, id="given in one piece only"),
        pytest.param([end(5, 4, 1, 10)], True, id="given to some"),
    ],
)
def test_rising_seq_cannot_repeat(totals: list[PieceTotals], may_repeat: bool) -> None:
    assert seq_may_repeat(totals) is may_repeat
