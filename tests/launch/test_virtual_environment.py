"""The tree's virtual environment: created once, repaired after an interruption, updated with the requirements."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch.runtimes import BUILD_REQUIREMENTS, REQUIREMENT_GROUPS, VirtualEnvironment, without_spark

ROOT = Path(__file__).resolve().parents[2]


def tree(folder: Path) -> Path:
    """Create a tree with empty requirements, so that pip downloads nothing."""
    for file in (BUILD_REQUIREMENTS, *(file for file, _ in REQUIREMENT_GROUPS.values())):
        (folder / file).write_text("# nothing\n")
    return folder


@dataclass(frozen=True)
class SetUp:
    """An interrupted environment after two concurrent set-ups: exit statuses, output, and a leftover file."""

    folder: Path
    statuses: list[int]
    output: str
    leftover: Path


@pytest.fixture(scope="module")
def set_up(tmp_path_factory: pytest.TempPathFactory) -> SetUp:
    folder = tree(tmp_path_factory.mktemp("environment"))
    leftover = folder / ".venv" / "lib" / "leftover.py"
    leftover.parent.mkdir(parents=True)
    for file in (leftover, folder / ".venv" / "unfinished"):  # As a kill during pip leaves them.
        file.touch()
    assert not VirtualEnvironment(folder).ready("run")
    code = "import sys; from pathlib import Path; from purgatory_udf.launch import runtimes as it; "
    command = [sys.executable, "-c", f"{code}it.set_up(Path(sys.argv[1]), 'run')", str(folder)]
    both = [
        subprocess.Popen(command, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    output = "".join(process.communicate()[1] for process in both)
    return SetUp(folder, [process.returncode for process in both], output, leftover)


@pytest.mark.nightly
@pytest.mark.long
def test_concurrent_set_ups_repair_once(set_up: SetUp) -> None:
    assert set_up.statuses == [0, 0]
    assert set_up.output.count("Setting up") == 1
    assert not set_up.leftover.exists()


@pytest.mark.nightly
@pytest.mark.long
def test_environment_follows_requirements(set_up: SetUp, capfd: pytest.CaptureFixture[str]) -> None:
    environment = VirtualEnvironment(set_up.folder)
    assert "Setting up" in set_up.output and "Installing the pinned dependencies" in set_up.output
    assert environment.ready("run") and not environment.ready("run", "test")

    environment.set_up("run")
    assert capfd.readouterr().err == ""

    environment.set_up("run", "test")
    assert environment.ready("run", "test")

    wheel = make_wheel(set_up.folder)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    requirements = set_up.folder / "requirements.txt"
    requirements.write_text(f"example @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    assert not environment.ready("run")
    environment.set_up("run")
    assert "Setting up" not in capfd.readouterr().err
    assert environment.ready("run")

    # A file without a hash, or with another one, is refused.
    for unfit, because in (
        ("./no-such-package", "no-such-package"),
        (f"example @ {wheel.as_uri()}", "hash"),
        (f"example @ {wheel.as_uri()} --hash=sha256:{'0' * 64}", "DO NOT MATCH"),
    ):
        requirements.write_text(f"{unfit}\n")
        sentence = r"^requirements\.txt could not be installed into .*; see pip's message above$"
        with pytest.raises(UserError, match=sentence):
            environment.set_up("run")
        assert because in capfd.readouterr().err
        assert not environment.ready("run")
        # Otherwise the next set-up would start from scratch.
        environment.folder.joinpath("unfinished").unlink()


def test_spark_is_left_out_of_requirements() -> None:
    requirements = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    removed = [line for line in requirements.splitlines() if line not in without_spark(requirements).splitlines()]
    assert removed[0].startswith("pyspark==") and len(removed) > 1
    assert all(line.startswith("    --hash=") for line in removed[1:])
    assert without_spark("a==1\npyspark==4 \\\n    --hash=b\n") == "a==1\n"


@pytest.mark.nightly
@pytest.mark.long
def test_packages_are_compiled_if_imports_leave_no_bytecode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tree(tmp_path))
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    tmp_path.joinpath("requirements.txt").write_text(f"example @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    environment = VirtualEnvironment(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    environment.set_up("run")
    assert list(environment.folder.rglob("example.*.pyc")) == []

    environment.folder.joinpath("run.stamp").unlink()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    environment.set_up("run")
    assert len(list(environment.folder.rglob("example.*.pyc"))) == 1


def make_wheel(folder: Path) -> Path:
    """Build a wheel with one empty module."""
    wheel = folder / "example-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("example.py", "")
        archive.writestr("example-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: example\nVersion: 1\n")
        archive.writestr("example-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("example-1.dist-info/RECORD", "")
    return wheel
