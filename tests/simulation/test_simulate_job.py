"""The command's options: what does not go together is said before Spark is started."""

from __future__ import annotations

import pytest

from jobs.simulate import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "simulate: give --open-loop, or --scenario NAME or a file (names: create-topics, hot-partition, "),
        (["--scenario", "nothing"], "simulate: --scenario nothing: neither a file nor one of create-topics, "),
        (["--scenario", "steady", "--rate", "5"], "simulate: --rate goes with --open-loop\n"),
        (["--open-loop", "--check"], "simulate: --check goes with --scenario\n"),
        (["--open-loop", "--scenario", "steady"], "simulate: give --scenario or --open-loop, not both\n"),
        (["--open-loop", "--events", "1_000"], "simulate: --events 1000: 1000 partitions need at least "),
        (["--scenario", "steady", "--jsonl", "/none/t.jsonl"], "simulate: --jsonl /none/t.jsonl: there is no folder"),
    ],
)
def test_options_that_do_not_go_together_are_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.check(["--out", "out", *arguments]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_options_that_do_may_start() -> None:
    assert main.check(["--out", "out", "--scenario", "steady", "--check", "--seed", "7", "--scale", "0.5"]) is None
    assert main.check(["--out", "out", "--open-loop", "--events", "100_000_000", "--skew", "1"]) is None
