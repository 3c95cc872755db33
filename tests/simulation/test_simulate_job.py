"""The options of `simulate`, and its output folder: mistakes are reported before anything is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.simulate import main
from purgatory_udf.common.errors import NeedsSparkError
from purgatory_udf.launch.backend_choice import open_local
from purgatory_udf.storage.output_folder import output_lock


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "simulate: give --open-loop, or --scenario NAME or a file (names: cold-consumers, create-topics, "),
        (["--scenario", "nothing"], "simulate: --scenario nothing: not a file and not one of cold-consumers, "),
        (["--scenario", "steady", "--rate", "5"], "simulate: --rate needs --open-loop\n"),
        (["--open-loop", "--check"], "simulate: --check needs --scenario\n"),
        (["--open-loop", "--scenario", "steady"], "simulate: give --scenario or --open-loop, not both\n"),
        (["--open-loop", "--events", "1_000"], "simulate: --events 1000: 1000 partitions need at least "),
        (
            ["--scenario", "steady", "--jsonl", "/none/t.jsonl"],
            "simulate: --jsonl /none/t.jsonl: no such folder: /none; create it",
        ),
    ],
)
def test_incompatible_options_are_rejected(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.check(["--out", "out", *arguments]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_compatible_options_pass_check() -> None:
    assert main.check(["--out", "out", "--scenario", "steady", "--check", "--seed", "7", "--scale", "0.5"]) is None
    assert main.check(["--out", "out", "--open-loop", "--events", "100_000_000", "--skew", "1"]) is None


def test_folder_that_is_in_use_or_not_writable_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--scenario", "steady", "--duration", "1", "--out"]
    assert main.status([*words, "/proc/sim"], open_local) == 2
    assert capsys.readouterr().err.startswith("simulate: /proc/sim: cannot be written: ")
    out = str(tmp_path / "sim")
    with output_lock(out, "simulate"):
        assert main.status([*words, out], open_local) == 2
    assert f"simulate: {out}: " in capsys.readouterr().err
    assert main.status([*words, out], open_local) == 0
    assert f"{out}/events\n" in capsys.readouterr().out


def test_folder_that_needs_spark_is_noticed_before_simulation(tmp_path: Path) -> None:
    """Spark repeats the simulation, so that a pipe would get its JSON Lines twice."""
    jsonl = tmp_path / "trace.jsonl"
    words = ["--scenario", "steady", "--duration", "1", "--out", str(tmp_path / "sim[1]"), "--jsonl", str(jsonl)]
    with pytest.raises(NeedsSparkError):
        main.status(words, open_local)
    assert not jsonl.exists()
