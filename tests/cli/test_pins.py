"""What is installed is what was pinned: every file has its hash, and pip takes no other."""

from __future__ import annotations

import hashlib
import re
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from purgatory_udf.errors import UserError
from purgatory_udf.launch.environment import BUILD, GROUPS, Environment

ROOT = Path(__file__).resolve().parents[2]


def pins(file: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Each package of a requirements file with its hashes."""
    text = re.sub(r"#.*", "", (ROOT / file).read_text(encoding="utf-8")).replace("\\\n", " ")
    lines = [line.split(" --hash=") for line in text.splitlines() if line.strip()]
    found = {str(canonicalize_name(Requirement(line[0]).name)): (Requirement(line[0]), line[1:]) for line in lines}
    assert len(found) == len(lines), f"{file}: a package is pinned twice"
    return found


def ranges(*keys: str) -> list[Requirement]:
    place: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for key in keys:
        place = place[key]
    return [Requirement(text) for text in place]


@pytest.mark.parametrize("file", [BUILD, *(file for file, _ in GROUPS.values())])
def test_every_package_is_pinned_to_one_version_with_the_hashes_of_its_files(file: str) -> None:
    assert pins(file)
    for requirement, hashes in pins(file).values():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in hashes), requirement


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        (BUILD, ("build-system", "requires")),
        ("requirements.txt", ("project", "dependencies")),
        ("requirements-test.txt", ("project", "optional-dependencies", "test")),
        ("requirements-java.txt", ("project", "optional-dependencies", "java")),
    ],
)
def test_what_is_pinned_is_what_pyproject_asks_for(file: str, keys: tuple[str, ...]) -> None:
    pinned = pins(file)
    for wanted in ranges(*keys):
        assert canonicalize_name(wanted.name) in pinned, f"{wanted} is not in {file}: run .ci/pin"
        (version,) = pinned[canonicalize_name(wanted.name)][0].specifier
        assert wanted.specifier.contains(version.version), f"{file} pins {wanted.name} {version}: run .ci/pin"


def test_what_both_files_pin_they_pin_alike() -> None:
    run, test = pins("requirements.txt"), pins("requirements-test.txt")
    assert {name: run[name][0].specifier for name in run.keys() & test.keys()} == {
        name: test[name][0].specifier for name in run.keys() & test.keys()
    }


@pytest.mark.end_to_end
def test_a_file_of_another_hash_or_of_none_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for file in (BUILD, *(file for file, _ in GROUPS.values())):
        (tmp_path / file).write_text("# nothing\n")
    wheel = tmp_path / "told-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("told.py", "")
        archive.writestr("told-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: told\nVersion: 1\n")
        archive.writestr("told-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("told-1.dist-info/RECORD", "")
    environment = Environment(tmp_path)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "requirements.txt").write_text(f"told @ {wheel.as_uri()} --hash=sha256:{digest}\n")
    environment.set_up("run")
    assert environment.ready("run")

    for unfit, because in (("", "hash"), (f" --hash=sha256:{'0' * 64}", "DO NOT MATCH")):
        (tmp_path / "requirements.txt").write_text(f"told @ {wheel.as_uri()}{unfit}\n")
        with pytest.raises(UserError, match=r"^requirements\.txt could not be installed into "):
            environment.set_up("run")
        assert because in capfd.readouterr().err
        assert not environment.ready("run")
