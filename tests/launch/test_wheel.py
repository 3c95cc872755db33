"""The wheel in an environment outside the source tree: the command `purgatory-replay`, here without Spark."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from purgatory_udf.launch import package_archive, submission
from purgatory_udf.launch.command_line import parse
from purgatory_udf.rules.engine.jit import code_cache

ROOT = Path(__file__).resolve().parents[2]
FOLDERS, FILES = ("purgatory_udf", "jobs", "conf"), ("pyproject.toml", "setup.py", "README.md", "LICENSE")
SPARK = {"pyspark", "py4j", "delta", "delta_spark"}


def _build(folder: Path) -> Path:
    """Build the wheel from a copy of the tree's sources, as `pip install .` does."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", folder, folder], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install(wheel: Path, folder: Path) -> Path:
    """Install the wheel next to the packages of this environment, except Spark's; return its site-packages."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if package.name.split("-")[0] not in SPARK and not package.name.startswith(("purgatory", "__")):
            (site / package.name).symlink_to(package)
    pip = [sys.executable, "-m", "pip", f"--python={folder / 'bin' / 'python'}", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--disable-pip-version-check", wheel], check=True)
    return site


@pytest.mark.nightly
@pytest.mark.long
def test_wheel_runs_demo_replay_and_report(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    site = _install(_build(tmp_path / "sources"), tmp_path / "environment")
    added = {entry.name for entry in site.iterdir() if not entry.is_symlink()}
    assert added == {"purgatory_udf", "purgatory_replay-0.2.0.dist-info"}
    assert (site / "purgatory_udf" / "py.typed").is_file()

    folder = tmp_path / "a folder"
    folder.mkdir()
    assert code_cache.FOLDER is not None
    # The compiled engine of the tree is used, because compilation takes a minute.
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(code_cache.FOLDER.parent)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(tmp_path / "environment" / "bin" / "purgatory-replay"), *words]
        return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)

    demo = run()
    shown = re.sub(r"run-[0-9a-f]{12}", "R", re.sub(r" in [\d.]+ s\b", " in S s", demo.stdout))
    golden = (Path(__file__).parent / "demo.golden.txt").read_text(encoding="utf-8")
    assert (demo.returncode, shown.replace(str(folder), "FOLDER")) == (0, golden), demo.stderr

    sample = site / "purgatory_udf" / "conf" / "sample" / "trace.jsonl"
    replayed = run("replay", "--trace", str(sample), "--out", "out", "--config", str(sample.parents[1] / "local.yaml"))
    assert (replayed.returncode, "1,588 operations in 1,744 events" in replayed.stdout) == (0, True), replayed.stderr
    reported = run("report", "--out", "out")
    assert (reported.returncode, reported.stdout) == (0, "Report: out/report.html\n"), reported.stderr
    assert "vega" in (folder / "out" / "report.html").read_text(encoding="utf-8")

    simulated = run("simulate", "--scenario", "steady", "--duration", "5", "--out", "sim", "--check")
    assert (simulated.returncode, "the replay agrees on all" in simulated.stdout) == (0, True), simulated.stderr
    generated = run("simulate", "--open-loop", "--out", "generated")
    assert (generated.returncode, generated.stdout, generated.stderr) == (
        *(2, ""),
        "purgatory-replay: simulate needs Spark, which is not installed: add the extra spark "
        "(pip install 'purgatory-replay[spark]'), or set SPARK_HOME\n",
    )


def test_modules_are_imported_without_spark() -> None:
    """The extra `spark` is optional, so each module imports Spark only in functions."""
    files = [file for name in ("purgatory_udf", "jobs") for file in (ROOT / name).rglob("*.py")]
    assert len(files) > 200
    assert [(file.name, name) for file in files for name in _imported(file) if name.split(".")[0] in SPARK] == []


def _imported(file: Path) -> list[str]:
    """Return the modules that a file imports when it is imported."""
    statements = ast.parse(file.read_text(encoding="utf-8")).body
    plain = [alias.name for each in statements if isinstance(each, ast.Import) for alias in each.names]
    return [*plain, *(each.module or "" for each in statements if isinstance(each, ast.ImportFrom))]


def test_jobs_of_wheel_run_in_spark(tmp_path: Path) -> None:
    """The package has the jobs and the settings; its folder is the one that Python imports from."""
    site = tmp_path / "site"
    for name in ("purgatory_udf/__init__.py", "purgatory_udf/jobs/__init__.py", "purgatory_udf/jobs/audit.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).touch()
    root = site / "purgatory_udf"
    (root / "conf").mkdir()
    (root / "conf" / "spark-local.conf").write_text("spark.a b\n", encoding="utf-8")
    spark = tmp_path / "spark"
    for name in ("bin/spark-submit", "jars/spark-core_2.13-4.2.0.jar", "jars/delta-spark_4.2_2.13-4.4.0.jar"):
        (spark / name).parent.mkdir(parents=True, exist_ok=True)
        (spark / name).touch()
    environ = {"SPARK_HOME": str(spark)}
    call = submission.prepare(root, parse(["audit"]), root / "jobs" / "audit.py", environ)
    assert call.command[3:] == ("--conf", "spark.a=b", f"{root}/jobs/audit.py")
    assert (call.environ["PURGATORY_HOME"], call.environ["PYTHONPATH"]) == (str(root), str(site))
    assert list(package_archive.bundle_sources(root)) == [
        *("purgatory_udf/__init__.py", "purgatory_udf/jobs/__init__.py", "purgatory_udf/jobs/audit.py")
    ]
