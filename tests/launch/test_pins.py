"""The requirements files: every package is pinned to one version, every file has its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from purgatory_udf.launch.runtimes import BUILD_REQUIREMENTS, REQUIREMENT_GROUPS

ROOT = Path(__file__).resolve().parents[2]


def pins(file: str) -> dict[str, tuple[Requirement, list[str]]]:
    """Return each package of a requirements file with its hashes."""
    text = re.sub(r"#.*", "", (ROOT / file).read_text(encoding="utf-8")).replace("\\\n", " ")
    lines = [line.split(" --hash=") for line in text.splitlines() if line.strip()]
    pinned = {str(canonicalize_name(Requirement(line[0]).name)): (Requirement(line[0]), line[1:]) for line in lines}
    assert len(pinned) == len(lines), f"{file}: a package is pinned twice"
    return pinned


def ranges(*keys: str) -> list[Requirement]:
    place: Any = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for key in keys:
        place = place[key]
    return [Requirement(text) for text in place]


@pytest.mark.parametrize("file", [BUILD_REQUIREMENTS, *(file for file, _ in REQUIREMENT_GROUPS.values())])
def test_packages_are_pinned_with_hashes(file: str) -> None:
    assert pins(file)
    for requirement, hashes in pins(file).values():
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes and all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in hashes), requirement


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        (BUILD_REQUIREMENTS, ("build-system", "requires")),
        ("requirements.txt", ("project", "dependencies")),
        ("requirements.txt", ("project", "optional-dependencies", "spark")),
        ("requirements-test.txt", ("project", "optional-dependencies", "test")),
        ("requirements-audit.txt", ("project", "optional-dependencies", "audit")),
        ("requirements-java.txt", ("project", "optional-dependencies", "java")),
    ],
)
def test_pins_satisfy_pyproject(file: str, keys: tuple[str, ...]) -> None:
    pinned = pins(file)
    for wanted in ranges(*keys):
        assert canonicalize_name(wanted.name) in pinned, f"{wanted} is not in {file}: run .ci/pin"
        (version,) = pinned[canonicalize_name(wanted.name)][0].specifier
        assert wanted.specifier.contains(version.version), f"{file} pins {wanted.name} {version}: run .ci/pin"


def test_run_and_test_pins_agree() -> None:
    run, test = pins("requirements.txt"), pins("requirements-test.txt")
    assert {name: run[name][0].specifier for name in run.keys() & test.keys()} == {
        name: test[name][0].specifier for name in run.keys() & test.keys()
    }
