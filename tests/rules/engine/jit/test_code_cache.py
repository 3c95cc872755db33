"""The folder of compiled code: named after all sources, next to them or in the first writable place."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import purgatory_udf
from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache
from purgatory_udf.rules.engine.jit.records import Records

_SOURCES = Path(purgatory_udf.__file__).parent
_PRINT_CACHE_FOLDER = """
from purgatory_udf.rules.engine.jit import code_cache
print(code_cache.FOLDER)
"""


def _archive(folder: Path, changed: str = "") -> Path:
    """The package as `--py-files` ships it to a worker; `changed` is appended to a helper's source."""
    archive = folder / "purgatory.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in sorted(_SOURCES.rglob("*.py")):
            text = file.read_text() + (changed if file.name == "waiter_queues.py" else "")
            packed.writestr(str(file.relative_to(_SOURCES.parent)), text)
    return archive


def _cache_folder(package: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PRINT_CACHE_FOLDER],
        env={"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin", **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_archived_package_caches_in_home(tmp_path: Path) -> None:
    first = _cache_folder(_archive(tmp_path), HOME=str(tmp_path))
    assert Path(first).parent == tmp_path / ".cache/purgatory-replay"
    assert Path(first).name == f"loop-{code_cache.fingerprint()}"
    second = _cache_folder(_archive(tmp_path, changed="# A change of a helper.\n"), HOME=str(tmp_path))
    assert Path(second).parent == Path(first).parent
    assert second != first


@pytest.mark.parametrize(("temporary", "kept"), [("tmp", True), ("/proc/none", False)])
def test_temporary_folder_is_the_last_resort(tmp_path: Path, temporary: str, kept: bool) -> None:
    (tmp_path / "tmp").mkdir()
    places = {"TMPDIR": str(tmp_path / temporary), "HOME": "/proc/none", "TEMP": "/proc/none", "TMP": "/proc/none"}
    folder = _cache_folder(_archive(tmp_path), **places)
    assert folder.startswith(f"{tmp_path}/tmp/purgatory-replay-") if kept else not folder.startswith(str(tmp_path))


def test_configured_folder_comes_first(tmp_path: Path) -> None:
    assert (
        _cache_folder(_SOURCES.parent, NUMBA_CACHE_DIR=str(tmp_path)) == f"{tmp_path}/loop-{code_cache.fingerprint()}"
    )


def test_world_writable_folder_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    place = tmp_path / f"purgatory-replay-{os.getuid()}"
    (place / "loop").mkdir(parents=True)
    (place / "loop" / "complete").touch()
    assert code_cache._first_usable([place], "loop") == place / "loop"
    place.chmod(0o777)
    assert code_cache._first_usable([place], "loop") is None


_READ_ONLY_SCRIPT = """
import os
import sys

import numpy as np

from purgatory_udf.rules import warm_up
from purgatory_udf.rules.engine.jit import code_cache

assert not os.access(code_cache.FOLDER, os.W_OK), code_cache.FOLDER
warm_up.main()
print("numba" in sys.modules)

@code_cache.entry_point
def not_in_the_cache(numbers: np.ndarray, number: int) -> tuple[int, int]:
    numbers[1] = number
    return len(numbers), numbers[0] + 1

numbers = np.array([7, 8])
print(not_in_the_cache(numbers, -3), numbers, "numba" in sys.modules)
"""


def _obey_file_modes() -> None:
    """Also as root: drop `CAP_DAC_OVERRIDE` (`PR_CAPBSET_DROP`) from the programs that this process executes."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


def test_read_only_cache_is_complete() -> None:
    """Every entry point of the sources is loaded from a cache that cannot be written, without numba."""
    warm_up.main()
    entries = [
        f"{file.stem}.{function}"
        for file in sorted(_SOURCES.joinpath("rules").rglob("*.py"))
        for function in re.findall(r"^@entry_point\ndef (\w+)", file.read_text(), re.M)
    ]
    assert "event_loop.run" in entries
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / Path(str(code_cache.FOLDER)).name
        shutil.copytree(str(code_cache.FOLDER), kept)
        script = Path(folder) / "script.py"
        script.write_text(_READ_ONLY_SCRIPT)
        names = sorted(file.name for file in kept.iterdir())
        assert sorted({name.partition("-")[0] for name in names}) == sorted(
            [*entries, "complete", "ordered_maps.list_values"]
        )
        for file in (*kept.iterdir(), script):
            file.chmod(0o444)
        for place in (kept, Path(folder)):
            place.chmod(0o555)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-B", str(script)],
                env={"PYTHONPATH": str(_SOURCES.parent), "PATH": "/usr/bin:/bin", "NUMBA_CACHE_DIR": folder},
                cwd="/",
                capture_output=True,
                text=True,
                check=False,
                preexec_fn=_obey_file_modes,
            )
        finally:
            for place in (Path(folder), kept):
                place.chmod(0o755)
        assert done.stdout.splitlines() == ["False", "(2, 8) [ 7 -3] True"], done.stderr
        assert sorted(file.name for file in kept.iterdir()) == names


@code_cache.entry_point
def _first_of(rows: Records, place: int) -> int:
    return int(rows[place])


@pytest.mark.parametrize(
    ("rows", "place", "reason"),
    [
        (np.arange(6)[::2], 0, "_first_of: arguments that are not contiguous"),
        (np.arange(6).reshape(2, 3), 0, "_first_of: arguments that are not contiguous"),
        (np.arange(6), "0", "argument 3: TypeError: wrong type"),
    ],
)
def test_other_arguments_are_refused(rows: Records, place: Any, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_cache, "FOLDER", None)
    assert _first_of(np.arange(6), 5) == 5
    with pytest.raises((TypeError, ctypes.ArgumentError), match=reason):
        _first_of(rows, place)


@pytest.mark.nightly
@pytest.mark.long
def test_warm_up_compiles_what_is_missing(tmp_path: Path) -> None:
    warm_up.main()
    kept = tmp_path / Path(str(code_cache.FOLDER)).name
    shutil.copytree(str(code_cache.FOLDER), kept)
    names = {file.name for file in kept.iterdir()}
    missing = {
        name for name in names if name.startswith(("state_layout.rebuild_links", "outcome_tables.flatten-", "complete"))
    }
    assert len(missing) == 3
    for name in missing:
        (kept / name).unlink()

    def compile_(*words: str) -> set[str]:
        command = [sys.executable, "-P", "-m", "purgatory_udf.rules.warm_up", *words]
        subprocess.run(command, env=os.environ | given, cwd="/", capture_output=True, check=True)
        return {file.name for file in kept.iterdir()}

    given = {"PYTHONPATH": str(_SOURCES.parent), "NUMBA_CACHE_DIR": str(tmp_path)}
    # The second process of a warm-up compiles the event loop only, and does not mark the cache as complete.
    assert names - compile_("rules") == {name for name in missing if not name.startswith("state_layout.rebuild_links")}
    assert compile_() == names
