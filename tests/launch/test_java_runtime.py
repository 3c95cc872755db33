"""Which Java is taken, and what Spark's launcher may ask of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from purgatory_udf.launch import jars, runtimes


def _java(folder: Path, version: str) -> Path:
    """A `java` that prints its arguments, one a line; its `release` file says the version."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    binary.chmod(0o755)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return binary


@pytest.mark.parametrize(
    ("said", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25-ea", 25), ("11.0.2", 11)]
)
def test_the_major_version_is_read_from_the_release_file(tmp_path: Path, said: str, major: int) -> None:
    assert runtimes.java_version(_java(tmp_path, said)) == major


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    binary = _java(tmp_path, "17")
    (tmp_path / "release").unlink()
    binary.write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\" 2022-01-18' >&2\n")
    assert runtimes.java_version(binary) == 17
    assert runtimes.java_version(tmp_path / "bin" / "missing") is None


def test_java_home_wins_over_path_unless_it_is_too_old(tmp_path: Path) -> None:
    new, old, newer = (_java(tmp_path / name, name) for name in ("17", "11", "21"))
    on_path = {"PATH": str(newer.parent)}
    assert runtimes.find_java({"JAVA_HOME": str(tmp_path / "17"), **on_path}) == new
    assert runtimes.find_java({"JAVA_HOME": str(tmp_path / "11"), **on_path}) == newer
    assert runtimes.find_java({"JAVA_HOME": str(tmp_path / "nowhere"), **on_path}) == newer
    assert runtimes.find_java({"PATH": str(newer.parent)}) == newer
    assert runtimes.find_java({"PATH": str(old.parent)}) != old


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], ["-cp", "a b", "Main"]),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main", ""], ["-Xmx1g", "Main", ""]),
        (["--add-modules", "java.sql", "-x"], ["--add-modules", "java.sql", "-x"]),
        (["-Da='x y' $HOME *"], ["-Da='x y' $HOME *"]),
    ],
)
def test_our_java_home_drops_only_the_module_that_small_runtimes_lack(
    tmp_path: Path, asked: list[str], passed: list[str]
) -> None:
    home = runtimes.java_home(_java(tmp_path / "it's a java", "21"), tmp_path / "own home")
    said = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == passed


def test_our_java_home_follows_the_java_it_stands_for(tmp_path: Path) -> None:
    first, second = _java(tmp_path / "a", "17"), _java(tmp_path / "b", "21")
    for binary in (first, first, second):
        script = runtimes.java_home(binary, tmp_path / "home") / "bin" / "java"
        assert script.read_text().endswith(f"exec '{binary}' \"$@\"\n")
    assert [file.name for file in script.parent.iterdir()] == ["java"]


def test_a_trust_store_is_a_java_key_store_of_the_certificates() -> None:
    # Two certificates, byte by byte: the header, each entry, and the digest that Java checks on loading.
    stored = jars.encode([b"\x30\x01", b"\x30\x02\xff"])
    assert stored[:-20].hex() == (
        "feedfeed 00000002 00000002"
        " 00000002 0004 63612d30 0000000000000000 0005 582e353039 00000002 3001"
        " 00000002 0004 63612d31 0000000000000000 0005 582e353039 00000003 3002ff"
    ).replace(" ", "")
    assert len(stored[-20:]) == 20


def test_a_wrapped_java_is_not_wrapped_again(tmp_path: Path) -> None:
    wrapped = runtimes.java_home(_java(tmp_path / "real", "17"), tmp_path / "own")
    again = runtimes.java_home(wrapped / "bin" / "java", tmp_path / "own")
    assert again == wrapped
    assert str(tmp_path / "real") in (wrapped / "bin" / "java").read_text()
