"""The class archive: its name, when it is used, and how it is created."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from purgatory_udf.launch import jvm, runtimes
from purgatory_udf.launch.jvm import ClassArchive, StartRecord, class_archive_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A Spark, a Java, and Delta's jar."""
    for file in ("spark/jars/core.jar", "jdk/bin/java", "jdk/lib/server/classes.jsa", "delta.jar"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("as it was")
    return tmp_path


def _archive(place: Path, **environ: str) -> ClassArchive | None:
    return class_archive_for(place / "classes", place / "jdk/bin/java", place / "spark", [place / "delta.jar"], environ)


def _name(place: Path) -> str:
    archive = _archive(place)
    assert archive
    return archive.name


def _publish(archive: ClassArchive, text: str = "classes") -> None:
    archive.draft.mkdir(parents=True)
    (archive.draft / "archive").write_text(text)
    archive.publish()


@pytest.mark.parametrize(
    "file", ["spark/jars/core.jar", "spark/jars/new.jar", "delta.jar", "jdk/lib/server/classes.jsa"]
)
def test_archive_depends_on_java_and_jars(place: Path, file: str) -> None:
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
def test_user_jvm_settings_disable_archive(place: Path, environ: dict[str, str]) -> None:
    assert _archive(place, JAVA_TOOL_OPTIONS="-Xmx1g")
    assert _archive(place, **environ) is None


def test_configured_spark_and_small_java_have_no_archive(place: Path) -> None:
    """A Spark with a conf folder, and a Java without a base archive."""
    (place / "spark" / "conf").mkdir()
    assert _archive(place) is None
    (place / "spark" / "conf").rmdir()
    (place / "jdk/lib/server/classes.jsa").unlink()
    assert _archive(place) is None


def test_truncated_archive_is_created_again(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "classes", "a")
    tmp_path.joinpath("classes").mkdir()
    assert archive.jvm_options() is None and archive.should_create()
    _publish(archive)
    (file,) = archive.folder.glob("*.jsa")
    assert archive.jvm_options() == f"-XX:SharedArchiveFile={file} -Xlog:cds*=off" and not archive.should_create()
    os.truncate(file, 3)
    assert archive.jvm_options() is None and archive.should_create()


def test_oldest_archives_are_deleted(tmp_path: Path) -> None:
    for number, name in enumerate("abcd"):
        _publish(ClassArchive(tmp_path, name))
        (file,) = tmp_path.glob(f"{name}-*.jsa")
        os.utime(file, (number, number))
    StartRecord.of(ClassArchive(tmp_path, "a"), ["spark-submit"], {}).file.touch()
    _publish(ClassArchive(tmp_path, "e"))
    assert sorted(file.name[0] for file in tmp_path.glob("*.js*")) == ["c", "d", "e"]


def test_failed_or_unwritable_archive_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = ClassArchive(tmp_path / "classes", "a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda *_: False)
        assert not archive.should_create()
    assert _run_main(archive, "raise SystemExit(1)").returncode == 1
    assert not archive.should_create()
    os.utime(archive.failure_marker, (0, 0))
    assert archive.should_create()
    assert _run_main(archive, "pass").returncode != 0
    assert not archive.should_create() and not archive.draft.exists()


def _run_main(archive: ClassArchive, code: str) -> subprocess.CompletedProcess[str]:
    """Run the module as if the starting process had exited."""
    command = [
        sys.executable,
        "-m",
        jvm.__name__,
        str(archive.folder),
        archive.name,
        sys.executable,
        "-c",
        code,
    ]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def test_only_one_process_creates_archive(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path, "a")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert _run_main(archive, "open('archive', 'w').write('x')").returncode == 0
        assert archive.find() is None
    for text in ("first", "the second"):
        assert _run_main(archive, f"open('archive', 'w').write('{text}')").returncode == 0
    found = archive.find()
    assert found and found.read_text() == "first"


def test_archive_is_created_after_replacing_program_exits(tmp_path: Path) -> None:
    """Opening the named pipe waits until the archive is written, without a timeout."""
    os.mkfifo(tmp_path / "written")
    code = (
        "import os; from pathlib import Path; from purgatory_udf.launch import jvm\n"
        f"archive = jvm.ClassArchive(Path({str(tmp_path)!r}), 'a')\n"
        f"command = ['sh', '-c', 'echo made >> ../log; echo x > archive; echo > {tmp_path}/written']\n"
        "jvm.create_in_background(archive, command, os.environ)\n"
        f"os.execv('/bin/sh', ['sh', '-c', 'echo job >> {tmp_path}/log'])\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, check=True, stdin=subprocess.DEVNULL)
    (tmp_path / "written").read_text()
    assert (tmp_path / "log").read_text() == "job\nmade\n"


@pytest.mark.spark
def test_java_ignores_foreign_archive_silently(tmp_path: Path) -> None:
    runtime = runtimes.find_java()
    assert runtime
    archive = ClassArchive(tmp_path, "a")
    _publish(archive, "no archive at all" * 1000)
    options = archive.jvm_options()
    assert options
    plain = subprocess.run([runtime, "-version"], capture_output=True, text=True, check=True)
    with_it = subprocess.run([runtime, *options.split(), "-version"], capture_output=True, text=True, check=True)
    assert with_it.stdout == "" and with_it.stderr.splitlines()[:2] == plain.stderr.splitlines()[:2]


def test_wrapped_java_is_read_from_wrapper(tmp_path: Path) -> None:
    runtime = tmp_path / "it's a jdk" / "bin" / "java"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    assert runtimes.wrapped_java(runtimes.wrapper_java_home(runtime, tmp_path / "ours")) == runtime
    assert runtimes.wrapped_java(tmp_path / "it's a jdk") is None
