"""Selection of the Java that runs Spark, and the wrapper that drops one of the launcher's options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.launch import jars, runtimes


def _java(folder: Path, version: str) -> Path:
    """Create a `java` that prints its arguments, one per line, with a `release` file of this version."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    binary.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return binary


@pytest.mark.parametrize(
    ("output", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25), ("11.0.2", 11)]
)
def test_version_is_read_from_release_file(tmp_path: Path, output: str, major: int) -> None:
    assert runtimes.java_version(_java(tmp_path, output)) == major


def test_version_is_read_from_output(tmp_path: Path) -> None:
    binary = _java(tmp_path, "17")
    (tmp_path / "release").unlink()
    binary.write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\" 2022-01-18' >&2\n")
    assert runtimes.java_version(binary) == 17
    assert runtimes.java_version(tmp_path / "bin" / "missing") is None


def test_java_home_precedes_path_unless_too_old(tmp_path: Path) -> None:
    new, old, newer = (_java(tmp_path / name, name) for name in ("17", "11", "21"))
    on_path = {"PATH": str(newer.parent)}
    assert runtimes.find_java({"JAVA_HOME": str(tmp_path / "17"), **on_path}) == new
    assert runtimes.find_java({"JAVA_HOME": str(tmp_path / "11"), **on_path}) == newer
    assert runtimes.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), **on_path}) == newer
    assert runtimes.find_java({"PATH": str(newer.parent)}) == newer
    assert runtimes.find_java({"PATH": str(old.parent)}) != old


@pytest.mark.parametrize(
    ("requested", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main", ""], ["-Xmx1g", "Main", ""]),
        (["--add-modules", "java.sql", "-x"], ["--add-modules", "java.sql", "-x"]),
        (["-Da='x y' $HOME *"], ["-Da='x y' $HOME *"]),
    ],
)
def test_wrapper_drops_incubator_module_only(tmp_path: Path, requested: list[str], passed: list[str]) -> None:
    home = runtimes.wrapper_java_home(_java(tmp_path / "it's a java", "21"), tmp_path / "own home")
    output = subprocess.run([home / "bin" / "java", *requested], capture_output=True, text=True, check=True).stdout
    assert output.splitlines() == passed


def test_wrapper_is_updated_for_another_java(tmp_path: Path) -> None:
    first, second = _java(tmp_path / "a", "17"), _java(tmp_path / "b", "21")
    for binary in (first, first, second):
        script = runtimes.wrapper_java_home(binary, tmp_path / "home") / "bin" / "java"
        assert script.read_text().endswith(f"exec '{binary}' \"$@\"\n")
    assert [file.name for file in script.parent.iterdir()] == ["java"]


def test_each_java_has_its_own_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands with different Javas run at the same time."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(runtimes, "is_installed", lambda root: False)
    javas = [_java(tmp_path / name, "17") for name in ("a", "b")]
    homes = [runtimes.wrapper_java_home(java) for java in javas]
    assert [runtimes.wrapped_java(home) for home in homes] == javas
    assert [home.parent for home in homes] == [tmp_path / "java"] * 2


def test_trust_store_is_encoded_as_jks() -> None:
    # Two certificates: the header, each entry, and the digest that Java checks on loading.
    stored = jars.encode_key_store([b"\x30\x01", b"\x30\x02\xff"])
    assert stored[:-20].hex() == (
        "feedfeed 00000002 00000002"
        " 00000002 0004 63612d30 0000000000000000 0005 582e353039 00000002 3001"
        " 00000002 0004 63612d31 0000000000000000 0005 582e353039 00000003 3002ff"
    ).replace(" ", "")
    assert len(stored[-20:]) == 20


def test_wrapper_is_not_wrapped_again(tmp_path: Path) -> None:
    wrapped = runtimes.wrapper_java_home(_java(tmp_path / "real", "17"), tmp_path / "own")
    again = runtimes.wrapper_java_home(wrapped / "bin" / "java", tmp_path / "own")
    assert again == wrapped
    assert str(tmp_path / "real") in (wrapped / "bin" / "java").read_text()
