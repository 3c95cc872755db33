"""The option `replay --explain GROUP`, checked before Spark starts."""

from __future__ import annotations

import pytest

from jobs.replay import main


def test_explain_needs_no_events() -> None:
    assert main.check(["--out", "x", "--explain", "g"]) is None
    assert main.check(["--out", "x", "--events", "x/events", "--explain", "g"]) is None


def test_explain_with_follow_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.check(["--out", "x", "--events", "x/events", "--follow", "--explain", "g"]) == 2
    assert capsys.readouterr().err == "replay: --explain needs a finished replay; remove --follow\n"
