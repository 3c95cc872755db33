"""The spark-submit call: its arguments, its environment, and the standard streams of its job."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from purgatory_udf.common.errors import UserError
from purgatory_udf.launch import jars as jars_module
from purgatory_udf.launch import package_archive, runtimes, submission
from purgatory_udf.launch.backend_choice import BRIEF
from purgatory_udf.launch.command_line import parse
from purgatory_udf.rules.engine.jit.code_cache import fingerprint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small source tree: two packages and the settings for one machine."""
    root = tmp_path / "a tree"
    for name in package_archive.PACKAGES:
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text(f'"""{name}."""\nplace = __file__\n')
    (root / "conf").mkdir()
    (root / "conf" / "spark-local.conf").write_text("spark.driver.memory 2g\nspark.sql.shuffle.partitions 4\n")
    (root / "conf" / "spark-local-brief.conf").write_text("spark.sql.shuffle.partitions 2\nspark.x a b\n")
    return root


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Spark 4.2.0 with Delta among its jars."""
    home = tmp_path / "spark"
    for file in ("bin/spark-submit", "jars/spark-core_2.13-4.2.0.jar", "jars/delta-spark_4.2_2.13-4.4.0.jar"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).touch()
    return home


def _prepare(root: Path, home: Path, *words: str, **environ: str) -> submission.Submission:
    return submission.prepare(root, parse(words), root / "jobs" / "replay.py", {"SPARK_HOME": str(home), **environ})


def test_local_job_gets_our_settings_and_python(root: Path, home: Path) -> None:
    call = _prepare(root, home, "replay", "--out", "a b")
    assert call.command == (
        *(f"{home}/bin/spark-submit", "--master", "local[*]"),
        *("--conf", "spark.driver.memory=2g", "--conf", "spark.sql.shuffle.partitions=4"),
        *(f"{root}/jobs/replay.py", "--out", "a b"),
    )
    assert call.environ == {
        "SPARK_HOME": str(home),
        "PURGATORY_HOME": str(root),
        "PYTHONPATH": str(root),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "MALLOC_ARENA_MAX": "2",
        "SPARK_SUBMIT_OPTS": f"-Dlog4j2.configurationFile=file:{root}/conf/log4j2.properties".replace(" ", "%20"),
    }


@pytest.mark.parametrize(
    ("variable", "options", "expected"),
    [
        ("JAVA_TOOL_OPTIONS", "-Xlog:gc", "-Xss4m -XX:+UseParallelGC -Da=b"),
        ("JAVA_TOOL_OPTIONS", "-Xlog:gc -XX:+UseZGC", "-Xss4m -Da=b"),
        ("JDK_JAVA_OPTIONS", "-XX:+UseG1GC", "-Xss4m -Da=b"),
        ("SPARK_SUBMIT_OPTS", "-XX:+UseG1GC", "-Xss4m -Da=b"),
    ],
)
def test_collector_of_environment_replaces_ours(
    root: Path, home: Path, variable: str, options: str, expected: str
) -> None:
    settings = "spark.driver.extraJavaOptions -Xss4m -XX:+UseParallelGC -Da=b\n"
    (root / "conf" / "spark-local.conf").write_text(settings)
    call = _prepare(root, home, "replay", **{variable: options})
    assert call.command[3:5] == ("--conf", f"spark.driver.extraJavaOptions={expected}")


def test_job_may_start_jvm_with_bundled_spark(root: Path, home: Path) -> None:
    ours = runtimes.find_spark({})
    call = _prepare(root, ours, "replay", "--out", "a b")
    assert call.separate_jvm
    assert call.jvm_command == (*call.spark_command, "--name", "replay.py", "pyspark-shell")
    assert not _prepare(root, home, "replay").separate_jvm
    assert _prepare(root, ours, "--driver-memory", "9g", "--master", "local[2]", "replay").separate_jvm
    assert not _prepare(root, ours, "--conf", "spark.driver.memory=9g", "replay").separate_jvm
    assert not _prepare(root, ours, "replay", "--verbose").separate_jvm
    assert not _prepare(root, ours, "replay", MASTER="spark://there:7077").separate_jvm
    assert not _prepare(root, ours, "replay", MASTER="local-cluster[2,1,1024]").separate_jvm


def test_user_options_take_precedence(root: Path, home: Path) -> None:
    words = ["--driver-memory", "9g", "--conf", "spark.sql.shuffle.partitions=7", "--py-files", "mine.zip", "replay"]
    call = _prepare(root, home, *words, PYSPARK_PYTHON="theirs", SPARK_SUBMIT_OPTS="-Dx=y", MALLOC_ARENA_MAX="4")
    assert call.command[3:-1] == (
        *("--driver-memory", "9g", "--conf", "spark.sql.shuffle.partitions=7"),
        *("--py-files", "mine.zip"),
    )
    assert (call.environ["PYSPARK_PYTHON"], call.environ["MALLOC_ARENA_MAX"]) == ("theirs", "4")
    assert call.environ["SPARK_SUBMIT_OPTS"].startswith("-Dx=y -Dlog4j2")


def test_small_job_gets_its_settings(root: Path, home: Path) -> None:
    environ = {"SPARK_HOME": str(home)}
    call = submission.prepare(root, parse(["--driver-memory", "1g"]), root / "jobs" / "demo.py", environ, BRIEF)
    assert call.command[3:9] == (
        *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.x=a b"),
        *("--driver-memory", "1g"),
    )


def test_cluster_gets_no_local_settings(root: Path, home: Path) -> None:
    client = _prepare(root, home, "--master", "yarn", "--py-files", "mine.zip", "replay")
    assert client.command[1:3] == ("--master", "yarn")
    (shipped,) = (root / ".venv" / "bundles").iterdir()
    assert client.command[3:5] == ("--py-files", f"mine.zip,{shipped}")
    assert "--conf" not in client.command and "MALLOC_ARENA_MAX" not in client.environ
    assert client.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in client.environ
    cluster = _prepare(root, home, "--master", "yarn", "--deploy-mode", "cluster", "replay")
    assert "PYSPARK_DRIVER_PYTHON" not in cluster.environ


def _archive(root: Path, file: Path) -> Path:
    """Create an archive with the manifest that `package` would write for the tree, and nothing else."""
    manifest = file.parent / package_archive.MANIFEST
    manifest.write_text(json.dumps({"sources": package_archive.bundle_digest(package_archive.bundle_sources(root))}))
    with tarfile.open(file, "w:gz") as packed:
        packed.add(manifest, manifest.name)
    return file


def test_workers_use_packed_environment(root: Path, home: Path, tmp_path: Path) -> None:
    archive = _archive(root, tmp_path / "env.tar.gz")
    client = _prepare(root, home, "--master", "yarn", "--archives", str(archive), "replay", PYTHONPATH="theirs")
    assert client.environ["PYSPARK_PYTHON"] == "./env.tar.gz/bin/python"
    assert client.environ["PYTHONPATH"] == f"{root}:theirs"
    assert "--py-files" not in client.command

    named = _prepare(root, home, "--master", "yarn", "--archives", f"x.zip,{archive}#env", "--deploy-mode", "cluster")
    assert named.command[named.command.index("--conf") + 1] == "spark.pyspark.python=./env/bin/python"
    assert {"PYSPARK_PYTHON", "PYTHONPATH"}.isdisjoint(named.environ)

    given = _prepare(root, home, "--master", "yarn", "--archives", str(archive), "replay", PYSPARK_PYTHON="theirs")
    assert given.environ["PYSPARK_PYTHON"] == "theirs"

    foreign = _prepare(root, home, "--master", "yarn", "--archives", "hdfs:///env.tar.gz#env", "replay")
    assert "PYSPARK_PYTHON" not in foreign.environ and "--py-files" in foreign.command

    (root / "jobs" / "__init__.py").write_text("changed = True\n")
    sentence = rf"^{archive}: was created from other sources; create it again with \./spark-submit\.sh package$"
    with pytest.raises(UserError, match=sentence):
        _prepare(root, home, "--master", "yarn", "--archives", str(archive), "replay")


def test_standalone_cluster_mode_is_refused(root: Path, home: Path) -> None:
    with pytest.raises(UserError, match=r"^--deploy-mode cluster: a standalone master cannot run a Python driver"):
        _prepare(root, home, "--master", "spark://there:7077", "--deploy-mode", "cluster", "replay")


@pytest.mark.nightly
@pytest.mark.long
def test_packed_python_runs_anywhere(tmp_path: Path) -> None:
    """The folder was moved, and there are no environment variables, as on a worker."""
    root, packed, moved = Path(__file__).resolve().parents[2], tmp_path / "packed", tmp_path / "a worker" / "moved"
    package_archive.copy_environment(root, packed)
    before = _compiled(root)
    assert before, "the tree's set-up has compiled the engine"
    assert package_archive.compile_engine(root, packed)
    moved.parent.mkdir()
    packed.rename(moved)
    python = moved / package_archive.PYTHON
    program = "import pyarrow, purgatory_udf, sys;print(purgatory_udf.__file__, 'pyspark' in sys.modules)"
    bare = {"PATH": f"{Path(sys.base_prefix, 'bin')}:/usr/bin:/bin"}
    done = subprocess.run([python, "-c", program], env=bare, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"{moved}/lib/purgatory_udf/__init__.py False\n"

    # The tree's compiled code was copied.
    assert _compiled(moved / "lib").items() >= before.items()

    nowhere = tmp_path / "tools"
    nowhere.mkdir()
    for tool in ("sh", "dirname", "readlink", "hostname"):
        (nowhere / tool).symlink_to(shutil.which(tool) or tool)
    none = subprocess.run(
        [python, "-c", program], env={"PATH": str(nowhere)}, capture_output=True, text=True, check=False
    )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert none.returncode == 1
    assert (
        f": this archive needs Python {version}, which was not found: install it, or set PURGATORY_PYTHON"
        in none.stderr
    )


def _compiled(root: Path) -> dict[str, int]:
    """Return the compilation time of each part of this version's engine."""
    (folder,) = (root / "purgatory_udf" / "rules" / "engine" / "jit" / "__pycache__").glob(f"*-{fingerprint()}")
    return {file.name: file.stat().st_mtime_ns // 1000 for file in folder.glob("*.o")}


def test_master_of_spark_defaults_is_kept(root: Path, home: Path) -> None:
    (home / "conf").mkdir()
    (home / "conf" / "spark-defaults.conf").write_text("spark.master spark://there:7077\n")
    assert _prepare(root, home, "replay").command[1:3] == ("--master", "spark://there:7077")


def test_verbose_keeps_spark_logging(root: Path, home: Path) -> None:
    call = _prepare(root, home, "replay", "--verbose")
    assert call.environ["PURGATORY_VERBOSE"] == "1"
    assert "SPARK_SUBMIT_OPTS" not in call.environ


def test_delta_jars_are_added_to_user_jars(
    root: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").unlink()
    ivy = tmp_path / "ivy"
    (ivy / "jars").mkdir(parents=True)
    assert jars_module.cached_delta_jars("4.2.0", ivy) is None
    names = [f"io.delta_delta-spark_4.2_2.13-{jars_module.DELTA_VERSION}.jar", *jars_module.DELTA_DEPENDENCIES]
    for name in names:
        with zipfile.ZipFile(ivy / "jars" / name, "w") as jar:
            jar.writestr("a", "b")
        digest = hashlib.sha256((ivy / "jars" / name).read_bytes()).hexdigest()
        monkeypatch.setitem(jars_module.KNOWN_CHECKSUMS, name, digest)
    jars = [str(ivy / "jars" / name) for name in names]
    words = ["--conf", f"spark.jars.ivy={ivy}", "--jars", "mine.jar", "--driver-class-path", "theirs", "replay"]
    for master in ("yarn", "local-cluster[1,1,1024]"):
        call = _prepare(root, home, "--master", master, *words)
        assert call.command[call.command.index("--jars") + 1] == ",".join(["mine.jar", *jars])
        assert call.command[call.command.index("--driver-class-path") + 1] == "theirs"
    # In one process no jar has to be sent.
    call = _prepare(root, home, *words)
    assert call.command[call.command.index("--jars") + 1] == "mine.jar"
    assert call.command[call.command.index("--driver-class-path") + 1] == ":".join(["theirs", *jars])
    (ivy / "jars" / names[0]).write_bytes(b"PK cut short")
    assert jars_module.cached_delta_jars("4.2.0", ivy) is None


def test_class_archive_needs_one_process_and_our_jars(
    root: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "jdk" / "bin" / "java"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    (tmp_path / "jdk" / "lib" / "server").mkdir(parents=True)
    (tmp_path / "jdk" / "lib" / "server" / "classes.jsa").touch()
    java_home = str(runtimes.wrapper_java_home(runtime, tmp_path / "java"))
    (home / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").unlink()
    (tmp_path / "delta.jar").touch()
    monkeypatch.setattr(jars_module, "cached_delta_jars", lambda *_: [tmp_path / "delta.jar"])
    call = _prepare(root, home, "replay", JAVA_HOME=java_home)
    assert call.class_archive and call.class_archive.folder == root / ".venv" / "classes"
    assert "Archive" not in call.environ["SPARK_SUBMIT_OPTS"]

    demo = submission.prepare(root, parse(["demo"]), root, {"SPARK_HOME": str(home)}, creating=call.class_archive)
    assert demo.environ["SPARK_SUBMIT_OPTS"].endswith(f" -XX:ArchiveClassesAtExit={call.class_archive.draft}/archive")

    for words in (["--master", "yarn"], ["--driver-class-path", "x"], ["--master", "local-cluster[1,1,1024]"]):
        assert _prepare(root, home, *words, "replay", JAVA_HOME=java_home).class_archive is None


def test_jar_with_other_content_is_rejected(tmp_path: Path) -> None:
    ivy = tmp_path / "ivy"
    (ivy / "jars").mkdir(parents=True)
    jars = [
        *jars_module.delta_jar_paths(runtimes.TESTED_SPARK, ivy),
        *jars_module.kafka_jar_paths(runtimes.TESTED_SPARK, ivy),
    ]
    assert {jar.name for jar in jars} == set(jars_module.KNOWN_CHECKSUMS)
    for jar in jars:
        with zipfile.ZipFile(jar, "w") as archive:
            archive.writestr("org/apache/spark/Evil.class", "whole, but not theirs")
    assert jars_module.cached_delta_jars(runtimes.TESTED_SPARK, ivy) is None
    assert jars_module.cached_kafka_jars(runtimes.TESTED_SPARK, ivy) is None
    sentence = (
        r"^Delta: .*jar is not the expected file \(its SHA-256 is [0-9a-f]{64}, not [0-9a-f]{64}\)\. "
        r"Delete .*ivy and try again; "
    )
    with pytest.raises(UserError, match=sentence):
        jars_module.require_verified("Delta", jars, ivy)


def test_other_spark_versions_are_reported(root: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "jars" / "spark-core_2.13-4.2.0.jar").rename(home / "jars" / "spark-core_2.13-4.1.1.jar")
    _prepare(root, home, "replay")
    assert capsys.readouterr().err == (f"spark-submit.sh: warning: {home} is Spark 4.1.1; only Spark 4.2 is tested\n")
    with pytest.raises(UserError, match=r"SPARK_HOME=.*: bin/spark-submit is missing there"):
        runtimes.find_spark({"SPARK_HOME": str(root)})


def test_bundle_is_reproducible(root: Path, tmp_path: Path) -> None:
    """Only changed sources give another bundle."""
    first = package_archive.build_bundle(root, tmp_path / "one")
    again = package_archive.build_bundle(root, tmp_path / "two")
    assert first.name == again.name
    assert first.read_bytes() == again.read_bytes()
    assert zipfile.ZipFile(first).namelist() == [
        *("purgatory_udf/__init__.py", "purgatory_udf/__init__.pyc"),
        *("jobs/__init__.py", "jobs/__init__.pyc"),
    ]
    (root / "jobs" / "__init__.py").write_text("changed = True\n")
    assert package_archive.build_bundle(root, tmp_path / "one").name != first.name


ROOT = Path(__file__).resolve().parents[2]

# Like spark-submit: runs a Python process with both streams in one pipe, and copies that to stdout.
JVM = """
import os, subprocess, sys
from purgatory_udf.launch import submission
if sys.argv[1] == "offers":
    submission.offer_streams(os.environ)
print("the JVM starts", file=sys.stderr, flush=True)
job = '''
import sys
from purgatory_udf.launch import submission
submission.take_streams()
print("a result")
print("an error", file=sys.stderr)
'''
below = subprocess.run([sys.executable, "-c", job], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
sys.stdout.buffer.write(below.stdout)
sys.stdout.flush()
print("the JVM exits", file=sys.stderr)
"""


def _run_jvm(folder: Path, how: str) -> tuple[str, str]:
    out, err = folder / "out", folder / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", JVM, how], env=environ, stdout=stdout, stderr=stderr, check=True)
    return out.read_text(), err.read_text()


def test_offered_streams_are_separate(tmp_path: Path) -> None:
    assert _run_jvm(tmp_path, "offers") == ("a result\n", "the JVM starts\nan error\nthe JVM exits\n")


def test_without_offer_streams_are_joined(tmp_path: Path) -> None:
    out, err = _run_jvm(tmp_path, "does not")
    assert sorted(out.splitlines()) == ["a result", "an error"]
    assert err == "the JVM starts\nthe JVM exits\n"


def test_offer_of_another_process_is_ignored() -> None:
    before = os.fstat(1)
    submission.take_streams({submission.OFFER_VARIABLE: str(os.getpid())})
    assert os.path.samestat(os.fstat(1), before)
