"""The tree's own virtual environment: made once, repaired when it was cut short, quick when it is ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.errors import UserError
from purgatory_udf.launch.environment import BUILD, GROUPS, Environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree whose requirements are empty: pip has nothing to fetch."""
    for file in (BUILD, *(file for file, _ in GROUPS.values())):
        (tmp_path / file).write_text("# nothing\n")
    return tmp_path


@pytest.mark.end_to_end
def test_it_is_made_once_and_follows_the_requirements(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environment = Environment(tree)
    assert not environment.ready("run")

    environment.set_up("run")
    said = capfd.readouterr().err
    assert "Setting up" in said and "Installing the pinned dependencies" in said
    assert environment.ready("run") and not environment.ready("run", "test")

    environment.set_up("run")
    assert capfd.readouterr().err == ""

    environment.set_up("run", "test")
    assert environment.ready("run", "test")

    (tree / "requirements.txt").write_text("# nothing new\n")
    assert not environment.ready("run")
    environment.set_up("run")
    assert "Setting up" not in capfd.readouterr().err
    assert environment.ready("run")

    (tree / "requirements.txt").write_text("./no-such-package\n")
    with pytest.raises(UserError, match=r"^requirements\.txt could not be installed into .*: see pip's message above$"):
        environment.set_up("run")
    assert not environment.ready("run")


@pytest.mark.end_to_end
def test_one_that_was_cut_short_is_begun_anew_and_two_at_once_wait_for_each_other(tree: Path) -> None:
    half = tree / ".venv" / "lib" / "half.py"
    half.parent.mkdir(parents=True)
    for file in (half, tree / ".venv" / "unfinished"):  # As a kill in the middle of pip leaves them.
        file.touch()
    command = [sys.executable, str(ROOT / "purgatory_udf" / "launch" / "environment.py"), str(tree), "run"]
    both = [
        subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = "".join(process.communicate()[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert said.count("Setting up") == 1
    assert Environment(tree).ready("run")
    assert not half.exists()
