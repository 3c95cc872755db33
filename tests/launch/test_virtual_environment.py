"""The tree's own virtual environment: made once, repaired when it was cut short, quick when it is ready."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch.virtual_environment import BUILD, GROUPS, Environment

ROOT = Path(__file__).resolve().parents[2]


def tree(folder: Path) -> Path:
    """A tree whose requirements are empty: pip has nothing to fetch."""
    for file in (BUILD, *(file for file, _ in GROUPS.values())):
        (folder / file).write_text("# nothing\n")
    return folder


@dataclass(frozen=True)
class Made:
    """An environment that two processes made at once where another had been cut short, and what all three left."""

    folder: Path
    ended: list[int]
    said: str
    half: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tree(tmp_path_factory.mktemp("environment"))
    half = folder / ".venv" / "lib" / "half.py"
    half.parent.mkdir(parents=True)
    for file in (half, folder / ".venv" / "unfinished"):  # As a kill in the middle of pip leaves them.
        file.touch()
    assert not Environment(folder).ready("run")
    code = "import sys; from pathlib import Path; from purgatory_udf.launch import virtual_environment as it; "
    command = [sys.executable, "-c", f"{code}it.set_up(Path(sys.argv[1]), 'run')", str(folder)]
    both = [
        subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = "".join(process.communicate()[1] for process in both)
    return Made(folder, [process.returncode for process in both], said, half)


@pytest.mark.end_to_end
def test_one_that_was_cut_short_is_begun_anew_and_two_at_once_wait_for_each_other(made: Made) -> None:
    assert made.ended == [0, 0]
    assert made.said.count("Setting up") == 1
    assert not made.half.exists()


@pytest.mark.end_to_end
def test_it_is_made_once_and_follows_the_requirements_with_their_hashes(
    made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = Environment(made.folder)
    assert "Setting up" in made.said and "Installing the pinned dependencies" in made.said
    assert environment.ready("run") and not environment.ready("run", "test")

    environment.set_up("run")
    assert capfd.readouterr().err == ""

    environment.set_up("run", "test")
    assert environment.ready("run", "test")

    wheel = make_wheel(made.folder)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    requirements = made.folder / "requirements.txt"
    requirements.write_text(f"told @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    assert not environment.ready("run")
    environment.set_up("run")
    assert "Setting up" not in capfd.readouterr().err
    assert environment.ready("run")

    # What is installed is what was pinned: a file of another hash, or of none, is refused.
    for unfit, because in (
        ("./no-such-package", "no-such-package"),
        (f"told @ {wheel.as_uri()}", "hash"),
        (f"told @ {wheel.as_uri()} --hash=sha256:{'0' * 64}", "DO NOT MATCH"),
    ):
        requirements.write_text(f"{unfit}\n")
        sentence = r"^requirements\.txt could not be installed into .*: see pip's message above$"
        with pytest.raises(UserError, match=sentence):
            environment.set_up("run")
        assert because in capfd.readouterr().err
        assert not environment.ready("run")
        # Else the next would begin by making all of it anew.
        environment.folder.joinpath("unfinished").unlink()


def make_wheel(folder: Path) -> Path:
    """A package of one empty module, ready to be installed."""
    wheel = folder / "told-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("told.py", "")
        archive.writestr("told-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: told\nVersion: 1\n")
        archive.writestr("told-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("told-1.dist-info/RECORD", "")
    return wheel
