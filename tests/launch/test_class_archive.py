"""The archive of classes: whose it is, when it is used, who makes it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.launch import class_archive, runtimes
from purgatory_udf.launch.class_archive import Archive, archive_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A Spark, a Java, and Delta's jar."""
    for file in ("spark/jars/core.jar", "jdk/bin/java", "jdk/lib/server/classes.jsa", "delta.jar"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("as it was")
    return tmp_path


def _found(place: Path, **environ: str) -> Archive | None:
    return archive_for(place / "classes", place / "jdk/bin/java", place / "spark", [place / "delta.jar"], environ)


def _name(place: Path) -> str:
    known = _found(place)
    assert known
    return known.name


def _made(known: Archive, text: str = "classes") -> None:
    known.draft.mkdir(parents=True)
    (known.draft / "archive").write_text(text)
    known.keep()


@pytest.mark.parametrize(
    "file", ["spark/jars/core.jar", "spark/jars/new.jar", "delta.jar", "jdk/lib/server/classes.jsa"]
)
def test_another_java_or_another_jar_has_another_archive(place: Path, file: str) -> None:
    before = _name(place)
    assert _name(place) == before
    (place / file).write_text("another")
    assert _name(place) != before


@pytest.mark.parametrize(
    "environ",
    [
        {"JAVA_TOOL_OPTIONS": "-Xmx1g -Xshare:off"},
        {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=mine"},
        {"SPARK_CONF_DIR": "/etc/spark"},
        {"PURGATORY_NO_ARCHIVE": "1"},
    ],
)
def test_who_has_told_the_jvm_otherwise_is_left_alone(place: Path, environ: dict[str, str]) -> None:
    assert _found(place, JAVA_TOOL_OPTIONS="-Xmx1g")
    assert _found(place, **environ) is None


def test_a_spark_with_settings_of_its_own_and_a_java_without_one_of_its_own_have_no_archive(place: Path) -> None:
    (place / "spark" / "conf").mkdir()
    assert _found(place) is None
    (place / "spark" / "conf").rmdir()
    (place / "jdk/lib/server/classes.jsa").unlink()
    assert _found(place) is None


def test_an_archive_that_was_cut_short_is_not_used_but_made_anew(tmp_path: Path) -> None:
    known = Archive(tmp_path / "classes", "a")
    tmp_path.joinpath("classes").mkdir()
    assert known.used() is None and known.wanted()
    _made(known)
    (file,) = known.folder.glob("*.jsa")
    assert known.used() == f"-XX:SharedArchiveFile={file} -Xlog:cds*=off" and not known.wanted()
    os.truncate(file, 3)
    assert known.used() is None and known.wanted()


def test_what_no_start_has_made_lately_goes_in_the_end(tmp_path: Path) -> None:
    for number, name in enumerate("abcd"):
        _made(Archive(tmp_path, name))
        (file,) = tmp_path.glob(f"{name}-*.jsa")
        os.utime(file, (number, number))
    _made(Archive(tmp_path, "e"))
    assert sorted(file.name[0] for file in tmp_path.glob("*.jsa")) == ["c", "d", "e"]


def test_it_is_not_made_where_nothing_can_be_written_nor_again_where_that_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Archive(tmp_path / "classes", "a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        assert not known.wanted()
    assert _main(known, "raise SystemExit(1)").returncode == 1
    assert not known.wanted()
    os.utime(known.failed, (0, 0))
    assert known.wanted()
    assert _main(known, "pass").returncode != 0
    assert not known.wanted() and not known.draft.exists()


def _main(known: Archive, code: str) -> subprocess.CompletedProcess[str]:
    """As if whoever started it had ended."""
    command = [sys.executable, "-m", class_archive.__name__, str(known.folder), known.name, sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_of_two_that_would_make_it_one_does(tmp_path: Path) -> None:
    known = Archive(tmp_path, "a")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert _main(known, "open('archive', 'w').write('x')").returncode == 0
        assert known.found() is None
    for text in ("first", "the second"):
        assert _main(known, f"open('archive', 'w').write('{text}')").returncode == 0
    found = known.found()
    assert found and found.read_text() == "first"


def test_it_is_made_after_what_the_process_has_become_has_ended(tmp_path: Path) -> None:
    """Whoever opens the pipe has come that far: nobody has to wait for a time."""
    os.mkfifo(tmp_path / "told")
    begin = (
        "import os; from pathlib import Path; from purgatory_udf.launch import class_archive\n"
        f"known = class_archive.Archive(Path({str(tmp_path)!r}), 'a')\n"
        f"command = ['sh', '-c', 'echo made >> ../log; echo x > archive; echo > {tmp_path}/told']\n"
        "class_archive.make_afterwards(known, command, os.environ)\n"
        f"os.execv('/bin/sh', ['sh', '-c', 'echo job >> {tmp_path}/log'])\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", begin], cwd=ROOT, env=environ, check=True, stdin=subprocess.DEVNULL)
    (tmp_path / "told").read_text()
    assert (tmp_path / "log").read_text() == "job\nmade\n"


def test_a_java_says_nothing_of_an_archive_that_is_none_of_its_own(tmp_path: Path) -> None:
    runtime = runtimes.find_java()
    assert runtime
    known = Archive(tmp_path, "a")
    _made(known, "no archive at all" * 1000)
    said = known.used()
    assert said
    plain = subprocess.run([runtime, "-version"], capture_output=True, text=True, check=True)
    with_it = subprocess.run([runtime, *said.split(), "-version"], capture_output=True, text=True, check=True)
    assert with_it.stdout == "" and with_it.stderr.splitlines()[:2] == plain.stderr.splitlines()[:2]


def test_the_java_behind_the_one_that_spark_starts(tmp_path: Path) -> None:
    runtime = tmp_path / "it's a jdk" / "bin" / "java"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    assert runtimes.java_behind(runtimes.java_home(runtime, tmp_path / "ours")) == runtime
    assert runtimes.java_behind(tmp_path / "it's a jdk") is None
