"""Where the compiled loop is kept: by all of its sources, beside them or wherever something can be written."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import purgatory_udf
from purgatory_udf.loop import compiled

_SOURCES = Path(purgatory_udf.__file__).parent
_WHERE = """
from purgatory_udf.loop import compiled, run
kept = getattr(run.run, "_cache", None)
print(getattr(getattr(kept, "_impl", None), "locator", None) and kept._impl.locator.get_cache_path())
"""


def _archive(folder: Path, changed: str = "") -> Path:
    """The package as `--py-files` brings it to a worker; `changed` is added to a helper's source."""
    archive = folder / "purgatory.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(_SOURCES.rglob("*.py")):
            text = file.read_text() + (changed if file.name == "heap.py" else "")
            packed.writestr(str(file.relative_to(_SOURCES.parent)), text)
    return archive


def _kept_in(package: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _WHERE],
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_from_an_archive_it_is_kept_in_the_users_cache_by_all_of_its_sources(tmp_path: Path) -> None:
    first = _kept_in(_archive(tmp_path), HOME=str(tmp_path))
    assert Path(first).parent == tmp_path / ".cache/purgatory-replay"
    assert Path(first).name == f"loop-{compiled.fingerprint()}"
    second = _kept_in(_archive(tmp_path, changed="# A helper is not what it was.\n"), HOME=str(tmp_path))
    assert Path(second).parent == Path(first).parent
    assert second != first


@pytest.mark.parametrize(("temporary", "kept"), [("tmp", True), ("/proc/none", False)])
def test_where_the_home_cannot_be_written_it_is_kept_with_temporary_files_or_not_at_all(
    tmp_path: Path, temporary: str, kept: bool
) -> None:
    (tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(tmp_path / temporary), "HOME": "/proc/none", "TEMP": "/proc/none", "TMP": "/proc/none"}
    folder = _kept_in(_archive(tmp_path), **places)
    assert folder.startswith(f"{tmp_path}/tmp/purgatory-replay-") if kept else not folder.startswith(str(tmp_path))


def test_a_folder_that_the_user_names_comes_first(tmp_path: Path) -> None:
    assert _kept_in(_SOURCES.parent, NUMBA_CACHE_DIR=str(tmp_path)) == f"{tmp_path}/loop-{compiled.fingerprint()}"
